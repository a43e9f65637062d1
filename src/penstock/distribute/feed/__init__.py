"""From a dataset to steps: who reads what, agreed on by all workers, made ahead of the demand."""
