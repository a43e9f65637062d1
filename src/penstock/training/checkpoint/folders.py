"""Directories of checkpoints: local ones here, remote ones in `remote.py`."""

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from penstock.errors import StorageError
from penstock.paths import local_path

UNFINISHED = ".orbax-checkpoint-tmp"
"""What Orbax adds to the name of a checkpoint that is not complete."""

REPLACEMENT = ".penstock-replacement"
"""The suffix of a complete checkpoint that replaces another one.

It counts as that checkpoint as soon as the other one is deleted."""

INDEX = "index"
"""The item of every checkpoint that lists its content."""

INDEX_FILE = "index/metadata"
"""The file of that item."""


class Folder(ABC):
    """A directory of checkpoints, by their names; a replacement counts under the name of the replaced one."""

    @abstractmethod
    def split(self) -> tuple["Folder", str]:
        """The parent directory, and the name in it."""

    @abstractmethod
    def path_of(self, name: str) -> str:
        """The full path of a name."""

    @abstractmethod
    def make(self) -> None:
        """Make the directory.

        Raises:
            StorageError: it cannot be made, or cannot be written to.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """All names in the directory; none where there is no directory."""

    @abstractmethod
    def changed(self) -> int:
        """A number that changes when names are added or removed; 0 where that is not known."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Return whether there is something of that name."""

    @abstractmethod
    def is_file(self, name: str) -> bool:
        """Return whether it is a file."""

    @abstractmethod
    def is_complete(self, name: str) -> bool:
        """Return whether it is a complete checkpoint."""

    @abstractmethod
    def is_taken(self, name: str) -> bool:
        """Return whether something of this name is not a checkpoint, so that it must not be deleted."""

    @abstractmethod
    def current_path(self, name: str) -> str:
        """The path that a name refers to at this moment: its own, or that of its replacement."""

    @abstractmethod
    def written(self, name: str) -> float:
        """When it was written, as a number by which checkpoints can be sorted."""

    @abstractmethod
    def index(self, name: str) -> bytes:
        """The index of a checkpoint, as JSON."""

    @abstractmethod
    def reading(self, name: str, arrays: Collection[str] | None) -> AbstractContextManager[Path]:
        """A local directory with the content of a checkpoint.

        Args:
            name: of the checkpoint.
            arrays: the names of those that are read; None for all.
        """

    @abstractmethod
    def writing(self, name: str) -> AbstractContextManager[Path]:
        """A local directory to write a checkpoint to; afterwards it is stored under its name.

        It replaces another one of that name; at any moment one of the two exists.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a checkpoint.

        Raises:
            StorageError: it cannot be deleted.
        """

    @abstractmethod
    def clear(self, own: Callable[[str], bool]) -> None:
        """Delete the remains of checkpoints whose writing, replacing or deleting was interrupted.

        Args:
            own: whether a name belongs to the caller.

        Raises:
            StorageError: it cannot be deleted.
        """


class LocalFolder(Folder):
    """A directory that is local, or mounted."""

    def __init__(self, path: str) -> None:
        self._path = Path(os.path.abspath(local_path(path)))

    def split(self) -> tuple[Folder, str]:
        return LocalFolder(str(self._path.parent)), self._path.name

    def path_of(self, name: str) -> str:
        return str(self._path / name)

    def make(self) -> None:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"the directory of checkpoints {self._path} cannot be made: {error}") from error
        if not os.access(self._path, os.W_OK | os.X_OK):
            raise StorageError(f"the directory of checkpoints {self._path} cannot be written to")

    def names(self) -> list[str]:
        try:
            return list({entry.removesuffix(REPLACEMENT) for entry in os.listdir(self._path)})
        except FileNotFoundError:
            return []

    def changed(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def exists(self, name: str) -> bool:
        return os.path.lexists(self._path_to(name))

    def is_file(self, name: str) -> bool:
        return (self._path / name).is_file()

    def is_complete(self, name: str) -> bool:
        return not name.endswith(UNFINISHED) and (self._path_to(name) / INDEX).is_dir()

    def is_taken(self, name: str) -> bool:
        return os.path.lexists(self._path / name) and not self.is_complete(name)

    def current_path(self, name: str) -> str:
        return str(self._path_to(name))

    def written(self, name: str) -> float:
        try:
            return self._path_to(name).stat().st_mtime_ns
        except FileNotFoundError:  # another process has deleted it meanwhile
            return -1

    def index(self, name: str) -> bytes:
        return (self._path_to(name) / INDEX_FILE).read_bytes()

    @contextmanager
    def reading(self, name: str, arrays: Collection[str] | None) -> Iterator[Path]:
        yield self._path_to(name)

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        yield self.target(name)
        self.put_in_place(name)

    def target(self, name: str) -> Path:
        """The directory to write a checkpoint to, before `put_in_place`."""
        return self._path / (f"{name}{REPLACEMENT}" if os.path.lexists(self._path / name) else name)

    def put_in_place(self, name: str) -> None:
        """Replace the checkpoint of a name by the one that was written to its `target`.

        Raises:
            StorageError: it cannot.
        """
        path, new = self._path / name, self._path / f"{name}{REPLACEMENT}"
        if not new.exists():
            return
        try:
            path.rename(f"{path}{UNFINISHED}")
            new.rename(path)
        except OSError as error:
            raise StorageError(f"the checkpoint {path} cannot be replaced: {error}") from error
        self._remove(Path(f"{path}{UNFINISHED}"))

    def delete(self, name: str) -> None:
        self._remove(self._path_to(name))

    def clear(self, own: Callable[[str], bool]) -> None:
        for entry in os.listdir(self._path):
            name = entry.removesuffix(UNFINISHED).removesuffix(REPLACEMENT)
            if name == entry or not own(name):
                continue
            if entry.endswith(UNFINISHED) or os.path.lexists(self._path / name):
                self._remove(self._path / entry)
            else:
                (self._path / entry).rename(self._path / name)

    def _path_to(self, name: str) -> Path:
        path, new = self._path / name, self._path / f"{name}{REPLACEMENT}"
        return path if os.path.lexists(path) or not os.path.lexists(new) else new

    def _remove(self, path: Path) -> None:
        try:
            if path.is_symlink():
                path.unlink()  # only the link is deleted: the user has moved the checkpoint elsewhere
            else:
                shutil.rmtree(path if path.name.endswith(UNFINISHED) else path.rename(f"{path}{UNFINISHED}"))
        except OSError as error:
            raise StorageError(f"the checkpoint {path} cannot be deleted: {error}") from error
