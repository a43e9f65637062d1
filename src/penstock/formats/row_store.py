"""Rows in a directory: Arrow IPC files, written once and then read by memory map, at any row.

    rows-00000.arrow …   the rows; a new file begins where the type of a column changes
    rows.json            written last: {"version", "rows", "structure", "files"}; a directory without it is incomplete

A writer works in `<path>.writing` and renames it to `<path>` when everything is on disk, so a reader never sees half a
store. Columns are encoded as `columns.py` says.
"""

import importlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidTypeError, StorageError
from penstock.formats.columns import decode_column, encode_column, spec_of_encoded
from penstock.formats.structure_data import structure_of_data, structure_to_data
from penstock.paths import link_of_others
from penstock.rng import as_positions
from penstock.spec import LeafSpec, merged_specs
from penstock.structure import Structure

VERSION = 1
_CHUNK_BYTES = 4 << 20

Columns = tuple[npt.NDArray[Any], ...]


class RowStoreWriter:
    """Writes the rows of one store. Use it in `with`: leaving it by an error removes what was written.

    Raises:
        StorageError: the store exists, another process that is alive is writing it, or it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._work = Path(f"{self._path}.writing")
        for place in (self._path, self._work):
            if link := link_of_others(place):
                raise StorageError(f"'{place}' is not written to: {link}")
        if self._path.exists():
            raise StorageError(f"{self._path} exists: remove it first, or write to another place")
        with self._told():
            self._claim()
        self._files: list[str] = []
        self._schema: pa.Schema | None = None
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._structure: Structure | None = None
        self._rows = 0
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What the system refuses, as a full disk, with the place."""
        try:
            yield
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"'{self._path}' cannot be written: {error}") from error

    def _claim(self) -> None:
        owner = self._work / "owner"
        try:
            self._work.mkdir(parents=True)
        except FileExistsError:
            process = int(owner.read_text() or 0) if owner.exists() else 0
            if process and _is_alive(process):
                raise StorageError(f"{self._path} is being written by process {process}") from None
            # Its writer has died: what it left is not whole.
            shutil.rmtree(self._work)
            self._work.mkdir()
        owner.write_text(str(os.getpid()))

    def write(self, columns: Columns, structure: Structure, rows: int) -> None:
        """Append rows."""
        if not columns:
            raise InvalidTypeError(f"cannot store elements without leaves: their structure is {structure}")
        self._structure = structure
        self._rows += rows
        fields, arrays = [], []
        for number, column in enumerate(columns):
            field, array = encode_column(str(number), column)
            fields.append(field)
            arrays.append(array)
        with self._told():
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
        name = f"rows-{len(self._files):05d}.arrow"
        self._files.append(name)
        self._schema = schema
        self._writer = pa.ipc.new_file(str(self._work / name), schema)

    def _flush(self) -> None:
        if self._pending and self._writer is not None:
            table = pa.Table.from_batches(self._pending).combine_chunks()
            self._writer.write_table(table)
        self._pending, self._pending_bytes = [], 0

    def _end_file(self) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def finish(self, order: npt.NDArray[np.int64] | None = None) -> None:
        """Make the store complete and visible. `order` says at which position each written row belongs."""
        with self._told():
            self._finish(order)

    def _finish(self, order: npt.NDArray[np.int64] | None) -> None:
        self._end_file()
        if order is not None:
            np.save(self._work / "order.npy", order)
        structure = None if self._structure is None else structure_to_data(self._structure)
        description = {"version": VERSION, "rows": self._rows, "structure": structure, "files": self._files}
        (self._work / "rows.json").write_text(json.dumps(description))
        (self._work / "owner").unlink()
        self._work.rename(self._path)

    def discard(self) -> None:
        """Remove what was written."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(OSError):  # on a full disk it has something left to write
                writer.close()
        shutil.rmtree(self._work, ignore_errors=True)


class RowStore:
    """A complete store, read by memory map.

    Raises:
        StorageError: no store there, one of another version, or a damaged one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            description = json.loads((self.path / "rows.json").read_text())
        except FileNotFoundError as error:
            raise StorageError(f"there is no saved dataset at '{self.path}': rows.json is missing") from error
        except ValueError as error:
            raise StorageError(f"{self.path}/rows.json is damaged: {error}") from error
        if description["version"] != VERSION:
            raise StorageError(f"{self.path} has version {description['version']}, this penstock reads {VERSION}")
        self.rows: int = description["rows"]
        data = description["structure"]
        self.structure: Structure | None = None if data is None else structure_of_data(data, _import_class)
        self._batches: list[tuple[pa.Schema, pa.RecordBatch]] = []
        for name in description["files"]:
            self._open(self.path / name)
        self._ends = np.cumsum([batch.num_rows for _, batch in self._batches], dtype=np.int64)
        if self.rows != (int(self._ends[-1]) if len(self._ends) else 0):
            raise StorageError(f"{self.path} is damaged: {self.rows} rows expected, found {self._ends[-1:]}")
        order = self.path / "order.npy"
        self._where = np.argsort(np.load(order)) if order.exists() else None
        self._decoded: dict[int, Columns] = {}

    def __reduce__(self) -> tuple[type["RowStore"], tuple[str]]:
        """In another process the files are opened there."""
        return RowStore, (str(self.path.absolute()),)

    def _open(self, path: Path) -> None:
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            for number in range(reader.num_record_batches):
                self._batches.append((reader.schema, reader.get_batch(number)))
        except (pa.ArrowInvalid, OSError) as error:
            raise StorageError(f"{path} is damaged: {error}") from error

    def pieces(self, indices: range | npt.NDArray[np.int64]) -> list[tuple[npt.NDArray[np.intp], Columns, Any]]:
        """Where the rows at these positions lie, piece by piece.

        A piece says which of the positions it holds, the columns they lie in, and their rows there.
        """
        if isinstance(indices, range) and self._where is None and indices.step == 1 and len(indices):
            number = int(np.searchsorted(self._ends, indices.start, side="right"))
            if indices.stop <= self._ends[number]:
                start = indices.start - self._begin(number)
                return [(np.arange(len(indices)), self._columns(number), range(start, start + len(indices)))]
        positions = as_positions(indices)
        if self._where is not None:
            positions = self._where[positions]
        numbers = np.searchsorted(self._ends, positions, side="right")
        pieces = []
        for number in np.unique(numbers):
            where = np.flatnonzero(numbers == number)
            pieces.append((where, self._columns(int(number)), positions[where] - self._begin(int(number))))
        return pieces

    def specs(self) -> list[LeafSpec]:
        """The specification of each leaf, which covers all rows (at least one)."""
        specs = [
            [spec_of_encoded(schema.field(i), batch.column(i)) for i in range(batch.num_columns)]
            for schema, batch in self._batches
        ]
        return [merged_specs(leaf) for leaf in zip(*specs, strict=True)]

    def _begin(self, number: int) -> int:
        rows: int = self._batches[number][1].num_rows
        return int(self._ends[number]) - rows

    def _columns(self, number: int) -> Columns:
        if number not in self._decoded:
            schema, batch = self._batches[number]
            self._decoded[number] = tuple(
                decode_column(schema.field(i), batch.column(i)) for i in range(batch.num_columns)
            )
        return self._decoded[number]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _import_class(module: str, name: str) -> type:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise StorageError(f"the rows are {module}.{name} records, which cannot be imported: {error}") from error
    return found  # type: ignore[no-any-return]
