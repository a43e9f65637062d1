"""Changes of a mixture during a run: what a state says about it, and the states and datasets with another one."""

import logging
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from penstock.data.batches.batching import Batching
from penstock.data.batches.by_size import BatchBy
from penstock.data.identity import Identity, identities_of
from penstock.data.iterator_states import check_state, position_in, taken_apart
from penstock.data.mixtures.arguments import checked_weights
from penstock.data.mixtures.node import Mix, MixState
from penstock.data.mixtures.order import Start
from penstock.data.node import Node, OneInput, Run
from penstock.data.operators.balance import Balance
from penstock.data.operators.element import Map
from penstock.data.operators.lengths import WithKnownSizes
from penstock.data.operators.order import AssertCardinality, Enumerate, Repeat, Skip, Take
from penstock.data.operators.prefetch_and_cache import Prefetch
from penstock.data.operators.skip_rows import MaskRows
from penstock.data.operators.sources import Counter
from penstock.data.plan import rebuilt
from penstock.data.streams.stream import State
from penstock.errors import InvalidArgumentError, StateMismatchError
from penstock.options import check_integer

_logger = logging.getLogger(__name__)

_IN_ORDER: Final = (
    AssertCardinality,
    Balance,
    Batching,
    Enumerate,
    Map,
    MaskRows,
    Prefetch,
    Skip,
    Take,
    WithKnownSizes,
)
"""Steps above a mixture of which each element, or each window, is made of consecutive ones, known by number."""
_KEY: Final = "mix"


def _chain(root: Node) -> Iterator[Node]:
    """The last node of a dataset and those below, as far as positions can be followed."""
    node = root
    yield node
    while isinstance(node, _IN_ORDER) and not isinstance(node, BatchBy):
        node = node.input
        yield node


def _mixture(root: Node) -> Mix | None:
    *_, last = _chain(root)
    return last if isinstance(last, Mix) else None


def _row(root: Node, mix: Mix, elements: int) -> int:
    """Return the position in the mixture at which an element of the dataset begins, or the window after it."""
    for node in _chain(root):
        if isinstance(node, Batching):
            elements *= node.batch_size
        elif isinstance(node, Skip):
            elements += node.count
        elif isinstance(node, Balance):
            elements += -elements % node.group
    return elements if mix.cardinality < 0 else min(elements, mix.cardinality)


def _state_at(node: Node, elements: int, mix: Mix, state: State) -> State:
    """Return the state of a cursor over a node after so many elements, from that of the mixture's stream below."""
    if node is mix:
        return [state, 0, elements]
    assert isinstance(node, OneInput)
    below = elements
    more: list[Any] = []
    match node:
        case Batching():
            below = elements * node.batch_size
        case Skip():
            below = elements + node.count
        case AssertCardinality():
            more = [False]
        case Balance():
            below, more = elements + -elements % node.group, [0]
        case _:  # its state is that of its input
            return _state_at(node.input, elements, mix, state)
    inner = _state_at(node.input, below, mix, state)
    return [[inner, *more] if more else inner, 0, elements]


def _around(root: Node, mix: Mix) -> Node:
    """Return the dataset with the same for every mixture."""
    return rebuilt(root, lambda old, new: Counter(0, 1) if old is mix else new)


class MixtureStates:
    """Entries of a mixture in the states of one pass over its dataset, for each source by name.

    Args:
        root: the dataset, whose identity is computed for the first state and kept for those after it.
        plan: the nodes that run.
        run: the iteration, of an epoch.
        epoch: its number.
    """

    def __init__(self, root: Node, plan: Node, run: Run, epoch: int) -> None:
        self._root, self._plan, self._run, self._epoch = root, plan, run, epoch

    @cached_property
    def _mix(self) -> Mix | None:
        return _mixture(self._root)

    @cached_property
    def _running(self) -> Mix:
        *_, running = (node for node in self._plan.walk() if isinstance(node, Mix))
        return running

    @cached_property
    def _sources(self) -> dict[str, dict[str, Any]]:
        assert self._mix is not None
        return _sources(self._mix)

    @cached_property
    def _around(self) -> list[Identity]:
        assert self._mix is not None
        return identities_of(_around(self._root, self._mix))

    def at(self, cursor_state: State) -> dict[str, Any]:
        """Return the entry of a state at a position in the dataset; nothing if that is no mixture."""
        mix = self._mix
        if mix is None:
            return {}
        position = turn = _row(self._root, mix, int(cursor_state[2]))
        if mix.indexable:
            counts = mix.order.counts(position)
        else:
            before, begun = MixState.within(cursor_state)
            more, turn = self._running.passed(self._run, self._epoch, before, position - begun)
            counts = tuple(before.sources.get(one, [0])[-1] + added for one, added in zip(mix.names, more, strict=True))
        sources = deepcopy(self._sources)
        for name, member, elements in zip(mix.names, mix.members, counts, strict=True):
            length = _once(member).cardinality
            sources[name] |= {"elements": elements, "epochs": elements // length if length > 0 else 0}
        found = {
            "position": position,
            "turn": turn,
            "tokens": mix.by_tokens,
            "sources": sources,
            "stages": _plain_stages(mix),
            "start": None if mix.start is None else [mix.start.position, _by_name(mix, mix.start.counts)],
            "around": [identity.entry() for identity in self._around],
        }
        return {_KEY: found}


def _once(member: Node) -> Node:
    """Return a source without its repetitions."""
    while isinstance(member, Repeat):
        member = member.input
    return member


def _sources(mix: Mix) -> dict[str, dict[str, Any]]:
    """Return by name what identifies each source."""
    found: dict[str, dict[str, Any]] = {}
    for name, member in zip(mix.names, mix.members, strict=True):
        found[name] = {"digest": identities_of(_once(member))[-1].digest}
        if not mix.indexable:
            found[name]["stream"] = identities_of(member)[-1].digest
        if member.drawn_seeds:
            found[name]["drawn"] = [drawn.seed for drawn in member.drawn_seeds]
    return found


def _by_name(mix: Mix, values: Iterable[float]) -> dict[str, float]:
    return dict(zip(mix.names, values, strict=True))


def _plain_stages(mix: Mix) -> list[Any]:
    return [[position, _by_name(mix, weights)] for position, weights in mix.stages]


def mixture_of_state(root: Node, state: dict[str, Any]) -> Node:
    """Return the dataset with the mixture of a state, which may have been changed during the run."""
    mix, found = _mixture(root), state.get(_KEY)
    if mix is None or found is None:
        return root
    start = found["start"] and Start(found["start"][0], tuple(found["start"][1][name] for name in mix.names))
    stages = tuple((position, tuple(own[name] for name in mix.names)) for position, own in found["stages"])
    if start == mix.start and stages == mix.stages:
        return root
    changed = replace(mix, start=start, stages=stages)
    return rebuilt(root, lambda old, new: changed if old is mix else new)


def difference(root: Node, state: Any) -> str:
    """Return how the mixture of a state differs from the dataset's, in words; "" if other steps differ."""
    mix, found = _mixture(root), state.get(_KEY) if isinstance(state, dict) else None
    if mix is None or not isinstance(found, dict):
        return ""
    try:
        _check_around(root, mix, state)
    except StateMismatchError:
        return ""
    here, there = _sources(mix), found["sources"]
    told = [f"{name!r} is missing here" for name in there if name not in here]
    told += [f"{name!r} is new here" for name in here if name not in there]
    told += [
        f"{name!r} has other data here"
        for name in here
        if name in there and here[name]["digest"] != there[name]["digest"]
    ]
    weights = found["stages"][0][1]
    for name, weight in zip(mix.names, mix.stages[0][1], strict=True):
        if weights.get(name, weight) != weight:
            told.append(f"the weight of {name!r} was {weights[name]:g}, here it is {weight:g}")
    return "; ".join(told or ["its seed, its end or its epochs differ"])


def _check_around(root: Node, mix: Mix, state: dict[str, Any]) -> None:
    """Refuse a state of which the steps after the mixture differ."""
    check_state({**state, "nodes": state[_KEY]["around"]}, identities_of(_around(root, mix)))


def for_dataset(root: Node, state: Any) -> dict[str, Any]:
    """Return a state of another mixture as one of this dataset: each source goes on where it was, by its name.

    Raises:
        StateMismatchError: the state is not of a mixture, or steps after the mixture differ.
        InvalidArgumentError: positions in the dataset cannot be followed to a mixture.
    """
    mix = _needed(root)
    if not isinstance(state, dict) or _KEY not in state:
        raise StateMismatchError(
            "remix=True takes the state of an iterator over a mixture, and this one is of no other"
        )
    _check_around(root, mix, state)
    found, (cursor_state, _) = state[_KEY], taken_apart(position_in(state))
    given = int(cursor_state[2])
    _check_change(root, mix, found, given)
    here, had = _sources(mix), found["sources"]
    counts = {name: had.get(name, {"elements": 0})["elements"] for name in mix.names}
    drawn: list[int] = []
    for name, member in zip(mix.names, mix.members, strict=True):
        before = had.get(name, {})
        own = [one.seed for one in member.drawn_seeds]
        drawn += before["drawn"] if len(before.get("drawn", ())) == len(own) > 0 else own
        if before and before["digest"] != here[name]["digest"]:
            _logger.warning(
                "remix: the source %r has other data than before, and goes on at element %d of its order: give it "
                "another name to begin at its start",
                name,
                before["elements"],
            )
    start = found["position"] if mix.indexable else found["turn"]
    changed = {
        **found,
        "sources": {name: {**here[name], "elements": counts[name]} for name in mix.names},
        "stages": _plain_stages(mix),
        "start": [start, counts],
    }
    begun = None if mix.indexable else _stream_state(mix, MixState.within(cursor_state)[0], had, counts, start)
    above = [one.seed for one in root.drawn_seeds[len(drawn) :]]
    return {
        **state,
        "position": [given, 0, given] if begun is None else _state_at(root, given, mix, begun),
        "nodes": [identity.entry() for identity in identities_of(root)],
        _KEY: changed,
        **({"drawn": [*drawn, *above]} if state.get("drawn") else {}),
    }


def _check_change(root: Node, mix: Mix, found: dict[str, Any], given: int) -> None:
    """Refuse another mixture after so many elements where it could not go on with what a state holds."""
    if found["tokens"] != mix.by_tokens:
        units = ("elements", "tokens")
        raise StateMismatchError(
            f"remix=True needs the same unit: the weights of the state's mixture count {units[found['tokens']]}, those "
            f"of {mix.where()} {units[mix.by_tokens]}"
        )
    if _row(root, mix, given) == _row(root, mix, given + 1) != mix.cardinality:
        window = next(node for node in _chain(root) if isinstance(node, Balance))
        raise StateMismatchError(
            f"remix=True needs a state between two windows, and {window.where()} has given a part of one after element "
            f"{given - 1:,}: its other rows come of the old mixture; go on with that one, and take a state when a "
            f"window of {window.window} batches has been given"
        )


def _stream_state(mix: Mix, before: MixState, had: dict[str, Any], counts: dict[str, int], turn: int) -> State:
    """Return the state in which the stream of a mixture goes on with its sources after another one, at a turn."""
    sources, here = {}, _sources(mix)
    for name, member in zip(mix.names, mix.members, strict=True):
        begun: State = None
        rows = elements = counts[name]
        if member.indexable:
            begun, rows = elements, 0
        elif name in before.sources and had[name]["stream"] == here[name]["stream"]:
            begun, passed, met = before.sources[name]
            rows = passed + elements - met
        sources[name] = [begun, rows, elements]
    choice: State = [turn, 0, turn]
    if mix.by_tokens:
        stage = sum(first <= turn for first, _ in mix.stages) - 1
        own = list(counts.values())
        choice = [[own, [0] * len(own), turn, stage], 0, sum(own)]
    return MixState(sources, choice, [False] * len(sources), stopped=False).plain()


def with_weights(root: Node, state: dict[str, Any], weights: Any, at: int | None) -> dict[str, Any]:
    """Return a state with other weights from an element of the dataset on, by default the next one.

    Raises:
        InvalidArgumentError: an element that was given, unfit weights, or a dataset that is no mixture by index.
    """
    mix = _needed(root)
    given, found = int(taken_apart(position_in(state))[0][2]), state[_KEY]
    at = given if at is None else check_integer("remix", "at", at, minimum=0)
    if at < given:
        raise InvalidArgumentError(
            f"remix(at={at}): {given} elements were given already, so that it must be from there on"
        )
    later = _row(root, mix, at) - found["position"]
    if later and mix.by_tokens:
        raise InvalidArgumentError(
            f"remix(at={at}): with unit='tokens' the change begins with the next element, which is {given}: call remix "
            "when that many were given"
        )
    position = found["turn"] + later
    own = _by_name(mix, checked_weights(weights, mix.names))
    stages = [[begin, before] for begin, before in found["stages"] if begin < position]
    return {**state, _KEY: {**found, "stages": [*stages, [position, own]]}}


def _needed(root: Node) -> Mix:
    mix = _mixture(root)
    if mix is None:
        *_, last = _chain(root)
        if last.remote is not None:
            raise InvalidArgumentError(
                f"remix changes the weights of a mixture of this process, and here data workers mix, by {last.where()}:"
                " apply ps.service.distribute to each source, and mix the datasets that this gives"
            )
        raise InvalidArgumentError(
            "remix changes the weights of ps.Dataset.mix with batch, balance, map, prefetch, take and skip after it, "
            f"and here {last.where()} comes first: filter, shuffle, pack and repeat the sources instead"
        )
    return mix
