"""`run` on both kinds of strategy: what a function sees, gives and may do wrong."""

import jax
import numpy as np
import pytest

import penstock as ps


@pytest.mark.slow
def test_indices_and_predictions_stay_together_and_complete(strategy_of) -> None:
    strategy = strategy_of(4)
    dataset = ps.Dataset.range(24).enumerate().batch(6)
    result = {}
    for batch in strategy.distribute_dataset(dataset):
        predicted = strategy.run(lambda pair: (pair[0], 2 * pair[1]), args=(batch,))
        for indices, values in strategy.local_results(predicted):
            result.update(zip(np.asarray(indices).tolist(), np.asarray(values).tolist(), strict=True))
    assert result == {index: 2 * index for index in range(24)}


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_every_replica_knows_its_place(strategy_of, replicas: int) -> None:
    strategy = strategy_of(replicas)

    def place():
        context = ps.get_replica_context()
        return context.replica_id_in_sync_group, context.num_replicas_in_sync

    results = strategy.local_results(strategy.run(place))
    assert [(int(number), int(total)) for number, total in results] == [(n, replicas) for n in range(replicas)]


@pytest.mark.parametrize("replicas", [1, 3])
def test_all_reduce_gives_every_replica_the_same(strategy_of, replicas: int) -> None:
    strategy = strategy_of(replicas)

    def meet(same):
        context = ps.get_replica_context()
        number = context.replica_id_in_sync_group
        return context.all_reduce("SUM", {"id": number, "same": same}), context.all_reduce("MEAN", number * 1.0)

    for total, mean in strategy.local_results(strategy.run(meet, kwargs={"same": np.float32(2)})):
        assert int(total["id"]) == sum(range(replicas))
        assert float(total["same"]) == 2 * replicas
        assert float(mean) == (replicas - 1) / 2


def test_plain_arguments_go_to_all_replicas(strategy_of) -> None:
    strategy = strategy_of(2)
    batch = next(iter(strategy.distribute_dataset(ps.Dataset.range(4).batch(4))))

    def scaled(rows, factor, *, offset, kind):
        assert kind == "affine"
        return rows * factor + offset["value"]

    result = strategy.run(scaled, args=(batch, 3), kwargs={"offset": {"value": np.int32(1)}, "kind": "affine"})
    assert [np.asarray(rows).tolist() for rows in result.values] == [[1, 4], [7, 10]]


def test_results_of_a_single_replica_are_bare(strategy_of) -> None:
    strategy = strategy_of(1)
    batch = next(iter(strategy.distribute_dataset(ps.Dataset.range(4).batch(4))))
    assert np.asarray(strategy.run(lambda rows: rows + 1, args=(batch,))).tolist() == [1, 2, 3, 4]


def test_lists_of_state_go_in_and_out(strategy_of) -> None:
    strategy = strategy_of(2)
    state = [np.float32(1), np.float32(2)]
    for _ in range(3):
        state = strategy.run(lambda weights: [weight * 2 for weight in weights], args=(state,))
    results = strategy.local_results(state)
    assert [[float(weight) for weight in weights] for weights in results] == [[8, 16]] * 2


def test_the_users_exception_arrives_as_itself(strategy_of) -> None:
    def fail(rows):
        raise KeyError("mine")

    strategy = strategy_of(2)
    with pytest.raises(KeyError, match="mine"):
        strategy.run(fail, args=(ps.PerReplica([1, 2]),))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ({"fn": 3}, ps.InvalidTypeError, "takes a function, got 3"),
        ({"fn": abs, "args": 3}, ps.InvalidTypeError, r"args=\(value,\)"),
        ({"fn": abs, "kwargs": 3}, ps.InvalidTypeError, "takes a dictionary"),
    ],
)
def test_bad_calls(strategy_of, call: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        strategy_of(2).run(**call)


def test_run_does_not_nest(strategy_of) -> None:
    strategy = strategy_of(2)
    with pytest.raises(ps.InvalidArgumentError, match=r"inside strategy\.run"):
        strategy.run(lambda: strategy.run(lambda: 1))


def test_results_must_agree_in_structure_in_branches_by_share(strategy_of) -> None:
    strategy = strategy_of(2)
    (batch,) = strategy.distribute_dataset(ps.Dataset.range(3).batch(4))

    def differ(rows):
        return {"sum": rows.sum()} if rows.shape[0] == 2 else rows.sum()

    with pytest.raises(ps.InvalidTypeError, match="must give one structure on every replica, got .* on replica 1"):
        strategy.run(differ, args=(batch,))


def test_only_numbers_are_reduced(strategy_of) -> None:
    with pytest.raises(ps.InvalidTypeError, match="all_reduce takes numbers"):
        strategy_of(2).run(lambda: ps.get_replica_context().all_reduce("SUM", "text"))


def test_all_reduce_of_unequal_shapes_speaks_of_itself() -> None:
    def step() -> object:
        replica = ps.get_replica_context()
        return replica.all_reduce("SUM", np.zeros(1 + replica.replica_id_in_sync_group))

    with pytest.raises(
        ps.InvalidArgumentError, match=r"^all_reduce needs values of fitting shapes, got \(1,\), \(2,\)\n"
    ):
        ps.HostStrategy(2).run(step)


# What only threads can do.


def test_a_failing_replica_does_not_leave_the_others_waiting() -> None:
    def fail_on_one():
        context = ps.get_replica_context()
        if context.replica_id_in_sync_group == 1:
            raise KeyError("one")
        return context.all_reduce("SUM", 1.0)

    with pytest.raises(KeyError, match="one") as raised:
        ps.HostStrategy(3).run(fail_on_one)
    assert raised.value.__notes__ == ["raised on replica 1 of HostStrategy(replicas_per_worker=3)"]


@pytest.mark.parametrize("early", [0, 1, 2])
def test_a_replica_that_returns_early_does_not_leave_the_others_waiting(early: int) -> None:
    def meet_twice():
        context = ps.get_replica_context()
        total = context.all_reduce("SUM", 1.0)
        return total if context.replica_id_in_sync_group == early else context.all_reduce("SUM", total)

    with pytest.raises(ps.InvalidArgumentError, match=rf"replica {early} returned after 1 call"):
        ps.HostStrategy(3).run(meet_twice)


def test_replicas_must_ask_for_the_same() -> None:
    def differ(what):
        context = ps.get_replica_context()
        return context.all_reduce(*what[context.replica_id_in_sync_group])

    strategy = ps.HostStrategy(2)
    with pytest.raises(ps.InvalidArgumentError, match="different operations: SUM, MEAN"):
        strategy.run(differ, args=([("SUM", 1.0), ("MEAN", 1.0)],))
    with pytest.raises(ps.InvalidArgumentError, match="fitting shapes"):
        strategy.run(differ, args=([("SUM", np.zeros(2)), ("SUM", np.zeros(3))],))
    with pytest.raises(ps.InvalidTypeError, match="one structure on every replica"):
        strategy.run(differ, args=([("SUM", (1.0,)), ("SUM", 1.0)],))


def test_a_replica_may_write_into_what_it_got() -> None:
    def write():
        context = ps.get_replica_context()
        total = context.all_reduce("SUM", np.ones(3))
        total *= context.replica_id_in_sync_group
        return total

    results = ps.HostStrategy(3).run(write).values
    assert [result.tolist() for result in results] == [[0] * 3, [3] * 3, [6] * 3]


def test_replicas_share_the_objects_they_are_given() -> None:
    seen: dict[int, object] = {}

    def look(model):
        seen[ps.get_replica_context().replica_id_in_sync_group] = model

    model = {"layers": [1, 2]}
    ps.HostStrategy(2).run(look, args=(model,))
    assert seen[0] is model
    assert seen[1] is model


# What only compiled programs do.


@pytest.mark.slow
def test_a_function_is_compiled_once_for_many_steps(four) -> None:
    traced = []

    def step(state, rows):
        traced.append(rows.shape)
        total = ps.get_replica_context().all_reduce("SUM", rows.sum())
        return {"total": state["total"] + total, "steps": state["steps"] + 1}

    state = {"total": np.float32(0), "steps": np.int32(0)}
    for rows in four.distribute_dataset(ps.Dataset.range(80).batch(8)):
        state = four.run(step, args=(state, rows))
    assert traced == [(2,)]
    assert float(state["total"].values[3]) == sum(range(80))
    assert int(state["steps"].values[0]) == 10


def test_a_program_is_forgotten_with_its_function(four) -> None:
    def double(value):
        return value * 2

    four.run(double, args=(np.float32(1),))
    assert len(four._programs.cache._entries) == 1
    del double
    assert len(four._programs.cache._entries) == 0


def test_a_bound_method_is_compiled_once(four) -> None:
    class Model:
        traced = 0

        def step(self, value):
            self.traced += 1
            return value + 1

    model = Model()
    value = np.float32(0)
    for _ in range(3):
        value = four.run(model.step, args=(value,))
    assert model.traced == 1
    assert float(value.values[0]) == 3


def test_constants_are_part_of_the_program(four) -> None:
    def power(value, square):
        return value**2 if square else value

    assert float(four.run(power, args=(np.float32(3), True)).values[0]) == 9
    assert float(four.run(power, args=(np.float32(3), False)).values[0]) == 3


@pytest.mark.slow
def test_random_keys_are_arguments_too(four) -> None:
    def draw(key):
        return jax.random.uniform(jax.random.fold_in(key, ps.get_replica_context().replica_id_in_sync_group))

    drawn = four.run(draw, args=(jax.random.key(1),)).values
    expected = [jax.random.uniform(jax.random.fold_in(jax.random.key(1), number)) for number in range(4)]
    assert [float(value) for value in drawn] == [float(value) for value in expected]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, r"neither an array.*register_dataclass"),
    ],
)
def test_what_devices_cannot_hold_is_refused(four, value: object, message: str) -> None:
    with pytest.raises(ps.InvalidTypeError, match=message):
        four.run(lambda value: 1, args=(value,))


@pytest.mark.parametrize("of", [lambda dataset: dataset, iter])
@pytest.mark.parametrize("distributed", [True, False])
def test_a_dataset_in_place_of_a_batch_is_refused(four, of, distributed: bool) -> None:
    dataset = ps.Dataset.range(8).batch(8)
    given = of(four.distribute_dataset(dataset) if distributed else dataset)
    with pytest.raises(
        ps.InvalidTypeError, match=rf"got a {type(given).__name__}.*next\(iter\(distributed_dataset\)\)"
    ):
        four.run(lambda batch: batch, args=(given,))


def test_results_must_be_numbers(four) -> None:
    with pytest.raises(ps.InvalidTypeError, match=r"must return numbers.*'text'"):
        four.run(lambda: "text")


@pytest.mark.parametrize("rows", [8, 6])  # in equal shares, and in shares that differ
@pytest.mark.parametrize("ask", [lambda x: float(x.sum()), lambda x: x if x.sum() > 0 else -x, np.array])
def test_a_step_that_reads_values_while_compiled_gets_a_remedy(four, rows: int, ask) -> None:
    (batch,) = four.distribute_dataset(ps.Dataset.range(rows).batch(8))
    with pytest.raises(TypeError) as raised:
        four.run(ask, args=(batch,))
    (note,) = [note for note in raised.value.__notes__ if note.startswith("penstock")]
    assert "strategy.run compiles the function" in note
    assert "jax.numpy" in note


def test_host_values_run_on_devices(four) -> None:
    value = ps.HostStrategy(4).run(lambda: ps.get_replica_context().replica_id_in_sync_group * 10)
    assert [int(part) for part in four.run(lambda part: part + 1, args=(value,)).values] == [1, 11, 21, 31]


def test_arguments_that_devices_would_cut_are_refused(four) -> None:
    with pytest.raises(ps.InvalidArgumentError, match="an argument of strategy.run holds uint64 values"):
        four.run(abs, args=(np.uint64(2**63),))


@pytest.mark.extended
def test_a_thousand_unawaited_steps_do_not_wait_for_each_other(four) -> None:
    (batch,) = four.distribute_dataset(ps.Dataset.from_tensor_slices(np.ones((256, 64), np.float32)).batch(256))

    def step(weight, batch):
        return weight + ps.get_replica_context().all_reduce("sum", batch.sum())

    weight = four.distribute_values_from_function(lambda context: np.float32(0))
    for _ in range(1000):
        weight = four.run(step, args=(weight, batch))
        total = four.reduce("mean", weight)
    assert float(total) == 1000 * 256 * 64


class WithoutWeakReferences:
    """Callable, as functions of compiled extensions are."""

    __slots__ = ()

    def __call__(self, x):
        return x * 2


def test_what_takes_no_weak_reference_is_run_too(strategy_of) -> None:
    strategy, double = strategy_of(2), WithoutWeakReferences()
    for value in (1.0, 3.0):
        shares = ps.PerReplica([value, value + 1])
        assert [float(part) for part in strategy.run(double, args=(shares,)).values] == [2 * value, 2 * value + 2]


def test_replicas_of_a_call_without_data_have_rows(strategy_of) -> None:
    result = strategy_of(2).run(lambda: ps.get_replica_context().has_rows)
    assert [bool(part) for part in result.values] == [True, True]
