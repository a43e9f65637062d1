"""One named object of a checkpoint: its parts together."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax

from penstock.distribute.control.channel import Control
from penstock.distribute.feed.dataset import DistributedIterator
from penstock.distribute.jax.for_trainers import control_channel
from penstock.distribute.values import PerReplica
from penstock.errors import InvalidArgumentError
from penstock.training.checkpoint.flax import SaveableFlax, is_flax
from penstock.training.checkpoint.index import Entry, Index, Item, difference
from penstock.training.checkpoint.keras import SaveableKeras, is_keras
from penstock.training.checkpoint.names import of_keys
from penstock.training.checkpoint.saveables import (
    Saveable,
    SaveableArray,
    SaveablePerReplica,
    SaveableState,
    SaveableText,
    with_states,
)
from penstock.training.checkpoint.states import SplitState, join_state
from penstock.training.checkpoint.workers import WorkerGroup


class NamedObject:
    """A named object; of values only the template is kept.

    Attributes:
        in_place: whether nothing in it is a value.

    Args:
        name: its name.
        value: itself, or the template.
        keras: the Keras objects of the checkpoint; those in this object are added.

    Raises:
        InvalidTypeError: something that a checkpoint cannot hold.
    """

    def __init__(self, name: str, value: Any, keras: list[SaveableKeras]) -> None:
        self._name = name
        leaves, self._tree = _flattened(value)
        self._parts = [_part(of_keys(name, path), leaf, keras) for path, leaf in leaves]
        keras += [part for part in self._parts if isinstance(part, SaveableKeras)]
        self.in_place = bool(leaves) and all(part.in_place for part in self._parts)

    def snapshot(self, value: Any) -> tuple[list[Item], dict[str, Any]]:
        """What a checkpoint holds of it, with this worker's states, and its arrays, copied into host memory.

        Args:
            value: the present value where it is made of values.

        Raises:
            InvalidArgumentError: the value does not fit the template.
        """
        leaves = [None] * len(self._parts) if self.in_place else self._leaves(value)
        items: list[Item] = []
        arrays: dict[str, Any] = {}
        for leaf in leaves:
            if isinstance(leaf, jax.Array) and not leaf.is_deleted():
                leaf.copy_to_host_async()  # all at once, before the first is waited for
        for part, leaf in zip(self._parts, leaves, strict=True):
            of_part, own = part.snapshot(leaf)
            items += of_part
            arrays |= own
        return items, arrays

    def _leaves(self, value: Any) -> list[Any]:
        """The leaves of a value, which must fit the template."""
        leaves, tree = _flattened(value)
        there = [_part(of_keys(self._name, path), leaf, []) for path, leaf in leaves]
        here, got = (
            [item for part in parts if not part.in_place for item in part.items()] for parts in (self._parts, there)
        )
        differs = difference(here, got)
        if differs is None and tree != self._tree:
            differs = f"expected the structure {self._tree}, got {tree}"
        if differs is not None:
            raise InvalidArgumentError(
                f"checkpoint.save({self._name}=...) got a value that does not fit its template: {differs}"
            )
        return [leaf for _, leaf in leaves]

    def prepare(self, stored: list[Item]) -> None:
        """Build what is not built yet as it was in what is stored."""
        by_path = {item.path: item for item in stored}
        for part in self._parts:
            part.prepare(by_path)

    def difference(self, stored: list[Item], *, partial: bool) -> str | None:
        """What it and what is stored differ in, as words for an error; None where they agree."""
        return difference([item for part in self._parts for item in part.items()], stored, partial=partial)

    def needed(self, stored: list[Item]) -> list[Entry]:
        """The arrays that it needs of what is stored."""
        paths = {item.path: item for part in self._parts for item in part.items()}
        here = {entry.name for item in paths.values() for entry in item.entries}
        return [
            entry
            for item in stored
            if item.path in paths
            for entry in item.entries
            if entry.name in here or item.kind == "state"
        ]

    def shardings(self) -> dict[str, Any]:
        """Where the arrays belong of which several workers read different parts."""
        return {name: sharding for part in self._parts for name, sharding in part.shardings().items()}

    def with_states(
        self, stored: list[Item], arrays: Mapping[str, Any], worker: int
    ) -> list[tuple[SaveableState, Any]]:
        """Its objects with states, each with the state that this worker continues from."""
        by_path = {item.path: item for item in stored}
        pairs = []
        for part in self._parts:
            if isinstance(part, SaveableState):
                states = by_path[part.path].states
                # With another number of workers it is another's: an iterator that cannot continue from it says so.
                pairs.append((part, join_state(states[worker if worker < len(states) else 0], arrays)))
        return pairs

    def restored(self, stored: list[Item], arrays: Mapping[str, Any]) -> Any:
        """The object with the values of a checkpoint."""
        by_path = {item.path: item for item in stored}
        return jax.tree.unflatten(self._tree, [part.restored(by_path, arrays) for part in self._parts])

    def controls(self) -> list[Control | None]:
        """Where the workers talk to each other that its distributed iterators belong to."""
        targets = [part.target for part in self._parts if isinstance(part, SaveableState)]
        return [control_channel(target) for target in targets if isinstance(target, DistributedIterator)]

    def check_alike_everywhere(self) -> None:
        """Refuse values that differ from worker to worker."""
        if any(isinstance(part, SaveablePerReplica) for part in self._parts):
            raise InvalidArgumentError(
                f"{self._name} holds a PerReplica, of which each of several workers has only its own part: give "
                "strategy.local_results(value)[0] where all replicas are alike, or else strategy.gather(value, axis)"
            )


def _flattened(value: Any) -> tuple[list[tuple[Any, Any]], Any]:
    leaves, tree = jax.tree_util.tree_flatten_with_path(value, is_leaf=_is_whole)
    return leaves, tree


def _is_whole(value: Any) -> bool:
    return isinstance(value, PerReplica) or is_keras(value) or is_flax(value) or _is_stateful(value)


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _part(path: str, leaf: Any, keras: list[SaveableKeras]) -> Saveable:
    if is_keras(leaf):
        return SaveableKeras(path, leaf, keras)
    if is_flax(leaf):
        return SaveableFlax(path, leaf)
    if isinstance(leaf, PerReplica):
        return SaveablePerReplica(path, leaf)
    if _is_stateful(leaf):
        return SaveableState(path, leaf)
    return SaveableText(path) if isinstance(leaf, str) else SaveableArray(path, leaf)


def index_of(items: dict[str, list[Item]], states: list[list[Any]], metric: float | None) -> Index:
    """The index of a checkpoint.

    Args:
        items: those of worker 0, by the names of the objects.
        states: those of each worker, as `states_of` gives them.
        metric: how good it is.
    """
    of_each: Iterator[tuple[Any, ...]] = zip(*states, strict=True)
    objects = {
        name: [with_states(item, list(next(of_each))) if item.kind == "state" else item for item in own]
        for name, own in items.items()
    }
    return Index(objects, metric=metric)


def states_of(items: dict[str, list[Item]]) -> list[Any]:
    """The states of one worker, in their order."""
    return [item.states[0] for own in items.values() for item in own if item.kind == "state"]


def load_states(place: str, pairs: list[tuple[SaveableState, Any]], workers: WorkerGroup) -> None:
    """Let iterators continue from the states of a checkpoint: all of them on all workers, or none."""
    # Copies: what `state_dict()` gives may be the arrays themselves, which `load_state_dict()` overwrites.
    copies = [SplitState(part.path, part.target.state_dict()) for part, _ in pairs]
    before = [join_state(state.plain, state.arrays) for state in copies]

    def load() -> tuple[None, None]:
        refusals = [error for pair in pairs if (error := _refusal(place, *pair)) is not None]
        if refusals:
            raise refusals[0]
        return None, None

    try:
        workers.call("checkpoint.restore", load)
    except Exception:
        # All of them: iterators of several workers count how often they begin, and must agree on that.
        for (part, _), old in zip(pairs, before, strict=True):
            part.target.load_state_dict(old)
        raise


def _refusal(place: str, part: SaveableState, state: Any) -> Exception | None:
    """The error with which an object refuses a state, None where it continues from it."""
    try:
        part.target.load_state_dict(state)
    except Exception as error:
        error.add_note(f"{part.path} was being restored from the checkpoint {place}")
        return error
    return None
