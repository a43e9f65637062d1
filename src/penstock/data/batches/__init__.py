"""Batches: rows put together by number, padded to one shape, or as many as fit into a budget."""
