"""Streams: one pass over the elements of a node, for what cannot be read by index."""
