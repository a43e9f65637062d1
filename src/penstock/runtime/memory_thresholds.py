"""Settings of the C library for large blocks of memory that were freed.

glibc returns them to the system, so every page of the next block is mapped and cleared again. gRPC allocates memory for
each message of many megabytes, and a process then spends more time on this than on receiving messages. Of decoding an
image this is a tenth, and of resizing it three quarters.
"""

import ctypes
import os
import platform
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
_KEPT_BYTES = 256 << 20
_LARGEST_BYTES = 32 << 20
"""The most that glibc takes as a threshold of `mmap` in all its versions: half of its HEAP_MAX_SIZE."""


@cache
def keep_freed_memory() -> None:
    """Let this process keep up to 256 MiB of freed memory for later allocations, in pieces of up to 32 MiB.

    It takes effect once; not with another C library, or if the environment already sets these thresholds.
    mallopt(3) describes the two thresholds.
    """
    already_set = any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if platform.libc_ver()[0] != "glibc" or already_set:
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
