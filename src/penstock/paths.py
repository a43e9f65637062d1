"""Paths as users write them, and links on the way to them that other users could have put there."""

import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from penstock.errors import InvalidArgumentError, StorageError

_MOST_LINKS: Final = 40
"""As many as Linux follows."""


def local_path(path: str | os.PathLike[str]) -> str:
    """A local path, in which "~" and "~user" at the beginning stand for homes, as in a shell.

    Raises:
        InvalidArgumentError: there is no such user.

    Example:
        >>> local_path("data/words.txt")
        'data/words.txt'
    """
    expanded = os.path.expanduser(os.fspath(path))
    if expanded.startswith("~"):
        user = expanded.partition(os.sep)[0]
        raise InvalidArgumentError(
            f"the path {expanded!r} begins with {user!r}, and there is no user of that name: write './{expanded}' for "
            "a file that is called so"
        )
    return expanded


@contextmanager
def appearing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The path of a file to be written, which then appears at `path` as a whole; nothing is left of one that fails."""
    place = Path(path)
    number, work = tempfile.mkstemp(dir=place.parent, prefix=f"{place.name}.", suffix=".part")
    os.close(number)
    try:
        yield Path(work)
        os.chmod(work, 0o644)
        os.replace(work, place)
    except BaseException:
        os.unlink(work)
        raise


def private_directory(user: int | None = None) -> Path | None:
    """A directory under /tmp that only this user can enter, or the one of another user; None if there is none.

    It is made for this user, unless another one has taken its name.
    """
    # Not $TMPDIR: the path of a socket may have only 104 bytes.
    owner = os.getuid() if user is None else user
    directory = Path("/tmp") / f"penstock-{owner}"
    with suppress(FileExistsError):
        if owner == os.getuid():
            directory.mkdir(mode=0o700)
    with suppress(FileNotFoundError):
        found = directory.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == owner and stat.S_IMODE(found.st_mode) == 0o700:
            return directory
    return None


def has_protocol(name: str) -> bool:
    """Return whether a name contains the protocol of its file."""
    return "://" in name


def names_in_directory(names: Sequence[str]) -> list[str]:
    """The names of files without their directories; from where these part, if some would be the same without.

    Example:
        >>> names_in_directory(["data/b.txt", "data/a.txt"]), names_in_directory(["data/x/a.txt", "data/y/a.txt"])
        (['b.txt', 'a.txt'], ['x/a.txt', 'y/a.txt'])
    """
    last = [name.rpartition("/")[2] for name in names]
    if len(set(last)) == len(set(names)):
        return last
    shared = os.path.commonprefix(names).rfind("/") + 1  # noqa: RUF071  # the part cut off ends with a slash
    return [name[shared:] for name in names]


def within_directory(directory: str | os.PathLike[str], name: str) -> str:
    """The path of a file that a description in a directory names, which may come from somebody else.

    Raises:
        StorageError: the name leads out of the directory.

    Example:
        >>> within_directory("saved", "shards/0.arrow")
        'saved/shards/0.arrow'
    """
    if os.path.isabs(name) or has_protocol(name) or ".." in name.split("/"):
        raise StorageError(
            f"{os.fspath(directory)} describes a file by the name {name!r}, which leads out of the directory: it was "
            "changed since it was written; do not use it, or get it again from where it came"
        )
    return os.path.join(directory, name)


def link_of_others(path: str | os.PathLike[str]) -> str:
    """Name a link on the way to a path that is another user's, and the remedy; "" where there is none.

    Whose link it is decides what the path stands for. Links of the administrator are as good as this user's.
    """
    for link, user in _links(Path(os.path.abspath(path))):
        if user not in (os.getuid(), 0):
            return f"{link} is a link that user {user} has made, who decides where it leads: name what is behind it"
    return ""


def content_of_others(directory: str | os.PathLike[str]) -> str:
    """Name the part of a directory that other users have made or may change, and the remedy; "" where there is none.

    What the administrator has made is as good as what this user has.
    """
    places = [os.path.abspath(directory)]
    while places:
        place = places.pop()
        with suppress(FileNotFoundError):  # another process has just removed it
            found = os.lstat(place)
            if found.st_uid not in (os.getuid(), 0):
                return (
                    f"{place} was made by user {found.st_uid}, who decides what is in it: copy it to a directory of "
                    f"this user ({os.getuid()}) if you trust them, or choose another one"
                )
            if found.st_mode & stat.S_IWOTH and not stat.S_ISLNK(found.st_mode):
                return f"all users may write {place}: if you trust what is in it, `chmod -R o-w {place}`"
            if stat.S_ISDIR(found.st_mode):
                places += (entry.path for entry in os.scandir(place))
    return ""


def _links(path: Path) -> Iterator[tuple[Path, int]]:
    """The links on the way to an absolute path, and whose they are."""
    left = list(path.parts[:0:-1])
    at = Path(path.anchor)
    followed = 0
    while left and followed < _MOST_LINKS:
        name = left.pop()
        at = at.parent if name == os.pardir else at / name
        try:
            found = at.lstat()
            if not stat.S_ISLNK(found.st_mode):
                continue
            target = Path(os.readlink(at))
        except OSError:  # a missing path has no owner
            return
        yield at, found.st_uid
        followed += 1
        left += reversed(target.relative_to(target.anchor).parts)
        at = Path(target.anchor) if target.is_absolute() else at.parent
