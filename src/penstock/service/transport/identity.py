"""Identifies this machine and this process: endpoints carry it, and readers compare it with their own."""

import functools
import os
import secrets
import socket
import uuid
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def this_machine() -> str:
    """The identity of this machine since its last boot."""
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text().strip()
    return f"{socket.gethostname()}-{uuid.getnode():x}"


def this_process() -> str:
    """The identity of this process; a forked process has another one."""
    return _process_name(os.getpid())


@functools.cache
def _process_name(process: int) -> str:
    return f"{process}-{secrets.token_hex(8)}"
