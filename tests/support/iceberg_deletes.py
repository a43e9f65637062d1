"""Files of deletes in tables of Iceberg, as other engines write them: pyiceberg reads them, and rewrites files."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg import manifest
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate


class _Deletes(manifest.ManifestWriterV2):
    _meta = property(lambda self: super()._meta | {"content": "deletes"})

    def content(self):
        return manifest.ManifestContent.DELETES


def delete_rows_of_iceberg(table, positions, equality=False):
    """Commit a snapshot with a file that deletes rows of data files, by the files' paths; of equality, or positions."""
    parent = table.current_snapshot()
    number, sequence = parent.snapshot_id + 1, parent.sequence_number + 1
    path = f"{table.location()}/data/{number}-deletes.parquet"
    pairs = [(file, row) for file, rows in positions.items() for row in rows]
    rows = pa.table({"file_path": [file for file, _ in pairs], "pos": [row for _, row in pairs]})
    pq.write_table(rows, path.removeprefix("file://"))
    kinds = manifest.DataFileContent
    file = manifest.DataFile.from_args(
        content=kinds.EQUALITY_DELETES if equality else kinds.POSITION_DELETES,
        file_path=path,
        file_format=manifest.FileFormat.PARQUET,
        partition=manifest.Record(),
        record_count=len(pairs),
        file_size_in_bytes=Path(path.removeprefix("file://")).stat().st_size,
    )
    file.spec_id = table.spec().spec_id
    entry = manifest.ManifestEntry.from_args(
        status=manifest.ManifestEntryStatus.ADDED, snapshot_id=number, data_file=file
    )
    output = table.io.new_output(f"{table.location()}/metadata/{number}-m0.avro")
    with _Deletes(table.spec(), table.schema(), output, number, "deflate") as writer:
        writer.add_entry(entry)
    listed = f"{table.location()}/metadata/snap-{number}.avro"
    made = manifest.write_manifest_list(2, table.io.new_output(listed), number, number - 1, sequence, "deflate")
    with made as manifests:
        manifests.add_manifests([*parent.manifests(table.io), writer.to_manifest_file()])
    snapshot = parent.model_copy(
        update={
            "snapshot_id": number,
            "parent_snapshot_id": number - 1,
            "manifest_list": listed,
            "sequence_number": sequence,
            "timestamp_ms": parent.timestamp_ms + 1,
        }
    )
    moved = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=number, parent_snapshot_id=number - 1)
    table.catalog.commit_table(table, (), (AddSnapshotUpdate(snapshot=snapshot), moved))
    return table.refresh()
