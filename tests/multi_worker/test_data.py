"""DATA over real workers: each global batch is cut over the replicas of all of them, by the one rule."""

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest

import penstock as ps


@pytest.fixture(scope="module", params=[1, 2], ids=["2x1", "2x2"])
def seen(scenario, request: pytest.FixtureRequest) -> Any:
    return scenario("data", devices=request.param)


@pytest.fixture(scope="module")
def two(scenario) -> Any:
    """Two workers with one replica each."""
    return scenario("data", devices=1)


@pytest.fixture(scope="module")
def four(scenario) -> Any:
    """Two workers with two replicas each."""
    return scenario("data", devices=2)


def undistributed(dataset: ps.Dataset, epochs: int = 1) -> list[list[list[Any]]]:
    return [[batch.tolist() for batch in dataset] for _ in range(epochs)]


def rows_of(steps: list[Any]) -> list[list[Any]]:
    """The global batch of each step."""
    return [list(chain(*step)) for step in steps]


def test_each_worker_sees_its_slices(two, four) -> None:
    assert two.of("twelve_rows") == [[[[0, 1]], [[4, 5]], [[8, 9]]], [[[2, 3]], [[6, 7]], [[10, 11]]]]
    assert four.of("twelve_rows") == [
        [[[0], [1]], [[4], [5]], [[8], [9]]],
        [[[2], [3]], [[6], [7]], [[10], [11]]],
    ]


@pytest.mark.parametrize(
    ("case", "over_two", "over_four"),
    [
        (
            "uneven_batches",
            [[[0, 1, 2, 3], [4, 5, 6]], [[7, 8], [9, 10]]],
            [[[0, 1], [2, 3], [4, 5], [6]], [[7], [8], [9], [10]]],
        ),
        ("a_last_batch_of_one_row", [[[0, 1], [2, 3]], [[4], []]], [[[0], [1], [2], [3]], [[4], [], [], []]]),
        ("generated", [[[0, 1], [2, 3]], [[4], []]], [[[0], [1], [2], [3]], [[4], [], [], []]]),
        ("fewer_rows_than_replicas", [[[0], []]], [[[0], [], [], []]]),
        ("no_rows", [], []),
        ("filtered", [[[0, 2], [4, 6]], [[8], [10]]], [[[0], [2], [4], [6]], [[8], [10], [], []]]),
        ("mapped_batches", [[[0, 10], [20, 30]], [[40], [50]]], [[[0], [10], [20], [30]], [[40], [50], [], []]]),
        (
            "repeated_batches",
            [[[0], [1]], [[2], []], [[0], [1]], [[2], []]],
            [[[0], [1], [], []], [[2], [], [], []], [[0], [1], [], []], [[2], [], [], []]],
        ),
        ("repeated_rows", [[[0, 1], [2, 0]], [[1], [2]]], [[[0], [1], [2], [0]], [[1], [2], [], []]]),
        ("without_remainder", [[[0, 1], [2, 3]], [[4, 5], [6, 7]]], [[[0], [1], [2], [3]], [[4], [5], [6], [7]]]),
    ],
)
def test_batches_are_cut_by_the_one_rule(two, four, case: str, over_two: Any, over_four: Any) -> None:
    assert two.joined(case) == over_two
    assert four.joined(case) == over_four


def test_strings_come_with_their_rows(four) -> None:
    first, second = four.joined("strings")
    assert first == [{"word": [word], "number": [number]} for number, word in enumerate("abcd")]
    assert second == [{"word": ["e"], "number": [4]}, *[{"word": [], "number": []}] * 3]


def test_a_seeded_shuffle_is_in_the_order_of_the_undistributed_one(seen) -> None:
    expected = undistributed(ps.Dataset.range(20).shuffle(20, seed=7).batch(8), epochs=2)
    epochs = zip(*seen.of("shuffled_with_a_seed"), strict=True)
    assert [rows_of([list(chain(*parts)) for parts in zip(*epoch, strict=True)]) for epoch in epochs] == expected
    assert expected[0] != expected[1]


@pytest.mark.parametrize(
    ("case", "left_out"), [("shuffled_without_a_seed", set()), ("filtered_and_shuffled_without_a_seed", {3})]
)
def test_workers_draw_a_common_seed_for_a_shuffle_without_one(seen, case: str, left_out: set[int]) -> None:
    workers = seen.of(case)
    assert workers[0]["seeds"] == workers[1]["seeds"] == [workers[0]["seeds"][0]] * 2
    epochs = [
        rows_of([list(chain(*parts)) for parts in zip(*epoch, strict=True)])
        for epoch in zip(*(worker["epochs"] for worker in workers), strict=True)
    ]
    for epoch in epochs:
        assert Counter(list(chain(*epoch))) == Counter(set(range(20)) - left_out)
    assert epochs[0] != epochs[1]


def test_training_and_validation_data_of_an_unseeded_shuffle_are_apart_on_all_workers_together(seen) -> None:
    parts = zip(*seen.of("divided_by_take_and_skip"), strict=True)
    validation, training = (sorted(chain(*chain(*chain(*workers)))) for workers in parts)
    assert (len(validation), len(training)) == (8, 12)
    assert sorted(validation + training) == list(range(20))


@pytest.mark.parametrize(
    ("case", "first"), [("random_numbers_for_each_row", 0), ("random_numbers_for_each_filtered_row", 2)]
)
def test_random_numbers_belong_to_the_row_wherever_it_is_read(seen, case: str, first: int) -> None:
    kept = ps.Dataset.range(10).filter(lambda row: row > 1) if first else ps.Dataset.range(10)
    rows = kept.map(lambda row, random: row + random.random(), seed=5)
    assert list(chain(*rows_of(seen.joined(case)))) == [float(np.float32(row)) for row in rows]


# Partial batches.


def spec(rows: int | None, dtype: str = "int64", replicas: int = 2) -> str:
    return repr(ps.PerReplica([ps.TensorSpec((rows,), dtype)] * replicas))


@pytest.mark.parametrize(
    ("case", "last", "cardinality"), [("ragged", 8, 3), ("ragged_of_unknown_length", 9, ps.UNKNOWN_CARDINALITY)]
)
def test_ragged_steps_have_empty_shares(four, case: str, last: int, cardinality: int) -> None:
    seen = four.of(case)
    assert [worker["steps"][-1] for worker in seen] == [[[last], []], [[], []]]
    assert [(worker["cardinality"], worker["spec"]) for worker in seen] == [(cardinality, spec(None))] * 2


@pytest.mark.parametrize(
    ("case", "last", "cardinality"), [("pad", 8, 3), ("pad_of_unknown_length", 9, ps.UNKNOWN_CARDINALITY)]
)
def test_padded_steps_are_of_one_size_with_a_mask(four, case: str, last: int, cardinality: int) -> None:
    seen = four.of(case)
    filling = [[0], [False]]
    assert seen[0]["steps"][0] == [[[0], [True]], [[1], [True]]]
    assert [worker["steps"][-1] for worker in seen] == [[[[last], [True]], filling], [filling, filling]]
    expected = f"({spec(1)}, {spec(1, 'bool')})"
    assert [(worker["cardinality"], worker["spec"]) for worker in seen] == [(cardinality, expected)] * 2


def test_padding_fills_the_short_slice_of_a_full_batch_too(four) -> None:
    steps = [[[[0, 1], [True] * 2], [[2, 3], [True] * 2], [[4, 5], [True] * 2], [[6, 0], [True, False]]]]
    steps += [[[[row, 0], [True, False]] for row in (7, 8, 9, 10)]]
    assert four.joined("pad_uneven") == steps


@pytest.mark.parametrize(
    ("case", "steps", "cardinality"),
    [
        ("drop", [[[0], [1], [2], [3]], [[4], [5], [6], [7]]], 2),
        ("drop_of_unknown_length", [[[0], [1], [2], [4]], [[5], [6], [7], [8]]], ps.UNKNOWN_CARDINALITY),
    ],
)
def test_partial_steps_are_dropped_on_all_workers(four, case: str, steps: Any, cardinality: int) -> None:
    seen = four.of(case)
    assert [list(chain(*parts)) for parts in zip(*(worker["steps"] for worker in seen), strict=True)] == steps
    assert [(worker["cardinality"], worker["spec"]) for worker in seen] == [(cardinality, spec(1))] * 2


def test_dropping_what_could_never_be_full_is_refused_on_all_workers(four) -> None:
    first, second = four.of("drop_uneven")
    assert first == second
    assert first[0] == "InvalidArgumentError"
    assert "4 replicas do not divide batches of 7 rows" in first[1]


def test_the_specification_is_static_where_all_steps_are_full(four) -> None:
    for worker in four.of("all_full"):
        assert (worker["cardinality"], worker["spec"]) == (2, spec(1))


def test_a_dataset_without_end(four) -> None:
    first, second = four.of("without_end")
    assert [first["steps"], second["steps"]] == [
        [[[0], [1]], [[1], [2]], [[2], [0]]],
        [[[2], [0]], [[0], [1]], [[1], [2]]],
    ]
    assert (first["cardinality"], first["spec"]) == (ps.INFINITE_CARDINALITY, spec(1))


# Messages between the workers.


def test_known_lengths_cost_no_messages(seen) -> None:
    for sent in seen.of("messages"):
        assert sent.pop("filtered") == 4  # three steps and the end
        assert sent == dict.fromkeys(["known", "mapped", "shuffled", "off", "from_function"], 0)


# Loops that end early.


def test_a_loop_that_was_left_begins_anew(four) -> None:
    expected = [[[0], [1], [2], [3]]] * 3 + [[[4], [5], [6], [7]]]
    for steps in zip(*four.of("broken_off"), strict=True):
        assert [list(chain(*parts)) for parts in zip(*steps, strict=True)] == expected
    expected[3] = [[5], [6], [7], [8]]
    for steps in zip(*four.of("broken_off_at_unknown_length"), strict=True):
        assert [list(chain(*parts)) for parts in zip(*steps, strict=True)] == expected


def test_two_iterations_at_once_do_not_meet(four) -> None:
    first, second = [[0], [1], [2], [3]], [[5], [6], [7], [8]]
    assert four.joined("two_at_once") == [first, first, second, second]


def test_a_thread_that_waits_for_another_worker_is_woken(four) -> None:
    assert four.of("closed_while_waiting_for_the_other") == [[[[0], [1]]], [[[2], [3]]]]


def test_no_thread_is_left(seen) -> None:
    control = ["penstock-control", "penstock-control-hub", "penstock-control-watch"]
    assert seen.of("threads_that_are_left") == [control, [control[0], control[2]]]
