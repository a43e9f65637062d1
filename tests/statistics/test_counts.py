"""Statistics of an iteration: exact numbers of rows and blocks, who waited for whom, and what a fault in them does."""

import itertools
import logging
import threading
import time

import pytest

import penstock as ps
from penstock.statistics import collected, lanes, steps
from penstock.statistics.collected import Statistics
from penstock.statistics.lanes import Lane
from penstock.statistics.schema import Histogram, Steps
from penstock.statistics.steps import StepClock


def counted(iterator):
    """The counts by operator and stage."""
    snapshot = iterator._statistics.snapshot()
    return snapshot, {
        (snapshot.operators[number].name, stage.name): counts
        for stage in snapshot.stages
        for number, counts in stage.operators.items()
    }


def test_rows_are_counted_once_for_each_operator():
    dataset = ps.Dataset.range(1000).shuffle(seed=1).map(lambda x: x * 2).batch(10).prefetch(2)
    with iter(dataset) as iterator:
        assert len(list(iterator)) == 100
        snapshot, counts = counted(iterator)
    rows = {name: counts[name].rows for name in counts if counts[name].rows}
    assert rows == {
        ("range", "prefetch"): 1000,
        ("map", "prefetch"): 1000,
        ("batch", "prefetch"): 100,
        ("prefetch", "consumer"): 100,
    }
    assert counts["batch", "prefetch"].nbytes == 8000
    assert snapshot.steps.count == 100
    assert [operator.name for operator in snapshot.operators] == ["range", "shuffle", "map", "batch", "prefetch"]
    assert all(operator.site.startswith(__file__) for operator in snapshot.operators[:-1])


def test_calls_in_threads_are_counted_apart_from_the_reading_thread():
    with iter(ps.Dataset.range(40).map(lambda x: time.sleep(0.001) or x, num_parallel_calls=4).batch(4)) as iterator:
        list(iterator)
        _, counts = counted(iterator)
    assert counts["map", "worker"].rows == 0 and counts["map", "consumer"].rows == 40
    assert counts["map", "worker"].seconds >= 0.04
    assert counts["batch", "consumer"].waited > 0
    assert counts["batch", "consumer"].rows == 10


def test_a_wait_for_a_prefetch_is_no_work():
    seen = threading.Event()
    with iter(ps.Dataset.range(1).map(lambda x: seen.wait(0.05)).prefetch(1)) as iterator:
        list(iterator)
        snapshot, counts = counted(iterator)
    assert counts["map", "prefetch"].seconds >= 0.05
    assert counts["prefetch", "consumer"].waited > counts["prefetch", "consumer"].seconds
    (stage,) = [stage for stage in snapshot.stages if stage.name == "prefetch"]
    assert snapshot.operators[stage.owner].name == "prefetch"


def test_datasets_made_by_a_function_are_counted_as_one_operator():
    with iter(ps.Dataset.range(5).flat_map(lambda n: ps.Dataset.range(10).map(lambda x: x))) as iterator:
        assert len(list(iterator)) == 50
        snapshot, counts = counted(iterator)
    assert [operator.name for operator in snapshot.operators] == ["range", "flat_map", "range", "map"]
    assert [operator.maker for operator in snapshot.operators] == [-1, -1, 1, 1]
    assert counts["map", "consumer"].rows == 50


def test_options_switch_statistics_off():
    with iter(ps.Dataset.range(3).with_options(ps.Options(statistics=False))) as iterator:
        assert list(iterator) == [0, 1, 2]
        assert iterator._statistics is None


def test_statistics_do_not_change_a_fingerprint():
    dataset = ps.Dataset.range(3)
    assert dataset.fingerprint() == dataset.with_options(ps.Options(statistics=False)).fingerprint()


def broken(*_):
    raise RuntimeError("broken clock")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Lane, "enter"),
        (Lane, "begin_thorough"),
        (Lane, "end_thorough"),
        (Lane, "end_wait"),
        (StepClock, "ask"),
        (StepClock, "get"),
        (Statistics, "new_lane"),
    ],
)
def test_a_fault_in_statistics_is_logged_once_and_training_goes_on(monkeypatch, caplog, kind, name):
    monkeypatch.setattr(kind, name, broken)
    rows = ps.Dataset.range(1000).map(lambda x: time.sleep(1e-5) or x).batch(10).prefetch(1)
    with caplog.at_level(logging.ERROR), iter(rows) as iterator:
        assert [batch[0] for batch in iterator] == list(range(0, 1000, 10))
        iterator.report()
    assert [record.message for record in caplog.records] == [
        "penstock's statistics are off, because of a fault in them"
    ]
    assert "broken clock" in caplog.text
    assert lanes.here.lane is None


def test_a_fault_in_a_report_is_logged_and_the_report_is_empty(monkeypatch, caplog):
    with caplog.at_level(logging.ERROR), iter(ps.Dataset.range(4)) as iterator:
        assert next(iterator) == 0
        monkeypatch.setattr(Statistics, "operator", broken)
        assert iterator.report().lines() == ["statistics are off"]
        assert iterator.metrics()["penstock/steps"] == 0
        assert list(iterator) == [1, 2, 3]
    assert len(caplog.records) == 1


def test_a_clock_that_jumps_stops_nothing(monkeypatch):
    jumps = itertools.cycle([100.0, -1e9, 1e9, 5.0])
    for module in (collected, lanes, steps):
        monkeypatch.setattr(module, "perf_counter", lambda: next(jumps))
    with iter(ps.Dataset.range(1000).map(lambda x: x).batch(10).prefetch(1)) as iterator:
        assert len(list(iterator)) == 100
        assert str(iterator.report())


def test_percentiles_of_a_histogram_are_exact_within_its_buckets():
    histogram = Histogram()
    for first in range(1, 1001, 100):
        histogram.add([number / 1000 for number in range(first, first + 100)])
    histogram.add([])
    assert histogram.total == pytest.approx(500.5)
    assert histogram.percentile(50) == pytest.approx(0.5, rel=0.13)
    assert histogram.percentile(99) == pytest.approx(0.99, rel=0.13)
    assert histogram.percentile(100) == 1.0
    assert Histogram().percentile(50) == 0.0


def test_rows_of_calls_in_threads_are_counted_once():
    with iter(ps.Dataset.range(40).map(lambda x: x + 1, num_parallel_calls=2).batch(10)) as iterator:
        assert len(list(iterator)) == 4
        metrics = iterator.metrics()
    assert (metrics["penstock/1_map/rows"], metrics["penstock/1_map/bytes"]) == (40.0, 320.0)


class Clock:
    """A clock that is set."""

    now = 1.0

    def perf_counter(self):
        return self.now


class Result:
    """A result that a device computes for so long after the step has ended."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def block_until_ready(self):
        self.clock.now += self.seconds


@pytest.mark.parametrize(("device", "exposed"), [(0.5, 0.0), (0.003, 0.005), (0.0, 0.008), (None, 0.008)])
def test_a_wait_that_the_device_does_not_notice_is_none(monkeypatch, device, exposed):
    clock = Clock()
    monkeypatch.setattr(steps, "perf_counter", clock.perf_counter)
    measured = StepClock()
    for _ in range(12):
        measured.ask()
        clock.now += 0.008
        measured.get(1, -1)
        begun = clock.now
        clock.now += 0.001
        measured.mark(begun, None if device is None else Result(clock, device))
    found = measured.copy()
    assert found.blocked.total == pytest.approx(12 * 0.008)
    assert found.share == pytest.approx(exposed / 0.009, rel=0.05)  # a step that waits for the device is longer
    assert found.exposed.count == 8  # the first three teach how long the device takes, and the fourth follows a wait
    assert found.exposed.total == pytest.approx(8 * exposed)


def test_an_error_of_a_marked_step_is_the_callers():
    class Failing:
        def block_until_ready(self):
            raise RuntimeError("the device is lost")

    with iter(ps.Dataset.range(5)) as iterator:
        for _ in iterator:
            with iterator.step() as step:
                step.result = Failing()
        with pytest.raises(ValueError, match="mine"), iterator.step():
            raise ValueError("mine")


def test_the_step_that_compiles_is_no_step_of_the_report(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(steps, "perf_counter", clock.perf_counter)
    measured = StepClock()
    for seconds in (60.0, 0.25, 0.25, 0.25):
        measured.ask()
        clock.now += 0.75
        measured.get(1, -1)
        clock.now += seconds
    measured.ask()
    found = measured.copy()
    assert (found.count, found.first, found.first_yours) == (4, 0.75, 60.0)
    assert (found.seconds, found.own, found.share) == (1.0, 0.25, 0.75)


def test_metrics_and_report_agree_on_waiting_after_marked_steps():
    with iter(ps.Dataset.range(30).map(lambda x: time.sleep(0.001) or x).batch(2)) as iterator:
        for _ in iterator:
            with iterator.step() as step:
                step.result = Result(Clock(), 0.0)
        (verdict,) = iterator.report().verdicts
        assert verdict.exact
        assert iterator.metrics()["penstock/waiting_share"] == verdict.waiting


def test_the_device_is_never_told_to_wait_longer_than_the_caller():
    blocked, yours, exposed = Histogram(), Histogram(), Histogram()
    blocked.add([1.0, 1.0, 3.0])
    yours.add([1.0, 1.0])
    exposed.add([3.0])  # the other two steps were not asked for
    found = Steps(3, blocked, yours, exposed, first=1.0, first_yours=1.0, left=1)
    assert (found.own, found.seconds, found.share) == (1.0, 3.0, 2 / 3)


def test_a_step_is_not_shorter_because_others_came_with_the_last_one():
    clock = StepClock()
    clock.ask()
    for rows in (1, 1, 30):
        clock.get(rows, -1)
        before = clock.copy()
        clock.ask()
    assert (before.count, before.left, clock.copy().left) == (32, 30, 0)
    assert before.own == pytest.approx(before.yours.total - before.first_yours)  # of one step: the second one
