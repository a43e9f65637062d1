"""What lies on disk: names, Orbax's own tools, versions, and how much is read of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import flax.struct
import fsspec
import google_crc32c
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from fsspec.implementations.memory import MemoryFileSystem

import penstock as ps


@flax.struct.dataclass
class TrainState:
    step: Any
    params: Any
    opt_state: Any


def make_state(fill: float) -> TrainState:
    params = {"dense": {"kernel": jnp.full((3, 2), fill), "a/b": jnp.full(2, fill)}, "dense.kernel": jnp.full(3, fill)}
    return TrainState(jnp.int32(fill), params, optax.adam(0.1).init(params))


@pytest.mark.slow
def test_orbax_opens_it(tmp_path: Path) -> None:
    state = make_state(3)
    path = ps.Checkpoint(state=state, note="").save(tmp_path / "ckpt", state=state, note="a run")
    expected = {
        "state/step": (),
        "state/params/dense/kernel": (3, 2),
        "state/params/dense/a~1b": (2,),
        "state/params/dense.kernel": (3,),
        "state/opt_state/0/mu/dense/kernel": (3, 2),
    }
    for checkpointer in (ocp.StandardCheckpointer(), ocp.PyTreeCheckpointer()):
        found = checkpointer.restore(f"{path}/arrays")
        assert {name: found[name].shape for name in expected} == expected
        np.testing.assert_array_equal(found["state/params/dense.kernel"], [3, 3, 3])
        checkpointer.close()
    index = json.loads(Path(path, "index", "metadata").read_text())
    assert index["content"]["version"] == 2
    assert index["content"]["objects"]["note"][0]["text"] == "a run"


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = ps.Checkpoint(x=1).save(tmp_path / "ckpt", x=1)
    content = {"objects": {"x": []}, "checksums": [], "version": 1}
    checksum = google_crc32c.value(json.dumps(content, sort_keys=True).encode())
    Path(path, "index", "metadata").write_text(json.dumps({"content": content, "crc32c": checksum}))
    with pytest.raises(
        ps.StateMismatchError, match="has version 1, this penstock reads version 2: restore it with the"
    ):
        ps.Checkpoint(x=1).restore(path)


@pytest.mark.slow
def test_params_are_taken_out_of_a_saved_train_state(tmp_path: Path) -> None:
    state = make_state(3)
    path = ps.Checkpoint(state=state).save(tmp_path / "ckpt", state=state)
    empty = make_state(0).params
    restored = ps.Checkpoint(state={"params": empty}).restore(path, partial=True)["state"]["params"]
    for found, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(state.params), strict=True):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(ps.StateMismatchError, match="expected nothing, got state/step"):
        ps.Checkpoint(state={"params": empty}).restore(path)
    with pytest.raises(
        ps.StateMismatchError, match=r"no 'params'.*'state' has one: ps.Checkpoint\(state={'params': ...}"
    ):
        ps.Checkpoint(params=empty).restore(path, partial=True)
    with pytest.raises(ps.StateMismatchError, match=r"expected state/params/other \(float32.*got nothing"):
        ps.Checkpoint(state={"params": {"other": jnp.zeros(2)}}).restore(path, partial=True)


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count what is read")
def test_a_partial_restore_reads_only_its_own(tmp_path: Path) -> None:
    values = {"large": np.random.default_rng(0).random(1_000_000), "step": 7}
    path = ps.Checkpoint(values=values).save(tmp_path / "ckpt", values=values)
    before = bytes_read()
    assert ps.Checkpoint(values={"step": 0}).restore(path, partial=True) == {"values": {"step": 7}}
    assert bytes_read() - before < 200_000
    ps.Checkpoint(values=values).restore(path)
    assert bytes_read() - before > 7_000_000


class Counting(MemoryFileSystem):
    """Files in memory, and how many bytes of them were read."""

    protocol = "counting"
    bytes_read = 0

    def cat_file(self, *arguments: Any, **keywords: Any) -> Any:
        content = super().cat_file(*arguments, **keywords)
        Counting.bytes_read += len(content)
        return content

    def get_file(self, rpath: str, *arguments: Any, **keywords: Any) -> None:
        if self.isfile(rpath):
            Counting.bytes_read += self.size(rpath)
        super().get_file(rpath, *arguments, **keywords)


@pytest.mark.slow
def test_a_partial_restore_copies_only_its_own_from_a_remote_directory(tmp_path: Path) -> None:
    fsspec.register_implementation("counting", Counting, clobber=True)
    draw = np.random.default_rng(0)
    a, b, c = (draw.bytes(size) for size in (800_000, 400_000, 200_000))
    values = {
        "a": np.frombuffer(a, np.uint8),
        "b": {"a": np.frombuffer(b, np.uint8), "~/é:0": np.frombuffer(c, np.uint8)},
    }
    checkpoint = ps.Checkpoint(values=values | {"step": 0, "none": np.zeros(0)})
    path = checkpoint.save(f"counting://{tmp_path.name}/ckpt", values=values | {"step": 7, "none": np.zeros(0)})
    for part, size in (
        ({"step": 7}, 0),
        ({"b": {"~/é:0": values["b"]["~/é:0"]}, "none": np.zeros(0)}, 200_000),
        ({"a": values["a"], "step": 7}, 800_000),
        ({"b": values["b"]}, 600_000),
    ):
        Counting.bytes_read = 0
        template = jax.tree.map(lambda whole: whole * 0, part)
        restored = ps.Checkpoint(values=template).restore(path, partial=True)["values"]
        assert size <= Counting.bytes_read < size + 10_000
        jax.tree.map(np.testing.assert_array_equal, restored, part)
    Counting.bytes_read = 0
    checkpoint.restore(path, partial=True)
    assert Counting.bytes_read > 1_400_000


@pytest.mark.slow
def test_arrays_that_lie_in_files_of_their_own_are_restored_too(tmp_path: Path) -> None:
    values = {"a": np.arange(3), "b": np.arange(1000)}
    path = ps.Checkpoint(values=values).save(tmp_path / "ckpt", values=values)
    shutil.rmtree(f"{path}/arrays")
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
        checkpointer.save(f"{path}/arrays", {"values/a": values["a"], "values/b": values["b"]})
    remote = f"memory://{tmp_path.name}/ckpt-1"
    fsspec.filesystem("memory").put(path, remote, recursive=True)
    restored = ps.Checkpoint(values={"a": np.zeros(3, int)}).restore(remote, partial=True)
    np.testing.assert_array_equal(restored["values"]["a"], [0, 1, 2])


class Learner:
    """As PyTorch's modules and optimizers are: arrays and numbers in a state, which is loaded into its own arrays."""

    def __init__(self) -> None:
        self.weights = {"w": np.zeros(3), "b": jnp.zeros(2)}
        self.slots: dict[int, Any] = {}

    def step(self) -> None:
        self.weights["w"] += 1
        self.weights["b"] = self.weights["b"] + 1
        self.slots[0] = {"step": np.float32(len(self.slots)), "momentum": self.weights["w"] * 2}

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "slots": self.slots, "groups": [{"rates": (0.9, 0.99), "fused": None}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights["w"][:] = state["weights"]["w"]
        self.weights["b"] = state["weights"]["b"]
        if state["groups"] != [{"rates": [0.9, 0.99], "fused": None}]:
            raise ValueError("other groups")
        self.slots = state["slots"]


class Refusing(Learner):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise ValueError("not this one")


@pytest.mark.slow
def test_a_state_may_hold_arrays(tmp_path: Path) -> None:
    learner, other = Learner(), Learner()
    learner.step()
    path = ps.Checkpoint(learner=learner).save(tmp_path / "ckpt")
    learner.step()
    ps.Checkpoint(learner=other).restore(path)
    assert isinstance(other.weights["b"], jax.Array)
    np.testing.assert_array_equal(other.weights["w"], [1, 1, 1])
    np.testing.assert_array_equal(other.slots[0]["momentum"], [2, 2, 2])
    path = ps.Checkpoint(first=learner, second=learner).save(tmp_path / "two")
    refusing = Refusing.__new__(Refusing)
    refusing.weights, refusing.slots = {"w": np.zeros(3)}, {}
    other.weights["w"][:] = 5
    errors = []
    try:
        ps.Checkpoint(first=other, second=refusing).restore(path)
    except ValueError as error:
        errors.append(str(error))
    assert errors == ["not this one"]
    np.testing.assert_array_equal(other.weights["w"], [5, 5, 5])


class Network(nnx.Module):  # type: ignore[misc]  # its types are not exact
    def __init__(self, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        self.dense = nnx.Linear(2, 3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)


@pytest.mark.extended
def test_flax_modules_are_restored_in_place(tmp_path: Path) -> None:
    def make(seed: int) -> dict[str, Any]:
        network = Network(seed)
        return {"network": network, "optimizer": nnx.Optimizer(network, optax.adam(0.1), wrt=nnx.Param)}

    first, second = make(1), make(2)
    first["optimizer"].update(first["network"], nnx.state(first["network"], nnx.Param))
    first["network"].dropout(jnp.ones(4))
    path = ps.Checkpoint(**first).save(tmp_path / "ckpt")
    restored = ps.Checkpoint(**second).restore(path)
    assert restored["network"] is second["network"]
    for name in first:
        expected, found = (jax.tree.leaves(nnx.to_pure_dict(nnx.state(one[name]))) for one in (first, second))
        for one, other in zip(expected, found, strict=True):
            assert (one == other).all()
    np.testing.assert_array_equal(first["network"].dropout(jnp.ones(8)), second["network"].dropout(jnp.ones(8)))
    with pytest.raises(ps.StateMismatchError, match="expected network/kernel.*got network/dense/kernel"):
        ps.Checkpoint(network=nnx.Linear(2, 3, rngs=nnx.Rngs(0))).restore(path, partial=True)


def test_an_equinox_model_says_what_to_do() -> None:
    tree = {"weight": jnp.zeros(2), "activation": jnp.tanh}
    with pytest.raises(
        ps.InvalidTypeError, match=r"at model/activation: a function.*eqx.partition\(model, eqx.is_array"
    ):
        ps.Checkpoint(model=tree)


def test_strings_are_values(tmp_path: Path) -> None:
    checkpoint = ps.Checkpoint(notes={"name": "", "rates": [0.0, 0.0]})
    values = {"name": "übung 3", "rates": [0.1, 0.2]}
    assert checkpoint.restore(checkpoint.save(tmp_path / "ckpt", notes=values)) == {"notes": values}
