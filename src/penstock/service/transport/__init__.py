"""How blocks get from workers to consumers: by reference, through shared memory, or over the network."""
