"""Checkpoints of several workers: one is written, with everybody's place in the data; an error is everybody's."""

import json
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest
from forked_workers import run_workers

import penstock as ps

WORKER = """
import json, resource, sys
import jax, jax.numpy as jnp
import numpy as np
import penstock as ps

strategy = ps.MultiWorkerMirroredStrategy()
worker, directory = jax.process_index(), sys.argv[1]

def step(total, batch):
    return total + ps.get_replica_context().all_reduce("sum", jnp.sum(batch))

def inputs(size=4):
    shared = ps.Dataset.range(32).filter(lambda number: True).batch(8)  # of a length that workers must agree on
    own = ps.Dataset.range(100 + worker, 200, 2).batch(size)
    return {
        "shared": iter(strategy.distribute_dataset(shared)),
        "own": iter(strategy.distribute_datasets_from_function(lambda context: own)),
    }

def rows(batch):
    return [number for part in strategy.local_results(batch) for number in part.tolist()]

def close(inputs):
    for iterator in inputs.values():
        iterator.close()

for asynchronous in (False, True):
    before, total = inputs(), jnp.zeros((), int)
    checkpoint = ps.Checkpoint(total=total, inputs=before, asynchronous=asynchronous)
    total = strategy.run(step, args=(total, next(before["shared"])))
    next(before["own"])
    one = strategy.local_results(total)[0]
    path = checkpoint.save(directory + "/ckpt", total=one)
    checkpoint.wait()
    expected = [rows(next(iterator)) for iterator in before.values()]
    after = inputs()
    with strategy.scope():
        restored = ps.Checkpoint(total=jnp.zeros((), int), inputs=after).restore(path)
    found = [rows(next(iterator)) for iterator in after.values()]
    assert found == expected and int(restored["total"]) == int(one) == sum(range(8)), (found, expected)
    close(before), close(after)

try:
    ps.Checkpoint(x=1)
except ps.InvalidArgumentError as error:
    outside = str(error)
with strategy.scope():
    try:
        ps.Checkpoint(total=total)
    except ps.InvalidArgumentError as error:
        stacked = str(error)
    checkpoint = ps.Checkpoint(x=1)
    try:
        checkpoint.save(path + "/_CHECKPOINT_METADATA/run/ckpt", x=1)
    except ps.PenstockError as error:
        failed = f"{type(error).__name__}: {error}"

# An array of which each worker holds rows: each writes its own, and reads what it needs.
numbers = np.arange(32.0, dtype=np.float32).reshape(8, 4)
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("row",))

def spread(values, *axes):
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

def assert_spread(array, *axes):
    assert array.sharding.spec == jax.sharding.PartitionSpec(*axes)
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(shard.data, numbers[shard.index])

with strategy.scope():
    for asynchronous in (False, True):
        spreading = ps.Checkpoint(rows=spread(numbers, "row"), step=0, asynchronous=asynchronous)
        if asynchronous:  # to be replaced
            spreading.save(directory + "/spread", rows=spread(numbers * 0, "row"), step=2)
        rows_now = spread(numbers, "row")
        in_parts = spreading.save(directory + "/spread", rows=rows_now, step=asynchronous + 1)
        jax.jit(lambda array: array + 1, donate_argnums=0)(rows_now)
        spreading.wait()
    for axes in (("row",), (None, "row"), ()):
        assert_spread(ps.Checkpoint(rows=spread(numbers * 0, *axes), step=0).restore(in_parts)["rows"], *axes)
    whole = ps.Checkpoint(rows=numbers).save(directory + "/whole", rows=numbers)
    assert_spread(ps.Checkpoint(rows=spread(numbers * 0, "row")).restore(whole)["rows"], "row")
    try:
        spreading.save("memory://run/spread", rows=spread(numbers, "row"), step=3)
    except ps.PenstockError as error:
        remote = str(error)

    # The part of worker 1 does not fit on its disk: it would not be waited for in vain.
    noise = np.random.default_rng(0).bytes(1 << 20)
    large = spread(np.frombuffer(noise, np.uint8).reshape(8, -1), "row")
    too_large = ps.Checkpoint(large=large, asynchronous=True)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if worker == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limit[1]))
    try:
        too_large.save(directory + "/large", large=large)
        too_large.wait()
    except ps.PenstockError as error:
        unwritten = f"{type(error).__name__}: {error}"
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    too_large.save(directory + "/large", large=large)
    too_large.wait()

# Only worker 1 has another dataset now. Neither worker goes on from the checkpoint, and both can go on together.
size = 4 + worker
after = inputs(size)
with strategy.scope():
    try:
        ps.Checkpoint(inputs=after).restore(path, partial=True)
    except ps.PenstockError as error:
        refused = f"{type(error).__name__}: {error}"
rest = [rows(next(iterator)) for iterator in after.values()]
close(after)
with open(f"{directory}/worker-{worker}.json", "w") as file:
    json.dump([path, found[1], outside, stacked, failed, refused, rest, remote, unwritten], file)
"""


LATE = """
import os, sys, time
import jax
import numpy as np
import penstock as ps

strategy = ps.MultiWorkerMirroredStrategy()
worker, directory = jax.process_index(), sys.argv[1]
numbers = np.arange(32.0, dtype=np.float32).reshape(8, 4)
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("row",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("row"))
rows = jax.make_array_from_callback(numbers.shape, sharding, lambda index: numbers[index])
make = os.makedirs

def late(path, *args, **options):
    if worker == 0 and os.path.basename(path).startswith("arrays"):
        time.sleep(0.5)
    return make(path, *args, **options)

with strategy.scope():
    for number in range(3):
        ps.Checkpoint(step=0).save(directory + f"/alone-{number}", step=number)
    os.makedirs = late
    ps.Checkpoint(rows=rows).save(directory + "/spread", rows=rows)
"""


def run_two(directory: Path, program: str) -> None:
    """Run a program as two workers, which get the directory as their argument."""
    path = directory / "worker.py"
    path.write_text(program)
    ended = run_workers(str(path), str(directory), workers=2, devices=2)
    assert ended.statuses == [0, 0], ended.errors


@pytest.mark.extended
def test_no_worker_writes_its_part_before_worker_0_has_made_the_directory(tmp_path: Path) -> None:
    """Worker 0, whose file system is slow, failed as the directory existed, or removed what the other had written."""
    run_two(tmp_path, LATE)
    rows = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    restored = ps.Checkpoint(rows=rows * 0).restore(tmp_path / "spread-1")
    np.testing.assert_array_equal(restored["rows"], rows)


@pytest.mark.extended
def test_two_workers_save_one_checkpoint_together(tmp_path: Path) -> None:
    run_two(tmp_path, WORKER)
    first, second = (json.loads((tmp_path / f"worker-{worker}.json").read_text()) for worker in range(2))
    assert first[0] == second[0] == f"{tmp_path}/ckpt-2" == ps.latest_checkpoint(tmp_path / "ckpt")
    assert (first[1][0] % 2, second[1][0] % 2) == (0, 1)  # each went on with data of its own
    for told in (first, second):
        assert "with 2 workers ps.Checkpoint must be made inside strategy.scope()" in told[2]
        assert "written to a directory that is mounted by all of them" in told[7]
        assert "total holds a PerReplica" in told[3] and "strategy.local_results(value)[0]" in told[3]
    assert first[4].startswith("StorageError: the directory of checkpoints")
    assert second[4].startswith("WorkerError: checkpoint.save failed on worker 0 of 2: StorageError: the directory")
    assert first[5].startswith("WorkerError: checkpoint.restore failed on worker 1 of 2: StateMismatchError: ")
    assert second[5].startswith("StateMismatchError: ") and "saved from another dataset" in second[5]
    rows = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    restored = ps.Checkpoint(rows=rows * 0, step=0).restore(tmp_path / "spread-2")
    np.testing.assert_array_equal(restored["rows"], rows)
    with ocp.StandardCheckpointer() as checkpointer:
        target = {"rows": rows * 0, "step": np.array(0)}
        np.testing.assert_array_equal(checkpointer.restore(tmp_path / "spread-1" / "arrays", target)["rows"], rows)
    assert first[8].startswith(f"StorageError: the checkpoint {tmp_path}/large-1 could not be written: worker 1 of 2")
    assert second[8].startswith(f"StorageError: the checkpoint {tmp_path}/large-1 could not be written: ")
    assert sorted(path.name for path in tmp_path.glob("large-*")) == ["large-1"]
    assert first[6] == [[0, 1, 2, 3], list(range(100, 116, 2))]
    assert second[6] == [[4, 5, 6, 7], list(range(101, 121, 2))]
