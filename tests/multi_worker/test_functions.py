"""Datasets and values made by the user's function come to the replicas of both workers, which end together."""

from typing import Any

import pytest

import penstock as ps


@pytest.fixture(scope="module")
def seen(scenario) -> Any:
    return scenario("functions")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "last", "cardinality"),
    [
        ("unequal_pipelines", [[8, 9], [10, 11]], 3),
        ("unequal_pipelines_of_unknown_length", [[8, 9], [10]], ps.UNKNOWN_CARDINALITY),
    ],
)
def test_unequal_pipelines_end_together(seen, case: str, last: Any, cardinality: int) -> None:
    first, second = seen.of(case)
    assert first == {"steps": [[[0, 1], [2, 3]], [[4, 5], [6]], [[], []]], "cardinality": cardinality}
    assert second == {"steps": [[[0, 1], [2, 3]], [[4, 5], [6, 7]], last], "cardinality": cardinality}


def test_pipelines_of_which_one_knows_its_length(seen) -> None:
    assert seen.of("one_known_and_one_unknown_length") == [[[[0, 1], [2, 3]], [[4], []]], [[[0, 1], []], [[], []]]]


def test_a_pipeline_without_data(seen) -> None:
    assert seen.of("one_pipeline_without_data") == [[[[], []]], [[[0, 1], [2]]]]


def test_the_function_is_called_once_for_each_worker_or_replica(seen) -> None:
    assert seen.of("contexts") == [
        [[2, 0, 4, 3], [4, 0, 4, 3], [4, 1, 4, 3], [2, 0, 4, 3]],
        [[2, 1, 4, 3], [4, 2, 4, 3], [4, 3, 4, 3], [2, 1, 4, 3]],
    ]


def test_a_pipeline_for_each_replica(seen) -> None:
    first, second = seen.of("pipelines_per_replica")
    assert first["steps"] == [[[0, 1], [10, 11]], [[2], [12, 13]], [[], []]]
    assert second["steps"] == [[[20, 21], [30, 31]], [[22, 23], [32, 33]], [[24], [34, 35]]]


def test_scalars_without_end(seen) -> None:
    assert seen.of("scalars_without_end") == [[[0, 1], [2, 3], [4, 5]], [[100, 101], [102, 103], [104, 105]]]


def test_scalars_that_end_are_refused_on_all_workers(seen) -> None:
    first, second = seen.of("scalars_that_end")
    assert first == second
    assert first[0] == "ElementError"
    assert "elements of the dataset hold a scalar" in first[1]


def test_the_lookup_of_the_guide(seen) -> None:
    """Batches a c e a c e ... of one row, the even ones for worker 0; "e" is not in the vocabulary."""
    a, c, e = [1], [3], [0]
    assert seen.of("string_lookup") == [[[a, e], [c, a], [e, c]], [[c, a], [e, c], [a, e]]]


def test_values_for_the_replicas_of_each_worker(seen) -> None:
    first, second = seen.of("values")
    assert first["values"] == [{"id": 0, "all": [4, 4]}, {"id": 1, "all": [4, 4]}]
    assert second["values"] == [{"id": 2, "all": [4, 4]}, {"id": 3, "all": [4, 4]}]
    assert first["doubled"] == second["doubled"] == [4, 4, 6, 6, 8, 8, 10, 10]


def test_partial_steps_are_kept_or_filled_up_or_dropped(seen) -> None:
    def spec(rows: int | None, dtype: str = "int64") -> str:
        return repr(ps.PerReplica([ps.TensorSpec((rows,), dtype)] * 2))

    ragged = [
        [[[0, 1], [2, 3]], [[4, 5], [6]], [[], []]],
        [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]],
    ]
    real, none = [True, True], [False, False]
    last = [[[[0, 0], none], [[0, 0], none]], [[[8, 9], real], [[10, 11], real]]]
    sixth = [[[6, 0], [True, False]], [[6, 7], real]]
    for worker, told in enumerate(seen.of("partial")):
        assert told["ragged"] == {"steps": ragged[worker], "length": 3, "spec": spec(None)}
        steps = [[[[0, 1], real], [[2, 3], real]], [[[4, 5], real], sixth[worker]], last[worker]]
        assert told["pad"] == {"steps": steps, "length": 3, "spec": f"({spec(2)}, {spec(2, 'bool')})"}
        assert told["drop"] == {"steps": [[[0, 1], [2, 3]]], "length": 1, "spec": spec(2)}


def test_workers_whose_batches_have_other_sizes_have_steps_of_one_shape(seen) -> None:
    (padded, dropped), (other_padded, other_dropped) = seen.of("partial_of_two_sizes")
    rows = [[len(part) for part, _ in step] for step in padded]
    assert rows == [[len(part) for part, _ in step] for step in other_padded] == [[4, 4], [2, 2]]
    assert (dropped, other_dropped) == ([[[0, 1], [2, 3]]], [[[0, 1], [4, 5]]])
