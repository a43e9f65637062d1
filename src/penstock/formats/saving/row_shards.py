"""Datasets saved in penstock's own format, which `row_store.py` reads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.formats.row_store import RowFiles, write_description
from penstock.formats.saving.leaves import Columns
from penstock.formats.saving.shard_format import Description, ShardFormat, ShardWriter
from penstock.formats.spec_data import spec_to_data
from penstock.formats.structure_data import structure_to_data
from penstock.spec import LeafSpec
from penstock.structure import Structure, flatten


class RowShards(ShardFormat):
    """Arrow files that are read by memory map. Checksums cover every byte. They can hold every kind of element."""

    name = "penstock"

    def writer(self, directory: Path, number: int, specs: Sequence[LeafSpec]) -> "RowShardWriter":
        return RowShardWriter(directory, number)

    def complete(self, directory: Path, shards: Sequence[Description]) -> None:
        leaves = max(len(shard["specs"]) for shard in shards)
        specs: list[list[Any]] = [[] for _ in range(leaves)]
        for shard in shards:
            for known, found in zip(specs, shard["specs"]):
                known += [spec for spec in found if spec not in known]
        write_description(
            directory,
            rows=sum(shard["rows"] for shard in shards),
            structure=shards[0]["structure"],
            specs=specs,
            files=[file for shard in shards for file in shard["pieces"]],
        )


class RowShardWriter(ShardWriter):
    """Writes one Arrow file, or several where the type of a column changes."""

    def __init__(self, directory: Path, number: int) -> None:
        self._files = RowFiles(directory, f"rows-{number:05d}")

    def write(self, columns: Columns, structure: Structure, rows: int) -> None:
        self._files.write(columns, structure, rows)

    def finish(self) -> Description:
        return self._files.finish()

    def close(self) -> None:
        self._files.close()


def describe_no_rows(directory: Path, element_spec: Any) -> None:
    """Describe a dataset without rows, whose files would be the same in every format: there are none.

    Args:
        directory: of the dataset.
        element_spec: what its elements would be; None where nothing tells.

    Raises:
        InvalidTypeError: elements of a class that cannot be found by its name.
    """
    leaves, structure = ([], None) if element_spec is None else flatten(element_spec)
    write_description(
        directory,
        rows=0,
        structure=None if structure is None else structure_to_data(structure),
        specs=[[spec_to_data(leaf)] for leaf in leaves],
        files=[],
    )
