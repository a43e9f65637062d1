"""`run_steps`: several steps in one call, with the results of single ones, stacked."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.distribute.conftest import mirrored

import penstock as ps


def total_step(total, rows):
    """Adds the sum of a batch to a total."""
    own = ps.get_replica_context().all_reduce("SUM", rows.sum())
    return total + own, own


def sums(rows):
    return ps.get_replica_context().all_reduce("SUM", rows.sum())


def distributed(strategy: ps.Strategy, rows: int, batch: int = 8, **options: object) -> ps.types.DistributedDataset:
    return strategy.distribute_dataset(ps.Dataset.range(rows).batch(batch), ps.InputOptions(**options))


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize(("rows", "steps"), [(40, 1), (40, 2), (40, 100), (37, 3), (37, 100), (5, 3)])
def test_results_are_those_of_single_steps_however_many_are_asked_for(
    strategy_of, replicas: int, rows: int, steps: int
) -> None:
    strategy = strategy_of(replicas)
    iterator = iter(distributed(strategy, rows))
    batches = [range(start, min(start + 8, rows)) for start in range(0, rows, 8)]
    seen = []
    while len(seen) < len(batches):
        results = strategy.run_steps(sums, iterator, steps)
        (own, *others) = [np.asarray(part).tolist() for part in strategy.local_results(results)]
        assert others == [own] * (replicas - 1)
        assert len(own) == min(steps, len(batches) - len(seen))
        seen += own
    assert seen == [sum(batch) for batch in batches]
    with pytest.raises(ps.OutOfRangeError, match="no further step"):
        strategy.run_steps(sums, iterator, steps)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("donate", [False, True])
def test_a_state_goes_from_step_to_step(strategy_of, replicas: int, donate: bool) -> None:
    strategy = strategy_of(replicas)
    iterator = iter(distributed(strategy, 37))
    state, seen = 0, []
    for expected in (3, 2):
        state, own = strategy.run_steps(total_step, iterator, 3, state=state, donate_state=donate)
        seen += np.asarray(strategy.local_results(own)[0]).tolist()
        assert len(seen[-expected:]) == expected
    assert seen == [28, 92, 156, 220, 32 + 33 + 34 + 35 + 36]
    assert [int(total) for total in strategy.local_results(state)] == [sum(range(37))] * replicas


@pytest.mark.extended
def test_training_gives_the_very_numbers_of_single_steps(four) -> None:
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(70, 3)).astype(np.float32), "y": rng.normal(size=70).astype(np.float32)}
    steps = four.distribute_dataset(ps.Dataset.from_tensor_slices(rows).batch(8))  # the last has 6: 2, 2, 2 and 0

    def step(state, batch):
        def loss_of(weights):
            return jnp.sum((batch["x"] @ weights["slope"] + weights["offset"] - batch["y"]) ** 2)

        loss, gradients = jax.value_and_grad(loss_of)(state["weights"])
        loss, gradients = ps.get_replica_context().all_reduce("SUM", (loss, gradients))
        weights = jax.tree.map(lambda weight, gradient: weight - 0.01 * gradient, state["weights"], gradients)
        return {"weights": weights, "steps": state["steps"] + 1}, {"loss": loss, "weights": weights}

    first = {"weights": {"slope": np.zeros(3, np.float32), "offset": 0.0}, "steps": 0}
    single, expected = first, []
    for batch in steps:
        single, result = four.run(step, args=(single, batch))
        expected.append(jax.tree.map(np.asarray, four.local_results(result)[2]))
    state, results = four.run_steps(step, iter(steps), 9, state=first)
    own = jax.tree.map(np.asarray, four.local_results(results)[2])
    assert own["weights"]["slope"].shape == (9, 3)
    for number, one in enumerate(expected):
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda leaf, n=number: leaf[n], own), one)
    assert [int(part) for part in state["steps"].values] == [9] * 4
    np.testing.assert_array_equal(state["weights"]["slope"].values[3], single["weights"]["slope"].values[3])


@pytest.mark.slow
def test_an_epoch_and_its_ragged_end_take_one_program_and_one_ragged_one(four) -> None:
    traced = []

    def step(rows):
        traced.append(rows.shape[0])
        return sums(rows)

    steps = distributed(four, 85)  # 10 full steps, and 5 rows: 2, 2, 1 and 0
    four.run_steps(step, iter(steps), 8)
    full = len(traced)
    assert set(traced) == {2}
    for _ in range(3):
        iterator = iter(steps)
        four.run_steps(step, iterator, 8)
        four.run_steps(step, iterator, 8)
    assert traced[full:] == [2, 2, 2, 1, 0]  # for the shapes of a program of two steps, and it; for the ragged step


@pytest.mark.slow
def test_the_position_is_that_after_the_last_step_taken(strategy_of) -> None:
    strategy = strategy_of(2)
    steps = distributed(strategy, 40)
    iterator = iter(steps)
    strategy.run_steps(sums, iterator, 3)
    state = iterator.state_dict()
    assert [int(sum(np.sum(np.asarray(part)) for part in batch.values)) for batch in iterator] == [220, 284]
    iterator.load_state_dict(state)
    assert np.asarray(strategy.run_steps(sums, iterator, 100).values[0]).tolist() == [220, 284]


@pytest.mark.slow
def test_batches_in_host_memory_and_of_any_iterator_will_do(four) -> None:
    steps = distributed(four, 36, fetch_to_device=False)
    assert np.asarray(four.run_steps(sums, iter(steps), 9).values[0]).tolist() == [28, 92, 156, 220, 134]
    doubled = (ps.PerReplica([2 * part for part in batch.values]) for batch in steps)
    assert np.asarray(four.run_steps(sums, doubled, 2).values[0]).tolist() == [56, 184]
    pairs = enumerate(iter(distributed(four, 16)))
    result = four.run_steps(lambda pair: pair[0] * sums(pair[1]), pairs, 2)
    assert np.asarray(result.values[3]).tolist() == [0, 92]


@pytest.mark.slow
def test_padded_steps_and_other_structures(strategy_of) -> None:
    strategy = strategy_of(4)
    steps = distributed(strategy, 13, partial_batch="pad")

    def step(batch):
        rows, mask = batch
        return {"sum": sums(rows * mask), "own": rows}

    results = strategy.run_steps(step, iter(steps), 2)
    assert np.asarray(results["sum"].values[0]).tolist() == [28, 50]
    assert [np.asarray(part).tolist() for part in results["own"].values] == [
        [[0, 1], [8, 9]],
        [[2, 3], [10, 11]],
        [[4, 5], [12, 0]],
        [[6, 7], [0, 0]],
    ]


@pytest.mark.slow
def test_an_error_of_the_input_comes_after_the_steps_before_it(four) -> None:
    done = []

    def fail(row):
        if row == 20:
            raise KeyError("twenty")
        return row

    steps = four.distribute_dataset(ps.Dataset.range(40).map(fail).batch(8))
    iterator = iter(steps)

    def step(rows):
        jax.debug.callback(lambda total: done.append(int(total)), rows.sum())
        return sums(rows)

    with pytest.raises(KeyError, match="twenty"):
        four.run_steps(step, iterator, 5)
    jax.effects_barrier()
    assert sorted(done) == sorted([1, 5, 9, 13, 17, 21, 25, 29])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ({"steps": 0}, ps.InvalidArgumentError, "steps"),
        ({"steps": 2.0}, ps.InvalidTypeError, "steps"),
        ({"fn": 3}, ps.InvalidTypeError, "takes a function, got 3"),
        ({"iterator": [1, 2]}, ps.InvalidTypeError, r"iter\(distributed_dataset\).*got list"),
        ({"state": 0}, ps.InvalidTypeError, r"a pair \(new state, result\)"),
    ],
)
def test_bad_calls(strategy_of, call: dict, error: type[Exception], message: str) -> None:
    strategy = strategy_of(2)
    given = {"fn": sums, "iterator": iter(distributed(strategy, 16)), "steps": 2} | call
    if "state" in call:
        given["fn"] = lambda state, rows: sums(rows)
    with pytest.raises(error, match=message):
        strategy.run_steps(**given)


def test_a_dataset_is_no_iterator(strategy_of) -> None:
    strategy = strategy_of(2)
    with pytest.raises(ps.InvalidTypeError, match="got DistributedDataset"):
        strategy.run_steps(sums, distributed(strategy, 16), 2)


def test_results_of_varying_shapes_are_refused_on_devices() -> None:
    strategy = mirrored(2)
    with pytest.raises(ps.InvalidArgumentError, match=r"the result.*rows.* has shape \(4,\).*\(1,\).*strategy\.run"):
        strategy.run_steps(lambda rows: {"rows": rows}, iter(distributed(strategy, 10)), 2)


def test_results_that_differ_in_structure_from_step_to_step_are_refused(strategy_of) -> None:
    strategy = strategy_of(2)

    def step(rows):
        return (rows.sum(),) if rows.shape[0] == 4 else rows.sum()

    with pytest.raises(ps.InvalidTypeError, match="one structure on every step"):
        strategy.run_steps(step, iter(distributed(strategy, 10)), 2)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda state, rows: ({"b": state["a"]}, rows.sum()), "in the structure in which it came"),
        (lambda state, rows: ({"a": state["a"] * 1.0}, rows.sum()), r"got float32\[\] for int32\[\] at state\['a'\]"),
        (lambda state, rows: ({"a": state["a"] + rows}, 0), r"got int32\[2\] for int32\[\] at state\['a'\]"),
    ],
)
def test_a_state_must_stay_as_it_is(four, fn, message: str) -> None:
    with pytest.raises(ps.InvalidTypeError, match=message):
        four.run_steps(fn, iter(distributed(four, 16)), 2, state={"a": 0})


@pytest.mark.slow
def test_a_random_key_may_be_a_state(four) -> None:
    def step(key, rows):
        key, own = jax.random.split(key)
        return key, jax.random.uniform(own)

    _, drawn = four.run_steps(step, iter(distributed(four, 24)), 3, state=jax.random.key(7))
    key, expected = jax.random.key(7), []
    for _ in range(3):
        key, own = jax.random.split(key)
        expected.append(float(jax.random.uniform(own)))
    assert np.asarray(drawn.values[2]).tolist() == expected


@pytest.mark.slow
def test_a_state_that_was_given_away_is_gone(four) -> None:
    iterator = iter(distributed(four, 64))
    state, _ = four.run_steps(total_step, iterator, 2, state=0)
    four.run_steps(total_step, iterator, 2, state=state, donate_state=True)
    for donate in (False, True):
        with pytest.raises(ps.InvalidArgumentError, match=r"arrays in args\[0\] that are no more"):
            four.run_steps(total_step, iterator, 2, state=state, donate_state=donate)


def test_more_steps_than_there_are_make_no_longer_program(monkeypatch) -> None:
    strategy = mirrored(2)
    results = strategy.run_steps(sums, iter(distributed(strategy, 24)), 1_000_000)
    assert np.asarray(results.values[0]).tolist() == [28, 92, 156]


@pytest.mark.slow
def test_a_generator_may_end_with_the_data(four) -> None:
    def results():
        iterator = iter(distributed(four, 24))
        for _ in itertools.count():
            try:
                yield from np.asarray(four.run_steps(sums, iterator, 2).values[0]).tolist()
            except ps.OutOfRangeError:
                return

    assert list(results()) == [28, 92, 156]


@pytest.mark.slow
def test_rows_in_results_are_refused_before_a_ragged_last_step(four) -> None:
    state = four.run(lambda: 0)

    def step(total, rows):
        return total + 1, {"rows": rows * 2}

    with pytest.raises(
        ps.InvalidArgumentError, match=r"result\['rows'\] has a row for each row.*partial_batch=\"pad\""
    ):
        four.run_steps(step, iter(distributed(four, 19)), 2, state=state, donate_state=True)
    assert four.local_results(state)[0] == 0  # nothing was run with it
    for rows, options in ((19, {"partial_batch": "drop"}), (16, {})):
        _, results = four.run_steps(lambda *given: step(*given), iter(distributed(four, rows, **options)), 2, state=0)
        assert np.asarray(results["rows"].values[3]).tolist() == [[12, 14], [28, 30]]


@pytest.mark.slow
@pytest.mark.parametrize("buffer", [0, 2])
def test_batches_of_steps_that_were_refused_come_again(four, buffer: int) -> None:
    """Also those of other steps in the middle of the data, and the end that was met while they were taken."""
    iterator = iter(distributed(four, 35, per_replica_buffer_size=buffer))
    four.run_steps(sums, iterator, 1)
    before = iterator.state_dict()

    def own(batch: ps.PerReplica) -> list[int]:
        return np.concatenate([np.asarray(part) for part in batch.values]).tolist()

    for steps in (2, 100):
        with pytest.raises(ps.InvalidArgumentError, match=r"has a row for each row.*strategy\.run for each step"):
            four.run_steps(lambda rows: rows, iterator, steps)
        assert iterator.state_dict() == before
    assert own(four.run(lambda rows: rows, args=(next(iterator),))) == list(range(8, 16))
    assert np.asarray(four.run_steps(sums, iterator, 1).values[0]).tolist() == [sum(range(16, 24))]
    assert [own(batch) for batch in iterator] == [list(range(24, 32)), [32, 33, 34]]
    iterator.load_state_dict(before)
    with pytest.raises(ps.InvalidArgumentError, match="has a row for each row"):
        four.run_steps(lambda rows: rows, iterator, 2)
    iterator.load_state_dict(before)  # what was to come again does so once
    assert [own(batch)[0] for batch in iterator] == [8, 16, 24, 32]


def test_an_error_of_the_input_behind_refused_steps_comes_again(four) -> None:
    def fail(row: int) -> int:
        if row == 20:
            raise KeyError("twenty")
        return row

    iterator = iter(
        four.distribute_dataset(ps.Dataset.range(27).map(fail, output_signature=ps.TensorSpec((), np.int64)).batch(8))
    )
    with pytest.raises(ps.InvalidArgumentError, match="has a row for each row"):
        four.run_steps(lambda rows: rows, iterator, 5)
    assert [int(next(iterator).values[0][0]) for _ in range(2)] == [0, 8]
    with pytest.raises(KeyError, match="twenty"):
        next(iterator)


@pytest.mark.slow
def test_results_as_long_as_the_batch_by_chance_are_welcome(four) -> None:
    iterator = iter(distributed(four, 19))
    results = four.run_steps(lambda rows: jnp.stack([rows.sum(), rows.size]), iterator, 3)
    assert np.asarray(results.values[3]).tolist() == [[13, 2], [29, 2], [0, 0]]


@pytest.mark.parametrize("replicas", [1, 2])
def test_rows_in_results_of_a_ragged_step_in_host_memory_are_not_lost(replicas: int) -> None:
    strategy = ps.HostStrategy(replicas)
    iterator = iter(strategy.distribute_dataset(ps.Dataset.range(10).batch(4)))
    state, results = strategy.run_steps(lambda total, rows: (total + rows.sum(), rows * 2), iterator, 5, state=0)
    assert sum(map(int, strategy.local_results(state))) == 45
    steps = [[part[step].tolist() for part in strategy.local_results(results)] for step in range(3)]
    whole = [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]
    assert [np.concatenate(parts).tolist() for parts in steps] == whole
    full = iter(strategy.distribute_dataset(ps.Dataset.range(8).batch(4)))
    (first, *_) = strategy.local_results(strategy.run_steps(lambda rows: rows, full, 5))
    assert first.dtype == int
    assert first.shape == (2, 4 // replicas)


def test_a_failure_before_the_first_step_is_raised(strategy_of) -> None:
    def fail(x):
        raise ValueError("the first row")

    strategy = strategy_of(2)
    steps = strategy.distribute_dataset(ps.Dataset.range(8).map(fail).batch(4))
    with iter(steps) as iterator, pytest.raises(ValueError, match="the first row"):
        strategy.run_steps(sums, iterator, 2)


@pytest.mark.parametrize(("rows", "steps"), [(16, 2), (16, 1), (7, 2), (5, 2)])
def test_a_state_of_several_shapes_was_accepted_without_equal_batches(rows: int, steps: int) -> None:
    strategy = mirrored(2)
    state = ps.PerReplica([jnp.zeros(2), jnp.zeros(3)])
    with pytest.raises(ps.InvalidArgumentError, match="whose shapes differ between replicas.*pad it to one shape"):
        strategy.run_steps(total_step, iter(distributed(strategy, rows, batch=4)), steps, state=state)


def test_results_by_row_are_refused_beforehand_on_one_device_too() -> None:
    strategy = mirrored(1)
    iterator = iter(distributed(strategy, 10, batch=4))
    with pytest.raises(ps.InvalidArgumentError, match="later batches of this dataset may have fewer rows"):
        strategy.run_steps(lambda rows: rows * 2, iterator, 2)
    assert strategy.local_results(next(iterator))[0].tolist() == [0, 1, 2, 3]
