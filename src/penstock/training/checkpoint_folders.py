"""Directories in which checkpoints lie: local ones here, remote ones in `checkpoint_remote`."""

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from penstock.errors import StorageError
from penstock.paths import local_path

UNFINISHED = ".orbax-checkpoint-tmp"
"""What Orbax adds to the name of a checkpoint that is not complete."""

INDEX = "index"
"""The part of every checkpoint of penstock's that says what is in it."""

INDEX_FILE = "index/metadata"
"""The file of that part."""


class Folder(ABC):
    """A directory; names are those of checkpoints in it."""

    @abstractmethod
    def split(self) -> tuple["Folder", str]:
        """The directory above, and the name in it."""

    @abstractmethod
    def place(self, name: str) -> str:
        """The whole path of a name."""

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
        """A number that is another one when names were added or removed; 0 where that is not known."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is something of that name."""

    @abstractmethod
    def is_file(self, name: str) -> bool:
        """Whether it is a file."""

    @abstractmethod
    def is_complete(self, name: str) -> bool:
        """Whether it is a complete checkpoint."""

    @abstractmethod
    def is_unfinished(self, name: str) -> bool:
        """Whether it is what is left of a checkpoint that was being written or deleted."""

    @abstractmethod
    def written(self, name: str) -> float:
        """When it was written."""

    @abstractmethod
    def index(self, name: str) -> bytes:
        """The index of a checkpoint, as JSON."""

    @abstractmethod
    def reading(self, name: str) -> AbstractContextManager[Path]:
        """A local directory with the content of a checkpoint."""

    @abstractmethod
    def writing(self, name: str) -> AbstractContextManager[Path]:
        """A local directory to write a checkpoint to, all at once; afterwards it is there under its name."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a checkpoint, or what is left of one.

        Raises:
            StorageError: it cannot be deleted.
        """


class LocalFolder(Folder):
    """A directory that is local, or mounted."""

    def __init__(self, path: str) -> None:
        self._path = Path(os.path.abspath(local_path(path)))

    def split(self) -> tuple[Folder, str]:
        return LocalFolder(str(self._path.parent)), self._path.name

    def place(self, name: str) -> str:
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
            return os.listdir(self._path)
        except FileNotFoundError:
            return []

    def changed(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def exists(self, name: str) -> bool:
        return os.path.lexists(self._path / name)

    def is_file(self, name: str) -> bool:
        return (self._path / name).is_file()

    def is_complete(self, name: str) -> bool:
        return not name.endswith(UNFINISHED) and (self._path / name / INDEX).is_dir()

    def is_unfinished(self, name: str) -> bool:
        return name.endswith(UNFINISHED)

    def written(self, name: str) -> float:
        try:
            return (self._path / name).stat().st_mtime_ns
        except FileNotFoundError:  # another process has deleted it meanwhile
            return -1

    def index(self, name: str) -> bytes:
        return (self._path / name / INDEX_FILE).read_bytes()

    @contextmanager
    def reading(self, name: str) -> Iterator[Path]:
        yield self._path / name

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        yield self._path / name

    def delete(self, name: str) -> None:
        path = self._path / name
        try:
            if path.is_symlink():
                path.unlink()  # who moved a checkpoint elsewhere keeps it there
            else:
                shutil.rmtree(path if name.endswith(UNFINISHED) else path.rename(f"{path}{UNFINISHED}"))
        except OSError as error:
            raise StorageError(f"the checkpoint {path} cannot be deleted: {error}") from error
