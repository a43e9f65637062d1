"""One named object of a checkpoint, as a tree of saveable leaves."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
from msgspec.structs import replace

from penstock.distribute.control.channel import Control
from penstock.distribute.feed.dataset import DistributedIterator
from penstock.distribute.feed.loader import StepLoader
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
)
from penstock.training.checkpoint.states import SplitState, join_state
from penstock.training.checkpoint.workers import WorkerGroup


class NamedObject:
    """A named object; for values only the template is kept.

    Attributes:
        in_place: whether it is restored in place: it contains no values.

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
        self._saveables = [_saveable_of(of_keys(name, path), leaf, keras) for path, leaf in leaves]
        keras += [saveable for saveable in self._saveables if isinstance(saveable, SaveableKeras)]
        self.in_place = bool(leaves) and all(saveable.in_place for saveable in self._saveables)

    def snapshot(self, value: Any) -> tuple[list[Item], dict[str, Any]]:
        """Its items with this worker's states, and its arrays, copied into host memory.

        Args:
            value: the present value, if it contains values.

        Raises:
            InvalidArgumentError: the value does not fit the template.
        """
        leaves = [None] * len(self._saveables) if self.in_place else self._leaves(value)
        items: list[Item] = []
        arrays: dict[str, Any] = {}
        for leaf in leaves:
            if isinstance(leaf, jax.Array) and not leaf.is_deleted():
                leaf.copy_to_host_async()  # all at once, before the first is waited for
        for saveable, leaf in zip(self._saveables, leaves, strict=True):
            saved, own = saveable.snapshot(leaf)
            items += saved
            arrays |= own
        return items, arrays

    def _leaves(self, value: Any) -> list[Any]:
        """The leaves of a value, which must fit the template."""
        leaves, tree = _flattened(value)
        there = [_saveable_of(of_keys(self._name, path), leaf, []) for path, leaf in leaves]
        here, got = (
            [item for saveable in saveables if not saveable.in_place for item in saveable.items()]
            for saveables in (self._saveables, there)
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
        """Build Keras objects that are not built yet, as the stored ones were."""
        by_path = {item.path: item for item in stored}
        for saveable in self._saveables:
            saveable.prepare(by_path)

    def difference(self, stored: list[Item], *, partial: bool) -> str | None:
        """Compare it with the stored one: the differences as text for an error; None where they agree."""
        return difference([item for saveable in self._saveables for item in saveable.items()], stored, partial=partial)

    def needed(self, stored: list[Item]) -> list[Entry]:
        """The stored arrays that it needs."""
        paths = {item.path: item for saveable in self._saveables for item in saveable.items()}
        here = {entry.name for item in paths.values() for entry in item.entries}
        return [
            entry
            for item in stored
            if item.path in paths
            for entry in item.entries
            if entry.name in here or item.kind == "state"
        ]

    def shardings(self) -> dict[str, Any]:
        """The shardings of arrays of which several workers read different parts."""
        return {name: sharding for saveable in self._saveables for name, sharding in saveable.shardings().items()}

    def with_states(
        self, stored: list[Item], arrays: Mapping[str, Any], worker: int
    ) -> list[tuple[SaveableState, Any]]:
        """Its objects with states, each with the state that this worker resumes from."""
        by_path = {item.path: item for item in stored}
        pairs = []
        for saveable in self._saveables:
            if isinstance(saveable, SaveableState):
                states = by_path[saveable.path].states
                # With another number of workers it may be another worker's, which an iterator refuses if it has to.
                pairs.append((saveable, join_state(states[worker if worker < len(states) else 0], arrays)))
        return pairs

    def restored(self, stored: list[Item], arrays: Mapping[str, Any]) -> Any:
        """The object with the values of a checkpoint."""
        by_path = {item.path: item for item in stored}
        return jax.tree.unflatten(self._tree, [saveable.restored(by_path, arrays) for saveable in self._saveables])

    def controls(self) -> list[Control | None]:
        """The control channels of its distributed iterators and loaders."""
        targets = [saveable.target for saveable in self._saveables if isinstance(saveable, SaveableState)]
        return [control_channel(target) for target in targets if isinstance(target, (DistributedIterator, StepLoader))]

    def check_alike_everywhere(self) -> None:
        """Refuse values that differ from worker to worker."""
        if any(isinstance(saveable, SaveablePerReplica) for saveable in self._saveables):
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


def _saveable_of(path: str, leaf: Any, keras: list[SaveableKeras]) -> Saveable:
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
        states: the states of each worker, from `states_of`.
        metric: how good the checkpoint is.
    """
    of_each: Iterator[tuple[Any, ...]] = zip(*states, strict=True)
    objects = {
        name: [replace(item, states=list(next(of_each))) if item.kind == "state" else item for item in own]
        for name, own in items.items()
    }
    return Index(objects, metric=metric)


def states_of(items: dict[str, list[Item]]) -> list[Any]:
    """The states of one worker, in their order."""
    return [item.states[0] for own in items.values() for item in own if item.kind == "state"]


def load_states(path: str, pairs: list[tuple[SaveableState, Any]], workers: WorkerGroup) -> None:
    """Restore the states of iterators: all of them on all workers, or none."""
    # Copies: what `state_dict()` gives may be the arrays themselves, which `load_state_dict()` overwrites.
    copies = [SplitState(saveable.path, saveable.target.state_dict()) for saveable, _ in pairs]
    before = [join_state(state.plain, state.arrays) for state in copies]

    def load() -> tuple[None, None]:
        refusals = [error for pair in pairs if (error := _refusal(path, *pair)) is not None]
        if refusals:
            raise refusals[0]
        return None, None

    try:
        workers.call("checkpoint.restore", load)
    except Exception:
        # All of them: iterators of several workers count how often they begin, and the counts must agree.
        for (saveable, _), old in zip(pairs, before, strict=True):
            saveable.target.load_state_dict(old)
        raise


def _refusal(path: str, saveable: SaveableState, state: Any) -> Exception | None:
    """The error with which an object refuses a state; None if it accepts it."""
    try:
        saveable.target.load_state_dict(state)
    except Exception as error:
        error.add_note(f"{saveable.path} was being restored from the checkpoint {path}")
        return error
    return None
