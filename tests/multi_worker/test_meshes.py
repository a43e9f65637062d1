"""`ps.jax.loader` gives the same global arrays in one process of eight devices and in two of four."""

import re
import signal
from itertools import chain
from typing import Any

import numpy as np
import pytest

from penstock.distribute.feed.dataset import agreed_part

pytestmark = pytest.mark.extended

SECONDS = 80
"""Until all have ended: far less than JAX waits for a process that is lost."""


@pytest.fixture(scope="module", params=[(1, 8), (2, 4)], ids=["1x8", "2x4"])
def seen(request: pytest.FixtureRequest, scenario) -> Any:
    count, devices = request.param
    return scenario("meshes", count=count, devices=devices)


def alike(seen: Any, case: str) -> Any:
    """What a case gave on every process."""
    first, *others = seen.of(case)
    assert all(other == first for other in others)
    return first


def test_each_leaf_has_its_own_sharding(seen) -> None:
    told = alike(seen, "elements")
    assert told["length"] == 3
    rows = [label for (batch, mask) in told["steps"] for label, real in zip(batch["label"], mask, strict=True) if real]
    assert sorted(rows) == list(range(20)) != rows
    for batch, mask in told["steps"]:
        assert mask == sorted(mask, reverse=True)  # padding is at the end of global arrays
        for number, real in enumerate(mask):
            label = batch["label"][number]
            assert (batch["weight"][number], batch["tokens"][number]) == (
                (label / 2, [label * 10 + column for column in range(4)]) if real else (0, [0, 0, 0, 0])
            )


def test_each_process_reads_only_its_rows(seen) -> None:
    read = seen.of("rows_read")
    everything = list(range(16))
    if len(read) == 1:
        assert read == [{"divided": everything, "columns": everything, "in turns": everything}]
        return
    assert [one["divided"] for one in read] == [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]
    assert [one["columns"] for one in read] == [everything, everything]
    assert [one["in turns"] for one in read] == [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]


def test_all_processes_end_after_the_same_step(seen) -> None:
    padded, dropped = alike(seen, "filtered")
    wanted = [row for row in range(40) if row % 3]
    real = [[row for row, real in zip(batch, mask, strict=True) if real] for batch, mask in padded]
    assert real == [wanted[start : start + 8] for start in range(0, len(wanted), 8)]
    assert all(mask == sorted(mask, reverse=True) for _, mask in padded)
    assert dropped == real[:3]


def test_files_of_a_share(seen) -> None:
    steps = alike(seen, "files")
    rows = [row for batch, mask in steps for row, real in zip(batch, mask, strict=True) if real]
    assert sorted(rows) == [*range(12), 100, 101, 102]
    assert all(len(batch) == 4 for batch, _ in steps)


def test_full_batches_of_files_need_no_padding_without_a_signature(seen) -> None:
    told = alike(seen, "full_files")
    by_file = [[row, row] for row in range(6)]
    assert told == {"length": 6, "steps": by_file if len(seen.seen) == 2 else [[0, 1], [2, 3], [4, 5]] * 2}


def test_a_function_of_the_rows_of_each_slice(seen) -> None:
    steps = alike(seen, "collated")
    assert [step["sum"] for step in steps] == [[1, 5, 9, 13], [17, 21, 25, 29]]
    assert steps[0]["rows"] == [0, 1, 0, 2, 3, 2, 4, 5, 4, 6, 7, 6]


def test_an_epoch_of_known_length_costs_three_messages(seen) -> None:
    assert set(seen.of("messages")) == {3 * int(len(seen.seen) > 1)}  # with what was measured at first and at last


def test_processes_that_disagree_are_told(scenario) -> None:
    for told in scenario("meshes", count=2, devices=4).of("disagreeing"):
        assert "the workers distribute different datasets: batch(batch_size=8) at " in told["dataset"]
        assert re.search(r"specs \[.*'fsdp'.*\] on worker 0 is specs \[.*'data'.*\] on worker 1", told["specs"])
        assert "load_state_dict got another state on worker 1 than on worker 0" in told["state"]


def test_states_of_one_step_that_differ_in_form_are_the_same_state(scenario) -> None:
    """How far a filter had read its input, and how much of that was left, differs between processes."""
    epoch, after = alike(scenario("meshes", count=2, devices=4), "forms")
    assert after == [epoch[2:], epoch[2:]]
    assert len(epoch) == 4


@pytest.mark.parametrize(("taken", "given"), [((1, 8), (2, 4)), ((2, 4), (1, 8))], ids=["1x8-2x4", "2x4-1x8"])
def test_a_state_fits_another_mesh_and_another_number_of_processes(scenario, workers, taken, given) -> None:
    before, *others = scenario("meshes", count=taken[0], devices=taken[1]).of("states")
    assert all(_agreed(other) == _agreed(before) for other in others)
    after = workers("meshes", "restored", workers=given[0], devices=given[1], given=before)
    assert (after.errors, after.statuses) == ("", [0] * given[0])
    for name, found in alike(after, "restored").items():
        whole, following = _rows(before[name]["steps"]), _rows(before[name]["next"])
        assert sorted(chain(*whole)) == sorted(chain(*following))
        assert (whole == following) == (name == "files")
        assert [_rows(steps) for steps in found] == [whole, whole[2:], following, whole[2:]]


def _agreed(seen: dict[str, Any]) -> dict[str, Any]:
    return {name: {**told, "states": [agreed_part(state) for state in told["states"]]} for name, told in seen.items()}


def _rows(steps: Any) -> list[list[int]]:
    return [[row for row, real in zip(batch, mask, strict=True) if real] for batch, mask in steps]


def test_a_process_whose_input_fails_is_named_at_its_step(workers) -> None:
    ended = workers("mesh_failures", "row_fails", workers=2, devices=4)
    other, own = (seen["row_fails"] for seen in ended.seen)
    assert own == {"done": 2, "error": "ValueError: a bad row"}
    # Nothing in these steps waits for process 1, so process 0 has taken some more when it hears.
    assert other["error"] == "WorkerError: worker 1 of 2 failed at step 2 of its input with ValueError: a bad row"


def test_results_of_collate_that_differ_in_shape_fail_on_all(workers) -> None:
    ended = workers("mesh_failures", "uneven_results", workers=2, devices=4)
    for told in (seen["uneven_results"] for seen in ended.seen):
        assert "a batch cannot be cut into 4 slices of one shape" in told and "collate pad its results" in told


def test_a_process_that_never_makes_the_loader_fails_all_within_the_timeout(workers) -> None:
    ended = workers("mesh_failures", "absent", workers=2, devices=4)
    for told in (seen["absent"] for seen in ended.seen):
        assert told.startswith("worker 1 of 2 did not come to ps.jax.loader (call 1) within 0.5 seconds: every worker")
    assert ended.seconds < SECONDS


def test_a_loader_that_one_process_cannot_make_fails_on_all_at_once(workers) -> None:
    ended = workers("mesh_failures", "refused_by_one", workers=2, devices=4)
    one, other = (seen["refused_by_one"] for seen in ended.seen)
    assert "names the axis 'dta', which the mesh does not have" in other["error"]
    assert one["error"] == f"ps.jax.loader (call 1) failed on worker 1 of 2: InvalidArgumentError: {other['error']}"
    assert one["steps"] == other["steps"] == 5


def test_a_state_that_one_process_alone_loads_fails_all_within_the_timeout(workers) -> None:
    ended = workers("mesh_failures", "loaded_by_one", workers=2, devices=4)
    one, other = (seen["loaded_by_one"] for seen in ended.seen)
    # Each waits for the other at its own call: whose limit ends first is open, and both then know who did not come.
    loading = "worker 1 of 2 did not come to call 1 of state_dict or load_state_dict of ps.jax.loader(...) within 3 "
    iterating = "worker 0 of 2 did not come to ps.jax.loader (call 1), begin 0 of an iteration within 3 "
    assert one.startswith((loading, f"worker 1 of 2 has given up: {iterating}"))
    assert other.startswith((iterating, f"worker 0 of 2 has given up: {loading}"))


def test_a_process_that_is_lost_is_named(workers) -> None:
    ended = workers("mesh_failures", "killed", workers=2, devices=4)
    assert ended.statuses[1] == -signal.SIGKILL
    assert ended.seen[0]["killed"]["error"] == "WorkerError: worker 1 of 2 was lost: its process has ended"
    assert ended.seconds < SECONDS


@pytest.fixture(scope="module", params=[(1, 8), (2, 4)], ids=["1x8", "2x4"])
def trained(request: pytest.FixtureRequest, scenario) -> Any:
    count, devices = request.param
    return scenario("mesh_training", count=count, devices=devices)


def expected_losses() -> list[float]:
    """Those of the same steps in NumPy."""
    weights, losses = np.zeros(2), []
    for start in range(0, 32, 8):
        rows = np.arange(start, start + 8)
        inputs = np.stack([rows, np.ones(8)], axis=1) / 32
        errors = inputs @ weights - (rows / 16 + 1)
        losses.append(np.mean(errors**2))
        weights -= 0.5 * 2 * inputs.T @ errors / 8
    return losses


@pytest.mark.parametrize("style", ["jitted", "explicit", "in_shard_map", "flax_nnx", "equinox"])
def test_training_on_a_mesh(trained, style: str) -> None:
    losses = alike(trained, style)
    if losses is None:
        pytest.skip(f"{style} is not installed")
    assert losses == pytest.approx(expected_losses(), rel=1e-5)


@pytest.mark.parametrize("distribution", ["DataParallel", "ModelParallel"])
def test_training_on_a_mesh_of_keras(trained, distribution: str) -> None:
    assert alike(trained, "keras_distribution")[distribution] == pytest.approx(expected_losses(), rel=1e-5)
