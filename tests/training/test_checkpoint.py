"""Checkpoints of values, iterators and what `strategy.run` returns: real files, and what happens when they are bad."""

import logging
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import forked
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
import penstock.training.checkpoint.checkpoint as checkpoint_module
from penstock.training.checkpoint.folders import UNFINISHED


def mirrored(replicas: int) -> ps.MirroredStrategy:
    return ps.MirroredStrategy([f"cpu:{number}" for number in range(replicas)])


def train_state() -> dict[str, Any]:
    params = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(3, jnp.bfloat16)}
    return {"params": params, "optimizer": optax.adam(0.1).init(params), "step": 7, "key": jax.random.key(3)}


def zeros_like(state: Any) -> Any:
    def zero(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        return leaf * 0

    return jax.tree.map(zero, state)


def assert_same(first: Any, second: Any) -> None:
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert type(one) is type(other)
        if isinstance(one, jax.Array) and jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
        assert np.asarray(one).dtype == np.asarray(other).dtype


@pytest.mark.slow
def test_a_tree_of_jax_and_optax_comes_back_as_it_was(tmp_path: Path) -> None:
    state = train_state()
    path = ps.Checkpoint(state=state).save(tmp_path / "ckpt", state=state)
    restored = ps.Checkpoint(state=zeros_like(state)).restore(path)
    assert_same(restored["state"], state)


@pytest.mark.slow
def test_what_the_template_is_decides_what_comes_back(tmp_path: Path) -> None:
    state = {"array": np.arange(3), "row": np.float16(2), "none": None, "no": False, "empty": np.zeros((0, 2)), "z": 2j}
    path = ps.Checkpoint(state=state).save(tmp_path / "ckpt", state=state)
    assert_same(ps.Checkpoint(state=state).restore(path)["state"], state)
    on_device = ps.Checkpoint(state=state | {"array": jax.device_put(jnp.zeros(3, jnp.float32), jax.devices()[2])})
    with pytest.raises(ps.StateMismatchError, match=r"expected state/array \(float32.*got .*\(int64"):
        on_device.restore(path)
    values = {"x": np.arange(3, dtype=np.float32)}
    path = ps.Checkpoint(values=values).save(tmp_path / "ckpt", values=values)
    third = jax.device_put(jnp.zeros(3), jax.devices()[2])
    restored = ps.Checkpoint(values={"x": third}).restore(path)["values"]["x"]
    assert restored.devices() == {jax.devices()[2]}
    shapes = {"x": jax.ShapeDtypeStruct((3,), jnp.float32)}
    assert type(ps.Checkpoint(values=shapes).restore(path)["values"]["x"]) is np.ndarray


def test_an_array_in_another_order_of_memory_is_the_same_array(tmp_path: Path) -> None:
    values = np.asfortranarray(np.arange(6).reshape(2, 3))[:, ::2]
    path = ps.Checkpoint(values=values).save(tmp_path / "ckpt", values=values)
    np.testing.assert_array_equal(ps.Checkpoint(values=values).restore(path)["values"], [[0, 2], [3, 5]])


def test_an_iterator_goes_on_after_the_last_element_given(tmp_path: Path) -> None:
    dataset = ps.Dataset.range(10).shuffle(10, seed=2).prefetch(4)
    with iter(dataset) as iterator, iter(dataset) as other:
        checkpoint = ps.Checkpoint(inputs={"train": iterator})
        next(iterator)
        path = checkpoint.save(tmp_path / "ckpt")
        rest = list(iterator)
        restored = ps.Checkpoint(inputs={"train": other}).restore(path)
        assert restored["inputs"]["train"] is other
        assert list(other) == rest


def step(weight: Any, batch: Any) -> Any:
    return weight + ps.get_replica_context().all_reduce("sum", jnp.sum(batch)), ps.get_replica_context().all_reduce(
        "sum", 1
    ) * ps.get_replica_context().replica_id_in_sync_group


@pytest.mark.slow
def test_the_rows_of_a_per_replica_come_back_to_their_devices(tmp_path: Path) -> None:
    strategy = mirrored(4)
    with iter(strategy.distribute_dataset(ps.Dataset.range(16).batch(8))) as iterator:
        state = strategy.run(step, args=(jnp.zeros((), int), next(iterator)))
    path = ps.Checkpoint(state=state).save(tmp_path / "ckpt", state=state)
    restored = ps.Checkpoint(state=state).restore(path)["state"]
    assert [int(value) for value in restored[1].values] == [0, 4, 8, 12]
    assert restored[1].stacked.sharding == state[1].stacked.sharding
    two = mirrored(2).run(lambda: (jnp.zeros((), int), jnp.zeros((), int)))
    with pytest.raises(ps.StateMismatchError, match="expected nothing, got state.*of replica 2"):
        ps.Checkpoint(state=two).restore(path)


@pytest.mark.slow
def test_one_replicas_values_serve_any_number_of_replicas(tmp_path: Path) -> None:
    strategy = mirrored(4)
    with iter(strategy.distribute_dataset(ps.Dataset.range(16).batch(8))) as iterator:
        total, _ = strategy.run(step, args=(jnp.zeros((), int), next(iterator)))
        one = strategy.local_results(total)[0]
        path = ps.Checkpoint(total=one, iterator=iterator).save(tmp_path / "ckpt", total=one)
    for replicas in (1, 2, 4):
        other = mirrored(replicas)
        with iter(other.distribute_dataset(ps.Dataset.range(16).batch(8))) as iterator:
            restored = ps.Checkpoint(total=jnp.zeros((), int), iterator=iterator).restore(path)
            total, _ = other.run(step, args=(restored["total"], next(iterator)))
        assert int(other.local_results(total)[0]) == sum(range(16))


@pytest.mark.slow
def test_numbers_go_on_where_the_files_end(tmp_path: Path) -> None:
    prefix = tmp_path / "run" / "ckpt"
    assert ps.latest_checkpoint(tmp_path / "run") is None
    assert [ps.Checkpoint(x=1).save(prefix, x=number) for number in range(2)] == [f"{prefix}-1", f"{prefix}-2"]
    assert ps.Checkpoint(x=1).save(tmp_path / "run" / "best-9", x=5) == f"{tmp_path}/run/best-9-1"
    path = ps.Checkpoint(x=1).save(prefix, x=2)
    assert path == f"{prefix}-3"
    (tmp_path / "run" / "ckpt-77").mkdir()  # no checkpoint
    assert ps.latest_checkpoint(str(tmp_path / "run")) == path
    assert ps.Checkpoint(x=1).save(prefix, x=2) == f"{prefix}-78"


def test_paths_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ps.Checkpoint(x=1).save("run/ckpt", x=4) == f"{tmp_path}/run/ckpt-1"
    assert ps.Checkpoint(x=1).restore(ps.latest_checkpoint("run")) == {"x": 4}


@pytest.mark.slow
def test_the_newest_is_known_by_its_number(tmp_path: Path) -> None:
    for number in range(11):
        ps.Checkpoint(x=1).save(tmp_path / "ckpt", x=number)
    os.utime(tmp_path / "ckpt-3")
    assert ps.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-11")


@pytest.mark.slow
def test_old_ones_are_deleted_only_after_a_new_one_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = ps.Checkpoint(x=1, max_to_keep=2)
    for number in range(4):
        checkpoint.save(tmp_path / "ckpt", x=number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt-3", "ckpt-4"]

    def full(*_: Any) -> None:
        raise ps.StorageError("the disk is full")

    monkeypatch.setattr(checkpoint_module, "write", full)
    with pytest.raises(ps.StorageError, match="full"):
        checkpoint.save(tmp_path / "ckpt", x=5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt-3", "ckpt-4"]


def test_what_a_killed_process_left_is_cleared_by_the_next_save(tmp_path: Path) -> None:
    for name in ("ckpt-3", "ckpt-4", "other-1"):
        (tmp_path / f"{name}{UNFINISHED}" / "index").mkdir(parents=True)
    assert ps.latest_checkpoint(tmp_path) is None
    ps.Checkpoint(x=1).save(tmp_path / "ckpt", x=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt-1", f"other-1{UNFINISHED}"]


@pytest.mark.slow
def test_an_asynchronous_save_holds_the_values_of_its_call(tmp_path: Path) -> None:
    host = np.zeros(1000)
    device = jnp.zeros(1000)
    donate = jax.jit(lambda x: x + 1, donate_argnums=0)
    with ps.Checkpoint(host=host, device=device, asynchronous=True) as checkpoint:
        for _ in range(5):
            path = checkpoint.save(tmp_path / "ckpt", host=host, device=device)
            host += 1
            device = donate(device)
        checkpoint.wait()
        for number in range(5):
            restored = checkpoint.restore(f"{tmp_path}/ckpt-{number + 1}")
            assert set(restored["host"]) == set(np.asarray(restored["device"])) == {float(number)}
    assert path == ps.latest_checkpoint(tmp_path)


@pytest.mark.skipif((3, 12, 0) <= sys.version_info[:3] < (3, 12, 3), reason="writes nothing in the background")
def test_an_error_in_the_background_comes_with_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise ps.StorageError("the disk is full")

    checkpoint = ps.Checkpoint(x=1, asynchronous=True)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_module, "write", full)
        checkpoint.save(tmp_path / "ckpt", x=1)
        with pytest.raises(ps.StorageError, match="full"):
            checkpoint.save(tmp_path / "ckpt", x=1)
        checkpoint.save(tmp_path / "ckpt", x=1)
        with pytest.raises(ps.StorageError, match="full"):
            checkpoint.wait()
    checkpoint.save(tmp_path / "ckpt", x=1)
    checkpoint.close()
    with pytest.raises(ps.errors.ClosedError, match="closed: make a new one"):
        checkpoint.save(tmp_path / "ckpt", x=1)


EXITING = """
import sys, warnings, numpy as np, penstock as ps
warnings.simplefilter("error")
values = np.arange(3_000_000.0)
ps.Checkpoint(values=values, asynchronous=True).save(sys.argv[1], values=values)
"""


@pytest.mark.slow
def test_the_program_does_not_end_before_all_is_written(tmp_path: Path) -> None:
    program = tmp_path / "exiting.py"
    program.write_text(EXITING)
    forked.run(str(program), str(tmp_path / "ckpt"), training=True).check_returncode()
    values = ps.Checkpoint(values=np.zeros(3_000_000)).restore(tmp_path / "ckpt-1")["values"]
    assert values[-1] == 2_999_999


def test_a_save_says_what_it_wrote_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    path = ps.Checkpoint(x=1).save(tmp_path / "ckpt", x=np.ones(10)[0].item())
    lines = [record.message for record in caplog.records if record.name.startswith("penstock")]
    assert len(lines) == 1
    assert re.match(rf"saved {re.escape(str(path))}: 8 bytes of arrays in \d+\.\d+ seconds", lines[0])
    assert capfd.readouterr() == ("", "")


class Odd:
    def state_dict(self) -> Any:
        return {"rows": [{1}]}

    def load_state_dict(self, state: Any) -> None: ...


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        (
            {"a": np.zeros(2), "b": np.zeros(4)},
            r"another 'b': expected b \(float64, shape \[4\]\), got b .*shape \[3\]",
        ),
        ({"a": np.zeros(2)}, r"also has 'b': expected \['a'\], got \['a', 'b'\]; restore\(path, partial=True\)"),
        ({"a": np.zeros(2), "b": np.zeros(3), "c": 1}, r"has no 'c': expected \['a', 'b', 'c'\], got \['a', 'b'\]"),
        ({"a": (np.zeros(2),), "b": np.zeros(3)}, r"another 'a': expected a/0 .*, got a "),
        ({"a": (np.zeros(2), 1), "b": np.zeros(3)}, r"another 'a': expected a/0"),
        ({"a": Odd(), "b": np.zeros(3)}, "another 'a': expected nothing, got a "),
        ({"a": (), "b": np.zeros(3)}, r"another 'a': expected nothing, got a "),
    ],
)
def test_a_checkpoint_of_other_objects_is_refused(tmp_path: Path, objects: dict[str, Any], message: str) -> None:
    values = {"a": np.ones(2), "b": np.ones(3)}
    path = ps.Checkpoint(**values).save(tmp_path / "ckpt", **values)
    with pytest.raises(ps.StateMismatchError, match=message):
        ps.Checkpoint(**objects).restore(path)


def test_a_part_of_a_checkpoint_can_be_restored(tmp_path: Path) -> None:
    path = ps.Checkpoint(a=1, b=2.5, c=3).save(tmp_path / "ckpt", a=1, b=2.5, c=3)
    assert ps.Checkpoint(b=0.0).restore(path, partial=True) == {"b": 2.5}


@pytest.mark.slow
def test_keys_of_replicas_come_back_as_keys(tmp_path: Path) -> None:
    strategy = mirrored(4)
    keys = strategy.distribute_values_from_function(lambda one: jax.random.key(one.replica_id_in_sync_group))
    restored = ps.Checkpoint(keys=keys).restore(ps.Checkpoint(keys=keys).save(tmp_path / "ckpt", keys=keys))["keys"]
    assert restored.stacked.sharding == keys.stacked.sharding
    assert list(restored.values) == [jax.random.key(number) for number in range(4)]


def test_scalars_and_keys_in_a_state_come_back_as_what_they_were(tmp_path: Path) -> None:
    before = {"count": np.int64(3), "mean": np.float32(0.5), "key": jax.random.key(1), "rows": np.arange(2)}

    class Counter:
        state: Any = before

        def state_dict(self) -> Any:
            return self.state

        def load_state_dict(self, state: Any) -> None:
            self.state = state

    checkpoint = ps.Checkpoint(counter=(counter := Counter()))
    checkpoint.restore(checkpoint.save(tmp_path / "ckpt"))
    assert counter.state is not before
    assert {name: type(value) for name, value in counter.state.items()} == {
        name: type(value) for name, value in before.items()
    }
    assert counter.state["count"] == 3 and counter.state["key"] == jax.random.key(1)


def test_a_state_is_no_array(tmp_path: Path) -> None:
    with iter(ps.Dataset.range(3)) as iterator:
        path = ps.Checkpoint(x=iterator).save(tmp_path / "ckpt")
    with pytest.raises(ps.StateMismatchError, match=r"another 'x': expected nothing, got x \(state\)"):
        ps.Checkpoint(x=()).restore(path)


def test_another_dataset_is_refused_by_its_iterator_and_nothing_is_changed(tmp_path: Path) -> None:
    with iter(ps.Dataset.range(5)) as first, iter(ps.Dataset.range(8).batch(2)) as second:
        next(first)
        path = ps.Checkpoint(first=first, second=second).save(tmp_path / "ckpt")
    with iter(ps.Dataset.range(5)) as first, iter(ps.Dataset.range(8).batch(3)) as second:
        with pytest.raises(ps.StateMismatchError, match="saved from another dataset") as caught:
            ps.Checkpoint(first=first, second=second).restore(path)
        assert caught.value.__notes__ == [f"second was being restored from the checkpoint {path}"]
        assert next(first) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Exception ignored.*:pytest.PytestUnraisableExceptionWarning")
def test_the_one_before_a_truncated_checkpoint_is_named_and_can_be_restored(tmp_path: Path) -> None:
    values = np.arange(1000.0)
    checkpoint = ps.Checkpoint(values=values)
    for number in range(10):
        checkpoint.save(tmp_path / "ckpt", values=values + number)
    for number in (10, 1):
        path = Path(f"{tmp_path}/ckpt-{number}")
        for file in (path / "arrays").rglob("*"):
            if file.is_file():
                os.truncate(file, file.stat().st_size // 2)
        advice = f"restore the one before, {tmp_path}/ckpt-9" if number == 10 else "there is none before it"
        with pytest.raises(ps.StorageError, match=f"the checkpoint {path} is damaged: .*; {advice}$"):
            checkpoint.restore(path)
    assert ps.latest_checkpoint(tmp_path) == f"{tmp_path}/ckpt-10"
    shutil.rmtree(tmp_path / "ckpt-10")
    assert checkpoint.restore(ps.latest_checkpoint(tmp_path))["values"][0] == 8.0


# A read that fails leaves others of Orbax's under way, which find its event loop closed.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Exception ignored.*:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_no_damage_goes_unnoticed(tmp_path: Path, damage: str) -> None:
    values = np.random.default_rng(0).random((40, 40))
    with iter(ps.Dataset.range(3)) as iterator:
        next(iterator)
        path = ps.Checkpoint(values=values, other=iterator).save(tmp_path / "ckpt", values=values)
    refused = 0
    for file in [file for file in Path(path).rglob("*") if file.is_file()]:
        content = file.read_bytes()
        if damage == "delete":
            file.unlink()
        elif damage == "cut":
            file.write_bytes(content[: len(content) // 2])
        elif content:
            middle = len(content) // 2
            file.write_bytes(content[:middle] + bytes([content[middle] ^ 0x10]) + content[middle + 1 :])
        error = None
        with iter(ps.Dataset.range(3)) as iterator:
            try:
                restored = ps.Checkpoint(values=values, other=iterator).restore(path)
            except ps.StorageError as raised:
                error = str(raised)
                refused += 1
            if error is not None:
                assert f"the checkpoint {path} is damaged" in error or f"{path} is no checkpoint" in error
                assert next(iterator) == 0
            else:  # a file of Orbax's that says nothing about the values
                np.testing.assert_array_equal(restored["values"], values)
                assert next(iterator) == 1
        file.write_bytes(content)
    assert refused >= 4


def test_bad_paths_are_refused(tmp_path: Path) -> None:
    checkpoint = ps.Checkpoint(x=1)
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    with pytest.raises(ps.StorageError, match=f"no checkpoint {tmp_path}/ckpt-1: ps.latest_checkpoint"):
        checkpoint.restore(tmp_path / "ckpt-1")
    with pytest.raises(ps.StorageError, match="directory is no checkpoint that ps.Checkpoint has written"):
        checkpoint.restore(tmp_path / "directory")
    with pytest.raises(ps.InvalidTypeError, match="got None: ps.latest_checkpoint.* gives None where there is none"):
        checkpoint.restore(ps.latest_checkpoint(tmp_path))
    with pytest.raises(ps.StorageError, match="directory of checkpoints .*/file/run cannot be made"):
        checkpoint.save(tmp_path / "file" / "run" / "ckpt", x=1)
    with pytest.raises(ps.InvalidArgumentError, match="got the directory .*: write '.*/directory/ckpt'"):
        checkpoint.save(f"{tmp_path}/directory/", x=1)
    with pytest.raises(ps.InvalidArgumentError, match="'nowhere://a/b' has a protocol that fsspec does not know"):
        checkpoint.save("nowhere://a/b", x=1)
    with pytest.raises(ps.InvalidTypeError, match="takes a path such as 'run/ckpt', got 3"):
        checkpoint.save(3, x=1)  # type: ignore[arg-type]


NOT_ALLOWED = """
import os, sys, warnings
import penstock as ps

warnings.simplefilter("error")

checkpoint = ps.Checkpoint(x=1, asynchronous=True)
if os.geteuid() == 0:
    os.setuid(65534)  # the superuser can write everywhere
try:
    checkpoint.save(sys.argv[1] + "/ckpt", x=1)
except ps.StorageError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_directory_that_cannot_be_written_to_is_refused_at_once(tmp_path: Path) -> None:
    program = tmp_path / "not_allowed.py"
    program.write_text(NOT_ALLOWED)
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o555)
        done = forked.run(str(program), directory, training=True)
        os.chmod(directory, 0o755)
    assert done.stdout == f"the directory of checkpoints {directory} cannot be written to\n"


def test_bad_objects_and_values_are_refused(tmp_path: Path) -> None:
    prefix = tmp_path / "ckpt"
    with pytest.raises(ps.InvalidArgumentError, match="takes what to save by name"):
        ps.Checkpoint()
    with pytest.raises(ps.InvalidArgumentError, match=r"Checkpoint\(max_to_keep=...\) must be at least 1, got 0"):
        ps.Checkpoint(x=1, max_to_keep=0)
    with pytest.raises(ps.InvalidTypeError, match=r"arrays, numbers and strings, got bytes at state/name"):
        ps.Checkpoint(state={"name": b"x"})
    with pytest.raises(ps.InvalidTypeError, match="got Dataset at data: make an iterator of it, read from that"):
        ps.Checkpoint(data=ps.Dataset.range(3))
    with pytest.raises(ps.InvalidTypeError, match="got ndarray at state"):
        ps.Checkpoint(state=np.array(["x"]))
    with pytest.raises(ps.InvalidTypeError, match=r"got \{1\} at odd/rows/0"):
        ps.Checkpoint(odd=Odd()).save(prefix)
    with pytest.raises(ps.InvalidArgumentError, match=r"needs the present value of 'x'.*save\(prefix, x=x\)"):
        ps.Checkpoint(x=1).save(prefix)
    with pytest.raises(ps.InvalidArgumentError, match=r"got 'y', expected only .*\['x'\]"):
        ps.Checkpoint(x=1).save(prefix, x=1, y=2)
    with pytest.raises(ps.InvalidArgumentError, match="for an object that is saved as it is: leave it out"):
        ps.Checkpoint(odd=Odd()).save(prefix, odd=Odd())
    with pytest.raises(
        ps.InvalidArgumentError, match=r"does not fit its template: expected x .*\[2\]\), got x .*\[3\]"
    ):
        ps.Checkpoint(x=np.zeros(2)).save(prefix, x=np.zeros(3))
    with pytest.raises(ps.InvalidArgumentError, match="expected the structure .*'a'.*, got "):
        ps.Checkpoint(x={"a": None}).save(prefix, x={"b": None})
    with pytest.raises(ps.InvalidArgumentError, match="x is 18446744073709551616, which does not fit into 64 bits"):
        ps.Checkpoint(x=1).save(prefix, x=2**64)
    gone = jnp.zeros(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(gone)
    with pytest.raises(ps.InvalidArgumentError, match="x was donated to a step and is gone"):
        ps.Checkpoint(x=jnp.zeros(3)).save(prefix, x=gone)
    assert list(tmp_path.iterdir()) == []
