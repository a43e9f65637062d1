"""Global batches that leave replicas without rows in every step are told, with sizes that would not."""

import logging

import pytest

import penstock as ps


@pytest.mark.parametrize(
    ("size", "told"),
    [
        (9, "batches of 9 rows leave 1 of 4 replicas without rows in every step: 4 divides batches of 8 or 12 rows"),
        (2, "batches of 2 rows leave 2 of 4 replicas without rows in every step: 4 divides batches of 4 rows"),
        (10, None),  # 3, 3, 3 and 1
        (8, None),
    ],
)
def test_idle_replicas_are_told_once_when_the_dataset_is_distributed(caplog, size: int, told: str | None) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        distributed = ps.HostStrategy(4).distribute_dataset(ps.Dataset.range(40).batch(size).prefetch(1))
        assert len(list(distributed)) == -(-40 // size)
    assert caplog.messages == ([] if told is None else [f"distribute_dataset: {told}"])
    assert (told in distributed.explain()) if told else ("without rows" not in distributed.explain())


def test_only_one_worker_tells_and_other_inputs_say_nothing(caplog) -> None:
    dataset = ps.Dataset.range(40).batch(3)
    with caplog.at_level(logging.WARNING, "penstock"):
        ps.HostStrategy(2, num_workers=2, worker_index=1).distribute_dataset(dataset)
        ps.HostStrategy(4).distribute_datasets_from_function(lambda context: dataset)
        ps.HostStrategy(4).distribute_dataset(ps.Dataset.range(9).batch(8))  # only the last step
    assert caplog.messages == []
