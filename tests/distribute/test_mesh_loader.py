"""`ps.jax.loader` in one process of four devices; `tests/multi_worker/test_meshes.py` has eight, and two processes."""

import copy
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import penstock as ps

P = PartitionSpec
PAD = ps.InputOptions(partial_batch="pad")
rows = ps.Dataset.range


@pytest.fixture
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "tensor"))


def epoch(loader: Any) -> list[Any]:
    return [jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), batch) for batch in loader]


def pairs(size: int = 8) -> ps.Dataset:
    return rows(16).map(lambda row: {"x": row + np.arange(4), "y": row}).batch(size)


def test_shardings_are_given_in_four_ways(mesh: Mesh) -> None:
    sharding = NamedSharding(mesh, P("data"))
    with jax.set_mesh(mesh):
        in_use = ps.jax.loader(pairs(), P("data"))
    ways = [
        ps.jax.loader(pairs(), sharding),
        ps.jax.loader(pairs(), {"x": sharding, "y": sharding}),
        ps.jax.loader(pairs(), mesh, P("data")),
        in_use,
    ]
    for loader in ways:
        with loader:
            batches = list(loader)
            assert {array.sharding for batch in batches for array in batch.values()} == {sharding}
            assert [batch["y"].tolist() for batch in batches] == [[*range(8)], [*range(8, 16)]]


def test_the_weights_of_a_mixture_change_in_the_loop(mesh: Mesh) -> None:
    mixed = ps.Dataset.mix({"a": rows(99), "b": rows(100, 199)}, [1, 0], stop="repeat").batch(2)
    with ps.jax.loader(mixed, mesh, P("data")) as loader:
        steps = iter(loader)
        assert next(steps).tolist() == [0, 1]
        steps.remix({"a": 0, "b": 1}, at=2)
        assert [next(steps).tolist() for _ in range(2)] == [[2, 3], [100, 101]]
        assert [row.row for row in steps.rows()] == [0, 1]
        iter(loader)
        with pytest.raises(ps.errors.ClosedError, match="another loop over this loader has begun"):
            steps.remix([1, 1])


def test_metrics_of_a_loader_are_those_of_its_epoch(mesh: Mesh) -> None:
    with ps.jax.loader(pairs(), mesh, P("data")) as loader:
        assert loader.metrics() == {}
        assert len(list(loader)) == 2
        metrics = loader.metrics()
        assert all(type(value) is float for value in metrics.values())
        assert (metrics["penstock/steps"], metrics["penstock/0_range/rows"], metrics["penstock/skipped_rows"]) == (
            2,
            16,
            0,
        )
        steps = iter(loader)
        next(steps)
        assert loader.metrics()["penstock/steps"] == 1


def test_a_process_that_has_others_does_not_load_alone(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ps.InvalidArgumentError, match=r"not initialised, but torchrun names 2: call jax\.distributed\."
    ):
        ps.jax.loader(pairs(), mesh, P("data"))
    monkeypatch.setenv("WORLD_SIZE", "1")
    ps.jax.loader(pairs(), mesh, P("data")).close()


def test_one_spec_stands_for_all_leaves_below_it(mesh: Mesh) -> None:
    dataset = rows(8).map(lambda row: ({"a": row, "b": row}, row)).batch(4)
    with ps.jax.loader(dataset, mesh, (P("data"), P())) as loader:
        (features, label), _ = loader
    assert [features["a"].sharding.spec, features["b"].sharding.spec, label.sharding.spec] == [
        P("data"),
        P("data"),
        P(),
    ]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pair:
    first: Any
    second: Any


def test_elements_may_be_registered_dataclasses(mesh: Mesh) -> None:
    dataset = rows(8).map(lambda row: Pair(row, -row)).batch(4)
    with ps.jax.loader(dataset, mesh, Pair(P("data"), P())) as loader:
        first, _ = loader
    assert (first.second.tolist(), first.second.sharding.spec) == ([0, -1, -2, -3], P())


def test_a_device_gets_only_its_columns(mesh: Mesh) -> None:
    with ps.jax.loader(pairs(), mesh, {"x": P("data", "tensor"), "y": P("data")}) as loader:
        batch = next(iter(loader))
    parts = {shard.device.id: np.asarray(shard.data) for shard in batch["x"].addressable_shards}
    whole = np.arange(8)[:, None] + np.arange(4)
    for number, device in enumerate(mesh.devices.flat):
        row, column = divmod(number, 2)
        np.testing.assert_array_equal(parts[device.id], whole[row * 4 : row * 4 + 4, column * 2 : column * 2 + 2])


@pytest.mark.slow
def test_a_specification_is_that_of_global_arrays(mesh: Mesh) -> None:
    x = ps.TensorSpec((8, 4), np.int32)  # as JAX holds them
    signature = {"x": ps.TensorSpec((4,), np.int64), "y": ps.TensorSpec((), np.int64)}
    dataset = ps.Dataset.from_generator(lambda: iter(()), output_signature=signature).batch(8)
    loader = ps.jax.loader(dataset, mesh, P("data"), input_options=PAD)
    assert loader.element_spec == ({"x": x, "y": ps.TensorSpec((8,), np.int32)}, ps.TensorSpec((8,), np.bool_))
    loader = ps.jax.loader(pairs(), mesh, P())
    batch = next(iter(loader))["y"]
    assert loader.element_spec["y"] == ps.TensorSpec(batch.shape, batch.dtype) == ps.TensorSpec((8,), np.int32)


@pytest.mark.parametrize(("partial", "seen"), [("pad", [4, 4, 2]), ("drop", [4, 4])])
def test_partial_batches(mesh: Mesh, partial: str, seen: list[int]) -> None:
    options = ps.InputOptions(partial_batch=partial)
    with ps.jax.loader(rows(10).batch(4), mesh, P("data"), input_options=options) as loader:
        batches = list(loader)
        assert len(loader) == len(batches)
    if partial == "pad":
        assert {batch.shape for batch, _ in batches} == {(4,)}
        assert [np.asarray(batch)[np.asarray(mask)].tolist() for batch, mask in batches] == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
            [8, 9],
        ]
    else:
        assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("spec", [P("data"), P(("data", "tensor"))])
@pytest.mark.parametrize(
    "dataset",
    [
        rows(21).batch(16),
        rows(22).filter(lambda row: row != 3).batch(16),
        rows(23).batch(8).map(lambda batch: batch[batch % 7 > 1]),
        ps.Dataset.from_generator(lambda: map(np.arange, (7, 2, 16, 1))),
    ],
    ids=["known", "filtered", "a function's", "various"],
)
def test_the_first_rows_of_a_padded_batch_are_the_real_ones(mesh: Mesh, spec: Any, dataset: ps.Dataset) -> None:
    with ps.jax.loader(dataset, mesh, spec, input_options=PAD) as loader:
        real = [np.asarray(batch)[: int(mask.sum())].tolist() for batch, mask in loader]
    assert real == [batch.tolist() for batch in dataset]


def test_a_shorter_batch_that_can_be_divided_stays_shorter(mesh: Mesh) -> None:
    assert epoch(ps.jax.loader(rows(10).batch(4), mesh, P("data"))) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert epoch(ps.jax.loader(rows(5).batch(4), mesh, P())) == [[0, 1, 2, 3], [4]]


def test_a_state_is_the_position_after_the_last_batch(mesh: Mesh) -> None:
    dataset = rows(16).shuffle(16).batch(4)
    with ps.jax.loader(dataset, mesh, P("data")) as loader:
        steps = iter(loader)
        next(steps)
        state = loader.state_dict()
        rest = epoch(steps)
        at_end = loader.state_dict()
        following = epoch(loader)
    # Devices and slices differ, and the order is that of the state's seed.
    with ps.jax.loader(dataset, mesh, P(("data", "tensor"))) as other:
        other.load_state_dict(state)
        assert epoch(other) == rest
        assert epoch(other) == following
        other.load_state_dict(at_end)
        assert epoch(other) == following


def test_a_state_of_another_dataset_leaves_the_loader_as_it_was(mesh: Mesh) -> None:
    with ps.jax.loader(rows(12).batch(4), mesh, P("data")) as loader:
        steps = iter(loader)
        next(steps)
        with pytest.raises(ps.StateMismatchError):
            loader.load_state_dict(ps.jax.loader(rows(12).batch(2), mesh, P("data")).state_dict())
        assert epoch(steps) == [[4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.slow
def test_a_loader_can_be_saved_in_a_checkpoint(mesh: Mesh, tmp_path: Any) -> None:
    with ps.jax.loader(rows(12).batch(4), mesh, P("data")) as loader:
        next(iter(loader))
        path = ps.Checkpoint(loader=loader).save(str(tmp_path / "saved"))
    with ps.jax.loader(rows(12).batch(4), mesh, P()) as other:
        ps.Checkpoint(loader=other).restore(path)
        assert epoch(other) == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_two_loaders_of_one_dataset_have_epochs_of_their_own(mesh: Mesh) -> None:
    dataset = rows(16).shuffle(16, seed=4).batch(4)
    one, other = (ps.jax.loader(dataset, mesh, P("data")) for _ in range(2))
    epochs = [list(zip(epoch(one), epoch(other), strict=True)) for _ in range(2)]
    assert all(left == right for steps in epochs for left, right in steps)
    assert epochs[0] != epochs[1]


def test_a_new_epoch_ends_the_one_before_it(mesh: Mesh) -> None:
    loader = ps.jax.loader(rows(16).batch(4), mesh, P("data"))
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(ps.errors.ClosedError):
        next(first)
    assert len(epoch(second)) == 4


def test_a_pass_of_which_no_step_was_taken_begins_again(mesh: Mesh) -> None:
    loader = ps.jax.loader(rows(16).batch(4), mesh, P("data"))
    steps = iter(loader)
    next(steps)
    loader.load_state_dict(loader.state_dict())
    tried, rest = iter(loader), iter(loader)
    with pytest.raises(ps.errors.ClosedError, match="another loop over this loader has begun"):
        next(tried)
    assert [batch.tolist() for batch in rest] == [[4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_a_closed_loader_has_no_thread_and_no_epochs(mesh: Mesh) -> None:
    with ps.jax.loader(rows(100).batch(4), mesh, P("data")) as loader:
        next(iter(loader))
    assert not any(thread.name == "penstock-distribute" for thread in threading.enumerate())
    with pytest.raises(ps.errors.ClosedError, match=r"this loader was closed: make a new one by ps\.jax\.loader"):
        iter(loader)


@pytest.mark.parametrize("name", ["set_epoch", "sampler"])
def test_a_loop_written_for_samplers_is_told_that_epochs_count_themselves(mesh: Mesh, name: str) -> None:
    with ps.jax.loader(rows(8).batch(4), mesh, P("data")) as loader:
        told = rf"ps\.jax\.loader\(\.\.\.\) has no {name}: .* each loop over the loader is the next epoch"
        with pytest.raises(AttributeError, match=told):
            getattr(loader, name)
        assert not hasattr(loader, name) and not hasattr(loader, "batch_size")


def test_a_step_copies_nothing_to_the_devices(mesh: Mesh) -> None:
    total = jax.jit(lambda batch, mask: jnp.where(mask, batch, 0).sum())
    with ps.jax.loader(rows(10).batch(4), mesh, P("data"), input_options=PAD) as loader:
        totals = []
        for batch, mask in loader:
            with jax.transfer_guard("disallow"):
                totals.append(total(batch, mask))
    assert list(map(int, totals)) == [6, 22, 17]


def test_a_failing_row_is_raised_at_its_step(mesh: Mesh) -> None:
    def checked(row: Any) -> Any:
        if row == 6:
            raise ValueError("a bad row")
        return row

    with ps.jax.loader(rows(12).map(checked).batch(4), mesh, P("data")) as loader:
        steps = iter(loader)
        assert next(steps).tolist() == [0, 1, 2, 3]
        with pytest.raises(ValueError, match="a bad row"):
            next(steps)


def test_explain_says_what_is_read(mesh: Mesh) -> None:
    assert "rows 0 to 3 of each global batch of 4" in ps.jax.loader(rows(8).batch(4), mesh, P("data")).explain()


def names(row: Any) -> Any:
    return {"name": str(row), "row": row}


REFUSED: dict[str, tuple[Callable[[Mesh], Any], type[Exception], str]] = {
    "an axis that is not there": (
        lambda mesh: ps.jax.loader(pairs(), mesh, P("dta")),
        ps.InvalidArgumentError,
        "names the axis 'dta', which the mesh does not have: its axes are 'data' (2), 'tensor' (2)",
    ),
    "a batch that is not divided": (
        lambda mesh: ps.jax.loader(pairs(6), mesh, P(("data", "tensor"))),
        ps.InvalidArgumentError,
        "4 slices, which do not divide batches of 6 rows: choose batches of 4 or 8 rows",
    ),
    "a last batch that is not divided": (
        lambda mesh: ps.jax.loader(rows(9).batch(4), mesh, P("data")),
        ps.InvalidArgumentError,
        "a number of rows that 2 slices do not divide, because the dataset's last batch is shorter or its lengths are "
        'not known: choose input_options=ps.InputOptions(partial_batch="pad")',
    ),
    "a length that is not known": (
        lambda mesh: ps.jax.loader(rows(9).filter(bool).batch(4), mesh, P("data")),
        ps.InvalidArgumentError,
        'or "drop"',
    ),
    "times": (
        lambda mesh: ps.jax.loader(ps.Dataset.from_tensor_slices(np.zeros(8, "M8[s]")).batch(4), mesh, P("data")),
        ps.InvalidArgumentError,
        "values of dtype datetime64[s], which JAX arrays cannot hold: leave it out or turn it into numbers",
    ),
    "records": (
        lambda mesh: ps.jax.loader(
            ps.Dataset.from_tensor_slices(np.zeros(8, [("a", "i4"), ("b", "f4")])).batch(4), mesh, P("data")
        ),
        ps.InvalidArgumentError,
        "values of dtype [('a', '<i4'), ('b', '<f4')], which JAX arrays cannot hold",
    ),
    "numbers of more than 64 bits": (
        lambda mesh: ps.jax.loader(rows(8).map(np.longdouble).batch(4), mesh, P("data")),
        ps.InvalidArgumentError,
        f"values of dtype {np.dtype(np.longdouble)}, which JAX arrays cannot hold",
    ),
    "bytes in another order": (
        lambda mesh: ps.jax.loader(
            ps.Dataset.from_tensor_slices({"x": np.arange(8, dtype=">i4")}).batch(4), mesh, P("data")
        ),
        ps.InvalidArgumentError,
        "the leaf at ['x'] has the dtype '>i4', whose bytes are in another order than this machine's, which JAX arrays "
        "cannot hold: map it to int32 by astype(np.int32)",
    ),
    "columns that are not divided": (
        lambda mesh: ps.jax.loader(rows(8).map(lambda _: np.zeros(5)).batch(4), mesh, P("data", "tensor")),
        ps.ElementError,
        "axis 1 of the batch has length 5",
    ),
    "more axes than the leaf has": (
        lambda mesh: ps.jax.loader(rows(8).batch(4), mesh, P("data", "tensor")),
        ps.InvalidArgumentError,
        "the batch has 1 axes, (4,), and its",
    ),
    "elements that are no batches": (
        lambda mesh: ps.jax.loader(rows(8), mesh, P("data")),
        ps.ElementError,
        "add .batch(global_batch_size)",
    ),
    "a tree of another form": (
        lambda mesh: ps.jax.loader(pairs(), mesh, {"x": P("data"), "z": P()}),
        ps.InvalidArgumentError,
        "does not fit elements of structure",
    ),
    "a mesh alone": (
        lambda mesh: ps.jax.loader(pairs(), mesh),
        ps.InvalidTypeError,
        "takes partition specs with a mesh",
    ),
    "specs without a mesh": (
        lambda mesh: ps.jax.loader(pairs(), P("data")),
        ps.InvalidArgumentError,
        "needs a mesh: call it inside jax.set_mesh(mesh)",
    ),
    "specs with a sharding": (
        lambda mesh: ps.jax.loader(pairs(), NamedSharding(mesh, P("data")), P("data")),
        ps.InvalidTypeError,
        "takes a jax.sharding.Mesh first",
    ),
    "another sharding": (
        lambda mesh: ps.jax.loader(pairs(), jax.sharding.SingleDeviceSharding(jax.devices()[0])),
        ps.InvalidTypeError,
        "takes NamedShardings of a mesh of devices",
    ),
    "no dataset": (
        lambda mesh: ps.jax.loader([1], mesh, P("data")),
        ps.InvalidTypeError,
        "takes a ps.Dataset, got list",
    ),
    "arrays in host memory": (
        lambda mesh: ps.jax.loader(pairs(), mesh, P(), input_options=ps.InputOptions(fetch_to_device=False)),
        ps.InvalidArgumentError,
        "cannot take fetch_to_device=False",
    ),
    "meshes of other devices": (
        lambda mesh: ps.jax.loader(
            pairs(), {"x": NamedSharding(mesh, P()), "y": NamedSharding(Mesh(jax.devices()[:1], ("data",)), P())}
        ),
        ps.InvalidArgumentError,
        "takes shardings on the same devices for all leaves",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_when_the_loader_is_made(mesh: Mesh, case: str) -> None:
    call, kind, message = REFUSED[case]
    with pytest.raises(kind, match=re.escape(message)):
        call(mesh)


def test_numbers_that_jax_would_cut_off_are_refused(mesh: Mesh) -> None:
    steps = iter(ps.jax.loader(rows(8).map(lambda row: row + 2**40).batch(4), mesh, P("data")))
    with pytest.raises(ps.InvalidArgumentError, match="but JAX keeps only int32"):
        next(steps)


def test_elements_of_other_classes_are_refused(mesh: Mesh) -> None:
    @dataclass(frozen=True)
    class Unknown:
        first: Any

    with pytest.raises(ps.InvalidTypeError, match=r"register their class by jax\.tree_util\.register_dataclass"):
        ps.jax.loader(rows(8).map(Unknown).batch(4), mesh, {"first": P()})


def test_states_of_workers_that_are_refused_could_not_be_closed(mesh: Mesh) -> None:
    with ps.jax.loader(rows(12).batch(4), mesh, P("data")) as loader:
        assert loader.cardinality() == 3
        with pytest.raises(ps.StateMismatchError, match="of worker 0 of 2, which reads data of its own"):
            loader.load_state_dict({"workers": [{"worker": [0, 2]}, {"worker": [1, 2]}]})
        assert epoch(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_loader_is_not_copied(mesh: Mesh) -> None:
    loader = ps.jax.loader(rows(12).batch(4), mesh, P("data"))
    with loader, pytest.raises(ps.InvalidTypeError, match=r"send loader\.state_dict\(\)"):
        copy.copy(loader)


@pytest.mark.slow
def test_strings_beside_numbers_stay_in_host_memory(mesh: Mesh) -> None:
    batches = rows(8).map(names).batch(4)
    with ps.jax.loader(batches, mesh, P("data")) as loader:
        first, _ = loader
        assert first["name"].tolist() == ["0", "1", "2", "3"] and isinstance(first["row"], jax.Array)
        assert loader.element_spec["name"] == batches.element_spec["name"]
    with ps.jax.loader(rows(3).map(names).batch(4), mesh, P(("data", "tensor")), input_options=PAD) as loader:
        ((padded, mask),) = loader
    assert padded["name"].tolist()[:3] == ["0", "1", "2"] and mask.tolist() == [True, True, True, False]


@pytest.mark.slow
def test_a_loader_tells_what_it_left_out(mesh: Mesh) -> None:
    def failing(row: Any) -> Any:
        if row == 5:
            raise ValueError("bad")
        return row

    dataset = rows(17).map(failing).with_options(ps.Options(on_error="skip")).batch(8, drop_remainder=True)
    with ps.jax.loader(dataset, mesh, P("data")) as loader:
        assert loader.errors.count == 0
        loop = iter(loader)
        assert len(list(loop)) == 2
        assert loader.errors == loop.errors and loop.errors.count == 1 and loop.errors.rows[0].position == 5


def test_a_loop_that_another_loop_has_ended_says_so_in_a_loaders_words(mesh: Mesh) -> None:
    loader = ps.jax.loader(pairs(), mesh, P("data"))
    first = iter(loader)
    next(first)
    next(iter(loader))
    with pytest.raises(ps.errors.ClosedError, match="another loop over this loader has begun, or a state was loaded"):
        next(first)
    last = iter(loader)
    loader.close()
    with pytest.raises(ps.errors.ClosedError, match=r"this loader was closed: make a new one by ps\.jax\.loader"):
        next(last)


@pytest.fixture
def no_implicit_transfers() -> Iterator[None]:
    """What JAX_TRANSFER_GUARD=disallow does, in all threads."""
    jax.config.update("jax_transfer_guard", "disallow")
    yield
    jax.config.update("jax_transfer_guard", "allow")


@pytest.mark.extended
@pytest.mark.usefixtures("no_implicit_transfers")
def test_a_guard_of_transfers_lets_those_of_penstock_pass(mesh: Mesh, tmp_path: Any) -> None:
    with ps.jax.loader(pairs(), mesh, P("data")) as loader:
        assert [batch["y"].shape for batch in loader] == [(8,), (8,)]
    strategy = ps.MirroredStrategy()
    state = strategy.distribute_values_from_function(lambda context: np.float32(context.replica_id_in_sync_group))
    for batch in strategy.distribute_dataset(rows(10).batch(4)):  # the last one is ragged
        state = strategy.run(lambda state, batch, number: state + batch.sum() * number, args=(state, batch, 2))
    assert jax.device_get(strategy.reduce("sum", state)) == 6 + 2 * 45
    state, _ = strategy.run_steps(
        lambda state, batch: (state + batch.sum(), ()),
        iter(strategy.distribute_dataset(rows(8).batch(4))),
        2,
        state=state,
    )
    assert strategy.gather(ps.PerReplica([np.ones(2)] * 4), axis=0).shape == (8,)
    values = {"of_replicas": state, "key": jax.device_put(np.zeros(2, np.uint32)), "number": 3}
    checkpoint = ps.Checkpoint(values=values)
    restored = checkpoint.restore(checkpoint.save(tmp_path / "checkpoint", values=values))["values"]
    assert np.array_equal(*map(jax.device_get, (restored["of_replicas"].stacked, state.stacked)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
        jnp.sin(np.ones(3))


def test_global_arrays_carry_the_tokens_of_the_whole_step() -> None:
    documents = ps.Dataset.from_list([[7] * length for length in (9, 1, 2, 8, 5, 4, 4, 7)])
    steps = (
        documents.padded_batch(4, padded_shapes=(9,))
        .balance(len)
        .map(lambda x: {"x": x, "tokens_of_step": np.full(len(x), np.count_nonzero(x))})
    )
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("data",)), PartitionSpec("data"))
    with ps.jax.loader(steps, sharding, input_options=ps.InputOptions(partial_batch="drop")) as loader:
        for step in loader:
            halves = [int(np.count_nonzero(part.data)) for part in step["x"].addressable_shards]
            assert sum(halves) == 20 and max(halves) <= 11
            assert step["tokens_of_step"].tolist() == [20] * 4
