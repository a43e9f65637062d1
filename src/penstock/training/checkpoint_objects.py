"""One named object of a checkpoint: its parts together."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from penstock.distribute.control import Control
from penstock.distribute.input import DistributedIterator
from penstock.errors import InvalidArgumentError
from penstock.training.checkpoint_index import Item, difference, plain
from penstock.training.checkpoint_parts import Rows, Stateful, parts_of
from penstock.training.checkpoint_store import Array
from penstock.training.checkpoint_workers import Together


class Object:
    """A named object; of values only the template is kept.

    Attributes:
        in_place: whether nothing in it is a value.
    """

    def __init__(self, name: str, value: Any) -> None:
        self._name = name
        found, self._tree = parts_of(name, value)
        self._parts = [part for part, _ in found]
        self.in_place = bool(found) and all(part.in_place for part in self._parts)

    def items(self, states: Sequence[list[Any]] = ()) -> list[Item]:
        """What a checkpoint holds of it; `states` are those of each worker, in the order of `states()`."""
        of_each: Iterator[tuple[Any, ...]] = zip(*states, strict=True)
        return [
            Item(part.kind, part.entries(), list(next(of_each)) if states and isinstance(part, Stateful) else [])
            for part in self._parts
        ]

    def taken(self, value: Any) -> list[Array]:
        """Its arrays, copied into host memory; `value` is the present value where it is made of values.

        Raises:
            InvalidArgumentError: the value does not fit the template.
        """
        if self.in_place:
            return [array for part in self._parts for array in part.taken(None)]
        found, tree = parts_of(self._name, value)
        differs = difference(self.items(), [Item(part.kind, part.entries()) for part, _ in found])
        if differs is None and tree != self._tree:
            differs = f"expected the structure {self._tree}, got {tree}"
        if differs is not None:
            raise InvalidArgumentError(
                f"checkpoint.save({self._name}=...) got a value that does not fit its template: {differs}"
            )
        for _, leaf in found:
            if isinstance(leaf, jax.Array) and not leaf.is_deleted():
                leaf.copy_to_host_async()  # all at once, before the first is waited for
        return [array for part, leaf in found for array in part.taken(leaf)]

    def states(self) -> list[Any]:
        """The states of the iterators in it, as plain data."""
        return [plain(part.path, part.target.state_dict()) for part in self._parts if isinstance(part, Stateful)]

    def with_states(self, stored: list[Item], worker: int) -> list[tuple[Stateful, Any]]:
        """Its iterators, each with the state that this worker continues from."""
        pairs = zip(self._parts, stored, strict=True)
        # With another number of workers it is another's state: an iterator that cannot continue from it says so.
        return [
            (part, item.states[worker if worker < len(item.states) else 0])
            for part, item in pairs
            if isinstance(part, Stateful)
        ]

    def restored(self, arrays: list[list[Array]]) -> Any:
        """The object with the values of a checkpoint."""
        leaves = [part.restored(own) for part, own in zip(self._parts, arrays, strict=True)]
        return jax.tree.unflatten(self._tree, leaves)

    def controls(self) -> list[Control | None]:
        """Where the workers talk to each other that its distributed iterators belong to."""
        targets = [part.target for part in self._parts if isinstance(part, Stateful)]
        return [target._control for target in targets if isinstance(target, DistributedIterator)]

    def check_alike_everywhere(self) -> None:
        """Refuse values that differ from worker to worker."""
        if any(isinstance(part, Rows) for part in self._parts):
            raise InvalidArgumentError(
                f"{self._name} holds a PerReplica, of which each of several workers has only its own part: give "
                "strategy.local_results(value)[0] where all replicas are alike, or else strategy.gather(value, axis)"
            )


def load_states(path: Path, pairs: list[tuple[Stateful, Any]], workers: Together) -> None:
    """Let iterators continue from the states of a checkpoint: all of them on all workers, or none."""
    before = [part.target.state_dict() for part, _ in pairs]

    def load() -> tuple[None, None]:
        refusals = [error for pair in pairs if (error := _refusal(path, *pair)) is not None]
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


def _refusal(path: Path, part: Stateful, state: Any) -> Exception | None:
    """The error with which an iterator refuses a state, None where it continues from it."""
    try:
        part.target.load_state_dict(state)
    except Exception as error:
        error.add_note(f"{part.path} was being restored from the checkpoint {path}")
        return error
    return None
