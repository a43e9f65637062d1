"""Snapshots: a dataset that is saved once, and taken from there as long as its pipeline stays the same."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock.data.made_by import difference, note_of
from penstock.data.node import Node
from penstock.errors import StorageError
from penstock.formats.work_directory import BeingWritten
from penstock.options import Options

NOTE: Final = "_snapshot.json"
_PAUSE_SECONDS: Final = 0.1
_LINE_SECONDS: Final = 30.0

_logger = logging.getLogger(__name__)


def make_snapshot(path: Path, node: Node, options: Options, save: Callable[[dict[str, Any]], None]) -> None:
    """Let there be a snapshot of a pipeline, which `save` writes with the note that it is given.

    Several processes may call it at the same time: one writes, the others wait, and go on with it if it dies.

    Raises:
        StorageError: what is there was made by another pipeline, or is no snapshot.
    """
    note = note_of(node, options)
    logged = time.monotonic()
    while not path.exists():
        try:
            save(note)
        except BeingWritten as error:
            if time.monotonic() - logged > _LINE_SECONDS:
                logged = time.monotonic()
                _logger.info("snapshot waits: %s", error)
            time.sleep(_PAUSE_SECONDS)
        except StorageError:
            if not path.exists():  # otherwise another process was faster
                raise
    _check(path, note, node)


def _check(path: Path, note: dict[str, Any], node: Node) -> None:
    try:
        words = difference(note, json.loads((path / NOTE).read_text()), node)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"'{path}' exists, and is no snapshot: take another path ({error})") from error
    if words:
        raise StorageError(
            f"'{path}' is the snapshot of another pipeline: {words}; remove the snapshot, or take another path"
        )
