"""Rows in a directory: Arrow IPC files, written once and then read by memory map, at any row.

    rows-00000.arrow …   the rows, shard by shard; a new file begins where the type of a column changes
    rows.json            written last: {"content": {"version", "rows", "structure", "specs", "files"}, "crc32c"}; a
                         directory without it is incomplete

Columns are encoded as `columns.py` says. Every byte has a checksum, that of `rows.json` or one in it.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidTypeError, StorageError
from penstock.formats.checked_arrow import CheckedArrowFile, CheckedArrowWriter, CheckedBytes
from penstock.formats.checked_json import read_checked_json, write_checked_json
from penstock.formats.columns import decode_column, encode_column, spec_of_encoded
from penstock.formats.spec_data import spec_of_data, spec_to_data
from penstock.formats.structure_data import stored_class, structure_of_data, structure_to_data
from penstock.positions import as_positions
from penstock.spec import LeafSpec, merged_specs
from penstock.structure import Structure

VERSION = 2
_DESCRIPTION = "rows.json"
_CHUNK_BYTES = 4 << 20

Columns = tuple[npt.NDArray[Any], ...]
StoredRows = tuple[Columns, Structure]


class RowFiles:
    """Writes rows to Arrow files whose names begin with `name`, a new one where the type of a column changes."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._stem = name
        self._files: list[tuple[str, list[CheckedBytes]]] = []
        self._schema: pa.Schema | None = None
        self._writer: CheckedArrowWriter | None = None
        self._structure: Structure | None = None
        self._specs: list[dict[LeafSpec, None]] = []  # of each leaf those of its batches
        self._rows = 0
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0

    def write(self, columns: Columns, structure: Structure, rows: int) -> None:
        """Append rows."""
        if not columns:
            raise InvalidTypeError(f"cannot store elements without leaves: their structure is {structure}")
        self._structure = structure
        self._specs = self._specs or [{} for _ in columns]
        self._rows += rows
        fields, arrays = [], []
        for number, column in enumerate(columns):
            field, array = encode_column(str(number), column)
            fields.append(field)
            arrays.append(array)
        self._append(fields, arrays)

    def _append(self, fields: list[pa.Field], arrays: list[pa.Array]) -> None:
        schema = pa.schema(fields)
        if schema != self._schema or [f.metadata for f in schema] != [f.metadata for f in self._schema]:
            self._begin_file(schema)
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= _CHUNK_BYTES:
            self._flush()

    def _begin_file(self, schema: pa.Schema) -> None:
        self._end_file()
        self._schema = schema
        self._writer = CheckedArrowWriter(self._directory / self._name(), schema)

    def _name(self) -> str:
        return f"{self._stem}-{len(self._files):05d}.arrow" if self._files else f"{self._stem}.arrow"

    def _flush(self) -> None:
        if self._pending and self._writer is not None:
            table = pa.Table.from_batches(self._pending).combine_chunks()
            for batch in table.to_batches():
                self._writer.write(batch)
                for number, specs in enumerate(self._specs):
                    _note(specs, spec_of_encoded(batch.schema.field(number), batch.column(number)))
        self._pending, self._pending_bytes = [], 0

    def _end_file(self) -> None:
        self._flush()
        if self._writer is not None:
            writer, self._writer = self._writer, None
            self._files.append((self._name(), writer.close()))

    def finish(self) -> dict[str, Any]:
        """Complete the files; gives what `write_description` is to be told of them."""
        self._end_file()
        return {
            "rows": self._rows,
            "files": [name for name, _ in self._files],
            "structure": None if self._structure is None else structure_to_data(self._structure),
            "specs": [[spec_to_data(spec) for spec in specs] for specs in self._specs],
            "pieces": self._files,
        }

    def close(self) -> None:
        """Close what is open."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(OSError):  # on a full disk it has something left to write
                writer.close()


def _note(specs: dict[LeafSpec, None], spec: LeafSpec) -> None:
    """Add a specification, or extend the one that differs in the lengths of axes alone: there may be many of these."""
    for known in specs:
        if (known.dtype, len(known.shape), known.ragged_rank) == (spec.dtype, len(spec.shape), spec.ragged_rank):
            del specs[known]
            spec = merged_specs((known, spec))
            break
    specs[spec] = None


def write_description(directory: Path, *, rows: int, structure: Any, specs: list[Any], files: list[Any]) -> None:
    """Write `rows.json`, which makes the files in a directory a store."""
    content = {
        "version": VERSION,
        "rows": rows,
        "structure": structure,
        "specs": specs,
        "files": files,
    }
    write_checked_json(directory / _DESCRIPTION, content)


class RowStore:
    """A complete store, read by memory map.

    Raises:
        StorageError: no store there, one of another version, or a damaged one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        description = self._description()
        self.rows: int = description["rows"]
        data = description["structure"]
        self.structure: Structure | None = None if data is None else structure_of_data(data, stored_class)
        self._specs: list[list[Any]] = description["specs"]
        self._batches: list[tuple[CheckedArrowFile, int]] = []
        rows: list[int] = []
        for name, pieces in description["files"]:
            file = CheckedArrowFile(self.path / name, [CheckedBytes(*piece) for piece in pieces])
            self._batches += [(file, number) for number in range(len(file.rows))]
            rows += file.rows
        self._ends = np.cumsum(rows, dtype=np.int64)
        self._decoded: dict[int, Columns] = {}

    def _description(self) -> dict[str, Any]:
        content = read_checked_json(self.path / _DESCRIPTION, VERSION)
        if content is None:
            raise StorageError(f"there is no saved dataset at '{self.path}': rows.json is missing")
        if content.get("order") is not None:
            raise StorageError(f"'{self.path}' is a cache that an earlier penstock has filled: delete it")
        return content

    def __reduce__(self) -> tuple[type["RowStore"], tuple[str]]:
        """In another process the files are opened there."""
        return RowStore, (str(self.path.absolute()),)

    def pieces(self, indices: range | npt.NDArray[np.int64]) -> list[tuple[npt.NDArray[np.intp], StoredRows, Any]]:
        """Where the rows at these positions are stored, piece by piece.

        A piece says which of the positions it holds, its columns with their structure, and the rows in them.

        Raises:
            StorageError: they are not as they were written, or a file was cut since it was opened.
        """
        if isinstance(indices, range) and indices.step == 1 and len(indices):
            number = int(np.searchsorted(self._ends, indices.start, side="right"))
            if indices.stop <= self._ends[number]:
                start = indices.start - self._begin(number)
                return [(np.arange(len(indices)), self._stored(number), range(start, start + len(indices)))]
        positions = as_positions(indices)
        numbers = np.searchsorted(self._ends, positions, side="right")
        pieces = []
        for number in np.unique(numbers):
            where = np.flatnonzero(numbers == number)
            pieces.append((where, self._stored(int(number)), positions[where] - self._begin(int(number))))
        return pieces

    def specs(self) -> list[LeafSpec]:
        """The specification of each leaf, which covers all rows (at least one)."""
        return [merged_specs(map(spec_of_data, leaf)) for leaf in self._specs]

    def _begin(self, number: int) -> int:
        return int(self._ends[number - 1]) if number else 0

    def _stored(self, number: int) -> StoredRows:
        assert self.structure is not None
        file, number_in_file = self._batches[number]
        batch = file.batch(number_in_file)
        if number not in self._decoded:
            self._decoded[number] = tuple(
                decode_column(file.schema.field(i), batch.column(i)) for i in range(batch.num_columns)
            )
        return self._decoded[number], self.structure
