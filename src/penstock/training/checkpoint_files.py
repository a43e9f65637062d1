"""Checkpoints as directories with numbers: `run/ckpt-1`, `run/ckpt-2` and so on.

A checkpoint is written under a name with a suffix and renamed when it is complete; to be deleted it gets that suffix
again first. So a directory whose name is only a prefix and a number is complete, whenever the process was killed.
"""

import os
import re
import shutil
from pathlib import Path

from penstock.errors import InvalidArgumentError, InvalidTypeError, StorageError

UNFINISHED = ".orbax-checkpoint-tmp"
"""What Orbax adds to the name of a checkpoint that is not complete."""

INDEX = "index"
"""The part of every checkpoint of penstock's that says what is in it."""

_NUMBERED = re.compile(r"(?P<prefix>.+)-(?P<number>[0-9]+)", re.DOTALL)


def latest_checkpoint(directory: str | os.PathLike[str]) -> str | None:
    """The path of the newest complete checkpoint in a directory; None where there is none.

    Of checkpoints with one prefix that is the one with the highest number; of several prefixes' newest ones, the one
    that was written last.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     print(ps.latest_checkpoint(directory))
        None
    """
    newest: dict[str, tuple[int, Path]] = {}
    for prefix, number, path in _complete(Path(directory)):
        if prefix not in newest or number > newest[prefix][0]:
            newest[prefix] = number, path
    if not newest:
        return None
    return str(max((path for _, path in newest.values()), key=_written))


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:  # another process has deleted it meanwhile
        return -1


def _complete(directory: Path) -> list[tuple[str, int, Path]]:
    """(prefix, number, path) of every complete checkpoint in a directory."""
    if not directory.is_dir():
        return []
    found = [(_NUMBERED.fullmatch(path.name), path) for path in directory.iterdir()]
    return [(name["prefix"], int(name["number"]), path) for name, path in found if name and (path / INDEX).is_dir()]


def damaged(path: Path, why: str) -> StorageError:
    """The error for a checkpoint that cannot be read; it names the one before, which nothing has happened to."""
    own = _NUMBERED.fullmatch(path.name)
    before = [
        (number, other)
        for prefix, number, other in _complete(path.parent)
        if own and prefix == own["prefix"] and number < int(own["number"])
    ]
    advice = f"restore the one before, {max(before)[1]}" if before else "there is none before it"
    return StorageError(f"the checkpoint {path} is damaged: {why}; {advice}")


class Numbered:
    """The checkpoints of one prefix.

    Args:
        prefix: a directory and the beginning of a name in it. The directory is made.

    Raises:
        InvalidTypeError: not a path.
        InvalidArgumentError: no name, or no local directory.
        StorageError: the directory cannot be made, or cannot be written to.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        if not isinstance(prefix, (str, os.PathLike)):
            raise InvalidTypeError(f"checkpoint.save(prefix) takes a path such as 'run/ckpt', got {prefix!r}")
        text = os.fspath(prefix)
        if "://" in text:
            raise InvalidArgumentError(
                f"checkpoint.save(prefix) takes a path in a local directory, or one that is mounted, got {text!r}"
            )
        directory, self._name = os.path.split(os.path.abspath(text))
        if text.endswith(os.sep) or not self._name:
            raise InvalidArgumentError(
                f"checkpoint.save(prefix) takes a directory and the beginning of a name in it, got the directory "
                f"{text!r}: write {os.path.join(text, 'ckpt')!r}"
            )
        self._directory = Path(directory)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"the directory of checkpoints {directory} cannot be made: {error}") from error
        if not os.access(directory, os.W_OK | os.X_OK):
            raise StorageError(f"the directory of checkpoints {directory} cannot be written to")

    def next(self) -> Path:
        """Where the next one belongs: its number follows the highest on disk."""
        names = [_NUMBERED.fullmatch(path.name) for path in self._directory.iterdir()]
        numbers = [int(name["number"]) for name in names if name and name["prefix"] == self._name]
        return self._directory / f"{self._name}-{max(numbers, default=0) + 1}"

    def clear(self) -> None:
        """Delete what a killed process has left unfinished."""
        for path in self._directory.iterdir():
            name = _NUMBERED.fullmatch(path.name.removesuffix(UNFINISHED))
            if path.name.endswith(UNFINISHED) and name and name["prefix"] == self._name:
                _delete(path)

    def keep(self, count: int) -> None:
        """Delete all but the newest ones."""
        complete = sorted((number, path) for prefix, number, path in _complete(self._directory) if prefix == self._name)
        for _, path in complete[:-count]:
            _delete(path)


def _delete(path: Path) -> None:
    try:
        shutil.rmtree(path if path.name.endswith(UNFINISHED) else path.rename(f"{path}{UNFINISHED}"))
    except OSError as error:
        raise StorageError(f"the checkpoint {path} cannot be deleted: {error}") from error
