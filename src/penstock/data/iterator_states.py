"""The states of iterators: their content and its checks."""

from collections.abc import Mapping
from typing import Any, Final

from penstock.data.identity import Identity
from penstock.data.node import Node
from penstock.data.skipped import SkippedRows, skipped_rows
from penstock.data.streams.stream import State
from penstock.errors import StateMismatchError

STATE_VERSION = 2
_KINDS: Final = (
    *(("epoch", int, "an integer"), ("seed", int, "an integer")),
    *(("live", dict, "a dictionary"), ("nodes", list, "a list")),
)
_LEVELS: Final = 50
_PARTS: Final = "parts of a state"
_PART: Final = "part of this state"


def position_of(cursor_state: State, skipped: Any) -> State:
    """Return a position: the state of the plan's cursor, and the rows skipped before it."""
    return cursor_state if skipped is None else {"cursor": cursor_state, "skipped": skipped}


def taken_apart(position: State) -> tuple[State, Any]:
    """Return the state of the plan's cursor at a position, and the rows skipped before it."""
    # The cursor's own state is a list, unless it is damaged.
    together = isinstance(position, dict) and position.keys() == {"cursor", "skipped"}
    return (position["cursor"], position["skipped"]) if together else (position, None)


def position_in(state: dict[str, Any]) -> State:
    """Return the position of a state."""
    return position_of(put_together(state["position"]), state.get("skipped"))


def in_parts(state: State) -> State:
    """Return a state unchanged, or as a list of its parts if one part is in several places or nested too deep.

    Each place then has the number of the part. Otherwise the size of a state would double with each dataset that is
    made of another one's elements; and JSON and Python's recursion limit allow only a certain depth.
    """
    parts = [state]
    divide = _Divide(parts, _in_several_places(state))
    for number, part in enumerate(parts):  # which grow
        parts[number] = divide.upper(part, _LEVELS)
    return parts[0] if len(parts) == 1 else {_PARTS: parts}


def _in_several_places(state: State) -> set[int]:
    """Return the `id` of each dictionary and list that occurs more than once in a nested value."""
    once, several = set[int](), set[int]()
    left = [state]
    while left:
        value = left.pop()
        if id(value) in once:
            several.add(id(value))
            continue
        once.add(id(value))
        entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        left += [entry for entry in entries if isinstance(entry, (dict, list))]
    return several


class _Divide:
    """Divides a nested value into parts: those in several places, and those nested too deep."""

    def __init__(self, parts: list[Any], several: set[int]) -> None:
        self._parts = parts
        self._several = several
        self._numbers: dict[int, int] = {}

    def upper(self, value: Any, levels: int) -> Any:
        """Return the upper levels of a part."""
        if isinstance(value, dict):
            return {key: self._within(entry, levels - 1) for key, entry in value.items()}
        return [self._within(entry, levels - 1) for entry in value] if isinstance(value, list) else value

    def _within(self, value: Any, levels: int) -> Any:
        if not isinstance(value, (dict, list)) or (levels and id(value) not in self._several):
            return self.upper(value, levels)
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._parts)
            self._parts.append(value)
        return {_PART: self._numbers[id(value)]}


def put_together(state: State) -> State:
    """Undo `in_parts`."""
    if not isinstance(state, dict) or state.keys() != {_PARTS}:
        return state
    whole: list[Any] = [type(part)() for part in state[_PARTS]]
    for part, made in zip(state[_PARTS], whole, strict=True):
        filled = _filled(part, whole)
        made.update(filled) if isinstance(made, dict) else made.extend(filled)
    return whole[0]


def _filled(value: Any, whole: list[Any]) -> Any:
    """Return a part with its numbers replaced by the parts."""
    if isinstance(value, dict):
        if value.keys() == {_PART}:
            return whole[value[_PART]]
        return {key: _filled(entry, whole) for key, entry in value.items()}
    return [_filled(entry, whole) for entry in value] if isinstance(value, list) else value


def errors_at(position: State) -> SkippedRows:
    """Return the rows skipped before a position."""
    return skipped_rows(taken_apart(position)[1])


def drawn_in(state: Any, node: Node) -> list[int] | None:
    """Return the seeds that were drawn when the nodes were made; None if the dataset's seed was used instead."""
    here = len(node.drawn_seeds)
    found = state.get("drawn", [] if here == 0 else None)
    if found is not None and (not isinstance(found, list) or [type(seed) for seed in found] != [int] * here):
        raise StateMismatchError(f"the state is damaged: its drawn should be {here} integers, got {found!r:.200}")
    return found


def plain(state: Any) -> Any:
    """Return a state as plain data, after code such as JAX's trees has turned its numbers into arrays."""
    if isinstance(state, Mapping):
        return {key: plain(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return list(map(plain, state))
    return plain(state.tolist()) if hasattr(state, "tolist") else state


def check_state(state: Any, identities: list[Identity]) -> None:
    """Raise a StateMismatchError if this is no state of an iterator over these nodes."""
    if not isinstance(state, dict) or "version" not in state:
        raise StateMismatchError(f"expected the result of state_dict(), got {state!r:.200}")
    if state["version"] != STATE_VERSION:
        raise StateMismatchError(
            f"the state has version {state['version']}, this penstock reads version {STATE_VERSION}: "
            "finish the epoch with the penstock that saved it, or start the epoch again"
        )
    missing = {"epoch", "seed", "position", "nodes"} - state.keys()
    if missing:
        raise StateMismatchError(f"the state is incomplete: {', '.join(sorted(missing))} missing")
    for name, kind, shown in _KINDS:
        if not isinstance(state.get(name, {}), kind):
            raise StateMismatchError(f"the state is damaged: its {name} should be {shown}, got {state[name]!r:.200}")
    for number, entry in enumerate(state["nodes"]):
        if not isinstance(entry, list) or [type(part) for part in entry] != [str, str, str]:
            raise StateMismatchError(
                f"the state is damaged: its node {number} should be three texts, got {entry!r:.200}"
            )
        if number >= len(identities):
            raise _of_another(number, f"was {entry[0]}, here it is nothing")
        difference = identities[number].difference(entry)
        if difference is not None:
            raise _of_another(number, difference)
    if len(identities) > len(state["nodes"]):
        extra = identities[len(state["nodes"])].node
        raise _of_another(len(state["nodes"]), f"was missing, here it is {extra.where()}")


def _of_another(number: int, difference: str) -> StateMismatchError:
    return StateMismatchError(
        f"the state was saved from another dataset: node {number} {difference}; restore it in a dataset of the same "
        "steps, or start the epoch again"
    )
