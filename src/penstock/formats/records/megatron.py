"""Megatron's files of documents: tokens in `x.bin`, and where each document is in `x.idx`.

| bytes of the index | what                                                           |
|--------------------|----------------------------------------------------------------|
| 9                  | `MMIDIDX` and two zeros                                        |
| 8, 1               | the version 1, and a number for the type of the tokens         |
| 8, 8               | how many sequences there are, and documents, plus one          |
| 4 each             | the tokens of each sequence                                    |
| 8 each             | the byte in `x.bin` with which it begins                       |
| 8 each             | the first sequence of each document, and the end of the last   |
"""

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import StorageError
from penstock.formats.file_format import Rows
from penstock.formats.open_files import OpenFileFormat, size_of
from penstock.formats.ranges import RangedFile, open_ranges
from penstock.formats.records.offsets import Edges
from penstock.formats.records.token_files import tokens_between
from penstock.positions import as_positions
from penstock.spec import TensorSpec

MAGIC: Final = b"MMIDIDX\x00\x00"
HEADER: Final = struct.Struct("<9sQBQQ")
_KINDS: Final = ("u1", "i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2")
DTYPES: Final = {number: np.dtype(kind) for number, kind in enumerate(_KINDS, 1)}


def index_of(name: str) -> str:
    """Return the name of the index of a file of tokens."""
    return f"{name.removesuffix('.bin')}.idx"


@dataclass(frozen=True)
class OpenDocuments:
    """An open file and its index.

    Attributes:
        tokens: the file.
        index: its index.
        dtype: of the tokens.
        sequences: how many there are in the index.
        count: how many documents.
    """

    tokens: RangedFile
    index: RangedFile
    dtype: np.dtype[Any]
    sequences: int
    count: int

    @property
    def open_size(self) -> int:
        return size_of(self.tokens) + size_of(self.index)

    def bounds(self, rows: Rows) -> tuple[Edges, Edges]:
        """Return the first byte of documents and the one after their last, without those that have none.

        Raises:
            StorageError: one of them is not within the file.
        """
        numbers = as_positions(rows)
        documents = HEADER.size + 12 * self.sequences
        firsts, stops = self._entries(documents, "<i8", numbers), self._entries(documents, "<i8", numbers + 1)
        begins, ends = np.zeros((2, len(numbers)), np.int64)
        self._check((firsts >= 0) & (stops >= firsts) & (stops <= self.sequences), numbers)
        filled = stops > firsts
        begins[filled] = self._entries(HEADER.size + 4 * self.sequences, "<i8", firsts[filled])
        lasts = stops[filled] - 1
        ends[filled] = self._entries(HEADER.size + 4 * self.sequences, "<i8", lasts)
        ends[filled] += self._entries(HEADER.size, "<i4", lasts) * self.dtype.itemsize
        self._check((begins >= 0) & (begins <= ends) & (ends <= self.tokens.size), numbers)
        self._check((begins % self.dtype.itemsize == 0) & (ends % self.dtype.itemsize == 0), numbers)
        return begins, ends

    def _check(self, within: npt.NDArray[np.bool_], numbers: Edges) -> None:
        """Refuse the first of these documents that is not within the file."""
        if not within.all():
            raise StorageError(
                f"{self.tokens.name!r}, document {numbers[np.argmin(within)]}: it is not within the {self.tokens.size} "
                f"bytes of the file, which is cut, or {self.index.name!r} is damaged"
            )

    def _entries(self, offset: int, kind: str, numbers: Edges) -> Edges:
        """Return numbers of a table in the index."""
        wanted, which = np.unique(numbers, return_inverse=True)
        begins = offset + wanted * np.dtype(kind).itemsize
        found = np.frombuffer(self.index.read(begins, begins + np.dtype(kind).itemsize), kind)
        return found[which].astype(np.int64)


class MegatronFiles(OpenFileFormat[OpenDocuments]):
    """The documents of `x.bin`, whose lengths its index has."""

    has_lengths = True

    def lengths(self, name: str, rows: Rows) -> npt.NDArray[np.int64]:
        opened = self.opened(name)
        begins, ends = opened.bounds(rows)
        return (ends - begins) // opened.dtype.itemsize

    def spec(self, name: str) -> Any:
        return TensorSpec((None,), self.opened(name).dtype)

    def read(self, name: str, rows: Rows) -> Any:
        opened = self.opened(name)
        found = tokens_between(opened.tokens, opened.dtype, *opened.bounds(rows))
        return np.fromiter(found, object, len(found))

    def open(self, name: str) -> OpenDocuments:
        if not name.endswith(".bin"):
            raise StorageError(f"{name!r}: name the file of tokens, x.bin, whose index is x.idx beside it")
        tokens, index = open_ranges(name), open_ranges(index_of(name))
        head = index.read(np.array([0]), np.array([min(HEADER.size, index.size)]))
        magic, version, kind, sequences, documents = (
            HEADER.unpack(head) if len(head) == HEADER.size else (b"", 0, 0, 0, 0)
        )
        if magic != MAGIC or version != 1 or kind not in DTYPES:
            raise StorageError(f"{index.name!r} is no index of Megatron's, or of another version than 1")
        size = HEADER.size + 12 * sequences + 8 * documents
        if index.size < size or not documents:
            raise StorageError(f"{index.name!r} is cut: it should have {size} bytes, and has {index.size}")
        opened = OpenDocuments(tokens, index, DTYPES[kind], sequences, documents - 1)
        opened.bounds(range(max(0, documents - 2), documents - 1))  # refuses a file that is cut
        return opened
