"""Findings about the machine that explain slowness, and that no operator can see."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

_MUCH: Final = 0.1
_FULL: Final = 0.9
_PRESSURE: Final = {
    "cpu": "programs waited for a free processor",
    "io": "programs waited for the disk",
    "memory": "programs waited for memory",
}
_QUEUED: Final = Path("/proc/thread-self/schedstat")
_CGROUPS: Final = (Path("/sys/fs/cgroup/cpu.stat"), Path("/sys/fs/cgroup/cpu/cpu.stat"))


def usable_cores() -> int:
    """Return how many processors this process may use."""
    with suppress(AttributeError):  # macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def queued() -> float:
    """Return the seconds in which this thread has waited for a free processor; 0 where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(_QUEUED.read_bytes().split()[1]) / 1e9
    return 0.0


def findings() -> list[str]:
    """Return a sentence for each thing that this machine has too little of; none where nothing can be read."""
    found = []
    for name, words in _PRESSURE.items():
        share = _pressure(Path("/proc/pressure", name))
        if share > _MUCH:
            found.append(f"this machine: {words} during {share:.0%} of the last minute")
    throttled = max(map(_throttled, _CGROUPS))
    if throttled > _MUCH:
        found.append(
            f"this container: its processors were taken away in {throttled:.0%} of all periods: raise its limit"
        )
    with suppress(OSError):
        shared = shutil.disk_usage("/dev/shm")
        if shared.used > _FULL * shared.total:
            found.append(
                f"/dev/shm is full: {shared.used:,} of {shared.total:,} bytes: give the container a larger one"
            )
    return found


def _pressure(path: Path) -> float:
    """Return the share of the last minute in which some task waited."""
    with suppress(OSError, ValueError, IndexError):
        return float(path.read_text().split("avg60=")[1].split()[0]) / 100
    return 0.0


def _throttled(path: Path) -> float:
    """Return the share of the periods in which the processors of a container were taken away."""
    with suppress(OSError, ValueError, KeyError):
        counts = dict(line.split() for line in path.read_text().splitlines())
        return int(counts["nr_throttled"]) / max(1, int(counts["nr_periods"]))
    return 0.0
