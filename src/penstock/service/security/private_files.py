"""Files that no other user of this machine can read or replace."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.errors import ServiceError
from penstock.paths import link_of_others

_GROUP_AND_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def who_may_write(path: Path) -> str:
    """The other users who may change a file or directory, and the remedy, as text; "" if none can.

    Raises:
        OSError: there is none.
    """
    found = path.stat()
    if found.st_uid not in (os.getuid(), 0):
        return f"user {found.st_uid}, who owns {path}; let this user ({os.getuid()}) make another one"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"all users or a group, who may write {path}: `chmod go-w {path}`"
    return ""


def read_private(path: Path, *, most: int, group: bool = False) -> bytes:
    """The content of a small file, if other users cannot read it.

    Args:
        most: the most bytes that it may have.
        group: whether its group may read it too.

    Raises:
        ServiceError: others can read it, another user owns it or controls its path, or it is too large.
        OSError: it cannot be read.
    """
    if link := link_of_others(path):
        raise ServiceError(f"{path} is not to be trusted: {link}")
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        refused = stat.S_IRWXO if group else _GROUP_AND_OTHERS
        if found.st_uid not in (os.getuid(), 0):
            raise ServiceError(f"{path} belongs to another user: its content is not to be trusted")
        if found.st_mode & refused:
            raise ServiceError(f"{path} can be read by other users: `chmod 600 {path}`, and put a new secret into it")
        content = file.read(most + 1)
    if len(content) > most:
        raise ServiceError(f"{path} has more than {most} bytes: it is no secret of penstock's")
    return content


def create_private(path: Path, content: bytes) -> None:
    """Write a file that only this user can read, atomically; an existing file is left as it is.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    hidden = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    file = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(file, "wb") as writer:
            writer.write(content)
        with suppress(FileExistsError):
            os.link(hidden, path)
    finally:
        hidden.unlink()
