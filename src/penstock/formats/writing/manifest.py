"""The manifest of a saved dataset: `_dataset.json` beside its files.

    {"content": {"version", "format", "structure", "kinds", "specs", "files": {name: [rows, bytes]}}, "crc32c"}

Its name begins with an underscore, so that readers of directories, such as Arrow's and Spark's, ignore it.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.errors import StorageError
from penstock.formats.checked_json import not_as_written, of_another_version, read_checked_json, write_checked_json
from penstock.formats.plain_data import spec_of_data, spec_to_data, structure_of_data, structure_to_data
from penstock.formats.writing.leaves import SavedLeaf, merged_leaves
from penstock.formats.writing.shard_format import Description, shard_path
from penstock.structure import Structure, flatten

MANIFEST: Final = "_dataset.json"
_VERSION: Final = 2
_OF_EARLIER_VERSIONS: Final = "rows.json"


@dataclass(frozen=True)
class Manifest:
    """The description of a saved dataset.

    Attributes:
        format: the name of its format.
        structure: of an element; None if there are no elements and their specification was not known.
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
    structure = structure_of_data(shards[0]["structure"])
    rows = {name: shard["rows"] for shard in shards for name in shard["files"]}
    _write(directory, format, structure, merged_leaves(structure, shards), rows)


def describe_no_rows(directory: Path, element_spec: Any) -> None:
    """Describe a dataset without rows, in an empty file, whatever the format was to be.

    Args:
        directory: of the dataset.
        element_spec: the specification that its elements would have; None if it is not known.

    Raises:
        InvalidTypeError: elements of a class that cannot be found by its name.
    """
    leaves, structure = ([], None) if element_spec is None else flatten(element_spec)
    file = shard_path(directory, 0, "rows")
    file.touch()
    _write(directory, "penstock", structure, [SavedLeaf("any", leaf) for leaf in leaves], {file.name: 0})


def _write(
    directory: Path, format: str, structure: Structure | None, leaves: Sequence[SavedLeaf], rows: dict[str, int]
) -> None:
    content = {
        "version": _VERSION,
        "format": format,
        "structure": None if structure is None else structure_to_data(structure),
        "kinds": [leaf.kind for leaf in leaves],
        "specs": [spec_to_data(leaf.spec) for leaf in leaves],
        "files": {name: [count, (directory / name).stat().st_size] for name, count in rows.items()},
    }
    write_checked_json(directory / MANIFEST, content)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a directory.

    Raises:
        StorageError: there is none, it is damaged, or of another version.
    """
    content = read_checked_json(directory / MANIFEST, _VERSION)
    if content is None and (directory / _OF_EARLIER_VERSIONS).exists():
        raise of_another_version(directory)
    if content is None:
        raise StorageError(f"there is no saved dataset at '{directory}': {MANIFEST} is missing")
    try:
        structure = None if content["structure"] is None else structure_of_data(content["structure"])
        described = zip(content["kinds"], map(spec_of_data, content["specs"]), strict=True)
        leaves = tuple(SavedLeaf(kind, spec) for kind, spec in described)
        files = {name: (int(rows), int(size)) for name, (rows, size) in content["files"].items()}
        format = str(content["format"])
        if structure is None and any(rows for rows, _ in files.values()):
            raise ValueError("rows without a structure")
    except StorageError:
        raise
    except Exception as error:  # its checksum is right, but anyone can make one
        raise not_as_written(directory / MANIFEST) from error
    if outside := [name for name in files if name != os.path.basename(name)]:
        raise StorageError(f"'{directory / MANIFEST}' names a file that is not in its directory: {outside[0]!r}")
    return Manifest(format, structure, leaves, files)
