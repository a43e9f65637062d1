"""Threads, processes, memory and pacing, which know nothing of datasets."""
