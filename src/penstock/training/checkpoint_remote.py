"""Checkpoints in remote directories, such as "gs://bucket/run": written here first, and copied there through fsspec.

Object stores cannot rename. So the index is copied last, and deleted first: a checkpoint with an index is complete.
"""

import posixpath
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock import formats
from penstock.errors import StorageError
from penstock.training.checkpoint_folders import INDEX_FILE, Folder, LocalFolder


def folder_of(place: str) -> Folder:
    """The directory at a path; one with a protocol is remote, but for "file://"."""
    if "://" not in place:
        return LocalFolder(place)
    if place.startswith("file://"):
        return LocalFolder(place.removeprefix("file://"))
    return RemoteFolder(place)


class RemoteFolder(Folder):
    """A directory of a file system that fsspec knows.

    Raises:
        MissingExtraError: fsspec, or what it needs for this protocol, is not installed.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._system, self._path = formats.remote.file_system(self._url)

    def split(self) -> tuple[Folder, str]:
        above, _, name = self._url.rpartition("/")
        return RemoteFolder(above), name

    def place(self, name: str) -> str:
        return f"{self._url}/{name}"

    def make(self) -> None:
        try:
            self._system.makedirs(self._path, exist_ok=True)
        except OSError as error:
            raise StorageError(f"the directory of checkpoints {self._url} cannot be made: {error}") from error

    def names(self) -> list[str]:
        self._system.invalidate_cache()
        try:
            found = self._system.ls(self._path, detail=False)
        except FileNotFoundError:
            return []
        return [posixpath.basename(path.rstrip("/")) for path in found]

    def changed(self) -> int:
        return 0

    def exists(self, name: str) -> bool:
        return bool(self._system.exists(self._of(name)))

    def is_file(self, name: str) -> bool:
        return bool(self._system.isfile(self._of(name)))

    def is_complete(self, name: str) -> bool:
        return bool(self._system.isfile(self._of(name, INDEX_FILE)))

    def is_unfinished(self, name: str) -> bool:
        return not self.is_complete(name)

    def written(self, name: str) -> float:
        try:
            return float(self._system.modified(self._of(name, INDEX_FILE)).timestamp())
        except (FileNotFoundError, NotImplementedError):
            return -1

    def index(self, name: str) -> bytes:
        return bytes(self._system.cat_file(self._of(name, INDEX_FILE)))

    @contextmanager
    def reading(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="penstock-checkpoint-") as directory:
            self._system.get(f"{self._of(name)}/", f"{directory}/{name}/", recursive=True)
            yield Path(directory, name)

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="penstock-checkpoint-") as directory:
            local = Path(directory, name)
            yield local
            files = [str(file.relative_to(local)) for file in sorted(local.rglob("*")) if file.is_file()]
            for file in files:
                if file != INDEX_FILE:
                    self._system.put_file(str(local / file), self._of(name, file))
            self._system.put_file(str(local / INDEX_FILE), self._of(name, INDEX_FILE))

    def delete(self, name: str) -> None:
        try:
            if self.is_complete(name):
                self._system.rm_file(self._of(name, INDEX_FILE))
            self._system.rm(self._of(name), recursive=True)
        except OSError as error:
            raise StorageError(f"the checkpoint {self.place(name)} cannot be deleted: {error}") from error

    def _of(self, *names: str) -> str:
        return posixpath.join(self._path, *names)
