"""Drift of new data against old: one finding for each thing that both have learned."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.transform.graph import Graph
from penstock.transform.saved import Learned
from penstock.transform.summary import described

Doubles = npt.NDArray[np.float64]

LIMITS = {
    "mean": 0.25,
    "deviation": 0.25,
    "range": 0.1,
    "quantiles": 0.1,
    "vocabulary": 0.1,
    "keys": 0.0,
    "missing": 0.05,
}
"""From which drift on a finding is marked."""


@dataclass(frozen=True, eq=False)
class Finding:
    """One thing that was learned of both.

    Attributes:
        what: the column, or the value computed of it.
        measure: "mean", "deviation", "range", "quantiles", "vocabulary", "keys" or "missing".
        old: in words.
        new: in words.
        drift: how far they are apart: a mean in old deviations, a deviation as a share of the old one, a range by how
            far the new one reaches beyond the old, quantiles by the largest difference in rank, a vocabulary and keys
            by the share of new entries that the old one lacks, missing values by the difference of their shares.
        boundaries: of quantiles, the old and the new ones.
    """

    what: str
    measure: str
    old: str
    new: str
    drift: float
    boundaries: tuple[Doubles, Doubles] | None = None

    @property
    def marked(self) -> bool:
        """Return whether the drift is above the limit for its measure."""
        return not self.drift <= LIMITS[self.measure]


def findings(graph: Graph, old: Learned, new: Learned) -> Iterator[Finding]:
    """Yield the pairs that both have learned, analyzer by analyzer."""
    for number in sorted(old):
        node = graph.nodes[number]
        compare = _COMPARED.get(node.operation)
        if compare is not None:
            yield from compare(described(graph, node), old[number], new[number])


def missing(old: dict[str, int], old_rows: int | None, new: dict[str, int], new_rows: int | None) -> Iterator[Finding]:
    """The shares of missing values of each column."""
    for name in old:
        one, other = old[name] / max(old_rows or 0, 1), new.get(name, 0) / max(new_rows or 0, 1)
        yield Finding(name, "missing", f"{one:.2%}", f"{other:.2%}", abs(other - one))


def _moments(what: str, old: Any, new: Any) -> Iterator[Finding]:
    deviation = np.sqrt(np.asarray(old[1], np.float64))
    other = np.sqrt(np.asarray(new[1], np.float64))
    distance = np.abs(np.asarray(new[0], np.float64) - old[0])
    yield Finding(what, "mean", _few(old[0]), _few(new[0]), _share(distance, deviation))
    yield Finding(what, "deviation", _few(deviation), _few(other), _share(np.abs(other - deviation), deviation))


def _extrema(what: str, old: Any, new: Any) -> Iterator[Finding]:
    least, most, new_least, new_most = (np.asarray(value, np.float64) for value in (*old, *new))
    beyond = np.maximum(least - new_least, 0) + np.maximum(new_most - most, 0)
    one, other = (f"{_few(pair[0])} to {_few(pair[1])}" for pair in (old, new))
    yield Finding(what, "range", one, other, _share(beyond, most - least))


def _quantiles(what: str, old: Any, new: Any) -> Iterator[Finding]:
    for place, (one, other) in enumerate(zip(old[0].astype(np.float64), new[0].astype(np.float64))):
        if not len(one):
            continue
        ranks = np.arange(1, len(one) + 1) / (len(one) + 1)
        # Outside of the new boundaries a rank is at the end: half of its bucket is assumed there.
        found = np.interp(one, other, ranks, left=ranks[0] / 2, right=1 - ranks[0] / 2)
        name = what if len(old[0]) == 1 else f"{what}, position {place}"
        drift = float(np.abs(found - ranks).max())
        yield Finding(name, "quantiles", _few(one), _few(other), drift, (one, other))


def _vocabulary(what: str, old: Any, new: Any) -> Iterator[Finding]:
    yield _coverage(what, "vocabulary", "tokens", old[0].tokens(), new[0].tokens())


def _keys(what: str, old: Any, new: Any) -> Iterator[Finding]:
    if isinstance(old[0], pa.Array):
        yield _coverage(what, "keys", "keys", old[0], new[0])


def _coverage(what: str, measure: str, kind: str, old: Any, new: Any) -> Finding:
    known = pc.is_in(new, value_set=old)
    lacking = new.filter(pc.invert(known))
    examples = ", ".join(token.decode("utf-8", "replace") for token in lacking[:3].to_pylist())
    shown = f"{len(new):,} {kind}" + (f", unknown: {examples}" if len(lacking) else "")
    return Finding(what, measure, f"{len(old):,} {kind}", shown, len(lacking) / max(len(new), 1))


_COMPARED = {
    "analyze.count_per_key": _keys,
    "analyze.informative_vocabulary": _vocabulary,
    "analyze.mean_and_var": _moments,
    "analyze.min_and_max": _extrema,
    "analyze.moments_per_key": _keys,
    "analyze.quantiles": _quantiles,
    "analyze.quantiles_per_key": _keys,
    "analyze.vocabulary": _vocabulary,
}


def _share(distance: Any, scale: Any) -> float:
    """The largest distance in units of a scale; infinite if there was no spread before."""
    distance, scale = np.broadcast_arrays(np.asarray(distance, np.float64), np.asarray(scale, np.float64))
    shares = np.divide(distance, scale, out=np.where(distance > 0, np.inf, 0.0), where=scale > 0)
    return float(shares.max(initial=0.0))


def _few(value: Any) -> str:
    entries = np.asarray(value, np.float64).reshape(-1)
    shown = ", ".join(f"{entry:.4g}" for entry in entries[:6])
    return shown + ", ..." * (len(entries) > 6)
