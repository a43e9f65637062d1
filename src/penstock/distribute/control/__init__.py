"""The control channel between workers: typed messages by which they agree on steps and learn of failures."""
