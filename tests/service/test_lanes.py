"""The threads of a reader that fetch."""

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.runtime.conditions import BoundedCondition
from penstock.runtime.threads import Threads
from penstock.service.reader import shared_state
from penstock.service.reader.distribute_options import DistributeOptions
from penstock.service.reader.epoch_progress import EpochProgress
from penstock.service.reader.lanes import Lanes
from penstock.service.reader.read_options import ReadOptions
from penstock.service.reader.shared_state import HeartbeatCounters, SharedState
from penstock.service.wire.dispatcher_messages import EpochOpened
from penstock.service.wire.policy import ShardingPolicy

NOBODY: Any = None
"""Stands for the dispatcher, its session and the workers: a lane that has nothing to fetch asks none of them."""


def test_lanes_of_a_reader_that_is_stopped_just_before_they_wait_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when Python collects a forgotten iterator in one of these threads."""
    options = ReadOptions(settings=DistributeOptions(policy=ShardingPolicy.OFF, service=""), dataset_id="", kind="rows")
    opened = EpochOpened(consumer_id=0, epoch=0, seed=0, passes=[], workers=[], leased=False)
    progress = EpochProgress(options, shared=False, replay=None, number=0)
    shared, threads, wait = SharedState(options, opened, NOBODY, NOBODY, progress), Threads(), BoundedCondition.wait

    def stopped_before(condition: BoundedCondition, timeout: float | None = None) -> bool:
        shared.stop()
        return wait(condition, timeout)

    monkeypatch.setattr(BoundedCondition, "wait", stopped_before)
    monkeypatch.setattr("penstock.runtime.conditions._LONGEST_WAIT_SECONDS", 0.01)
    Lanes(shared, NOBODY, threads).start(workers=1)
    threads.join(5)
    assert shared.lanes == 0


def test_a_wait_that_has_not_ended_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of slow elements waited 0 % of its time by most of its heartbeats, and 300 % by the others."""
    now = [10.0]
    monkeypatch.setattr(shared_state, "time", SimpleNamespace(monotonic=lambda: now[0]))
    counters = HeartbeatCounters()
    with counters.waiting:
        for _ in range(2):
            now[0] += 1.0
            assert counters.heartbeat(1, -1, [], 0, []).waiting_fraction == 1.0
        now[0] += 0.5
    now[0] += 0.5
    assert counters.heartbeat(1, -1, [], 0, []).waiting_fraction == 0.5
