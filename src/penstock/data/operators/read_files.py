"""Records of files: one node for every format."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import field
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.data.block import Block
from penstock.data.functions.apply import note
from penstock.data.node import AnyNumber, ByMethod, DependsOn, Run, derived
from penstock.data.streams.stream import RowsBeforeFailure, State
from penstock.errors import InvalidTypeError
from penstock.formats.opening import open_bytes
from penstock.formats.records.record_format import CHUNK_BYTES, RecordFormat, RecordReader
from penstock.formats.remote.parts import ask_ahead
from penstock.formats.remote.remote_files import open_remote_bytes
from penstock.paths import has_protocol
from penstock.printing import in_bytes

_FILES_AHEAD: Final = 32
"""The most remote files that are opened in advance, to hide the latency of their servers."""
_NAMES_TOGETHER: Final = 64
"""The number of names that are read at a time where this runs no user's code and cannot fail."""


class ReadFiles(ByMethod, AnyNumber):
    """The records of the files that the input names, one file after the other.

    An element of the input is a name, or (name, start, stop): then only the records from number start to stop - 1 of
    that file, or to its end if stop is -1.
    """

    depends_on = DependsOn.ANY
    reads_files = True
    format: RecordFormat = field(repr=False)
    compression_type: str = ""

    @property
    def memory(self) -> str:
        resumed = "; a state within one is resumed by decompressing it from its start"
        return f"holds {in_bytes(CHUNK_BYTES)} of one file{resumed if self.compression_type else ''}"

    @derived
    def spec(self) -> Any:
        return self.format.spec

    @property
    def spec_from_call(self) -> bool:
        return self.spec is None

    def records_in(self, file: str) -> int:
        return self.format.count(file, self.compression_type)


class _NextFile(NamedTuple):
    """An element of the names, and its file, which is being opened, if it is remote.

    The state before it, which is `passed` names after the state `names`, is computed on request.
    """

    names: State
    passed: int
    element: Any
    file: "Future[Any] | None"


class ReadFilesStream(RowsBeforeFailure, of=ReadFiles):
    """The state is [state of the names, number, offset]: the next record of the file named next, and where it begins.

    Between two files number is None. Records that were read but not returned are read again. The next remote files are
    opened in advance, one more with each file.
    """

    def __init__(self, node: ReadFiles, run: Run, epoch: int) -> None:
        self._node = node
        self._names = node.input.cursor(run, epoch)
        # Names that were pulled together: the remaining ones, their number, and the number of those taken.
        self._pulled: Iterator[Any] = iter(())
        self._left = 0
        self._passed = 0
        self._pulled_at: State = None
        self._file = _NextFile(None, 0, None, None)
        self._enter: tuple[int, int] | None = None
        self._reader: RecordReader | None = None
        self._stop = -1
        self._next: deque[_NextFile] = deque()
        self._looks_ahead = node.input.indexable and not node.input.any_fails
        self._opened = 0
        # Where the format declares the specification of records, those of all files are of one kind.
        self._joins = self._looks_ahead and node.spec is not None
        self._failed_at: State = None

    def _make(self, need: int, allow: int) -> Block | None:
        parts: list[Block] = []
        rows = 0
        while rows < allow and (not parts or self._joins_next()):
            try:
                part = self._read(allow - rows)
            except Exception as error:
                if not parts:
                    raise
                self._failure, self._failed_at = error, [self._before(self._file), None, 0]
                break
            if part is None:
                break
            parts.append(part)
            rows += len(part)
        return Block.concatenate(parts) if parts else None

    def _joins_next(self) -> bool:
        """Return whether the records of the next file join the block of this one's.

        A block costs more than opening a small file. No remote file is waited for, and no name is read too early.
        """
        if not self._joins or self._reader is not None:
            return False
        if not self._next:
            self._look_ahead()
        return len(self._next) > 0 and self._next[0].file is None

    def _read(self, most: int) -> Block | None:
        """Return the next records of a file; None if there are none."""
        while (reader := self._reader or self._open()) is not None:
            left = most if self._stop < 0 else min(most, self._stop - reader.number)
            try:
                found = reader.read(left) if left > 0 else None
            except Exception as error:
                self._fail(error)
                raise
            if found is not None:
                if reader.at_end:
                    self._close_file()
                columns, structure = found
                return Block(tuple(map(np.asarray, columns)), structure, len(columns[0]))
            self._close_file()
        return None

    def _pass_failed_row(self) -> None:
        self._failed_at = None

    def _open(self) -> RecordReader | None:
        """Open the next file; None if there is none."""
        enter, self._enter = self._enter, None
        if not self._next:
            self._look_ahead()
        if not self._next:
            return None
        self._file = self._next.popleft()
        file = self._file.file
        try:
            name, start, self._stop = _name_and_range(self._file.element)
            number, offset = enter or (0, 0)
            compression = self._node.compression_type
            source = name if file is None else open_bytes(name, compression, file.result())
            self._opened += 1
            if file is not None:
                self._look_ahead()
            self._reader = self._node.format.open(source, compression, number, offset)
            if enter is None and start:
                self._reader.skip(start)
        except Exception as error:
            self._fail(error)
            raise
        return self._reader

    def _look_ahead(self) -> None:
        """Take names until enough remote files are being opened, or a local file comes."""
        while len(self._next) < min(self._opened + 1, _FILES_AHEAD):
            if self._left == 0 and not self._pull_names():
                break
            element = next(self._pulled)
            name = _name_of(element)
            remote = self._looks_ahead and has_protocol(name)
            file = ask_ahead(open_remote_bytes, name) if remote else None
            self._next.append(_NextFile(self._pulled_at, self._passed, element, file))
            self._left -= 1
            self._passed += 1
            if not remote:
                break

    def _pull_names(self) -> bool:
        """Pull the next names together; returns whether there are any."""
        names = self._names.pull(1, _NAMES_TOGETHER if self._looks_ahead else 1)
        if names is None:
            return False
        self._pulled, self._left, self._passed = names.rows(), len(names), 0
        self._pulled_at = self._names.state_before(self._left)
        return True

    def _fail(self, error: Exception) -> None:
        """Add a note to a failure; if it costs the rest of the file, the next file follows."""
        note(error, self._node)
        if self._reader is not None and self._reader.ended:
            self._close_file()

    def _close_file(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def state(self) -> State:
        if self._failed_at is not None and self._failure is not None:
            return self._failed_at
        if self._reader is not None:
            return [self._before(self._file), self._reader.number, self._reader.offset]
        names = self._before(self._next[0]) if self._next else self._names.state_before(self._left)
        return [names, *(self._enter or (None, 0))]

    def _before(self, file: _NextFile) -> State:
        """Return the state of the names before that of a file."""
        return self._names.later(file.names, file.passed)

    def restore(self, state: State) -> None:
        names, number, offset = state
        self._drop_next()
        self._left = 0
        self._names.restore(names)
        self._enter = None if number is None else (number, offset)

    def close(self) -> None:
        self._close_file()
        self._drop_next()
        self._names.close()

    def _drop_next(self) -> None:
        for following in self._next:
            if following.file is not None:
                following.file.cancel()
        self._next.clear()


def _name_of(element: Any) -> str:
    """Return the name of a file, which was not checked yet."""
    return str(element[0] if isinstance(element, tuple) and element else element)


def _name_and_range(element: Any) -> tuple[str, int, int]:
    if type(element) is str:
        return element, 0, -1
    name, start, stop = element if isinstance(element, tuple) and len(element) == 3 else (element, 0, -1)
    if isinstance(name, np.ndarray) and name.ndim == 0:
        name = name.item()
    if not isinstance(name, str):
        raise InvalidTypeError(f"expected the name of a file as a string, or (name, start, stop), got {element!r}")
    return str(name), int(start), int(stop)
