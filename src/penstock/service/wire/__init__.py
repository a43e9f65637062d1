"""What processes of a service say to each other: messages, spans, blocks, definitions and failures, and their bytes."""
