"""The messages between the processes of a service: spans, blocks, definitions and failures, as bytes."""
