"""Where this process is: what an endpoint says of a worker, and what a consumer compares with it."""

import functools
import os
import secrets
import socket
import uuid
from pathlib import Path

_SOCKETS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"
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


def users_listening(port: int) -> set[int]:
    """The ids of the users who listen at a TCP port of this machine, on any address; none where it does not tell."""
    users = set()
    for table in _SOCKETS:
        if table.exists():
            for line in table.read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, user, *_ = line.split()
                if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                    users.add(int(user))
    return users
