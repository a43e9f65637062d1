"""The sharding of each leaf of an element, from what the user gives: shardings, or a mesh and partition specs."""

import math
from operator import itemgetter
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from penstock.distribute.jax.device_dtypes import check_byte_order, fits_device
from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError
from penstock.spec import LeafSpec
from penstock.structure import Structure

_CALL = "ps.jax.loader"


def shardings_of(sharding: Any, specs: Any, structure: Structure) -> list[NamedSharding]:
    """The sharding of each leaf of an element.

    Args:
        sharding: a `NamedSharding`, a `PartitionSpec`, a pytree of these that begins like the element, or a mesh.
        specs: with a mesh, a `PartitionSpec` or a pytree of them.
        structure: of an element.

    Raises:
        InvalidTypeError: something else.
        InvalidArgumentError: a tree that does not fit the element, an axis that the mesh does not have, or shardings on
            different devices.
    """
    if isinstance(sharding, Mesh):
        if specs is None:
            raise InvalidTypeError(
                f"{_CALL}(dataset, mesh, specs) takes partition specs with a mesh: jax.P({sharding.axis_names[0]!r}) "
                "divides the rows of a batch along its first axis"
            )
        mesh: Mesh | None = sharding
        given = specs
    elif specs is not None:
        raise InvalidTypeError(f"{_CALL}(dataset, mesh, specs) takes a jax.sharding.Mesh first, got {sharding!r}")
    else:
        mesh, given = None, sharding
    leaves = _broadcast(given, structure)
    found = [_named(leaf, mesh, path) for leaf, path in zip(leaves, structure.paths(), strict=True)]
    devices = {frozenset(one.mesh.devices.flat) for one in found}
    if len(devices) > 1:
        raise InvalidArgumentError(f"{_CALL} takes shardings on the same devices for all leaves, got {found}")
    return found


def all_processes_have(sharding: Any) -> bool:
    """Return whether the given shardings name devices of all of several processes, as far as they can be read."""
    meshes = [getattr(one, "mesh", one) for one in jax.tree.leaves(sharding, is_leaf=_is_leaf)]
    mesh = next((mesh for mesh in meshes if isinstance(mesh, Mesh)), jax.sharding.get_mesh())
    count: int = jax.process_count()
    return count > 1 and not mesh.empty and len({device.process_index for device in mesh.devices.flat}) == count


def _broadcast(given: Any, structure: Structure) -> list[Any]:
    """Return the entry for each leaf; one entry may be for all leaves below it."""
    if _is_leaf(given):
        return [given] * structure.leaf_count
    numbered = structure.unflatten(list(range(structure.leaf_count)))
    numbers = jax.tree.leaves(numbered)
    if any(not isinstance(number, int) for number in numbers):
        raise InvalidTypeError(
            f"{_CALL}: elements of structure {structure} are no pytrees: register their class by "
            "jax.tree_util.register_dataclass, or map them to tuples or dicts"
        )
    try:
        found = jax.tree.leaves(_spread(given, numbered), is_leaf=_is_leaf)
    except ValueError as error:
        raise InvalidArgumentError(
            f"{_CALL}: the tree of shardings {given!r} does not fit elements of structure {structure}: {error}"
        ) from None
    return [one for _, one in sorted(zip(numbers, found, strict=True), key=itemgetter(0))]


def _spread(given: Any, numbered: Any) -> Any:
    return jax.tree.map(lambda one, below: jax.tree.map(lambda _: one, below), given, numbered, is_leaf=_is_leaf)


def _is_leaf(value: Any) -> bool:
    return isinstance(value, (PartitionSpec, NamedSharding))


def _named(given: Any, mesh: Mesh | None, path: str) -> NamedSharding:
    if isinstance(given, PartitionSpec):
        mesh = mesh or _mesh_in_use()
        _check_axes(given, mesh)
        given = NamedSharding(mesh, given)
    if not isinstance(given, NamedSharding) or not isinstance(given.mesh, Mesh):
        raise InvalidTypeError(
            f"{_CALL} takes NamedShardings of a mesh of devices, or a mesh and PartitionSpecs, got {given!r}"
            f"{' at ' + path if path else ''}"
        )
    if PartitionSpec.UNCONSTRAINED in given.spec:
        raise InvalidArgumentError(f"{_CALL} cannot place rows by {given.spec}: give an axis of the mesh, or None")
    return given


def _mesh_in_use() -> Mesh:
    mesh = jax.sharding.get_mesh()
    if mesh.empty:
        raise InvalidArgumentError(
            f"{_CALL}(dataset, PartitionSpec(...)) needs a mesh: call it inside jax.set_mesh(mesh), or give the mesh "
            "first"
        )
    return mesh


def _check_axes(spec: PartitionSpec, mesh: Mesh) -> None:
    for axis in spec:
        for name in axes_of(axis):
            if name not in mesh.axis_names:
                raise InvalidArgumentError(
                    f"{_CALL}: {spec} names the axis {name!r}, which the mesh does not have: its axes are "
                    f"{', '.join(f'{name!r} ({size})' for name, size in mesh.shape.items())}"
                )


def axes_of(axis: Any) -> tuple[Any, ...]:
    """The names of the mesh's axes along which one axis of an array is divided."""
    if axis is None or axis is PartitionSpec.UNCONSTRAINED:
        return ()
    return axis if isinstance(axis, tuple) else (axis,)


def parts_along(sharding: NamedSharding, axis: int) -> int:
    """Into how many parts the sharding divides an axis of an array."""
    spec = sharding.spec
    return math.prod(sharding.mesh.shape[name] for name in axes_of(spec[axis])) if axis < len(spec) else 1


def is_text(leaf: Any) -> bool:
    """Return whether a leaf, or its specification, is of strings or objects, which stay in host memory."""
    return leaf.dtype.kind in "OSUT" and not getattr(leaf, "ragged_rank", 0)


def check_leaf(sharding: NamedSharding, leaf: LeafSpec, path: str) -> None:
    """Refuse a leaf that neither JAX can hold nor stays in host memory, or that the sharding does not divide.

    Raises:
        InvalidArgumentError: times, records or ragged rows; more axes in the sharding than in the leaf; an
            axis after the rows that is not divided evenly.
    """
    where = f"the leaf at {path}" if path else "the batch"
    check_byte_order(f"{_CALL}: {where}", leaf.dtype)
    if is_text(leaf):
        return
    if leaf.ragged_rank or not fits_device(leaf):
        kind = "ragged rows" if leaf.ragged_rank else f"values of dtype {leaf.dtype}"
        raise InvalidArgumentError(
            f"{_CALL}: {where} has {kind}, which JAX arrays cannot hold: leave it out or turn it into numbers by "
            "dataset.map(...)"
        )
    if len(sharding.spec) > len(leaf.shape):
        raise InvalidArgumentError(
            f"{_CALL}: {where} has {len(leaf.shape)} axes, {leaf.shape}, and its {sharding.spec} has more"
        )
    for axis in range(1, len(leaf.shape)):
        check_divides(sharding, axis, leaf.shape[axis], where)


def check_divides(sharding: NamedSharding, axis: int, length: int | None, where: str) -> None:
    """Refuse an axis of known length that is not divided evenly."""
    parts = parts_along(sharding, axis)
    if length is not None and length % parts:
        raise ElementError(
            f"{_CALL}: axis {axis} of {where} has length {length}, which {sharding.spec} divides into {parts} parts: "
            "JAX needs parts of equal length; pad it to a multiple by padded_batch(padded_shapes=...)"
        )
