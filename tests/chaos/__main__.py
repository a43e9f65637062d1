"""Reads through a real data service while its processes are killed, stopped, restarted and cut off from each other.

Every trial is drawn from a seed: what is read and by whom, and what breaks when. What the readers got is compared with
what they must get. `--seed` and `--trials` repeat what was printed. With `--mistakes` one of several workers that train
together does something alone instead, and all must end.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from mistakes import Mistake, MistakeTrial, draw_mistake
from network import go_inside
from schedule import MODES, Schedule, draw, kinds
from trial import Trial
from waits import Wait, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos ARGS=...", description=__doc__)
    parser.add_argument("--seed", type=int, metavar="N", help="of the first trial (default: a random one)")
    parser.add_argument("--trials", type=int, metavar="N", default=200, help="how many (default: 200)")
    parser.add_argument("--at-once", type=int, metavar="N", default=3, help="how many at the same time (default: 3)")
    parser.add_argument("--mode", metavar="MODE", help="only trials of this mode: ordered, shared, …")
    parser.add_argument("--kind", metavar="KIND", help="only trials with one of this kind: damage, version, older, …")
    parser.add_argument("--dispatcher", action="store_true", help="let the dispatcher die too")
    parser.add_argument(
        "--network", action="store_true", help="give every process a network namespace, and cut some off at times"
    )
    parser.add_argument("--mistakes", action="store_true", help="let workers train together, one of which goes astray")
    parser.add_argument("--faults", type=int, metavar="N", help="how many in each trial (default: 1 to 5)")
    parser.add_argument(
        "--default-times", action="store_true", help="leave heartbeats and leases as they are without settings"
    )
    options = parser.parse_args()
    if options.network:
        go_inside()
    first = random.randrange(1 << 30) if options.seed is None else options.seed
    print(f"seed {first}, {options.trials} trials", flush=True)
    drawn = map(draw_mistake, count(first)) if options.mistakes else _drawn(options, first)
    schedules = list(islice(drawn, options.trials))
    with TemporaryDirectory() as forking, ThreadPoolExecutor(options.at_once) as pool:
        os.environ["FORKING_DIRECTORY"] = forking
        found = list(pool.map(_outcome, schedules))
    print("How long readers waited in trials with one fault:")
    print(table(wait for outcome in found for wait in outcome.waits))
    print("Trials with each kind, and how many of them held:")
    print(_kinds_table(found))
    failed = sum(not outcome.held for outcome in found)
    print(f"{len(schedules)} trials, {failed} failed", flush=True)
    return 1 if failed else 0


def _drawn(options: argparse.Namespace, first: int) -> Iterator[Schedule]:
    """The schedules that are asked for, by their seeds, without an end."""
    possible = kinds(dispatcher=options.dispatcher, network=options.network)
    if options.kind is not None and options.kind not in possible:
        raise SystemExit(f"--kind: got {options.kind!r}, expected one of {', '.join(filter(None, possible))}")
    if options.mode is not None and options.mode not in MODES:
        raise SystemExit(f"--mode: got {options.mode!r}, expected one of {', '.join(MODES)}")
    for seed in count(first):
        schedule = draw(
            seed,
            dispatcher=options.dispatcher,
            network=options.network,
            faults=options.faults,
            default_times=options.default_times,
        )
        if options.mode in (None, schedule.mode) and options.kind in (None, schedule.kind):
            yield schedule


@dataclass(frozen=True)
class _Outcome:
    """What came of a trial.

    Attributes:
        happened: the kinds of what went wrong in it.
        held: whether everything came as it must.
        waits: how long readers waited.
    """

    happened: frozenset[str]
    held: bool
    waits: Sequence[Wait] = ()


def _outcome(schedule: Schedule | Mistake) -> _Outcome:
    """Carry out a trial, and say what came of it."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    begun = time.monotonic()
    trial: Trial | MistakeTrial | None = None
    try:
        trial = MistakeTrial(schedule, folder) if isinstance(schedule, Mistake) else Trial(schedule, folder)
        waits = trial.run()
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if not isinstance(error, AssertionError) else str(error)
        print(f"seed {schedule.seed} FAILED, {schedule}\n    {what}\n    logs in {folder}", flush=True)
        return _Outcome(frozenset(trial.happened if trial is not None else ()), held=False)
    print(f"seed {schedule.seed} held in {time.monotonic() - begun:.1f} s, {schedule}", flush=True)
    shutil.rmtree(folder)
    return _Outcome(frozenset(trial.happened), held=True, waits=waits)


def _kinds_table(outcomes: Sequence[_Outcome]) -> str:
    """A line for each kind that went wrong anywhere."""
    trials = Counter(kind for outcome in outcomes for kind in outcome.happened)
    held = Counter(kind for outcome in outcomes if outcome.held for kind in outcome.happened)
    return "\n".join(f"{kind:<20} {trials[kind]:>4} {held[kind]:>4}" for kind in sorted(trials))


if __name__ == "__main__":
    sys.exit(main())
