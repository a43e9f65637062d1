"""A limit of the memory of another process, which then really runs out."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def memory_left(process: int, megabytes: int) -> Iterator[None]:
    """Let a process map only so much more than it has now. Of a child, also one of another process's children."""
    used = int(Path(f"/proc/{process}/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.prlimit(process, resource.RLIMIT_AS, (used + (megabytes << 20), -1))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_AS, before)
