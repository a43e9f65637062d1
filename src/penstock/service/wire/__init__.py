"""What the processes of a service send each other: messages, spans, blocks, definitions and failures, as bytes."""
