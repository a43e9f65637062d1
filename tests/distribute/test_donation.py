"""`donate_argnums`: a state's memory goes to the program, and what was given away is refused afterwards."""

import gc

import jax
import numpy as np
import pytest

import penstock as ps


def add(state, rows):
    total = ps.get_replica_context().all_reduce("SUM", rows.sum())
    return {"total": state["total"] + total, "steps": state["steps"] + 1}, total


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 4])
def test_a_state_that_is_given_away_gives_the_same_numbers(strategy_of, replicas: int) -> None:
    strategy = strategy_of(replicas)
    state = {"total": np.int32(0), "steps": np.int32(0)}
    for rows in strategy.distribute_dataset(ps.Dataset.range(37).batch(8)):  # the last step is ragged
        state, _ = strategy.run(add, args=(state, rows), donate_argnums=0)
    for own in strategy.local_results(state):
        assert (int(own["total"]), int(own["steps"])) == (sum(range(37)), 5)


@pytest.mark.slow
def test_the_memory_of_a_state_is_taken_once(four) -> None:
    state = {"weights": np.zeros((256, 1024), np.float32)}

    def grow(state):
        return {"weights": state["weights"] + 1}

    (state,) = four.run(lambda state: (grow(state),), args=(state,))
    before = {shard.data.unsafe_buffer_pointer() for shard in state["weights"].stacked.addressable_shards}
    given = state
    state = four.run(grow, args=(state,), donate_argnums=(0,))
    after = {shard.data.unsafe_buffer_pointer() for shard in state["weights"].stacked.addressable_shards}
    assert before == after
    assert given["weights"].stacked.is_deleted()
    assert float(state["weights"].values[3][0, 0]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 4])
def test_an_array_of_the_users_in_host_memory_stays_as_it_is(strategy_of, replicas: int) -> None:
    weights = np.zeros((64, 64), np.float32)
    strategy_of(replicas).run(lambda weights: weights + 1, args=(weights,), donate_argnums=0)
    gc.collect()
    assert not weights.any()


@pytest.mark.slow
@pytest.mark.parametrize("donate_argnums", [(), 0, 1])
def test_what_was_given_away_cannot_be_used_again(four, donate_argnums: int | tuple[()]) -> None:
    rows = next(iter(four.distribute_dataset(ps.Dataset.range(8).batch(8))))
    state, _ = four.run(add, args=({"total": 0, "steps": 0}, rows))
    new, _ = four.run(add, args=(state, rows), donate_argnums=0)
    with pytest.raises(
        ps.InvalidArgumentError, match=r"arrays in args\[0\]\['steps'\] that are no more.*donate_argnums"
    ):
        four.run(add, args=(state, rows), donate_argnums=donate_argnums)
    with pytest.raises(ps.InvalidArgumentError, match=r"arrays in kwargs\['state'\]\['steps'\] that are no more"):
        four.run(add, kwargs={"state": state, "rows": rows})
    assert int(new["total"].values[0]) == 56
    four.run(add, args=(new, rows))


def test_negative_places_count_from_the_end(four) -> None:
    state, _ = four.run(add, args=({"total": 0, "steps": 0}, ps.PerReplica([np.int32([1])] * 4)))
    four.run(lambda rows, state: add(state, rows), args=(ps.PerReplica([np.int32([1])] * 4), state), donate_argnums=-1)
    assert state["total"].stacked.is_deleted()


def test_constants_may_stand_among_what_is_given_away(four) -> None:
    weight = four.run(lambda: 1.0)
    four.run(lambda state, rows: state["weight"] * 2, args=({"name": "a", "weight": weight}, 3), donate_argnums=(0, 1))
    assert weight.stacked.is_deleted()


@pytest.mark.slow
def test_a_program_that_gives_away_is_compiled_once(four) -> None:
    traced = []

    def double(state):
        traced.append(state)
        return state * 2

    state = four.run(double, args=(four.run(lambda: 1.0),), donate_argnums=0)
    first = len(traced)
    for _ in range(3):
        state = four.run(double, args=(state,), donate_argnums=0)
    assert len(traced) == first
    assert float(state.values[1]) == 16


@pytest.mark.parametrize(
    ("donate_argnums", "error", "message"),
    [
        (2, ps.InvalidArgumentError, "names argument 2, but args has 2"),
        ((0, -3), ps.InvalidArgumentError, "names argument -3, but args has 2"),
        ("state", ps.InvalidTypeError, "takes the numbers of arguments, integers, got 'state'"),
        (True, ps.InvalidTypeError, "integers, got True"),
        ((0, 1.0), ps.InvalidTypeError, "integers, got"),
    ],
)
def test_bad_argument_numbers(strategy_of, donate_argnums: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        strategy_of(2).run(lambda a, b: a, args=(np.float32(1), 2), donate_argnums=donate_argnums)


@pytest.mark.slow
def test_arrays_of_jax_are_given_away_too() -> None:
    weights = jax.numpy.zeros((64, 64))
    ps.MirroredStrategy(["cpu:0"]).run(lambda weights: weights + 1, args=(weights,), donate_argnums=0)
    assert weights.is_deleted()
