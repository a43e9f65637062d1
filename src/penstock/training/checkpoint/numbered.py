"""Checkpoints as directories with numbers: `run/ckpt-1`, `run/ckpt-2` and so on.

A local checkpoint is written under a name with a suffix and renamed when it is complete; to be deleted it gets that
suffix again first. So a directory whose name is only a prefix and a number is complete, whenever a process was killed.
In a remote directory, where nothing can be renamed, a checkpoint's index is written last and deleted first.

A checkpoint that replaces another is first completed beside it, under a name with another suffix, and counts as that
checkpoint from the moment the other one is deleted.
"""

import logging
import os
import re
from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import InvalidArgumentError, InvalidTypeError, StorageError
from penstock.training.checkpoint.folders import Folder
from penstock.training.checkpoint.remote import folder_of

_logger = logging.getLogger(__name__)

_NUMBERED = re.compile(r"(?P<prefix>.+)-(?P<number>[0-9]+)", re.DOTALL)


class FoundCheckpoint(NamedTuple):
    """A complete checkpoint in a directory."""

    prefix: str
    number: int
    name: str


def latest_checkpoint(directory: str | os.PathLike[str]) -> str | None:
    """The path of the newest complete checkpoint in a directory; None where there is none.

    Of checkpoints with one prefix it is the one with the highest number; with several prefixes, the one of these that
    was written last.

    Args:
        directory: a directory, or a prefix in one, as `save` takes it: then only checkpoints of that prefix count. It
            may be local, or remote, such as "gs://bucket/run".

    Raises:
        InvalidArgumentError: it is a checkpoint itself.
        StorageError: it is a file, or cannot be read.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     print(ps.latest_checkpoint(directory))
        None
    """
    folder, found = checkpoints_at("ps.latest_checkpoint(directory)", directory)
    newest: dict[str, FoundCheckpoint] = {}
    for one in found:
        if one.prefix not in newest or one.number > newest[one.prefix].number:
            newest[one.prefix] = one
    if not newest:
        return None
    return folder.path_of(max(newest.values(), key=lambda one: folder.written(one.name)).name)


def checkpoints_at(call: str, directory: str | os.PathLike[str]) -> tuple[Folder, list[FoundCheckpoint]]:
    """The complete checkpoints in a directory, or of a prefix, and the directory that they are in.

    Raises:
        InvalidTypeError: not a path.
        InvalidArgumentError: a checkpoint itself.
        StorageError: a file, or a directory that cannot be read.
    """
    if not isinstance(directory, (str, os.PathLike)):
        raise InvalidTypeError(f"{call} takes a path, got {directory!r}")
    location = os.fspath(directory)
    try:
        folder = folder_of(location)
        parent, name = folder.split()
        if parent.is_complete(name):
            raise InvalidArgumentError(
                f"{call} takes a directory of checkpoints, got {location!r}, which is one itself"
            )
        if parent.is_file(name):
            raise StorageError(f"{call} takes a directory of checkpoints, got the file {location!r}")
        found = complete(folder)
        return (folder, found) if found else (parent, [one for one in complete(parent) if one.prefix == name])
    except (PermissionError, NotADirectoryError) as error:
        raise StorageError(f"{call}: {location!r} cannot be read: {error}") from error


def complete(folder: Folder) -> list[FoundCheckpoint]:
    """The complete checkpoints in a directory."""
    while True:
        before = folder.changed()
        numbered = [(name, match) for name in folder.names() if (match := _NUMBERED.fullmatch(name))]
        found = [
            FoundCheckpoint(match["prefix"], int(match["number"]), name)
            for name, match in numbered
            if folder.is_complete(name)
        ]
        gone = any(not folder.exists(name) for name, _ in numbered)
        # Another process may replace the only checkpoint meanwhile.
        if found or not gone and folder.changed() == before:
            return found


def folder_and_name(path: str | os.PathLike[str]) -> tuple[Folder, str]:
    """The directory of a checkpoint, and the checkpoint's name in it."""
    return folder_of(os.fspath(path)).split()


def version_at(path: str) -> tuple[str, float]:
    """A value that changes when the checkpoint at a path is replaced."""
    folder, name = folder_and_name(path)
    return folder.current_path(name), folder.written(name)


def is_replaced(path: str, version: tuple[str, float]) -> bool:
    """Return whether the checkpoint at a path was replaced since it had this version."""
    folder, name = folder_and_name(path)
    return folder.exists(name) and version_at(path) != version


def damaged(path: str, why: str) -> StorageError:
    """The error for a checkpoint that cannot be read; it names the previous one, which can be restored."""
    folder, name = folder_and_name(path)
    if not folder.exists(name):
        return StorageError(
            f"the checkpoint {path} was deleted while it was read: ps.latest_checkpoint(directory) finds the newest"
        )
    own = _NUMBERED.fullmatch(name)
    before = [
        one for one in complete(folder) if own and one.prefix == own["prefix"] and one.number < int(own["number"])
    ]
    newest = max(before, key=lambda one: one.number, default=None)
    advice = f"restore the one before, {folder.path_of(newest.name)}" if newest else "there is none before it"
    return StorageError(f"the checkpoint {path} is damaged: {why}; {advice}")


class Numbered:
    """The checkpoints of one prefix.

    Args:
        prefix: a directory and the beginning of a name in it. The directory is made.

    Raises:
        InvalidTypeError: not a path.
        InvalidArgumentError: no name.
        StorageError: the directory cannot be made, or cannot be written to.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        if not isinstance(prefix, (str, os.PathLike)):
            raise InvalidTypeError(f"checkpoint.save(prefix) takes a path such as 'run/ckpt', got {prefix!r}")
        text = os.fspath(prefix)
        self.folder, self._name = folder_of(text).split()
        if text.endswith("/") or not self._name:
            raise InvalidArgumentError(
                f"checkpoint.save(prefix) takes a directory and the beginning of a name in it, got the directory "
                f"{text!r}: write {os.path.join(text, 'ckpt')!r}"
            )
        self.folder.make()

    def next(self, number: int | None = None) -> str:
        """The name of the next one.

        Args:
            number: its number; if None, one more than the highest.

        Raises:
            StorageError: something else has this name.
        """
        names = self.folder.names()
        numbers = [self._number(name) for name in names if self._is_own(name)]
        highest = max(numbers, default=0)
        if number is None:
            number = highest + 1
        name = f"{self._name}-{number}"
        if self.folder.is_taken(name):
            raise StorageError(f"{self.folder.path_of(name)} is there already, and is no checkpoint: delete it before")
        if number < highest:
            _logger.warning(
                "%s is saved, and there is one with a higher number, %d, which ps.latest_checkpoint still returns: "
                "delete those with higher numbers if the training has resumed from an earlier one",
                self.folder.path_of(name),
                highest,
            )
        return name

    def clear(self) -> None:
        """Delete unfinished checkpoints that a killed process has left."""
        self.folder.clear(self._is_own)

    def keep(self, saved: str, kept: Callable[[dict[int, str]], set[int]]) -> None:
        """Delete the checkpoints that are not kept.

        Args:
            saved: the name of the one that was just saved, which is kept, whatever its number.
            kept: takes the names of all complete ones by their numbers, and gives the numbers to keep.
        """
        names = {one.number: one.name for one in complete(self.folder) if one.prefix == self._name}
        for number in names.keys() - kept(names):
            if names[number] != saved:
                self.folder.delete(names[number])

    def _is_own(self, name: str) -> bool:
        match = _NUMBERED.fullmatch(name)
        return match is not None and match["prefix"] == self._name

    def _number(self, name: str) -> int:
        return int(name[len(self._name) + 1 :])
