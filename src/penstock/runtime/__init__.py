"""Threads, processes, memory and pacing, which know nothing of datasets."""

from penstock.extras import when_used

__getattr__ = when_used(__name__, "web_server")
