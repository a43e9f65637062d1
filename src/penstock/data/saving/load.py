"""A saved dataset as a node whose rows are read by their numbers."""

import os
from pathlib import Path

from penstock.data.arguments import user_site
from penstock.data.block import object_column
from penstock.data.node import Node
from penstock.data.operators.indexed_files import IndexedFiles
from penstock.data.operators.sources import FileNames
from penstock.errors import InvalidArgumentError
from penstock.formats.writing.manifest import read_manifest
from penstock.formats.writing.saved_files import SavedFiles
from penstock.paths import has_protocol, local_path
from penstock.structure import LEAF


def saved_node(path: str | os.PathLike[str]) -> Node:
    """The rows of a directory that `Dataset.save` wrote.

    Raises:
        StorageError: there is no saved dataset, or it is damaged.
        InvalidArgumentError: the path has a protocol.
    """
    given = local_path(path)
    if has_protocol(given):
        raise InvalidArgumentError(
            f"load takes a local path, got {given!r}: copy the directory here, or read its files by the reader of "
            f"their format, such as ps.ParquetDataset('{given}/*.parquet')"
        )
    directory = Path(given)
    files = SavedFiles(read_manifest(directory), directory.absolute())
    counts = {name: files.count(name) for name in files.files}
    names = FileNames("files", (object_column(counts),), LEAF, len(counts), site=user_site())
    sizes = {name: size for name, (_, size) in files.files.items()}
    return IndexedFiles(names, "load", files, counts, sizes, site=user_site())
