"""The consumer's end of a service: a node whose stream fetches elements from workers."""
