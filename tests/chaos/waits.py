"""How long readers wait after a fault, by their own clocks."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median


@dataclass(frozen=True)
class Wait:
    """The longest time that a reader got nothing after a fault.

    Attributes:
        fault: what happened, to whom.
        seconds: from the fault, or from the element before.
        healed: of these, how many were left when the fault was over: a process started again, a cable put back.
    """

    fault: str
    mode: str
    seconds: float
    healed: float


def longest(times: Sequence[float], begun: float, over: float) -> tuple[float, float] | None:
    """The longest wait between elements that came at these times, and what of it lay after `over`; None for none.

    Args:
        begun: when the fault happened.
        over: when it was over.
    """
    gaps = [(max(before, begun), after) for before, after in pairwise(times) if after > begun]
    if not gaps:
        return None
    before, after = max(gaps, key=lambda gap: gap[1] - gap[0])
    return after - before, max(0.0, after - max(before, over))


def table(waits: Iterable[Wait]) -> str:
    """Lines of p50 and maximum, for every fault and mode."""
    found: defaultdict[tuple[str, str], list[Wait]] = defaultdict(list)
    for wait in waits:
        found[wait.fault, wait.mode].append(wait)
    lines = [
        f"{'fault':<20} {'mode':<16} {'n':>3}  {'waited, s: p50':>14} {'max':>6}  {'when over: p50':>14} {'max':>6}"
    ]
    for (fault, mode), these in sorted(found.items()):
        seconds, healed = [wait.seconds for wait in these], [wait.healed for wait in these]
        lines.append(
            f"{fault:<20} {mode:<16} {len(these):>3}  {median(seconds):>14.2f} {max(seconds):>6.2f}  "
            f"{median(healed):>14.2f} {max(healed):>6.2f}"
        )
    return "\n".join(lines)
