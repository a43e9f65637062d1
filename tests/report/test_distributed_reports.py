"""Reports of distributed iterators and loaders: the thread that makes steps is followed into the dataset."""

import time

import numpy as np
from until import until

import penstock as ps
from penstock.distribute.control.channel import Control
from penstock.distribute.control.hub import Hub
from penstock.distribute.feed.loader import StepLoader
from penstock.distribute.feed.measured import MeasuredSteps
from penstock.report.verdict import short_name
from penstock.statistics.collected import Statistics


def slow(x):
    time.sleep(0.004)
    return x


def test_the_operator_behind_a_thread_that_makes_steps_is_named():
    steps = ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(80).map(slow).batch(4))
    with iter(steps) as iterator:
        for _ in iterator:
            time.sleep(0.004)
        report = iterator.report()
    (snapshot,), (verdict,) = report.ranks, report.verdicts
    assert snapshot.steps.count == 20
    assert short_name(snapshot.operators[verdict.operator]).startswith("map(slow) at test_distributed_reports.py")
    assert "num_parallel_calls" in verdict.change and "prefetch" not in verdict.change
    assert verdict.gain > 0.5


def test_steps_made_in_the_callers_thread_are_measured():
    options = ps.InputOptions(per_replica_buffer_size=0)
    steps = ps.HostStrategy(1).distribute_dataset(ps.Dataset.range(8).map(slow).batch(2), options)
    with iter(steps) as iterator:
        assert len(list(iterator)) == 4
        report = iterator.report()
    assert report.ranks[0].steps.count == 4
    assert report.ranks[0].steps.blocked.total >= 0.032


def test_a_distributed_dataset_without_statistics_reports_nothing():
    off = ps.Dataset.range(8).batch(2).with_options(ps.Options(statistics=False))
    with iter(ps.HostStrategy(1).distribute_dataset(off)) as iterator:
        list(iterator)
        assert iterator.report().lines() == ["statistics are off"]


def test_each_rank_reports_what_the_others_have_told():
    hub = Hub("127.0.0.1", 2)
    ends = [Control(("127.0.0.1", hub.port), hub.key, worker, 2) for worker in range(2)]
    ranks = [MeasuredSteps(Statistics(), end, "iteration 0", worker) for worker, end in enumerate(ends)]
    try:
        for rank, steps in enumerate((3, 5)):
            for _ in range(steps):
                ranks[rank].ask()
                ranks[rank].given()
        assert [one.rank for one in ranks[0].report().ranks] == [0]
        assert ranks[0].report().lines()[0] == "rank 1 has told nothing of its steps yet"
        ranks[1].tell()
        until(lambda: len(ranks[0].report().ranks) == 2)
        assert [(one.rank, one.steps.count) for one in ranks[0].report().ranks] == [(0, 3), (1, 5)]
        assert not ranks[0].report().missing
        assert [one.rank for one in ranks[1].report().ranks] == [1]
        ranks[1].ask()
        ranks[1].given()
        ranks[1].tell()  # too early
        ranks[1].tell(last=True)
        until(lambda: ranks[0].report().ranks[1].steps.count == 6)
    finally:
        for end in ends:
            end.close()


def test_a_loaders_report_is_about_all_epochs():
    dataset = ps.Dataset.range(12).map(slow).batch(2)
    with StepLoader("loader", ps.HostStrategy(1).distribute_dataset(dataset)) as loader:
        for epoch in range(1, 4):
            assert len(list(loader)) == 6
            (snapshot,) = loader.report().ranks
            assert snapshot.steps.count == snapshot.steps.blocked.count == 6 * epoch
            rows = {operator.name: snapshot.of(number).rows for number, operator in enumerate(snapshot.operators)}
            assert rows == {"range": 12 * epoch, "map": 12 * epoch, "batch": 6 * epoch, "step": 0}
            assert snapshot.elapsed >= 0.048 * epoch
            assert all(one.number < 6 * epoch for one in snapshot.steps.slowest)
        assert loader.metrics()["penstock/steps"] == 6


def test_wasted_places_of_packed_rows_are_told():
    packed = ps.Dataset.from_list([np.arange(3)] * 4).with_lengths(len).pack(4)
    with iter(packed) as iterator:
        list(iterator)
        lines = iterator.report().lines()
    assert any(line.startswith("pack at ") and line.endswith(": the first rows are 25.0% padding") for line in lines)


def test_slices_are_told_with_the_costliest_before_and_after_balance():
    texts = ps.Dataset.from_list([np.arange(length) for length in (9, 9, 1, 1) * 3]).with_lengths(len)
    steps = ps.HostStrategy(2).distribute_dataset(texts.ragged_batch(4).balance())
    with iter(steps) as iterator:
        assert [[[len(row) for row in part] for part in step.values] for step in iterator] == [[[9, 1], [9, 1]]] * 3
        lines = iterator.report().lines()
    told = "the costliest slice of the first batches costs 1.00 of the mean, and 1.80 before"
    assert any(line.startswith("balance at ") and line.endswith(f": {told}") for line in lines)
