"""`collate=`: a function of the rows of one replica, on every strategy and on `ps.jax.loader`."""

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import penstock as ps

GRAPHS = ps.Dataset.from_list([{"x": np.full((n, 2), n, np.float32), "y": np.int64(n)} for n in range(1, 9)])
DROP, PAD = (ps.InputOptions(partial_batch=name) for name in ("drop", "pad"))


def together(rows: Any) -> Any:
    """The graphs of some rows as one, with offsets, as PyG has them."""
    sizes = [len(x) for x in rows["x"]]
    return {"x": np.concatenate(list(rows["x"])), "graph": np.repeat(np.arange(len(sizes)), sizes), "y": rows["y"]}


def padded(rows: Any) -> Any:
    whole = together(rows)["x"]
    return {"x": np.concatenate([whole, np.zeros((20 - len(whole), 2), np.float32)]), "count": [len(whole)]}


def test_each_replica_gets_what_the_function_makes_of_its_rows(strategy_of: Any) -> None:
    steps = list(strategy_of(2).distribute_dataset(GRAPHS.ragged_batch(4), collate=together))
    assert [[np.shape(x) for x in step["x"].values] for step in steps] == [[(3, 2), (7, 2)], [(11, 2), (15, 2)]]
    assert [np.asarray(y).tolist() for y in steps[1]["y"].values] == [[5, 6], [7, 8]]
    assert np.asarray(steps[0]["graph"].values[1]).tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_results_of_one_shape_run_in_one_program(strategy_of: Any) -> None:
    strategy = strategy_of(2)
    (step, _) = strategy.distribute_dataset(GRAPHS.ragged_batch(4), collate=padded)
    sums = strategy.run(lambda batch: batch["x"].sum(), args=(step,))
    assert [float(value) for value in sums.values] == [2.0 * (1 + 4), 2.0 * (9 + 16)]


def test_a_single_replica_gets_bare_results_of_any_kind() -> None:
    marker = object()
    steps = ps.HostStrategy().distribute_dataset(
        ps.Dataset.range(5).batch(3), collate=lambda rows: (rows.sum(), "text", marker, 7)
    )
    assert [(int(total), *others) for total, *others in steps] == [(3, "text", marker, 7), (7, "text", marker, 7)]


def test_tuples_are_unpacked_and_padding_comes_with_its_mask() -> None:
    pairs = ps.Dataset.range(6).map(lambda row: (row, row * 10)).batch(4)
    steps = ps.HostStrategy(2).distribute_dataset(pairs, collate=lambda x, y: x + y)
    assert [[part.tolist() for part in step.values] for step in steps] == [[[0, 11], [22, 33]], [[44], [55]]]
    masked = ps.HostStrategy(2).distribute_dataset(
        ps.Dataset.range(3).batch(3), PAD, collate=lambda rows, mask: rows[mask] + 1
    )
    assert [[part.tolist() for part in step.values] for step in masked] == [[[1, 2], [3]]]


def test_it_is_called_for_this_workers_rows_alone() -> None:
    called: list[int] = []

    def noted(rows: Any) -> Any:
        called.extend(rows.tolist())
        return rows

    batches = ps.Dataset.range(16).batch(8)
    list(ps.HostStrategy(num_workers=4, worker_index=2).distribute_dataset(batches, DROP, collate=noted))
    assert called == [4, 5, 12, 13]


def test_a_state_goes_on_after_the_last_step() -> None:
    def steps() -> Any:
        return ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(12).shuffle(seed=1).batch(4), collate=np.negative)

    expected = [[part.tolist() for part in step.values] for step in steps()]
    iterator = iter(steps())
    next(iterator)
    resumed = iter(steps())
    resumed.load_state_dict(iterator.state_dict())
    assert [[part.tolist() for part in step.values] for step in resumed] == expected[1:]


def test_a_failure_costs_its_step() -> None:
    def fails(rows: Any) -> Any:
        return rows * (12 // int(rows[0] - 4))

    iterator = iter(ps.HostStrategy().distribute_dataset(ps.Dataset.range(12).batch(4), collate=fails))
    assert next(iterator).tolist() == [0, -3, -6, -9]
    with pytest.raises(ZeroDivisionError) as caught:
        next(iterator)
    assert caught.value.__notes__ == ["raised by distribute_dataset(collate=...) for 4 rows of one replica"]
    assert next(iterator).tolist() == [24, 27, 30, 33]


def stops(rows: Any) -> Any:
    raise StopIteration


def differs(rows: Any) -> Any:
    return rows if rows[0] else (rows, rows)


@pytest.mark.parametrize(
    ("collate", "error", "message"),
    [
        (stops, ps.InvalidTypeError, "the function raised StopIteration"),
        (differs, ps.ElementError, r"distribute_dataset\(collate=...\) must give one structure for all replicas"),
        (7, ps.InvalidTypeError, r"distribute_dataset\(collate=...\) takes a function, got 7"),
    ],
)
def test_functions_that_give_no_step_are_refused(collate: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        list(ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(4).batch(4), collate=collate))


def test_global_arrays_are_the_results_one_after_the_other() -> None:
    mesh = Mesh(np.array(jax.devices()), ("data",))
    with ps.jax.loader(GRAPHS.ragged_batch(4), mesh, PartitionSpec("data"), collate=padded) as loader:
        steps = list(loader)
    assert [step["x"].shape for step in steps] == [(80, 2), (80, 2)]
    assert [np.asarray(step["count"]).tolist() for step in steps] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    numbers = ps.Dataset.range(6).batch(4)
    double = {"input_options": PAD, "collate": lambda rows, mask: {"twice": rows * 2, "real": mask}}
    with ps.jax.loader(numbers, mesh, PartitionSpec("data"), **double) as loader:
        assert [np.asarray(step["twice"])[np.asarray(step["real"])].tolist() for step in loader] == [
            [0, 2, 4, 6],
            [8, 10],
        ]
        with pytest.raises(ps.InvalidTypeError, match="is that of what collate gives: known from a step only"):
            _ = loader.element_spec


def test_global_arrays_need_results_of_one_shape_and_one_sharding() -> None:
    mesh = Mesh(np.array(jax.devices()), ("data",))
    with (
        ps.jax.loader(GRAPHS.ragged_batch(4), mesh, PartitionSpec("data"), collate=together) as loader,
        pytest.raises(ps.ElementError, match=r"have the shapes .*let a function given as collate pad its results"),
    ):
        next(iter(loader))
    specs = {"x": PartitionSpec("data"), "y": PartitionSpec()}
    with pytest.raises(ps.InvalidArgumentError, match=r"\(collate=...\) takes one sharding for all leaves"):
        ps.jax.loader(GRAPHS.padded_batch(4), mesh, specs, collate=padded)
