"""Checkpoints in remote directories, such as "gs://bucket/run": written here first, and copied there through fsspec.

Object stores cannot rename. So the index is copied last, and deleted first: a checkpoint with an index is complete. One
that replaces another is copied twice, first as its replacement, which counts as the checkpoint until the copy is
complete.
"""

import posixpath
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import StorageError
from penstock.formats.remote.remote_files import file_system
from penstock.runtime.progress import Progress
from penstock.training.checkpoint.folders import INDEX_FILE, REPLACEMENT, Folder, LocalFolder
from penstock.training.checkpoint.ranges import copy_arrays


def folder_of(location: str) -> Folder:
    """The directory at a path; one with a protocol is remote, but for "file://"."""
    if "://" not in location:
        return LocalFolder(location)
    if location.startswith("file://"):
        return LocalFolder(location.removeprefix("file://"))
    return RemoteFolder(location)


class RemoteFolder(Folder):
    """A directory of a file system that fsspec knows.

    Raises:
        MissingExtraError: fsspec, or its package for this protocol, is not installed.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._system, self._path = file_system(self._url)

    def split(self) -> tuple[Folder, str]:
        above, _, name = self._url.rpartition("/")
        return RemoteFolder(above), name

    def path_of(self, name: str) -> str:
        return f"{self._url}/{name}"

    def make(self) -> None:
        try:
            self._system.makedirs(self._path, exist_ok=True)
        except OSError as error:
            raise StorageError(f"the directory of checkpoints {self._url} cannot be made: {error}") from error

    def names(self) -> list[str]:
        return list({entry.removesuffix(REPLACEMENT) for entry in self._entries()})

    def _entries(self) -> list[str]:
        self._system.invalidate_cache()
        try:
            found = self._system.ls(self._path, detail=False)
        except FileNotFoundError:
            return []
        return [posixpath.basename(path.rstrip("/")) for path in found]

    def changed(self) -> int:
        return 0

    def exists(self, name: str) -> bool:
        return bool(self._system.exists(self._join(self._path_to(name))))

    def is_file(self, name: str) -> bool:
        return bool(self._system.isfile(self._join(name)))

    def is_complete(self, name: str) -> bool:
        return self._has_index(self._path_to(name))

    def is_taken(self, name: str) -> bool:
        return False  # a directory without an index was left by a killed save

    def current_path(self, name: str) -> str:
        return self.path_of(self._path_to(name))

    def written(self, name: str) -> float:
        try:
            return float(self._system.modified(self._join(self._path_to(name), INDEX_FILE)).timestamp())
        except (FileNotFoundError, NotImplementedError):
            return -1

    def index(self, name: str) -> bytes:
        return bytes(self._system.cat_file(self._join(self._path_to(name), INDEX_FILE)))

    @contextmanager
    def reading(self, name: str, arrays: Collection[str] | None) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="penstock-checkpoint-") as directory:
            remote, local = self._join(self._path_to(name)), Path(directory, name)
            if arrays is None or not copy_arrays(self._system, remote, local, arrays):
                self._system.get(f"{remote}/", f"{local}/", recursive=True)
            yield local

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="penstock-checkpoint-") as directory:
            local = Path(directory, name)
            yield local
            new = f"{name}{REPLACEMENT}"
            if self._has_index(name):
                self._copy(local, new)
                self._remove(name)
            self._copy(local, name)
            if self._has_index(new):
                self._remove(new)

    def _copy(self, local: Path, entry: str) -> None:
        files = [str(file.relative_to(local)) for file in sorted(local.rglob("*")) if file.is_file()]
        sizes = {file: (local / file).stat().st_size for file in files if file != INDEX_FILE}
        with Progress(f"uploading {self.path_of(entry)}", sum(sizes.values()), unit="bytes", bar=False) as progress:
            for file, size in sizes.items():
                self._system.put_file(str(local / file), self._join(entry, file))
                progress.add(size)
        self._system.put_file(str(local / INDEX_FILE), self._join(entry, INDEX_FILE))

    def delete(self, name: str) -> None:
        self._remove(self._path_to(name))

    def clear(self, own: Callable[[str], bool]) -> None:
        for entry in self._entries():
            name = entry.removesuffix(REPLACEMENT)
            if own(name) and (not self._has_index(entry) or entry != name and self._has_index(name)):
                self._remove(entry)

    def _path_to(self, name: str) -> str:
        new = f"{name}{REPLACEMENT}"
        return name if self._has_index(name) or not self._has_index(new) else new

    def _has_index(self, entry: str) -> bool:
        return bool(self._system.isfile(self._join(entry, INDEX_FILE)))

    def _remove(self, entry: str) -> None:
        try:
            if self._has_index(entry):
                self._system.rm_file(self._join(entry, INDEX_FILE))
            self._system.rm(self._join(entry), recursive=True)
        except OSError as error:
            raise StorageError(f"the checkpoint {self.path_of(entry)} cannot be deleted: {error}") from error

    def _join(self, *names: str) -> str:
        return posixpath.join(self._path, *names)
