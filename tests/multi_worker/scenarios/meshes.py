"""`ps.jax.loader` on eight devices, in one process or in several: the global arrays must be the same."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

import penstock as ps

NEEDS_STRATEGY = False

P = jax.sharding.PartitionSpec
PAD = ps.InputOptions(partial_batch="pad")

if os.environ["PENSTOCK_NUM_WORKERS"] != "1":
    jax.distributed.initialize(
        os.environ["PENSTOCK_COORDINATOR_ADDRESS"],
        int(os.environ["PENSTOCK_NUM_WORKERS"]),
        int(os.environ["PENSTOCK_WORKER_INDEX"]),
    )


def _mesh(*axes: str) -> Any:
    """Eight devices, two along each axis; by default rows are divided between processes."""
    devices = np.array(jax.devices()).reshape(2, 2, 2)
    return jax.sharding.Mesh(devices, axes or ("data", "fsdp", "tensor"))


def _row(number: Any) -> Any:
    return {"tokens": number * 10 + np.arange(4), "label": number, "weight": np.float32(number / 2)}


ROWS = ps.Dataset.range(20).map(_row)
SPECS = {"tokens": P(("data", "fsdp"), "tensor"), "label": P("data"), "weight": P()}


@cache
def _replicate(mesh: Any) -> Any:
    return jax.jit(lambda array: array, out_shardings=NamedSharding(mesh, P()))


def _global(value: Any) -> Any:
    """The whole of every array, on every process."""
    return jax.tree.map(lambda array: np.asarray(_replicate(array.sharding.mesh)(array)), value)


def _epoch(loader: Any) -> list[Any]:
    return [_global(batch) for batch in loader]


def elements(_: None) -> Any:
    """Leaves of three shardings; each device has the part that the sharding's index map says."""
    with ps.jax.loader(ROWS.shuffle(20, seed=3).batch(8), _mesh(), SPECS, input_options=PAD) as loader:
        seen = []
        for batch, mask in loader:
            whole, _ = _global((batch, mask))
            for name, array in batch.items():
                assert array.sharding.spec == SPECS[name]
                for shard in array.addressable_shards:
                    np.testing.assert_array_equal(np.asarray(shard.data), whole[name][shard.index])
            seen.append([whole, _global(mask)])
        return {"steps": seen, "length": len(loader)}


class _Noted:
    """Rows that can be read by number, and the numbers that were."""

    def __init__(self) -> None:
        self.read: set[int] = set()

    def __len__(self) -> int:
        return 16

    def __getitem__(self, number: int) -> Any:
        self.read.add(int(number))
        return np.full(4, number)


def _rows_read(mesh: Any, spec: Any) -> list[int]:
    rows = _Noted()
    with ps.jax.loader(ps.Dataset.from_source(rows).batch(8), mesh, spec) as loader:
        rows.read.clear()  # what the specification was taken from
        _epoch(loader)
    return sorted(rows.read)


def rows_read(_: None) -> Any:
    """By meshes whose rows are divided between processes, between their devices alone, and in turns."""
    return {
        "divided": _rows_read(_mesh(), P(("data", "fsdp"))),
        "columns": _rows_read(_mesh("tensor", "data", "fsdp"), P("data", "tensor")),
        "in turns": _rows_read(_mesh("fsdp", "data", "tensor"), P(("data", "fsdp"))),
    }


def filtered(_: None) -> Any:
    dataset = ps.Dataset.range(40).filter(lambda row: row % 3 != 0).batch(8)
    with ps.jax.loader(dataset, _mesh(), P(("data", "fsdp")), input_options=PAD) as padded:
        seen = [_epoch(padded)]
    drop = ps.InputOptions(partial_batch="drop")
    with ps.jax.loader(dataset, _mesh(), P(("data", "fsdp")), input_options=drop) as dropped:
        return [*seen, _epoch(dropped)]


def files(_: None) -> Any:
    """Uneven files: each share of processes reads files of its own, and padding fills the steps."""
    options = ps.Options(auto_shard_policy=ps.AutoShardPolicy.FILE)
    lines = ps.TextLineDataset(["long.txt", "short.txt"]).map(int).batch(4).with_options(options)
    with ps.jax.loader(lines, _mesh(), P(("data", "fsdp")), input_options=PAD) as loader:
        return _epoch(loader)


def full_files(_: None) -> Any:
    """Batches that are all full, of a function that does not say what it returns."""
    options = ps.Options(auto_shard_policy=ps.AutoShardPolicy.FILE)
    lines = ps.FixedLengthRecordDataset(["0-5.txt", "0-5.txt"], 2).map(int)
    with ps.jax.loader(lines.batch(2).with_options(options), _mesh(), P("data")) as loader:
        return {"length": len(loader), "steps": _epoch(loader)}


def collated(_: None) -> Any:
    """A function of each slice's rows."""

    def sums(rows: Any) -> Any:
        return {"sum": rows.sum(keepdims=True), "rows": np.resize(rows, 3)}

    with ps.jax.loader(ps.Dataset.range(16).batch(8), _mesh(), P(("data", "fsdp")), collate=sums) as loader:
        return _epoch(loader)


def messages(_: None) -> Any:
    """How many messages the steps of a dataset of known length cost."""
    with ps.jax.loader(ROWS.batch(4), _mesh(), P("data")) as loader:
        control = loader._control
        before = control.sent if control else 0
        for batch in loader:
            jax.block_until_ready(batch)
        return control.sent - before if control else 0


def states(_: None) -> Any:
    """States before the first, after the second and after the last step of an epoch, and a checkpoint of the second."""
    seen = {}
    for name, dataset in _resumable().items():
        with ps.jax.loader(dataset, _mesh(), P(("data", "fsdp")), input_options=PAD) as loader:
            taken = [loader.state_dict()]
            steps = iter(loader)
            before = [_global(next(steps)) for _ in range(2)]
            taken.append(loader.state_dict())
            path = ps.Checkpoint(loader=loader).save(str(Path(f"checkpoint-{name}").absolute()))
            rest = [_global(step) for step in steps]
            taken.append(loader.state_dict())
            seen[name] = {"steps": before + rest, "states": taken, "next": _epoch(loader), "checkpoint": path}
    return seen


def _resumable() -> dict[str, ps.Dataset]:
    shuffled = ps.Dataset.range(40).shuffle(40)
    options = ps.Options(auto_shard_policy=ps.AutoShardPolicy.FILE)
    return {
        "files": ps.TextLineDataset(["long.txt", "short.txt", "6-11.txt"]).map(int).batch(4).with_options(options),
        "by index": shuffled.batch(8).with_options(ps.Options(seed=1)),
        "stream": shuffled.filter(lambda row: row % 3 != 0).batch(8).with_options(ps.Options(seed=1)),
    }


def forms(_: None) -> Any:
    """An epoch, and what follows two forms of a position in it, of which each process loads one and then the other."""
    if jax.process_count() == 1:
        return None
    with ps.jax.loader(_resumable()["stream"], _mesh(), P(("data", "fsdp")), input_options=PAD) as loader:
        epoch = _epoch(loader)
        state = loader.state_dict()
        positions = [[[[15, 0, 15], 8, 16], 0, 2], [[[28, 0, 28], 0, 16], 0, 2]]
        after = []
        for turned in (positions, positions[::-1]):
            loader.load_state_dict({**state, "epoch": 0, "steps_taken": 2, "position": turned[jax.process_index()]})
            after.append(_epoch(loader))
    return epoch, after


def restored(_: None) -> Any:
    """What follows those states on another mesh."""
    given = Path("given.json")
    if not given.exists():
        return None
    seen: Any = {}
    for name, told in json.loads(given.read_text()).items():
        dataset = _resumable()[name]
        with ps.jax.loader(dataset, _mesh("fsdp", "data", "tensor"), P("data"), input_options=PAD) as loader:
            seen[name] = []
            for state in told["states"]:
                loader.load_state_dict(state)
                seen[name].append(_epoch(loader))
            ps.Checkpoint(loader=loader).restore(told["checkpoint"])
            seen[name].append(_epoch(loader))
    return seen


def disagreeing(_: None) -> Any:
    """What every process is told where they do not agree."""
    index = jax.process_index()
    if jax.process_count() == 1:
        return None
    calls = {
        "dataset": lambda: ps.jax.loader(ROWS.batch(8 + 8 * index), _mesh(), P("data"), input_options=PAD),
        "specs": lambda: ps.jax.loader(ROWS.batch(4), _mesh(), P("data") if index else P("fsdp")),
        "state": lambda: _load(ps.jax.loader(ROWS.batch(4), _mesh(), P("data")), index),
    }
    return {name: _refusal(call) for name, call in calls.items()}


def _load(loader: Any, steps: int) -> None:
    """Load a state of another step on each process, though all have taken as many."""
    states = [loader.state_dict()]
    next(iter(loader))
    states.append(loader.state_dict())
    loader.load_state_dict(states[steps])


def _refusal(call: Any) -> str:
    try:
        call()
    except ps.PenstockError as error:
        return str(error)
    return "nothing"
