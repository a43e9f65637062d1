"""DATA over real workers: each global batch is cut over the replicas of all of them, by the one rule."""

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest

import penstock as ps

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen(scenario) -> Any:
    """Two workers with two replicas each; tests of files and of failures have workers with one."""
    return scenario("data")


def undistributed(dataset: ps.Dataset, epochs: int = 1) -> list[list[list[Any]]]:
    return [[batch.tolist() for batch in dataset] for _ in range(epochs)]


def rows_of(steps: list[Any]) -> list[list[Any]]:
    """The global batch of each step."""
    return [list(chain(*step)) for step in steps]


def test_each_worker_sees_its_slices(seen) -> None:
    assert seen.of("twelve_rows") == [
        [[[0], [1]], [[4], [5]], [[8], [9]]],
        [[[2], [3]], [[6], [7]], [[10], [11]]],
    ]


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        ("uneven_batches", [[[0, 1], [2, 3], [4, 5], [6]], [[7], [8], [9], [10]]]),
        ("a_last_batch_of_one_row", [[[0], [1], [2], [3]], [[4], [], [], []]]),
        ("generated", [[[0], [1], [2], [3]], [[4], [], [], []]]),
        ("fewer_rows_than_replicas", [[[0], [], [], []]]),
        ("no_rows", []),
        ("filtered", [[[0], [2], [4], [6]], [[8], [10], [], []]]),
        ("mapped_batches", [[[0], [10], [20], [30]], [[40], [50], [], []]]),
        (
            "repeated_batches",
            [[[0], [1], [], []], [[2], [], [], []], [[0], [1], [], []], [[2], [], [], []]],
        ),
        ("repeated_rows", [[[0], [1], [2], [0]], [[1], [2], [], []]]),
        ("without_remainder", [[[0], [1], [2], [3]], [[4], [5], [6], [7]]]),
    ],
)
def test_batches_are_cut_by_the_one_rule(seen, case: str, steps: Any) -> None:
    assert seen.joined(case) == steps


def test_strings_come_with_their_rows(seen) -> None:
    first, second = seen.joined("strings")
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


def test_an_unseeded_split_is_disjoint_on_all_workers(seen) -> None:
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
def test_ragged_steps_have_empty_shares(seen, case: str, last: int, cardinality: int) -> None:
    workers = seen.of(case)
    assert [worker["steps"][-1] for worker in workers] == [[[last], []], [[], []]]
    assert [(worker["cardinality"], worker["spec"]) for worker in workers] == [(cardinality, spec(None))] * 2


@pytest.mark.parametrize(
    ("case", "last", "cardinality"), [("pad", 8, 3), ("pad_of_unknown_length", 9, ps.UNKNOWN_CARDINALITY)]
)
def test_padded_steps_are_of_one_size_with_a_mask(seen, case: str, last: int, cardinality: int) -> None:
    workers = seen.of(case)
    filling = [[0], [False]]
    assert workers[0]["steps"][0] == [[[0], [True]], [[1], [True]]]
    assert [worker["steps"][-1] for worker in workers] == [[[[last], [True]], filling], [filling, filling]]
    expected = f"({spec(1)}, {spec(1, 'bool')})"
    assert [(worker["cardinality"], worker["spec"]) for worker in workers] == [(cardinality, expected)] * 2


def test_padding_fills_the_short_slice_of_a_full_batch_too(seen) -> None:
    steps = [[[[0, 1], [True] * 2], [[2, 3], [True] * 2], [[4, 5], [True] * 2], [[6, 0], [True, False]]]]
    steps += [[[[row, 0], [True, False]] for row in (7, 8, 9, 10)]]
    assert seen.joined("pad_uneven") == steps


@pytest.mark.parametrize(
    ("case", "steps", "cardinality"),
    [
        ("drop", [[[0], [1], [2], [3]], [[4], [5], [6], [7]]], 2),
        ("drop_of_unknown_length", [[[0], [1], [2], [4]], [[5], [6], [7], [8]]], ps.UNKNOWN_CARDINALITY),
    ],
)
def test_partial_steps_are_dropped_on_all_workers(seen, case: str, steps: Any, cardinality: int) -> None:
    workers = seen.of(case)
    assert [list(chain(*parts)) for parts in zip(*(worker["steps"] for worker in workers), strict=True)] == steps
    assert [(worker["cardinality"], worker["spec"]) for worker in workers] == [(cardinality, spec(1))] * 2


def test_dropping_what_could_never_be_full_is_refused_on_all_workers(seen) -> None:
    first, second = seen.of("drop_uneven")
    assert first == second
    assert first[0] == "InvalidArgumentError"
    assert "4 replicas do not divide batches of 7 rows" in first[1]


def test_the_specification_is_static_where_all_steps_are_full(seen) -> None:
    for worker in seen.of("all_full"):
        assert (worker["cardinality"], worker["spec"]) == (2, spec(1))


def test_a_dataset_without_end(seen) -> None:
    first, second = seen.of("without_end")
    assert [first["steps"], second["steps"]] == [
        [[[0], [1]], [[1], [2]], [[2], [0]]],
        [[[2], [0]], [[0], [1]], [[1], [2]]],
    ]
    assert (first["cardinality"], first["spec"]) == (ps.INFINITE_CARDINALITY, spec(1))


# Messages between the workers.


def test_known_lengths_cost_three_messages_an_epoch(seen) -> None:
    for sent in seen.of("messages"):
        assert sent.pop("filtered") == 7  # the beginning, three steps, the end, and twice what was measured
        assert sent == dict.fromkeys(
            ["known", "mapped", "shuffled", "off", "from_function"], 3
        )  # the beginning, and what was measured


# Loops that end early.


def test_a_loop_that_was_left_begins_anew(seen) -> None:
    expected = [[[0], [1], [2], [3]]] * 3 + [[[4], [5], [6], [7]]]
    for steps in zip(*seen.of("broken_off"), strict=True):
        assert [list(chain(*parts)) for parts in zip(*steps, strict=True)] == expected
    expected[3] = [[5], [6], [7], [8]]
    for steps in zip(*seen.of("broken_off_at_unknown_length"), strict=True):
        assert [list(chain(*parts)) for parts in zip(*steps, strict=True)] == expected


def test_two_iterations_at_once_do_not_meet(seen) -> None:
    first, second = [[0], [1], [2], [3]], [[5], [6], [7], [8]]
    assert seen.joined("two_at_once") == [first, first, second, second]


def test_a_thread_that_waits_for_another_worker_is_woken(seen) -> None:
    assert seen.of("closed_while_waiting_for_the_other") == [[[[0], [1]]], [[[2], [3]]]]


def test_no_thread_is_left(seen) -> None:
    control = ["penstock-control", "penstock-control-hub", "penstock-control-watch"]
    assert seen.of("threads_that_are_left") == [control, [control[0], control[2]]]
