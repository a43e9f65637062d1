"""Files of tokens of two or four bytes, one after the other: documents in them, or rows of one length.

Parts of files are read where they are asked for, and rows are views of the bytes that were read.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidArgumentError, InvalidTypeError, StorageError
from penstock.formats.file_format import Rows
from penstock.formats.open_files import OpenFileFormat, OpenRanges
from penstock.formats.ranges import RangedFile, open_ranges
from penstock.formats.records.npy import NpyFiles
from penstock.formats.records.offsets import Edges, cached_edges
from penstock.options import check_integer
from penstock.positions import as_positions
from penstock.spec import TensorSpec

_NPY: Final = b"\x93NUMPY"
_SCAN_BYTES: Final = 1 << 26
"""The bytes in which ends of documents are looked for at a time."""


def tokens_between(file: RangedFile, dtype: np.dtype[Any], begins: Edges, ends: Edges) -> list[npt.NDArray[Any]]:
    """Return the tokens between these bytes of a file, each as an array."""
    if (begins[1:] < ends[:-1]).any():  # parts that overlap
        return [np.frombuffer(file.read(begins[n : n + 1], ends[n : n + 1]), dtype) for n in range(len(begins))]
    tokens = np.frombuffer(file.read(begins, ends), dtype)
    stops = np.cumsum((ends - begins) // dtype.itemsize).tolist()
    return [tokens[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]


@dataclass(frozen=True)
class OpenTokens(OpenRanges):
    """An open file of tokens.

    Attributes:
        dtype: of its tokens.
        offset: the byte of the first.
        edges: the token with which each document begins, and the end of the last; None for rows of one length.
        count: the number of documents or rows.
    """

    dtype: np.dtype[Any]
    offset: int
    edges: Edges | None
    count: int


class TokenFiles(OpenFileFormat[OpenTokens]):
    """Files of tokens without anything between them, as nanoGPT and OLMo write them; also `.npy` arrays of one axis.

    It is a format for `ps.FilesDataset`. Elements are either rows of one length, or documents, whose lengths are known
    to `pack`. To find the ends of documents a file is read once; they are kept in the user's cache directory.

    Args:
        dtype: of the tokens, such as "uint16"; a `.npy` file has its own.
        length: tokens of a row; those behind the last whole row of a file are left out.
        stride: tokens from the beginning of a row to that of the next; `length` by default. `length - 1` lets the last
            target of a row be the first input of the next.
        eos: the token that ends a document, which is part of it, instead of `length`.

    Raises:
        InvalidArgumentError: neither or both of `length` and `eos`.
        InvalidTypeError: a dtype that is not of integers.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> import penstock as ps
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "train.bin"
        >>> np.array([5, 6, 0, 7, 0, 8, 8, 0], np.uint16).tofile(path)
        >>> list(ps.FilesDataset(path, ps.text.TokenFiles("uint16", length=3, stride=2)))[1].tolist()
        [0, 7, 0]
        >>> documents = ps.FilesDataset(path, ps.text.TokenFiles("uint16", eos=0))
        >>> [row["tokens"].tolist() for row in documents.pack(4)]
        [[5, 6, 0, 0], [7, 0, 0, 0], [8, 8, 0, 0]]
    """

    has_lengths = True  # rows have them too

    def __init__(
        self, dtype: Any = "uint16", *, length: int | None = None, stride: int | None = None, eos: int | None = None
    ) -> None:
        super().__init__()
        self.dtype = np.dtype(dtype)
        if self.dtype.kind not in "iu":
            raise InvalidTypeError(f"TokenFiles(dtype=...) takes a type of integers, got {self.dtype}")
        if (length is None) == (eos is None) or (stride is not None and length is None):
            raise InvalidArgumentError(
                "TokenFiles takes length=... and perhaps stride=... for rows of one length, or eos=... for documents; "
                f"got length={length}, stride={stride}, eos={eos}"
            )
        self.length = None if length is None else check_integer("TokenFiles", "length", length, minimum=1)
        self.stride = self.length if stride is None else check_integer("TokenFiles", "stride", stride, minimum=1)
        self.eos = eos

    def lengths(self, name: str, rows: Rows) -> npt.NDArray[np.int64]:
        begins, ends = self._bounds(self.opened(name), rows)
        return ends - begins

    def spec(self, name: str) -> Any:
        return TensorSpec((self.length,), self.opened(name).dtype)

    def read(self, name: str, rows: Rows) -> Any:
        opened = self.opened(name)
        begins, ends = self._bounds(opened, rows)
        size = opened.dtype.itemsize
        found = tokens_between(opened.file, opened.dtype, opened.offset + begins * size, opened.offset + ends * size)
        if self.length is None:
            return np.fromiter(found, object, len(found))
        if self.stride == self.length and isinstance(rows, range) and len(found):
            whole: Any = found[0].base
            return whole.reshape(len(found), self.length)
        return np.stack(found) if found else np.empty((0, self.length), opened.dtype)

    def _bounds(self, opened: OpenTokens, rows: Rows) -> tuple[Edges, Edges]:
        """Return the first token of rows and the one after their last."""
        numbers = as_positions(rows)
        if opened.edges is not None:
            return opened.edges[numbers], opened.edges[numbers + 1]
        assert self.length is not None
        assert self.stride is not None
        return numbers * self.stride, numbers * self.stride + self.length

    def open(self, name: str) -> OpenTokens:
        file, dtype, offset = open_ranges(name), self.dtype, 0
        tokens, rest = divmod(file.size, dtype.itemsize)
        if file.read(np.array([0]), np.array([min(len(_NPY), file.size)])) == _NPY:
            array = NpyFiles().open(name)
            dtype, offset, tokens = array.dtype, array.offset, array.count
            if array.shape or dtype.kind not in "iu":
                shape = (tokens, *array.shape)
                raise StorageError(f"{name!r} holds an array of {dtype}{shape}, not integers along one axis")
        elif rest:
            raise StorageError(
                f"{name!r} has {file.size} bytes, which is no whole number of tokens of {dtype}: it is cut, or its "
                "tokens are of another type"
            )
        if self.length is not None and self.stride is not None:
            return OpenTokens(file, dtype, offset, None, max(0, (tokens - self.length) // self.stride + 1))
        find = partial(self._found, file, dtype, offset, tokens)
        edges = cached_edges(name, f"tokens of {dtype} until {self.eos}", file.version, find)
        return OpenTokens(file, dtype, offset, edges, len(edges) - 1)

    def _found(self, file: RangedFile, dtype: np.dtype[Any], offset: int, tokens: int) -> Edges:
        """Return where documents begin, and the last one ends; tokens behind the last end are a document too."""
        step, found = _SCAN_BYTES // dtype.itemsize, [np.zeros(1, np.int64)]
        for start in range(0, tokens, step):
            bounds = offset + np.array([start, min(start + step, tokens)]) * dtype.itemsize
            values = np.frombuffer(file.read(bounds[:1], bounds[1:]), dtype)
            found.append(np.flatnonzero(values == self.eos) + start + 1)
        edges = np.concatenate(found)
        return edges if edges[-1] == tokens else np.append(edges, tokens)
