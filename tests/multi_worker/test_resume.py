"""A position taken on two workers with two replicas each: any other number of workers and replicas goes on from it."""

from itertools import chain
from typing import Any

import pytest

pytestmark = pytest.mark.slow

DATASETS = ["indexable", "unseeded", "streaming"]
AFTER = [0, 3, None]
"""After how many steps the states were taken; None for the end."""


@pytest.fixture(scope="module")
def taken(scenario) -> Any:
    return scenario("resume").of("taken")


@pytest.fixture(scope="module", params=[(3, 1), (1, 4)], ids=["3x1", "1x4"])
def restored(request: pytest.FixtureRequest, scenario, taken) -> Any:
    workers, devices = request.param
    given = {name: taken[0][name]["states"] for name in DATASETS}
    return scenario("resume", count=workers, devices=devices, given=given)


def batches(workers: list[list[Any]]) -> list[list[Any]]:
    """The global batches that the workers' steps make together."""
    return [list(chain(*chain(*parts))) for parts in zip(*workers, strict=True)]


def check(workers: list[Any], taken: Any, name: str) -> None:
    whole = batches([worker[name]["steps"] for worker in taken])
    rows = {"indexable": 100, "unseeded": 200, "streaming": 85}[name]
    assert sum(map(len, whole)) == rows
    for number, after in enumerate(AFTER):
        rest = batches([worker[name][number]["rest"] for worker in workers])
        assert rest == (whole[after:] if after is not None else [])


def test_a_position_is_the_same_on_all_workers(taken) -> None:
    for name in DATASETS:
        assert taken[0][name]["states"] == taken[1][name]["states"]


@pytest.mark.parametrize("name", DATASETS)
def test_other_numbers_of_workers_go_on_in_the_same_order(restored, taken, name: str) -> None:
    check(restored.of("restored"), taken, name)


@pytest.mark.parametrize("name", DATASETS)
def test_strategies_of_one_process_go_on_in_the_same_order(scenario, taken, name: str) -> None:
    given = {name: taken[0][name]["states"] for name in DATASETS}
    (seen,) = scenario("resume", count=1, devices=4, given=given).of("restored_in_one_process")
    for one in seen:
        check([one], taken, name)


def test_the_next_epoch_is_the_same_on_any_number_of_workers(scenario, taken) -> None:
    given = {name: taken[0][name]["states"] for name in DATASETS}
    three = scenario("resume", count=3, devices=1, given=given).of("restored")
    (alone,) = scenario("resume", count=1, devices=4, given=given).of("restored")
    for name in DATASETS:
        for number in range(3):
            first = batches([worker[name][number]["next epoch"] for worker in three])
            assert first == batches([alone[name][number]["next epoch"]])
            assert first != batches([worker[name]["steps"] for worker in taken])[:1]
