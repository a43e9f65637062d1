"""The arguments of `Dataset.mix`, checked, and the node that they describe."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.data.arguments import as_numbers
from penstock.data.mixtures.node import Mix, SourceEpochs
from penstock.data.mixtures.order import Weights
from penstock.data.node import Node
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer

_UNITS: Final = ("elements", "tokens", "batches")
_STOPS: Final = ("first", "all", "repeat")


def mixed(
    sources: Mapping[str, Node], weights: Any, seed: int, unit: str, stop: str, max_epochs: Any, site: str
) -> Mix:
    """Return the node of a mixture.

    Raises:
        InvalidArgumentError: no sources, an empty one, an unknown name, unit or end, or unfit weights.
        InvalidTypeError: weights that are not numbers.
    """
    names = tuple(sources)
    for name, allowed, given in (("unit", _UNITS, unit), ("stop", _STOPS, stop)):
        if given not in allowed:
            raise InvalidArgumentError(f"mix({name}=...) takes one of {', '.join(map(repr, allowed))}, got {given!r}")
    given_epochs = max_epochs or {}
    if not isinstance(given_epochs, Mapping):
        raise InvalidTypeError(f"mix(max_epochs=...) takes a dictionary of numbers by source, got {max_epochs!r}")
    _check_names("max_epochs", given_epochs, names)
    epochs = dict.fromkeys(names, None if stop == "repeat" else 1)
    for name, most in given_epochs.items():
        epochs[name] = check_integer("mix", f"max_epochs[{name!r}]", most, minimum=1)
    members = []
    for name, node in sources.items():
        if node.cardinality == 0:
            raise InvalidArgumentError(f"mix: the source {name!r} is empty: leave it out, or look at {node.where()}")
        if unit == "batches" and not any(below.rows_per_batch for below in node.walk()):
            raise InvalidArgumentError(
                f"mix(unit='batches') takes sources of batches, and {name!r} gives single rows: call batch on it"
            )
        if unit == "tokens" and not node.has_lengths:
            raise InvalidArgumentError(
                f"mix(unit='tokens') needs the lengths of all elements, and those of {name!r} are unknown: call "
                "with_lengths() on it, before shuffle"
            )
        members.append(node if epochs[name] == 1 else SourceEpochs(node, epochs[name], source=name, site=site))
    return Mix(tuple(members), names, _stages(weights, names), seed, stop == "first", unit == "tokens", site=site)


def _check_names(argument: str, given: Mapping[str, Any], names: tuple[str, ...]) -> None:
    unknown = [name for name in given if name not in names]
    if unknown:
        raise InvalidArgumentError(
            f"mix({argument}=...) has no source {unknown[0]!r}: the sources are {', '.join(map(repr, names))}"
        )


def _stages(weights: Any, names: tuple[str, ...]) -> tuple[tuple[int, Weights], ...]:
    """Return the weights from each position on."""
    if not _is_stages(weights):
        return ((0, checked_weights(weights, names)),)
    stages: list[tuple[int, Weights]] = []
    for begin, own in weights:
        least = stages[-1][0] + 1 if stages else 0
        begin = check_integer("mix", "weights: the position of a stage", begin, minimum=least)
        stages.append((begin, checked_weights(own, names)))
    if stages[0][0] != 0:
        raise InvalidArgumentError(f"mix(weights=...): the first stage must begin at 0, got {stages[0][0]}")
    return tuple(stages)


def _is_stages(weights: Any) -> bool:
    if isinstance(weights, (Mapping, str)) or not isinstance(weights, Sequence) or not weights:
        return False
    return all(isinstance(one, (tuple, list)) and len(one) == 2 for one in weights)


def checked_weights(weights: Any, names: tuple[str, ...]) -> Weights:
    """Return a weight for each source, from a dictionary by name or a sequence; equal ones for None."""
    if isinstance(weights, Mapping):
        _check_names("weights", weights, names)
        missing = [name for name in names if name not in weights]
        if missing:
            raise InvalidArgumentError(
                f"mix(weights=...) has no weight for the source {missing[0]!r}: give it one, which may be 0"
            )
        weights = [weights[name] for name in names]
    found = as_numbers("mix", "weights", [1.0] * len(names) if weights is None else weights)
    if len(found) != len(names):
        raise InvalidArgumentError(
            f"mix(weights=...) takes {len(names)} weights, one for each of {', '.join(map(repr, names))}, got "
            f"{len(found)}"
        )
    for name, weight in zip(names, found, strict=True):
        if not (0 <= weight < math.inf):
            raise InvalidArgumentError(f"mix(weights=...): that of {name!r} must be a number from 0 on, got {weight}")
    if not any(found):
        raise InvalidArgumentError(
            f"mix(weights=...) are all 0, so that no element comes of {', '.join(map(repr, names))}: give one above 0"
        )
    return found
