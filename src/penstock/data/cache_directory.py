"""A directory in which processes keep rows of one dataset: those of an index by number, or a pass over a stream.

_made_by.json              the dataset whose rows these are
<seed>-<process>-….rows    rows of an index, each file written by one process
pass/                      a saved dataset: the rows of a complete pass over a stream
pass.unfinished/           a pass that is being written, by the one process that holds its lock
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.data.block import Block
from penstock.data.made_by import NEW, MadeBy
from penstock.data.node import Node
from penstock.errors import StorageError
from penstock.formats import writing
from penstock.formats.writing.work_directory import UNFINISHED, WorkDirectory, writing_at, written_once
from penstock.options import Options
from penstock.runtime.threads import Threads

_ROWS: Final = ".rows"
_PASS: Final = "pass"
_STILL_SECONDS: Final = 10.0
"""How long this process waits for another's pass into which nothing is written."""


class CacheDirectory:
    """A directory in which processes keep rows of one dataset.

    Args:
        filename: the path as the user gave it.
        made_of: the input of the cache.

    Raises:
        StorageError: its rows are those of another dataset, or something else is there.
    """

    def __init__(self, filename: str, made_of: Node) -> None:
        self.path = Path(filename).absolute()
        self._pass = self.path / _PASS
        self._made_by = MadeBy(made_of, Options(), strict=False)
        self._claimed = self._is_ours()

    def _is_ours(self) -> bool:
        """Return whether the directory holds rows of this dataset; False before the first are kept."""
        others = self.path.exists() and not self.path.is_dir()
        others = others or not all(path.name.endswith((NEW, UNFINISHED)) for path in self.path.glob("*"))
        if self._made_by.is_of(self.path):
            return True
        if others:
            raise StorageError(f"'{self.path}' exists, and is no cache: remove it, or choose another directory")
        return False

    def _claim(self) -> None:
        """Write the note that names the dataset, unless it is there."""
        if not self._claimed or not self.path.exists():
            self._made_by.forget_changed()
            self.path.mkdir(parents=True, exist_ok=True)
            self._made_by.write(self.path)
            self._claimed = self._is_ours()

    def complete_pass(self) -> "DirectoryPass | None":
        """The rows of a pass over a stream that has reached the end, of this process or another one."""
        self._claimed = self._claimed or self._is_ours()
        return DirectoryPass(self._pass) if self._pass.exists() else None

    def new_pass(self, threads: Threads) -> "PassWriter | None":
        """A writer for a pass. While another process writes one, this waits.

        Returns:
            None if another process has written one, another iteration of this process is writing one, or that of
            another process makes no progress: it may itself wait for this process, as a worker does that takes its
            steps together with this one.
        """
        with writing_at(self.path):
            work = written_once(
                self._pass, lambda: WorkDirectory(self._pass), patience=_STILL_SECONDS, stopped=lambda: threads.stopped
            )
        return None if work is None else PassWriter(self, work)

    def finish(self, work: WorkDirectory) -> "DirectoryPass":
        """Publish a complete pass."""
        self._claim()
        work.publish()
        return DirectoryPass(self._pass)

    def rows(self, seed: int, length: int) -> "writing.numbered_rows.NumberedRows":
        """Return the rows of a seed that all processes have kept; those of another seed if these are complete.

        Every epoch gives the rows of the first, whatever its seed was.
        """
        others = sorted(path.name.partition("-")[0] for path in self.path.glob(f"*-*{_ROWS}"))
        seeds = dict.fromkeys([f"{seed:x}", *others])
        numbered = writing.numbered_rows.NumberedRows
        found = [numbered(self.path, f"{one}-*{_ROWS}", length) for one in seeds]
        return next((rows for rows in found if rows.has.all()), found[0])

    def new_rows(self, seed: int) -> "writing.row_files.RowFileWriter":
        """A file for the rows of an index that this process keeps."""
        with writing_at(self.path):
            self._claim()
            name = f"{seed:x}-{os.getpid()}-{secrets.token_hex(4)}{_ROWS}"
            return writing.row_files.RowFileWriter(self.path / name)


class DirectoryPass:
    """The rows of a complete pass in a directory."""

    def __init__(self, path: Path) -> None:
        self._files = writing.saved_files.SavedFiles(writing.manifest.read_manifest(path), path)
        (self._name,) = self._files.files
        self.length = self._files.count(self._name)

    def read(self, start: int, rows: int) -> Block:
        """The rows from `start`, `rows` of them."""
        columns, structure = self._files.read_columns(self._name, range(start, start + rows))
        return Block(tuple(columns), structure, rows)


class PassWriter:
    """Writes a pass over a stream into a directory."""

    def __init__(self, directory: CacheDirectory, work: WorkDirectory) -> None:
        self._directory = directory
        self._work = work
        work.clear()  # files of writers that were killed
        self._writer = writing.row_shards.RowShards(work.path, 0)

    def add(self, block: Block) -> None:
        """Keep rows."""
        if len(block):
            with writing_at(self._directory.path):
                self._writer.write(block.columns, block.structure, len(block))

    def finish(self) -> DirectoryPass:
        """The complete pass."""
        with writing_at(self._directory.path):
            shard = self._writer.finish()
            if shard["rows"]:
                writing.manifest.write_manifest(self._work.path, "penstock", [shard])
            else:
                writing.manifest.describe_no_rows(self._work.path, None)
            return self._directory.finish(self._work)

    def discard(self) -> None:
        """Keep nothing."""
        self._writer.close()
        self._work.discard()
        with suppress(OSError):
            self._directory.path.rmdir()  # unless there is something in it
