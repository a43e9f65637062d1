"""Datasets of documents saved as Megatron's files: tokens in `x.bin`, and an index in `x.idx`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import InvalidTypeError
from penstock.formats.records.megatron import DTYPES, HEADER, MAGIC, index_of
from penstock.formats.writing.leaves import Columns
from penstock.formats.writing.shard_format import ShardWriter
from penstock.spec import LeafSpec
from penstock.structure import Structure


class MegatronShards(ShardWriter):
    """Elements that are arrays of tokens; each is a document of one sequence."""

    ending = "bin"

    @classmethod
    def check(cls, structure: Structure, specs: Sequence[LeafSpec], columns: Columns) -> None:
        super().check(structure, specs, columns)
        row = np.asarray(columns[0][0])
        if structure.kind != "leaf" or row.ndim != 1 or row.dtype not in DTYPES.values():
            raise InvalidTypeError(
                "Megatron's files hold documents of tokens: arrays with one axis, of one of "
                f"{sorted(map(str, DTYPES.values()))}; got {structure}, the first of {row.dtype}{list(row.shape)}: "
                "convert them by map"
            )

    def __init__(self, directory: Path, number: int, specs: Sequence[LeafSpec] = ()) -> None:
        super().__init__(directory, number)
        self._lengths: list[int] = []
        self._dtype: Any = None

    def _append(self, columns: Columns, structure: Structure, rows: int) -> None:
        if self._file is None:
            self._file, self._dtype = self.path.open("wb"), columns[0][0].dtype
        for document in columns[0]:
            if document.dtype != self._dtype or document.ndim != 1:
                raise InvalidTypeError(f"a document of {document.dtype} follows documents of {self._dtype}")
            self._file.write(np.ascontiguousarray(document).data)
            self._lengths.append(len(document))

    def _end(self) -> list[str]:
        lengths = np.array(self._lengths, np.int64)
        (kind,) = (number for number, dtype in DTYPES.items() if dtype == self._dtype)
        index = Path(index_of(str(self.path)))
        with index.open("wb") as file:
            file.write(HEADER.pack(MAGIC, 1, kind, len(lengths), len(lengths) + 1))
            file.write(lengths.astype("<i4").tobytes())
            file.write(((np.cumsum(lengths) - lengths) * self._dtype.itemsize).astype("<i8").tobytes())
            file.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())
        return [index.name]
