"""Where this process is: what an endpoint says of a worker, and what a consumer compares with it."""

import functools
import os
import secrets
import socket
import uuid
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def this_machine() -> str:
    """Tells this machine, since it was started, apart from all others."""
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text().strip()
    return f"{socket.gethostname()}-{uuid.getnode():x}"


def this_process() -> str:
    """Tells this process apart from all others, also from those that it was forked from."""
    return _process_name(os.getpid())


@functools.cache
def _process_name(process: int) -> str:
    return f"{process}-{secrets.token_hex(8)}"
