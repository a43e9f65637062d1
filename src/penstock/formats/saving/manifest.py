"""The manifest of a saved dataset: `_dataset.json` beside its files.

    {"content": {"version", "format", "structure", "kinds", "specs", "shards": [{"rows", "files", "bytes"}]}, "crc32c"}

Its name begins with an underscore, so that readers of directories, such as Arrow's and Spark's, ignore it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.formats.checked_json import read_checked_json, write_checked_json
from penstock.formats.saving.leaves import SavedLeaf, merged_leaves
from penstock.formats.saving.shard_format import Description
from penstock.formats.spec_data import spec_of_data, spec_to_data
from penstock.formats.structure_data import stored_class, structure_of_data
from penstock.structure import Structure

MANIFEST: Final = "_dataset.json"
_VERSION: Final = 1


@dataclass(frozen=True)
class Manifest:
    """The description of a saved dataset.

    Attributes:
        format: the name of its format.
        structure: of an element; None if there are no elements, as earlier versions described such a dataset.
        leaves: of an element.
        files: the rows and the bytes of each file, by its name.
    """

    format: str
    structure: Structure | None
    leaves: tuple[SavedLeaf, ...]
    files: dict[str, tuple[int, int]]


def write_manifest(directory: Path, format: str, shards: Sequence[Description]) -> None:
    """Describe the files of all shards, of which there is at least one, each with rows.

    Raises:
        ElementError: their rows have nothing in common.
    """
    structure: Any = shards[0]["structure"]
    leaves = merged_leaves(structure_of_data(structure, stored_class), shards)
    content = {
        "version": _VERSION,
        "format": format,
        "structure": structure,
        "kinds": [leaf.kind for leaf in leaves],
        "specs": [spec_to_data(leaf.spec) for leaf in leaves],
        "shards": [
            {"rows": shard["rows"], "file": name, "bytes": (directory / name).stat().st_size}
            for shard in shards
            for name in shard["files"]
        ],
    }
    write_checked_json(directory / MANIFEST, content)


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a directory; None if there is none.

    Raises:
        StorageError: it is damaged, or of another version.
    """
    content = read_checked_json(directory / MANIFEST, _VERSION)
    if content is None:
        return None
    structure = None if content["structure"] is None else structure_of_data(content["structure"], stored_class)
    leaves = zip(content["kinds"], map(spec_of_data, content["specs"]), strict=True)
    files = {shard["file"]: (shard["rows"], shard["bytes"]) for shard in content["shards"]}
    return Manifest(content["format"], structure, tuple(SavedLeaf(kind, spec) for kind, spec in leaves), files)
