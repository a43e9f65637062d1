"""Arrays and an index, as one directory that Orbax writes: it appears complete or not at all.

The arrays are one flat tree of Orbax's, whose keys are their names. They are NumPy arrays, whole and written by one
process alone; or, of which several workers hold parts, arrays of JAX's, to which each worker writes its own parts.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import orbax.checkpoint as ocp

from penstock.errors import StorageError
from penstock.training.checkpoint.arrays import Array
from penstock.training.checkpoint.folders import INDEX
from penstock.training.checkpoint.index import Entry, Index, encoded
from penstock.training.checkpoint.numbered import damaged, folder_and_name
from penstock.training.checkpoint.workers import WriteBarrier

_ARRAYS = "arrays"


def write(
    path: Path, arrays: Mapping[str, Any], index: Index, barrier: WriteBarrier | None = None
) -> Callable[[], None]:
    """Begin to write a checkpoint; returns a function that waits until it is complete.

    Args:
        path: the directory that it becomes.
        arrays: by the names of the index's entries.
        index: its content.
        barrier: where the workers wait for each other, if all of them make this call. The returned function then waits
            until all have written. Otherwise this process alone writes, within that function.
    """
    if barrier is not None:
        return _written_together(path, arrays, index, barrier)

    def write_alone() -> None:
        with _checkpointer({jax.process_index()}) as checkpointer:
            checkpointer.save(path, _arguments(arrays, index))

    return _with_storage_error(path, write_alone)


def _written_together(path: Path, arrays: Mapping[str, Any], index: Index, barrier: WriteBarrier) -> Callable[[], None]:
    # Its `save` copies the parts of this worker into host memory: they may be donated as soon as it returns.
    checkpointer = _checkpointer(set(range(jax.process_count())), barrier)

    def begin() -> None:
        with barrier:
            checkpointer.save(path, _arguments(arrays, index))

    def finish() -> None:
        try:
            with barrier:
                checkpointer.wait_until_finished()
        finally:
            checkpointer.close()

    _with_storage_error(path, begin)()
    return _with_storage_error(path, finish)


def _with_storage_error(path: Path, task: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        try:
            task()
        except Exception as error:
            raise StorageError(f"the checkpoint {path} could not be written: {error}") from error

    return run


def _arguments(arrays: Mapping[str, Any], index: Index) -> Any:
    checksums = {name: _checksum(array) for name, array in arrays.items() if isinstance(array, np.ndarray)}
    items = {INDEX: ocp.args.JsonSave(encoded(msgspec.structs.replace(index, checksums=checksums)))}
    # Orbax refuses arrays without elements; the index says all about them.
    stored = {name: array for name, array in arrays.items() if array.size}
    if stored:
        items[_ARRAYS] = ocp.args.PyTreeSave(stored)
    return ocp.args.Composite(**items)


def read_arrays(path: str, index: Index, needed: list[Entry], shardings: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of a checkpoint by their names, each with the content that was written; no others are read.

    Args:
        path: of the checkpoint.
        index: its content.
        needed: which arrays.
        shardings: of arrays of which this process reads its own parts; it does where the whole has no checksum.

    Raises:
        StorageError: it is damaged.
    """
    folder, name = folder_and_name(path)
    arrays: dict[str, Any] = {entry.name: _empty(entry) for entry in needed if 0 in entry.shape}
    full = [entry for entry in needed if 0 not in entry.shape]
    parts = {name: sharding for name, sharding in shardings.items() if name not in index.checksums}
    names = {entry.name for entry in full}
    some = names if len(names) < sum(0 not in entry.shape for entry in index.entries().values()) else None
    if full:
        try:
            with folder.reading(name, some) as local:
                arrays |= _read(local, full, parts)
        except Exception as error:
            raise damaged(path, (str(error).splitlines() or [type(error).__name__])[0]) from error
    for entry in needed:
        array = arrays.get(entry.name)
        checksum = index.checksums.get(entry.name)
        if array is None or checksum is not None and _checksum(array) != checksum:
            raise damaged(path, f"{entry} does not have the checksum it was written with")
    return arrays


def _empty(entry: Entry) -> Array:
    return np.empty(entry.shape, np.uint32 if entry.dtype.startswith("key<") else jnp.dtype(entry.dtype))


def _read(path: Path, needed: list[Entry], parts: Mapping[str, Any]) -> dict[str, Any]:
    how = {
        entry.name: ocp.ArrayRestoreArgs(restore_type=jax.Array, sharding=parts[entry.name])
        if entry.name in parts
        else ocp.RestoreArgs(restore_type=np.ndarray)
        for entry in needed
    }
    arguments = ocp.args.PyTreeRestore(dict.fromkeys(how, 0), restore_args=how, partial_restore=True)
    with _checkpointer({jax.process_index()}) as checkpointer:
        found: dict[str, Any] = checkpointer.restore(path, ocp.args.Composite(**{_ARRAYS: arguments}))[_ARRAYS]
    return found


def _checkpointer(processes: set[int], barrier: WriteBarrier | None = None) -> Any:
    """Orbax's writer and reader, on which these processes make the same calls; with a barrier, only a writer."""
    alike = ocp.options.MultiprocessingOptions(primary_host=min(processes), active_processes=processes)
    # The written arrays are copies already.
    registry = ocp.type_handlers.create_type_handler_registry(
        (np.ndarray, ocp.type_handlers.NumpyHandler(deepcopy_host_arrays=False)),
        (jax.Array, ocp.type_handlers.ArrayHandler(primary_host=min(processes))),
    )
    # Directories are made by all at the same time. Otherwise a process waits for a signal that Orbax names by how many
    # saves it has made, and worker 0 makes some alone: another one then writes before there is a directory.
    options = ocp.options.AsyncOptions(
        barrier_sync_fn=None if barrier is None else barrier.wait, create_directories_asynchronously=False
    )
    handler = ocp.CompositeCheckpointHandler(
        composite_options=ocp.CompositeOptions(multiprocessing_options=alike, async_options=options),
        **{
            INDEX: ocp.JsonCheckpointHandler(multiprocessing_options=alike),
            _ARRAYS: ocp.PyTreeCheckpointHandler(multiprocessing_options=alike, type_handler_registry=registry),
        },
    )
    if barrier is None:
        return ocp.Checkpointer(handler, multiprocessing_options=alike)
    return ocp.AsyncCheckpointer(handler, async_options=options, multiprocessing_options=alike)


def _checksum(array: Array) -> int:
    value: int = google_crc32c.value(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return value
