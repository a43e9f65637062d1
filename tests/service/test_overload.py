"""A reader that does not read fills no memory, and elements larger than what may be under way come all the same."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

import penstock as ps

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_children")]

MEGABYTE = 1 << 20


def megabyte(x: np.ndarray) -> np.ndarray:
    return np.full(MEGABYTE, x, np.uint8)


def bytes_held(process: int) -> int:
    """The memory of a process that is its own, and what it has touched of segments that it shares."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def children() -> list[int]:
    own = os.getpid()
    return [
        int(child) for task in Path(f"/proc/{own}/task").iterdir() for child in (task / "children").read_text().split()
    ]


@pytest.mark.extended
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="/proc tells the memory of processes")
@pytest.mark.parametrize("protocol", ["shared_memory", pytest.param("flight", marks=pytest.mark.long)])
def test_a_reader_that_does_not_read_fills_no_memory(protocol: str) -> None:
    with ps.service.local(num_workers=2) as service:
        dataset = ps.Dataset.range(20_000).map(megabyte)  # 20 GB, of which workers make more than 1 GB in a second
        through = ps.service.distribute("distributed_epoch", service.target, data_transfer_protocol=protocol)
        with iter(dataset.apply(through)) as iterator:
            next(iterator)
            processes = [os.getpid(), *children()]
            before = [bytes_held(process) for process in processes]
            highest, until = list(before), time.monotonic() + 2.0
            while time.monotonic() < until:
                highest = [max(high, bytes_held(process)) for high, process in zip(highest, processes, strict=True)]
                time.sleep(0.05)
            # 64 MiB are meant to wait here; and for each of 4 lanes a block comes, and one is being made.
            assert max(high - low for high, low in zip(highest, before, strict=True)) < 200 * MEGABYTE
            assert [int(x[0]) for _, x in zip(range(100), iterator)] == [x % 256 for x in range(1, 101)]


@pytest.mark.extended
def test_an_element_larger_than_what_may_wait_comes_one_at_a_time() -> None:
    with ps.service.local(num_workers=2) as service:
        dataset = ps.Dataset.range(6).map(lambda x: np.full(80 * MEGABYTE, x, np.uint8))
        dataset = dataset.apply(ps.service.distribute("distributed_epoch", service.target))
        assert [(len(x), int(x[-1])) for x in dataset] == [(80 * MEGABYTE, number) for number in range(6)]
