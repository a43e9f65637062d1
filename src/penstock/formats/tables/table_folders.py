"""Folders that are tables with versions, of Delta Lake or Iceberg, among those of files that a pattern has found."""

import glob
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.errors import InvalidArgumentError, StorageError
from penstock.formats.remote.parts import at_once
from penstock.formats.remote.remote_files import matching_remote
from penstock.formats.remote.shared_listings import shared
from penstock.paths import has_protocol

_LOG: Final = "_delta_log"
_NEVER_TABLES: Final = ("hf://", "http://", "https://")
"""Web servers have no listing; what a hub's pattern means is one commit, and tables have their own versions."""


def refuse_versions(call: str, names: Iterable[str]) -> None:
    """Refuse the files of a folder that is a table with versions: some of their rows are deleted, or of old versions.

    Raises:
        InvalidArgumentError: a file is in such a folder.
    """
    several = list(names)
    local = {folder for name in several if not has_protocol(name) for folder in Path(name).parents}
    found = [f"{folder}/{path.relative_to(folder)}" for folder in sorted(local) for path in _described_by(folder)]
    remote = {name.rpartition("/")[0] for name in several if has_protocol(name) and not name.startswith(_NEVER_TABLES)}
    if remote:
        patterns = sorted({pattern for folder in remote | _shared_folder(remote) for pattern in _descriptions(folder)})
        found += shared(" ".join(patterns), lambda: [name for names in at_once(_listed, patterns) for name in names])
    if not found:
        return
    folder, inside, _ = found[0].rsplit("/", 2)
    if inside == _LOG:
        kind, reader = "Delta", f"ps.DeltaDataset({folder!r})"
    else:
        newest = max(name for name in found if name.startswith(f"{folder}/metadata/"))
        kind, reader = "Iceberg", f"ps.IcebergDataset(pyiceberg.table.StaticTable.from_metadata({newest!r}))"
    raise InvalidArgumentError(
        f"{call}: {folder!r} is a table of {kind}, whose files also have rows that were deleted: {reader} "
        "reads the rows of one version; the names of the files, instead of a folder or pattern, read all"
    )


def _described_by(folder: Path) -> Iterator[Path]:
    """The files by which a local folder is a table."""
    yield from folder.glob(f"{_LOG}/*")
    yield from folder.glob("metadata/*.metadata.json")


def _shared_folder(folders: set[str]) -> set[str]:
    """The folder that all of these are in, where there is one below a bucket."""
    first, *others = (folder.split("/") for folder in sorted(folders))
    same = next((i for i, part in enumerate(first) if any(other[i : i + 1] != [part] for other in others)), len(first))
    return {"/".join(first[:same])} if same > 2 else set()


def _descriptions(folder: str) -> Iterator[str]:
    """Patterns of the files that a table has, if files in a folder of a store, or in one of its partitions, are its.

    A store is asked about two folders alone: it has no cheap way to say which of all folders above are tables.
    """
    parts = folder.split("/")
    while "=" in parts[-1]:
        parts.pop()
    yield f"{glob.escape('/'.join(parts))}/{_LOG}/*"
    if "data" in parts[3:]:  # where Iceberg has its files
        parts = parts[: len(parts) - 1 - parts[::-1].index("data")]
    yield f"{glob.escape('/'.join(parts))}/metadata/*.metadata.json"


def _listed(pattern: str) -> list[str]:
    """The files that match; none where the store lets its user not list them."""
    with suppress(StorageError):
        return matching_remote(pattern)
    return []
