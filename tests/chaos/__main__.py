"""Reads through a real data service while its processes are killed, stopped, restarted and cut off from each other.

Every trial is drawn from a seed: what is read and by whom, and what breaks when. What the readers got is compared with
what they must get. `--seed` and `--trials` repeat what was printed.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from network import go_inside
from schedule import Schedule, draw
from trial import Trial
from waits import Wait, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos ARGS=...", description=__doc__)
    parser.add_argument("--seed", type=int, metavar="N", help="of the first trial (default: a random one)")
    parser.add_argument("--trials", type=int, metavar="N", default=200, help="how many (default: 200)")
    parser.add_argument("--at-once", type=int, metavar="N", default=3, help="how many at the same time (default: 3)")
    parser.add_argument("--mode", help="only trials of this mode: ordered, shared, …")
    parser.add_argument("--dispatcher", action="store_true", help="let the dispatcher die too")
    parser.add_argument(
        "--network", action="store_true", help="give every process a network namespace, and cut some off at times"
    )
    parser.add_argument("--faults", type=int, metavar="N", help="how many in each trial (default: 1 to 5)")
    parser.add_argument(
        "--default-times", action="store_true", help="leave heartbeats and leases as they are without settings"
    )
    options = parser.parse_args()
    if options.network:
        go_inside()
    first = random.randrange(1 << 30) if options.seed is None else options.seed
    print(f"seed {first}, {options.trials} trials", flush=True)
    drawn = (
        draw(
            seed,
            dispatcher=options.dispatcher,
            network=options.network,
            faults=options.faults,
            default_times=options.default_times,
        )
        for seed in range(first, first + options.trials)
    )
    schedules = [schedule for schedule in drawn if options.mode in (None, schedule.mode)]
    with ThreadPoolExecutor(options.at_once) as pool:
        found = list(pool.map(_waits, schedules))
    failed = sum(waits is None for waits in found)
    print("How long readers waited in trials with one fault:")
    print(table(wait for waits in found if waits for wait in waits))
    print(f"{len(schedules)} trials, {failed} failed", flush=True)
    return 1 if failed else 0


def _waits(schedule: Schedule) -> list[Wait] | None:
    """How long readers waited in a trial; None where something did not come as it must. Says which."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    begun = time.monotonic()
    try:
        waits = Trial(schedule, folder).run()
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if not isinstance(error, AssertionError) else str(error)
        print(f"seed {schedule.seed} FAILED, {schedule}\n    {what}\n    logs in {folder}", flush=True)
        return None
    print(f"seed {schedule.seed} held in {time.monotonic() - begun:.1f} s, {schedule}", flush=True)
    shutil.rmtree(folder)
    return waits


if __name__ == "__main__":
    sys.exit(main())
