"""Snapshots: a dataset that is saved once, and taken from there as long as its pipeline stays the same."""

from collections.abc import Callable
from pathlib import Path

from penstock.data.made_by import MadeBy
from penstock.data.node import Node
from penstock.errors import StorageError
from penstock.formats.writing.work_directory import written_once
from penstock.options import Options


def make_snapshot(path: Path, node: Node, options: Options, save: Callable[[MadeBy], None]) -> None:
    """Let there be a snapshot of a pipeline, which `save` writes with the note that it is given.

    Several processes may call it at the same time: one writes, the others wait, and go on with it if it dies.

    Raises:
        StorageError: what is there was made by another pipeline, or is no snapshot.
    """
    made_by = MadeBy(node, options)
    written_once(path, lambda: save(made_by))
    if not made_by.is_of(path):
        raise StorageError(f"'{path}' exists, and is no snapshot: take another path")
