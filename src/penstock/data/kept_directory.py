"""A directory with the rows that processes keep of one dataset, and says of which."""

import fcntl
import logging
import os
import secrets
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock import formats
from penstock.data.block import Block, Indices
from penstock.data.made_by import difference, note_of
from penstock.data.node import Node
from penstock.errors import StorageError
from penstock.formats.checked_json import read_checked_json, write_checked_json
from penstock.options import Options
from penstock.paths import link_of_others
from penstock.runtime.copying import Copiers
from penstock.runtime.threads import Threads

_VERSION: Final = 1
_NOTE: Final = "cache.json"
_NEW: Final = ".new"
_ROWS: Final = ".rows"
_PASS: Final = f"pass{_ROWS}"
_UNFINISHED: Final = ".unfinished"
_PAUSE_SECONDS: Final = 0.1
_STILL_SECONDS: Final = 10.0
_LINE_SECONDS: Final = 30.0

_logger = logging.getLogger(__name__)


class FilePass:
    """The rows of a complete pass in a directory."""

    def __init__(self, files: "formats.kept_files.KeptFiles") -> None:
        self._files = files
        self.length = len(files)

    def read(self, start: int, rows: int) -> Block:
        """The rows from `start`, `rows` of them."""
        return read_store(self._files, range(start, start + rows))


class KeptDirectory:
    """A directory with the rows that processes keep of one dataset.

    Raises:
        StorageError: its rows are those of another dataset, or something else is there.
    """

    def __init__(self, filename: str, made_of: Node) -> None:
        self.path = Path(filename).absolute()
        self._filename = filename
        self._made_of = made_of
        self._note = note_of(made_of, Options(), strict=False)
        self._claimed = self._is_ours()

    def _is_ours(self) -> bool:
        """Whether the directory says that its rows are those of this dataset; not before the first are kept."""
        if link := link_of_others(self._filename):
            raise StorageError(f"cache({self._filename!r}) is not read: {link}")
        empty = not self.path.exists() or (self.path.is_dir() and all(map(_is_new, self.path.iterdir())))
        found = read_checked_json(self.path / _NOTE, _VERSION)
        if found is None and not empty:
            raise StorageError(f"'{self.path}' exists, and is no cache: remove it, or choose another directory")
        if found is None:
            return False
        if words := difference(self._note, found["made_by"], self._made_of):
            raise StorageError(
                f"cache({self._filename!r}) holds rows of another dataset: {words}; delete the directory, or choose "
                "another one for this dataset"
            )
        return True

    def claim(self) -> None:
        """Let the directory say whose rows it holds.

        A function that changes what it uses, such as a list of what it has seen, is known by its code alone.
        """
        if self._claimed and (self.path / _NOTE).exists():
            return
        now = note_of(self._made_of, Options(), strict=False)
        if now["fingerprint"] != self._note["fingerprint"]:
            self._note["fingerprint"] = ""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            new = self.path / f"{secrets.token_hex(8)}{_NEW}"
            write_checked_json(new, {"version": _VERSION, "made_by": self._note})
            with suppress(FileExistsError):  # another process was faster
                os.link(new, self.path / _NOTE)
            new.unlink()
        except OSError as error:
            raise StorageError(f"'{self.path}' cannot be written: {error}") from error
        self._claimed = self._is_ours()

    def complete(self) -> FilePass | None:
        """The rows of a pass over a stream that has reached the end, of this process or another one."""
        self._claimed = self._claimed or self._is_ours()
        if not (self.path / _PASS).exists():
            return None
        files = formats.kept_files.KeptFiles(self.path, _PASS)
        if not files.ended:
            raise StorageError(f"{self.path / _PASS} is damaged: its end is missing; delete the directory")
        return FilePass(files)

    def lock(self, threads: Threads) -> "PassLock | None":
        """What lets this iteration keep a pass. While another process does so, this waits.

        Returns:
            None where another iteration of this process keeps one, and where that of another process stands still: it
            may itself wait for what reads here, as a worker does that takes its steps with this one.
        """
        size, grown = -1, time.monotonic()
        told = grown
        while not threads.stopped:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                return PassLock(self.path)
            except BlockingIOError:
                pass
            except OSError as error:
                raise StorageError(f"'{self.path}' cannot be written: {error}") from error
            now = time.monotonic()
            process, found = self._recording()
            if process == str(os.getpid()):
                return None
            if found != size:
                size, grown = found, now
            if now - grown > _STILL_SECONDS:
                _logger.warning("cache(%r): process %s keeps a pass, and stands still", self._filename, process)
                return None
            if now - told > _LINE_SECONDS:
                told = now
                _logger.info("cache(%r) waits for the pass that process %s keeps", self._filename, process)
            time.sleep(_PAUSE_SECONDS)
        return None

    def _recording(self) -> tuple[str, int]:
        """The process that keeps a pass, and how many bytes of it there are."""
        with suppress(OSError):
            for path in self.path.glob(f"*{_UNFINISHED}"):
                return _first_part(path), path.stat().st_size
        return "", -1

    def new_pass(self) -> "formats.kept_files.KeptFileWriter":
        """A file for the rows of a pass. What others have left that were killed goes."""
        self.claim()
        for left in self.path.glob(f"*{_UNFINISHED}"):
            left.unlink(missing_ok=True)
        return formats.kept_files.KeptFileWriter(self.path / f"{os.getpid()}-{secrets.token_hex(4)}{_UNFINISHED}")

    def finished(self, writer: "formats.kept_files.KeptFileWriter") -> FilePass:
        """The pass in a file, which has reached the end."""
        writer.end()
        writer.close()
        try:
            writer.path.rename(self.path / _PASS)
        except OSError as error:
            raise StorageError(f"'{self.path}' cannot be written: {error}") from error
        return FilePass(formats.kept_files.KeptFiles(self.path, _PASS))

    def new_rows(self, seed: int) -> "formats.kept_files.KeptFileWriter":
        """A file for the rows of an index that this process keeps."""
        self.claim()
        return formats.kept_files.KeptFileWriter(self.path / f"{seed:x}-{os.getpid()}-{secrets.token_hex(4)}{_ROWS}")

    def rows(self, seed: int, length: int) -> "formats.kept_files.KeptFiles":
        """The rows of a seed that all processes keep; those of another seed where they are all there.

        Every epoch gives the rows of the first, whatever its seed was.
        """
        seeds = {f"{seed:x}": None, **{_first_part(path): None for path in sorted(self.path.glob(f"*-*{_ROWS}"))}}
        found = [formats.kept_files.KeptFiles(self.path, f"{one}-*{_ROWS}", length) for one in seeds]
        return next((files for files in found if files.has.all()), found[0])

    def leave(self) -> None:
        """Remove the directory if it holds no rows. Only for who has the lock."""
        with suppress(OSError):
            if set(os.listdir(self.path)) <= {_NOTE}:
                (self.path / _NOTE).unlink(missing_ok=True)
                self.path.rmdir()


class PassLock:
    """Held by the one iteration that keeps a pass in a directory; until `release`, or the end of its process.

    Raises:
        BlockingIOError: another one has it.
        OSError: there is no such directory.
    """

    def __init__(self, directory: Path) -> None:
        file = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        self.release = weakref.finalize(self, os.close, file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            _logger.debug("%s is on a file system without locks: %s", directory, error)
        if not os.path.exists(directory) or not os.path.samestat(os.stat(directory), os.fstat(file)):
            raise BlockingIOError  # who had it has just removed the directory


def _is_new(path: Path) -> bool:
    return path.name.endswith(_NEW)


def _first_part(path: Path) -> str:
    """What the name of a file begins with: a seed, or a process."""
    return path.name.partition("-")[0]


def read_store(
    store: "formats.row_store.RowStore | formats.kept_files.KeptFiles", indices: Indices, copiers: Copiers | None = None
) -> Block:
    """The rows at these positions of a store (at least one), as one block."""
    parts = []
    for where, (columns, structure), rows in store.pieces(indices):
        parts.append((where, Block(columns, structure, len(columns[0])).take(rows, copiers)))
    return Block.in_places(parts, copiers)
