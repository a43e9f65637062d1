"""One family of operators per file: the nodes, and the streams of those that cannot be indexed."""
