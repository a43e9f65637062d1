"""Arrays and an index, as one directory that Orbax writes: it appears complete or not at all.

Orbax stores NumPy arrays here: whole, without a sharding, and by one process alone.
"""

from pathlib import Path
from typing import Any

import google_crc32c
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import numpy.typing as npt
import orbax.checkpoint as ocp

from penstock.errors import StorageError
from penstock.training.checkpoint_files import INDEX, damaged
from penstock.training.checkpoint_index import Index, decoded, encoded

Array = npt.NDArray[Any]

_ARRAYS = "arrays"


def write(path: Path, arrays: list[Array], index: Index) -> None:
    """Write a checkpoint; `arrays` are in the order of the index's entries.

    Raises:
        StorageError: Orbax could not.
    """
    complete = msgspec.structs.replace(index, checksums=[_checksum(array) for array in arrays])
    items = {INDEX: ocp.args.JsonSave(encoded(complete))}
    # Orbax refuses arrays without elements; the index says all about them.
    stored = {str(number): array for number, array in enumerate(arrays) if array.size}
    if stored:
        items[_ARRAYS] = ocp.args.PyTreeSave(stored)
    try:
        with _checkpointer() as checkpointer:
            checkpointer.save(path, ocp.args.Composite(**items))
    except Exception as error:
        raise StorageError(f"the checkpoint {path} could not be written: {error}") from error


def read_index(path: Path) -> Index:
    """What is in the checkpoint at a path.

    Raises:
        StorageError: there is none, or it is damaged.
    """
    if not path.is_dir():
        raise StorageError(f"there is no checkpoint {path}: ps.latest_checkpoint(directory) finds the newest")
    if not (path / INDEX).is_dir():
        raise StorageError(f"{path} is no checkpoint that ps.Checkpoint has written: it has no {INDEX}")
    data = _restored(path, INDEX, ocp.args.JsonRestore())
    return decoded(data, path)


def read_arrays(path: Path, index: Index) -> list[Array]:
    """The arrays of a checkpoint in the order of the entries, each with the content that was written.

    Raises:
        StorageError: it is damaged.
    """
    found = _restored(path, _ARRAYS, ocp.args.PyTreeRestore()) if (path / _ARRAYS).is_dir() else {}
    arrays = []
    for number, (entry, checksum) in enumerate(zip(index.entries(), index.checksums, strict=True)):
        array = found.get(str(number))
        if array is None and 0 in entry.shape:
            array = np.empty(entry.shape, jnp.dtype(entry.dtype))
        if array is None or _checksum(array) != checksum:
            raise damaged(path, f"{entry} does not have the checksum it was written with")
        arrays.append(array)
    return arrays


def _restored(path: Path, item: str, arguments: Any) -> Any:
    try:
        with _checkpointer() as checkpointer:
            return checkpointer.restore(path, ocp.args.Composite(**{item: arguments}))[item]
    except Exception as error:
        raise damaged(path, (str(error).splitlines() or [type(error).__name__])[0]) from error


def _checkpointer() -> ocp.Checkpointer:
    # This process alone: with several, Orbax would wait for all of them.
    own = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
    handler = ocp.CompositeCheckpointHandler(
        composite_options=ocp.CompositeOptions(multiprocessing_options=alone),
        **{
            INDEX: ocp.JsonCheckpointHandler(multiprocessing_options=alone),
            _ARRAYS: ocp.PyTreeCheckpointHandler(multiprocessing_options=alone),
        },
    )
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _checksum(array: Array) -> int:
    value: int = google_crc32c.value(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return value
