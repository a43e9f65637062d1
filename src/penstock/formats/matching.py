"""Patterns of names of files, and the files that match them."""

import errno
import fnmatch
import os
import re
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from penstock.errors import InvalidArgumentError, InvalidTypeError, StorageError
from penstock.formats.remote.remote_files import matching_remote
from penstock.formats.remote.shared_listings import shared
from penstock.paths import has_protocol, local_path
from penstock.statistics import process

_EFFECTIVE = os.access in os.supports_effective_ids
_BRACES: Final = re.compile(r"\{((\d+)\.\.(\d+)|[^{}]*,[^{}]*)\}")


def is_pattern(name: str) -> bool:
    """True if files are listed to find those that a name means: it has signs of a pattern, or is one of a hub.

    In the address of a web page a question mark is none. On a hub a name means the file in the newest commit.
    """
    if name.startswith("hf://"):
        return True
    if name.startswith(("http://", "https://")):
        return "*" in name.partition("?")[0]
    return any(sign in name for sign in "*?[")


def expanded(name: str) -> list[str]:
    """The names that one with braces stands for, in order: of "{a,b}" a and b, of "{000..127}" numbers, as in a shell.

    Example:
        >>> expanded("{train,test}-{08..10}.tar")[1:4]
        ['train-09.tar', 'train-10.tar', 'test-08.tar']
    """
    found = None if not has_protocol(name) and os.path.exists(local_path(name)) else _BRACES.search(name)
    if found is None:
        return [name]
    parts = found[1].split(",")
    if found[2]:
        width = len(found[2]) if found[2].startswith("0") else 0
        parts = [f"{number:0{width}}" for number in range(int(found[2]), int(found[3]) + 1)]
    return [one for part in parts for one in expanded(name[: found.start()] + part + name[found.end() :])]


def matching_files(call: str, pattern: Any) -> list[str]:
    """The names of the files, not directories, that match a pattern or one of several: sorted, each once.

    A name that begins with a dot is hidden from `*`, as in a shell. For `**` each directory is gone into once, however
    many links lead to it.

    Raises:
        InvalidArgumentError: no file matches a pattern, or there is no pattern.
        InvalidTypeError: something else than patterns.
        StorageError: a directory cannot be listed, so that its files would be missing without notice.
    """
    given = [pattern] if isinstance(pattern, (str, os.PathLike)) else pattern
    several = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(one, (str, os.PathLike)) for one in several):
        raise InvalidTypeError(f"{call} takes a pattern as a string or a path, or a list of them, got {pattern!r}")
    if not several:
        raise InvalidArgumentError(f"{call} takes at least one pattern, got none")
    patterns = [one for given in several for one in expanded(os.fspath(given))]
    with process.start(process.FILES):
        return sorted({name for one in patterns for name in _matching(call, one)})


def _matching(call: str, pattern: str) -> list[str]:
    refused: list[OSError] = []
    if has_protocol(pattern):
        names = shared(pattern, lambda: matching_remote(pattern))
        if not any(part.startswith(".") for part in pattern.split("/")):
            names = [name for name in names if not is_hidden(name)]
    else:
        names = _local_matching(local_path(pattern), refused)
    if names and refused:
        raise not_listed(call, refused[0]) from refused[0]
    if not names:
        why = "" if has_protocol(pattern) else _why_nothing(local_path(pattern))
        raise InvalidArgumentError(f"{call}: no file matches {pattern!r}{why}")
    return names


def is_hidden(name: str) -> bool:
    """True if a file, or a directory on the way to it, begins with a dot, as `.DS_Store` and `._a.jpg`."""
    return any(part.startswith(".") and part.strip(".") for part in name.split("/"))


def _local_matching(pattern: str, refused: list[OSError]) -> list[str]:
    """The files that match a pattern; errors of directories that cannot be listed are added to `refused`."""
    *parts, last = pattern.split(os.sep)
    folders = [os.sep if parts[:1] == [""] else ""]
    if last == "**":
        parts, last = [*parts, "**"], "*"
    for part in filter(None, parts):
        if part == "**":
            folders = _all_below(folders, refused)
        elif is_pattern(part):
            folders = [f"{folder}{one.name}{os.sep}" for folder in folders for one in _listed(folder, part, refused)]
        else:
            folders = [f"{folder}{part}{os.sep}" for folder in folders]
    if not is_pattern(last):
        return [folder + last for folder in folders if os.path.isfile(folder + last)]
    found = [(folder + one.name, one) for folder in folders for one in _listed(folder, last, refused)]
    return [name for name, one in found if (os.path.isfile(name) if one.is_symlink() else one.is_file())]


def _all_below(folders: list[str], refused: list[OSError]) -> list[str]:
    """Directories and all within them, each once; by the name without links, where it has one."""
    found, seen = [], set[tuple[int, int]]()
    waiting, links = deque(folders), deque[str]()
    while waiting or links:
        folder = waiting.popleft() if waiting else links.popleft()
        with suppress(OSError):  # it is gone
            about = os.stat(folder or os.curdir)
            if (about.st_dev, about.st_ino) in seen:
                continue
            seen.add((about.st_dev, about.st_ino))
        found.append(folder)
        for entry in _listed(folder, "*", refused):
            path = f"{folder}{entry.name}{os.sep}"
            if entry.is_symlink():
                links += [path] * os.path.isdir(path)
            elif entry.is_dir():
                waiting.append(path)
    return found


def _listed(folder: str, part: str, refused: list[OSError]) -> "list[os.DirEntry[str]]":
    """The entries of a directory that match a part of a pattern, by name."""
    try:
        with os.scandir(folder or os.curdir) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # there is no such directory
            refused.append(error)
        return []
    shown = part.startswith(".")
    return [one for one in found if fnmatch.fnmatchcase(one.name, part) and (shown or not one.name.startswith("."))]


def not_listed(call: str, error: OSError) -> StorageError:
    """The error of a directory that the system does not list."""
    return StorageError(f"{call}: {error.filename!r} cannot be listed: {error.strerror or error}")


def _why_nothing(pattern: str) -> str:
    """The reason why a pattern of local files has found none."""
    if os.path.isdir(pattern):
        return f": it is a directory; {os.path.join(pattern, '*')!r} matches its files"
    folder = pattern if not is_pattern(pattern) else pattern[: min(map(pattern.find, filter(pattern.count, "*?[")))]
    for part in (os.path.dirname(folder), *map(str, Path(os.path.dirname(folder)).parents)):
        if os.path.isdir(part) and not os.access(part, os.R_OK | os.X_OK, effective_ids=_EFFECTIVE):
            return f": the permission to list {part!r} is missing"
    return f" (the current directory is {os.getcwd()!r})"
