"""`run`, `reduce` and `gather` over two workers with two replicas each: the numbers of one process, on every worker."""

from itertools import chain
from typing import Any

import numpy as np
import pytest

import penstock as ps

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def seen(scenario) -> Any:
    return scenario("computing")


def check(worker: int, told: Any, shares: list[list[int]]) -> None:
    """What a worker was told of a step, given the rows of all four replicas."""
    rows = list(chain(*shares))
    for replica, result in zip((2 * worker, 2 * worker + 1), told["run"], strict=True):
        share = shares[replica]
        assert result["replica"] == replica
        assert result["own"] == sum(share)
        assert result["batch"] == [2 * row for row in share]
        assert result["sum"] == sum(rows)
        assert result["mean"] == sum(rows) / 4
        assert result["nested"] == [len(rows), {"squares": sum(row * row for row in rows)}]
    assert told["over_rows"] == {"SUM": sum(rows), "MEAN": float(np.float32(sum(rows)) / np.float32(len(rows)))}
    assert told["gather"] == rows
    assert told["gather_doubled"] == [2 * row for row in rows]
    assert told["reduced_result"] == sum(rows)
    if len({len(share) for share in shares}) == 1:
        sums = [sum(column) for column in zip(*shares, strict=True)]
        assert told["over_replicas"] == {"SUM": sums, "MEAN": [total / 4 for total in sums]}
    else:
        lengths = ", ".join(f"({len(share)},)" for share in shares)
        assert told["over_replicas"][0] == "InvalidArgumentError"
        assert f"needs values of fitting shapes, got {lengths}: give axis=0" in told["over_replicas"][1]


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("even", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("ragged", [[0, 1], [2, 3], [4, 5], [6]]),
        ("half", [[0], [1], [2], []]),
    ],
)
def test_steps_of_all_sizes(seen, name: str, shares: list[list[int]]) -> None:
    for worker, steps in enumerate(seen.of("steps")):
        check(worker, steps[name], shares)


def test_the_numbers_by_hand(seen) -> None:
    even, ragged = (seen.of("steps")[0][name] for name in ("even", "ragged"))
    assert even["over_rows"] == {"SUM": 28, "MEAN": 3.5}
    assert even["over_replicas"] == {"SUM": [12, 16], "MEAN": [3.0, 4.0]}
    assert [result["mean"] for result in even["run"]] == [7.0, 7.0]
    assert ragged["over_rows"] == {"SUM": 21, "MEAN": 3.0}
    assert [result["mean"] for result in ragged["run"]] == [5.25, 5.25]


def test_workers_that_run_dry_take_part(seen) -> None:
    long = [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], [9]], [[10], [11]]]
    short = [[[100], [101]], [[102], []], [[], []], [[], []]]
    second_dry, first_dry, empty = zip(*seen.of("steps_of_files"), strict=True)
    for worker in (0, 1):
        for number, step in enumerate(second_dry[worker]):
            check(worker, step, long[number] + short[number])
        for number, step in enumerate(first_dry[worker]):
            check(worker, step, short[number] + long[number])
        (only,) = empty[worker]
        check(worker, only, [[], [], [200], []])


def test_a_worker_that_runs_dry_at_a_known_step(seen) -> None:
    steps = [
        [[0, 1], [2, 3], [0, 1], [2, 3]],
        [[4, 5], [6, 7], [4], []],
        [[8, 9], [], [], []],
    ]
    for worker, told in enumerate(seen.of("steps_of_functions")):
        for step, shares in zip(told, steps, strict=True):
            check(worker, step, shares)


def test_padded_steps_need_no_words_about_their_shapes(seen) -> None:
    for told in seen.of("padded_steps"):
        assert told["steps"] == [[[207, 6]] * 2, [[124, 5]] * 2, [[17, 2]] * 2, [[21, 2]] * 2]
        # When it is distributed, when the epoch begins, for each step, for the end; and every 5 s what was measured.
        assert told["sent"] - (3 + 1 + 4 + 1) in range(1, 6)


def test_many_steps_in_one_call(seen) -> None:
    for worker, (shared, files) in enumerate(seen.of("many_steps")):
        replicas = (2 * worker, 2 * worker + 1)
        assert shared["results"] == [
            [{"sum": [28, 92, 156], "replica": [replica] * 3} for replica in replicas],
            [{"sum": [220, 170], "replica": [replica] * 2} for replica in replicas],
        ]
        assert shared["total"] == [sum(range(37))] * 2
        assert [result["sum"] for result in files["results"][0]] == [[207, 124, 17]] * 2
        assert [result["sum"] for result in files["results"][1]] == [[21]] * 2
        assert files["total"] == [369] * 2


def test_nested_structures(seen) -> None:
    rows = np.arange(14).reshape(7, 2)
    for told in seen.of("nested"):
        assert told["gather"] == {"x": (2 * rows).tolist(), "y": [[0, 2, 4, 6, 8, 10, 12], [2.0] * 7]}
        assert told["sum"] == {"x": [84.0, 98.0], "y": [42, 14.0]}
        assert told["last axis"] == rows[[0, 2, 4, 6]].T.tolist()


def test_values_that_every_replica_has(seen) -> None:
    assert seen.of("plain_values") == [{"run": [[3.0, 3.0], [3.0, 3.0]], "sum": 12, "mean": [3.0]}] * 2


def test_strings_are_gathered_from_all_workers(seen) -> None:
    first, second = seen.of("strings")
    assert first == second
    assert first["steps"] == [
        {"name": ["a", "bb", "ccc", "d"], "number": [0, 1, 2, 3]},
        {"name": ["ee", "f", "g"], "number": [4, 5, 6]},
    ]
    assert first["lines"] == [
        ["100", "101", "0", "1"],
        ["102", "2", "3"],
        *([str(row), str(row + 1)] for row in (4, 6, 8, 10)),
    ]
    assert first["ragged"] == [list(range(row)) for row in range(5)]
    assert first["of each"] == ["x"] * 4
    assert first["refused"][0] == "InvalidTypeError"
    assert "got objects of type dict on worker 0: workers can send each other numbers, strings" in first["refused"][1]


def test_predictions_find_their_rows(seen) -> None:
    first, second = seen.of("predictions_in_order")
    assert [row for row, _ in first] == [0, 1, 2, 3, 6, 7, 8, 9, 12, 13, 14, 15, 18, 19, 20, 21]
    assert sorted(first + second) == [[row, 2 * row] for row in range(23)]


def test_a_result_that_is_no_number_is_refused_on_all_workers(seen) -> None:
    first, second = seen.of("a_result_that_is_no_number")
    assert first == second
    assert first[0] == "InvalidTypeError"


def test_training_gives_the_weights_of_one_process(seen) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(30, 3)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 0.5], np.float32) + np.float32(0.25)
    w, b = np.zeros(3), 0.0
    batches = ps.Dataset.from_tensor_slices({"x": x, "y": y}).shuffle(30, seed=1).batch(8)
    losses = []
    for _ in range(3):
        for batch in batches:
            error = batch["x"] @ w + b - batch["y"]
            losses.append(np.mean(error**2))
            w, b = w - 0.2 * (error @ batch["x"]) / len(error), b - 0.2 * np.mean(error)
    for told in seen.of("linear_regression"):
        for weights in told["weights"]:
            assert weights["w"] == pytest.approx(w, abs=1e-6)
            assert weights["b"] == pytest.approx(b, abs=1e-6)
        assert told["losses"] == pytest.approx(losses, abs=1e-5)
