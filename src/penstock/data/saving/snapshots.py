"""Snapshots: a dataset that is saved once, and taken from there as long as its pipeline stays the same."""

import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock.data.fingerprint import fingerprint_of
from penstock.data.identity import identities_of
from penstock.data.node import Node
from penstock.errors import StorageError
from penstock.formats.work_directory import BeingWritten
from penstock.options import Options

NOTE: Final = "_snapshot.json"
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
_PAUSE_SECONDS: Final = 0.1
_LINE_SECONDS: Final = 30.0

_logger = logging.getLogger(__name__)


def pipeline_note(node: Node, options: Options) -> dict[str, Any]:
    """What a snapshot says of the pipeline that made it.

    Raises:
        InvalidTypeError: something in the pipeline exists in this process only.
    """
    nodes = [identity.entry() for identity in identities_of(node)]
    return {"python": _PYTHON, "fingerprint": fingerprint_of(node, options), "nodes": nodes}


def make_snapshot(path: Path, node: Node, options: Options, save: Callable[[dict[str, Any]], None]) -> None:
    """Let there be a snapshot of a pipeline, which `save` writes with the note that it is given.

    Several processes may call it at the same time: one writes, the others wait, and go on with it if it dies.

    Raises:
        StorageError: what is there was made by another pipeline, or is no snapshot.
    """
    note = pipeline_note(node, options)
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
        found = json.loads((path / NOTE).read_text())
        nodes, python, fingerprint = found["nodes"], found["python"], found["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"'{path}' exists, and is no snapshot: take another path ({error})") from error
    advice = "remove the snapshot, or take another path"
    own = identities_of(node)
    for number, (identity, entry) in enumerate(zip(own, nodes)):
        if (difference := identity.difference(entry)) is not None:
            raise StorageError(f"'{path}' is the snapshot of another pipeline: node {number} {difference}; {advice}")
    if len(own) != len(nodes):
        raise StorageError(
            f"'{path}' is the snapshot of another pipeline, of {len(nodes)} steps that count, and here are {len(own)}; "
            f"{advice}"
        )
    if python == note["python"] and fingerprint != note["fingerprint"]:
        raise StorageError(
            f"'{path}' is the snapshot of another pipeline: its steps are the same, but not the code of a function, an "
            f"array or an option of them, or another version of penstock made it; {advice}"
        )
