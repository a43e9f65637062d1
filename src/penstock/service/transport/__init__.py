"""Transport of blocks from workers to consumers: by reference, through shared memory, or over the network."""
