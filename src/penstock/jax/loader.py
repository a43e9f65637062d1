"""`ps.jax.loader`: a dataset as global arrays on the devices of a mesh."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from penstock.data.dataset import Dataset
from penstock.distribute.cluster.finding import find_cluster
from penstock.distribute.feed.data_loader import DATA_LOADER
from penstock.distribute.feed.dataset import DistributedDataset, agreed_of
from penstock.distribute.feed.loader import StepLoader
from penstock.distribute.feed.options import InputOptions, PartialBatch, checked_options
from penstock.distribute.feed.steps import check_spec
from penstock.distribute.jax.processes import check_connected, control_of_all_processes, meeting_of_processes
from penstock.distribute.values import PerReplica
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.jax.placement import MeshPlacement
from penstock.jax.rows import MeshInput, MeshWorkers
from penstock.jax.shardings import all_processes_have, check_leaf, is_text, shardings_of
from penstock.options import check_seconds
from penstock.other_names import other_keywords
from penstock.spec import LeafSpec, TensorSpec, assuming, with_rows
from penstock.statistics import tracing
from penstock.structure import flatten

_CALL = "ps.jax.loader"


class MeshLoader(StepLoader):
    """Batches as global arrays; from `ps.jax.loader`.

    Example:
        >>> import jax
        >>> import penstock as ps
        >>> mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
        >>> with ps.jax.loader(ps.Dataset.range(16).batch(8), mesh, jax.P("data")) as loader:
        ...     len(loader), loader.element_spec
        (2, TensorSpec(shape=(8,), dtype=int32))
    """

    def __init__(self, steps: DistributedDataset, workers: MeshWorkers) -> None:
        super().__init__(_CALL, steps)
        self._workers = workers
        tracing.annotation = jax.profiler.TraceAnnotation

    @cached_property
    def element_spec(self) -> Any:
        """The specification of a global batch: a `ps.TensorSpec` for each leaf.

        The number of rows is given where it is the same in every step, else it is None; of strings and objects it is
        that of this process. Dtypes are those of the arrays: without `jax_enable_x64`, JAX holds 64-bit numbers in 32.
        """
        leaves, structure = flatten(self._steps.element_spec)
        slices = [leaf.values[0] if isinstance(leaf, PerReplica) else leaf for leaf in leaves]
        return structure.unflatten([self._whole(leaf) for leaf in slices])

    def _whole(self, leaf: LeafSpec) -> LeafSpec:
        rows, workers = leaf.shape[0], self._workers
        parts = len(workers.own_slices) if is_text(leaf) else workers.replicas_in_sync
        whole = with_rows(leaf, None if rows is None else rows * parts, assumed=0 in leaf.assumed_axes)
        if is_text(leaf):
            return whole
        held = TensorSpec(whole.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))
        return assuming(held, whole.assumed_axes, dtype=leaf.assumed_dtype)


@other_keywords(DATA_LOADER, "DataLoader")
def loader(
    dataset: Dataset,
    sharding: Any,
    specs: Any = None,
    *,
    input_options: InputOptions | None = None,
    collate: Callable[..., Any] | None = None,
    failure_timeout_seconds: float | None = None,
) -> MeshLoader:
    """Batches of a dataset as global arrays on a mesh, in one process or in many.

    Each process reads only the rows that its devices hold, as far as the dataset can be read by row number, and puts on
    each device only its part of them. A background thread does so ahead of the steps. Every process must make the same
    loaders in the same order, after `jax.distributed.initialize()`.

    Args:
        dataset: gives global batches, of the structure and dtypes that the arrays shall have. Strings and objects stay
            in host memory, as a NumPy array of the rows that this process reads, in their order.
        sharding: a `jax.sharding.NamedSharding`, or a pytree of them that begins like an element; or a mesh; or, inside
            `jax.set_mesh(mesh)`, a `PartitionSpec` or a pytree of them. The first axis of every leaf is that of the
            rows. Leaves may be divided in different ways.
        specs: with a mesh, the `PartitionSpec` of all leaves, or a pytree of them.
        input_options: as for `distribute_dataset`: how many steps are kept ready, and what happens to a batch whose
            rows cannot be divided evenly. With `partial_batch="pad"` elements are pairs of the batch and a mask, and
            the padding is at the end of the arrays: `predictions[: mask.sum()]` are those of the rows. Where processes
            read separate files, it is at the end of each one's part.
        collate: a function of the rows of one of the equal slices into which the sharding divides a batch, as NumPy
            arrays, which gives what is put on the devices instead: arrays of one shape for all slices, also without a
            row for each row, such as graphs that are put together and padded. The global arrays are the slices' one
            after the other. With `partial_batch="pad"` it takes the rows and the mask. All leaves have one sharding.
        failure_timeout_seconds: how long this process waits for others that do not make a call which all must make,
            300 s by default, or take no step, half an hour by default, and, after another one's failure, how long it
            may stay blocked on its devices, 30 s by default. For the latter two the first loader of a process decides.

    Returns:
        An iterable; each `iter` begins a new epoch. It has `len` where that is known, `element_spec`, `state_dict()`
        and `load_state_dict(state)`, `explain()`, `close()`, and works in `with`. The state fits any mesh and any
        number of processes.

    Raises:
        InvalidTypeError: something that is no dataset, sharding or options.
        InvalidArgumentError: an axis that the mesh does not have; batches that the sharding does not divide, or may not
            divide at the end of the data, without `partial_batch="pad"` or `"drop"`; times, records or ragged rows; a
            launcher that names other processes, to which `jax.distributed` is not connected.
        ElementError: elements that are not batches, or an axis after the rows that is not divided evenly.
        WorkerError: the processes gave different datasets or shardings, one of them failed, or one did not come.

    Example:
        >>> import jax
        >>> import penstock as ps
        >>> mesh = jax.make_mesh((1, 1), ("data", "model"), devices=jax.devices()[:1])
        >>> dataset = ps.Dataset.range(16).map(lambda row: {"x": row * 1.0, "y": row}).batch(8)
        >>> with ps.jax.loader(dataset, mesh, jax.P("data")) as loader:
        ...     for batch in loader:
        ...         print(batch["x"].shape, batch["y"])
        (8,) [0 1 2 3 4 5 6 7]
        (8,) [ 8  9 10 11 12 13 14 15]
    """
    if failure_timeout_seconds is not None:
        check_seconds(_CALL, "failure_timeout_seconds", failure_timeout_seconds)
    meeting = None
    if all_processes_have(sharding):
        own, count = jax.process_index(), jax.process_count()
        meeting = meeting_of_processes(_CALL, own, count, failure_timeout_seconds)
    try:
        inputs, place, options = _prepared(dataset, sharding, specs, input_options, collated=collate is not None)
    except Exception as error:
        if meeting is not None:
            meeting.fail(error)
        raise
    if jax.process_count() == 1:
        check_connected(find_cluster(), f"call jax.distributed.initialize() in all of them before {_CALL}")
    control = None
    if meeting is not None:
        meeting.join()
        control = control_of_all_processes(meeting)
    call = meeting.call if meeting is not None else _CALL
    steps = DistributedDataset(inputs, place, options, control, call, collate=collate)
    workers = inputs.workers
    if agreed_of(steps).of_a_ragged_step(inputs.full_rows) and workers.replicas_in_sync > 1:
        raise InvalidArgumentError(
            f"{_CALL}: a batch may have a number of rows that {workers.replicas_in_sync} slices do not divide, because "
            f"the dataset's last batch is shorter or its lengths are not known: choose "
            f'input_options=ps.InputOptions(partial_batch="pad"), which adds a mask, or "drop"'
        )
    return MeshLoader(steps, workers)


def _prepared(
    dataset: Any, sharding: Any, specs: Any, input_options: Any, *, collated: bool
) -> tuple[MeshInput, MeshPlacement, InputOptions]:
    """Return what a loader is made of, from its arguments, without a word to other processes."""
    options = _checked(dataset, input_options)
    spec = dataset.element_spec
    check_spec(spec, dataset.node)
    leaves, structure = flatten(spec)
    shardings = shardings_of(sharding, specs, structure)
    for one, leaf, path in zip(shardings, leaves, structure.paths(), strict=True):
        if not collated:
            check_leaf(one, leaf, path)
        elif one != shardings[0]:
            raise InvalidArgumentError(f"{_CALL}(collate=...) takes one sharding for all leaves, got {shardings}")
    workers = MeshWorkers.of_mesh(shardings)
    partial = PartialBatch(options.partial_batch)
    layout = [f"mesh {dict(shardings[0].mesh.shape)}", f"specs {[str(one.spec) for one in shardings]}", partial.value]
    inputs = MeshInput(dataset, workers, partial, layout)
    _check_divided(inputs, partial)
    mask = NamedSharding(shardings[0].mesh, PartitionSpec(*shardings[0].spec[:1]))  # type: ignore[no-untyped-call]
    of_leaves, paths = (shardings[:1], []) if collated else ([*shardings, mask], structure.paths())
    place = MeshPlacement(of_leaves, paths, workers.replicas_in_sync, workers.own_slices)
    return inputs, place, options


def _checked(dataset: Any, options: Any) -> InputOptions:
    if not isinstance(dataset, Dataset):
        raise InvalidTypeError(f"{_CALL}(dataset, ...) takes a ps.Dataset, got {type(dataset).__name__}")
    checked = checked_options(_CALL, options)
    if not checked.fetch_to_device:
        raise InvalidArgumentError(f"{_CALL} gives arrays on devices, so it cannot take fetch_to_device=False")
    return checked


def _check_divided(inputs: MeshInput, partial: PartialBatch) -> None:
    """Refuse batches of a known size that the slices do not divide, unless they are to be padded."""
    size, parts = inputs.batch_size, inputs.slices_per_batch
    if partial is not PartialBatch.PAD and size % parts:
        below = size // parts * parts
        raise InvalidArgumentError(
            f"{_CALL}: the sharding divides the rows into {parts} slices, which do not divide batches of {size} rows: "
            f"choose batches of {f'{below} or ' if below else ''}{below + parts} rows, or "
            f'input_options=ps.InputOptions(partial_batch="pad")'
        )
