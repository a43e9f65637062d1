"""A vocabulary in a text file, one token per line, looked up without reading it into memory.

An index is stored next to the file, or in a directory of the user's choice: an Arrow file with a row for each token.

    next           where the line after it begins, or would
    print          the fingerprints of the tokens, sorted
    number         the numbers of the tokens in that order

Its metadata has a version, the size and modification time of the text file, a digest, and whether all are integers.

Both files are mapped into memory, so all processes of a machine share one copy. The index is written under another name
and then renamed, so half of one is never seen; a lock on the text file keeps other processes from doing the work twice.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidArgumentError, StorageError
from penstock.paths import appearing, link_of_others
from penstock.preprocessing.hashes import Bytes, Positions, Words, fingerprint64, gathered, spans
from penstock.preprocessing.keys import MemoryKeys, Numbers

_VERSION = b"2"
_LINES_AT_ONCE = 1 << 20
_BYTES_AT_ONCE = 1 << 26


class FileKeys:
    """The lines of a file as keys, the first line with number 0.

    Raises:
        InvalidArgumentError: no such file, no lines, an empty line, or a token that occurs twice.
        StorageError: the index cannot be written, or another user's link leads to it.
    """

    def __init__(self, path: str, cache_dir: str | None = None) -> None:
        self.path = path
        self.cache_dir = cache_dir
        if not os.path.isfile(path):
            raise InvalidArgumentError(f"vocabulary={path!r}: there is no such file")
        if os.path.getsize(path) == 0:
            raise InvalidArgumentError(f"vocabulary={path!r}: the file is empty, it must hold one token per line")
        self._open()

    def _open(self) -> None:
        where = _index_path(self.path, self.cache_dir)
        if link := link_of_others(where):
            raise StorageError(f"the index of {self.path} is not kept at {where}: {link}")
        index = _read_index(where, self.path)
        if index is None:
            with _locked(self.path):
                index = _read_index(where, self.path)
                if index is None:
                    _write_index(where, self.path)
                    index = _read_index(where, self.path)
        if index is None:
            raise StorageError(f"{self.path} was changed while its index was made: try again when it is complete")
        self.digest = int(index.schema.metadata[b"digest"])
        self.all_integers = index.schema.metadata[b"all_integers"] == b"True"
        self._text: Bytes = np.memmap(self.path, np.uint8, "r")
        self._nexts, self._prints, self._order = (column.to_numpy() for column in index.columns)

    def __len__(self) -> int:
        return len(self._prints)

    def find(self, values: pa.Array) -> Numbers:
        """The number of each value, or -1. Each distinct value is looked up once."""
        encoded = (values if values.type == pa.large_binary() else _as_text(values)).dictionary_encode()
        found: Numbers = self._find_distinct(encoded.dictionary)[encoded.indices.to_numpy()]
        return found

    def _find_distinct(self, values: pa.LargeBinaryArray) -> Numbers:
        prints = fingerprint64(*spans(values))
        places = np.searchsorted(self._prints, prints)
        result = np.full(len(values), -1)
        left = np.arange(len(values))
        while len(left):
            left = left[places[left] < len(self)]
            left = left[self._prints[places[left]] == prints[left]]
            numbers = self._order[places[left]].astype(np.int64)
            equal = pc.equal(self.take(numbers), values.take(pa.array(left))).to_numpy(zero_copy_only=False)
            result[left[equal]] = numbers[equal]
            left = left[~equal]  # another token with the same fingerprint: try the next one
            places[left] += 1
        return result

    def take(self, numbers: Numbers) -> pa.LargeBinaryArray:
        """The lines of these numbers."""
        starts = np.where(numbers > 0, self._nexts[numbers - 1], 0)
        return gathered(self._text, starts, _line_ends(self._text, starts, self._nexts[numbers]) - starts)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "cache_dir": self.cache_dir, "digest": self.digest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"], state["cache_dir"])  # type: ignore[misc]  # opened again, not copied
        if self.digest != state["digest"]:
            raise StorageError(
                f"vocabulary={self.path!r} has changed since the layer was made: give changed files new names"
            )


Keys = MemoryKeys | FileKeys


def _as_text(integers: pa.Int64Array) -> pa.LargeBinaryArray:
    return integers.cast(pa.large_string()).cast(pa.large_binary())


def _index_path(path: str, cache_dir: str | None) -> Path:
    file = Path(path).resolve()
    if cache_dir is None:
        return file.with_name(file.name + ".penstock-index")
    code = fingerprint64(*spans(pa.array([str(file)], pa.large_binary())))[0]
    return Path(cache_dir) / f"{file.name}-{int(code):016x}.penstock-index"


def _stamp(path: str) -> bytes:
    """Text that changes when the file does."""
    status = os.stat(path)
    return b"%d bytes, %d" % (status.st_size, status.st_mtime_ns)


def _read_index(where: Path, path: str) -> pa.RecordBatch | None:
    """The index, if it exists, is complete, and was made of the file as it is now."""
    try:
        index = pa.ipc.open_file(pa.memory_map(str(where))).get_batch(0)
    except (OSError, ValueError):  # it does not exist, or is cut off
        return None
    about = index.schema.metadata or {}
    return index if (about.get(b"version"), about.get(b"stamp")) == (_VERSION, _stamp(path)) else None


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    with open(path, "rb") as file:
        with contextlib.suppress(OSError):  # a file system without locks: then the work may be done twice
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write_index(where: Path, path: str) -> None:
    stamp = _stamp(path)
    text: Bytes = np.memmap(path, np.uint8, "r")
    starts = _line_starts(text)
    prints, all_integers = _fingerprints(path, text, starts)
    order = np.argsort(prints, kind="stable")
    ordered = prints[order]
    _refuse_repeated(path, text, starts, order, ordered)
    digest = int((prints * (2 * np.arange(len(prints), dtype=np.uint64) + np.uint64(1))).sum())
    about = {"version": _VERSION, "stamp": stamp, "digest": str(digest), "all_integers": str(all_integers)}
    columns = {"next": starts[1:], "print": ordered, "number": order.astype(np.uint32)}
    index = pa.RecordBatch.from_pydict(columns).replace_schema_metadata(about)
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        with (
            appearing(where) as part,
            pa.OSFile(str(part), "wb") as file,
            pa.ipc.new_file(file, index.schema) as writer,
        ):
            writer.write_batch(index)
    except OSError as error:
        raise StorageError(
            f"the index of {path} cannot be written to {where}: {error}; give a directory with cache_dir=..."
        ) from error


def _line_starts(text: Bytes) -> Positions:
    """Return where each line begins, and where a line after the last would begin."""
    pieces = [np.zeros(1, np.int64)]
    pieces += [
        np.flatnonzero(text[start : start + _BYTES_AT_ONCE] == ord("\n")) + (start + 1)
        for start in range(0, len(text), _BYTES_AT_ONCE)
    ]
    starts = np.concatenate(pieces)
    return starts if starts[-1] == len(text) else np.append(starts, len(text) + 1)


def _line_ends(text: Bytes, starts: Positions, next_starts: Positions) -> Positions:
    """Return where the lines end, without their line breaks."""
    ends = next_starts - 1
    returned = (ends > starts) & (text[np.maximum(ends, 1) - 1] == ord("\r"))
    return np.asarray(ends - returned)


def _fingerprints(path: str, text: Bytes, starts: Positions) -> tuple[Words, bool]:
    """The fingerprint of each line, and whether all lines are integers as `str` writes them."""
    prints = np.empty(len(starts) - 1, np.uint64)
    if len(prints) >= 1 << 32:
        raise InvalidArgumentError(f"vocabulary={path!r} has {len(prints)} lines: at most 2**32 - 1 can be looked up")
    all_integers = True
    for first in range(0, len(prints), _LINES_AT_ONCE):
        begins = starts[first : first + _LINES_AT_ONCE + 1]
        lengths = _line_ends(text, begins[:-1], begins[1:]) - begins[:-1]
        if (lengths == 0).any():
            line = first + int(np.argmin(lengths)) + 1
            raise InvalidArgumentError(f"vocabulary={path!r}: line {line} is empty, it must hold a token")
        prints[first : first + _LINES_AT_ONCE] = fingerprint64(text, begins[:-1], lengths)
        all_integers = all_integers and _are_integers(gathered(text, begins[:-1], lengths))
    return prints, all_integers


def _are_integers(lines: pa.LargeBinaryArray) -> bool:
    try:
        numbers = lines.cast(pa.large_string()).cast(pa.int64())
    except pa.ArrowInvalid:
        return False
    return bool(_as_text(numbers).equals(lines))


def _refuse_repeated(path: str, text: Bytes, starts: Positions, order: npt.NDArray[np.int64], ordered: Words) -> None:
    same = ordered[1:] == ordered[:-1]
    where = np.sort(order[np.flatnonzero(np.append(same, False) | np.append(False, same))])
    lines = gathered(text, starts[where], _line_ends(text, starts[where], starts[where + 1]) - starts[where])
    counted = pc.value_counts(lines)
    repeated = counted.field("values").filter(pc.greater(counted.field("counts"), 1)).to_pylist()
    if repeated:
        raise InvalidArgumentError(f"vocabulary={path!r}: every token must occur once, repeated: {repeated[:10]}")
