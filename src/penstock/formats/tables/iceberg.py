"""Tables of Iceberg at a snapshot: `pyiceberg` plans which files are read, and penstock reads them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as pd
import pyarrow.parquet as pq
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, Table
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.transforms import IdentityTransform

from penstock.errors import InvalidArgumentError, InvalidTypeError, StorageError
from penstock.formats.file_errors import by_library
from penstock.formats.tables.file_columns import OLD_NAMES, TableVersion

_CALL: Final = "IcebergDataset"


def planned(table: Any, snapshot_id: int | None, filter: Any) -> tuple[TableVersion, pd.Expression | None]:
    """A table at a snapshot, with the files that may have rows that a filter keeps, and the filter in Arrow's terms.

    Raises:
        InvalidTypeError: no table.
        InvalidArgumentError: a table without a snapshot, another's snapshot, or a filter that does not fit.
        StorageError: deletes that are not applied, or files that are no Parquet.
    """
    if not isinstance(table, Table):
        raise InvalidTypeError(
            f"{_CALL}(table=...) takes a table of pyiceberg, as catalog.load_table gives it, got {table!r:.200}"
        )
    chosen = snapshot_id
    if chosen is None:
        newest = table.current_snapshot()
        if newest is None:
            raise InvalidArgumentError(f"{_CALL}: the table {_name(table)} has no snapshot, so no rows yet")
        chosen = newest.snapshot_id
    if table.snapshot_by_id(chosen) is None:
        raise InvalidArgumentError(
            f"{_CALL}(snapshot_id={chosen}): the table {_name(table)} has no such snapshot (any more); it has "
            f"{[snapshot.snapshot_id for snapshot in table.snapshots()]}"
        )
    scan = table.scan(snapshot_id=chosen)
    schema, arrow_filter = scan.projection(), None
    if filter is not None:
        with by_library(f"{_CALL}(filter=...) does not fit the table {_name(table)}", InvalidArgumentError):
            filter = parse(filter) if isinstance(filter, str) else filter
            arrow_filter = expression_to_pyarrow(bind(schema, filter, case_sensitive=True), schema)
            scan = table.scan(filter, snapshot_id=chosen)
    asked = f"{_CALL}({_name(table)}, {chosen}, {filter!r})"
    plan = TableVersion.shared(asked, lambda: _plan_of(table, scan, schema, chosen))
    return replace(plan, at=lambda other: _plan_of(table, table.scan(snapshot_id=other), schema, other)), arrow_filter


def _plan_of(table: Table, scan: DataScan, schema: Schema, chosen: int) -> TableVersion:
    with by_library(f"{_CALL}: the table {_name(table)} cannot be read at snapshot {chosen}", StorageError):
        tasks = sorted(scan.plan_files(), key=lambda task: str(task.file.file_path))
        deletes = {delete.file_path: delete for task in tasks for delete in task.delete_files}
        removed = {path: _positions(table, delete) for path, delete in deletes.items()}
    values, deleted, counts = {}, {}, {}
    for task in tasks:
        path = task.file.file_path
        if task.file.file_format != FileFormat.PARQUET:
            raise StorageError(f"{_CALL}: {path!r} is a file of {task.file.file_format.value}: Parquet alone is read")
        values[_local(path)] = _values(table, task.file, schema)
        rows = [removed[delete.file_path].get(path, np.empty(0, np.int64)) for delete in task.delete_files]
        if rows:
            deleted[_local(path)] = np.unique(np.concatenate(rows))
        counts[_local(path)] = task.file.record_count - len(deleted.get(_local(path), ()))
    return TableVersion(_columns(table, schema), values, deleted, f"snapshot_id={chosen}", counts)


def _columns(table: Table, schema: Schema) -> pa.Schema:
    """The columns of a table, numbered, with the names that they have in files without numbers."""
    mapping = table.name_mapping()
    names = {} if mapping is None else {str(field.field_id).encode(): field.names for field in mapping}
    return pa.schema(
        [
            field.with_metadata({**field.metadata, OLD_NAMES: json.dumps(names[number])}) if number in names else field
            for field in schema.as_arrow()
            for number in [field.metadata[b"PARQUET:field_id"]]
        ]
    )


def _values(table: Table, file: DataFile, schema: Schema) -> dict[str, Any]:
    """The values of columns for rows of a file that lacks them."""
    values = {field.name: field.initial_default for field in schema.fields if field.initial_default is not None}
    for place, part in enumerate(table.specs()[file.spec_id].fields):
        if isinstance(part.transform, IdentityTransform) and (name := schema.find_column_name(part.source_id)):
            values[name] = file.partition[place]
    return values


def _positions(table: Table, delete: DataFile) -> Mapping[str, npt.NDArray[np.int64]]:
    """The numbers of the rows that a file of deletes names, by data file."""
    with table.io.new_input(delete.file_path).open() as file:
        if delete.file_format == FileFormat.PUFFIN:
            vectors = deletion_vectors_from_puffin_file(PuffinFile(file.read()))
            return {vector.referenced_data_file: vector.to_vector().to_numpy().astype(np.int64) for vector in vectors}
        rows = pq.read_table(pa.PythonFile(file, mode="r"), columns=["file_path", "pos"])
    paths, places = rows["file_path"], rows["pos"].to_numpy()
    return {path: places[np.array(pa.compute.equal(paths, path))] for path in paths.unique().to_pylist()}


def _name(table: Table) -> str:
    return repr(".".join(table.name()))


def _local(path: str) -> str:
    """A name as files are opened by; s3a and s3n are Hadoop's words for s3."""
    protocol, mark, rest = path.removeprefix("file://").partition("://")
    return f"{'s3' if protocol in ('s3a', 's3n') else protocol}{mark}{rest}"
