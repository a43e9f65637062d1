"""The manifest of a saved dataset: `_dataset.json` beside its files.

    {"content": {"version", "format", "structure", "kinds", "specs", "shards": [{"rows", "files", "bytes"}]}, "crc32c"}

Its name begins with an underscore, so that readers of directories, such as Arrow's and Spark's, ignore it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import google_crc32c

from penstock.errors import StorageError
from penstock.formats.saving.leaves import SavedLeaf, merged_leaves
from penstock.formats.saving.shards import Description
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
        structure: of an element; None if there are no elements.
        leaves: of an element.
        files: the rows and the bytes of each file, by its name.
    """

    format: str
    structure: Structure | None
    leaves: tuple[SavedLeaf, ...]
    files: dict[str, tuple[int, int]]


def write_manifest(directory: Path, format: str, shards: Sequence[Description]) -> None:
    """Describe the files of all shards.

    Raises:
        ElementError: their rows have nothing in common.
    """
    full = [shard for shard in shards if shard["rows"]]
    structure: Any = full[0]["structure"] if full else None
    leaves = merged_leaves(structure_of_data(structure, stored_class), full) if full else []
    content = {
        "version": _VERSION,
        "format": format,
        "structure": structure,
        "kinds": [leaf.kind for leaf in leaves],
        "specs": [spec_to_data(leaf.spec) for leaf in leaves],
        "shards": [
            {"rows": shard["rows"], "file": name, "bytes": (directory / name).stat().st_size}
            for shard in full
            for name in shard["files"]
        ],
    }
    (directory / MANIFEST).write_text(json.dumps({"content": content, "crc32c": _checksum(content)}))


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a directory; None if there is none.

    Raises:
        StorageError: it is damaged, or of another version.
    """
    path = directory / MANIFEST
    try:
        data = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} is damaged: {error}") from error
    content = data.get("content") if isinstance(data, dict) else None
    if not isinstance(content, dict) or data.get("crc32c") != _checksum(content):
        raise StorageError(f"{path} is damaged, or another penstock's: it is not as this one writes it")
    if content["version"] != _VERSION:
        raise StorageError(f"{path} has version {content['version']}, this penstock reads {_VERSION}")
    structure = None if content["structure"] is None else structure_of_data(content["structure"], stored_class)
    leaves = zip(content["kinds"], map(spec_of_data, content["specs"]), strict=True)
    files = {shard["file"]: (shard["rows"], shard["bytes"]) for shard in content["shards"]}
    return Manifest(content["format"], structure, tuple(SavedLeaf(kind, spec) for kind, spec in leaves), files)


def _checksum(content: Any) -> int:
    value: int = google_crc32c.value(json.dumps(content, sort_keys=True).encode())
    return value
