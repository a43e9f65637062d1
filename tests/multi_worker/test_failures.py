"""A worker that fails, or goes its own way: the others learn of it, by its name and its error, and everything ends."""

import re
import signal
import socket
from typing import Any

import jax
import pytest

import penstock as ps

pytestmark = pytest.mark.slow

SECONDS = 80
"""Until all have ended: far less than JAX waits for a worker that is lost, and enough for a machine with other work."""


@pytest.fixture(scope="module")
def disagreements(workers) -> Any:
    ended = workers("disagreements")
    assert ended.statuses == [0, 0]
    return ended


@pytest.fixture(scope="module")
def killed(workers) -> Any:
    return workers("failures", "killed")


def test_a_killed_worker_is_named(killed) -> None:
    assert killed.statuses == [1, -signal.SIGKILL]
    assert "[0] penstock.errors.WorkerError: worker 1 of 2 was lost: its process has ended" in killed.errors
    assert killed.seconds < SECONDS


def test_a_report_names_a_killed_worker_with_its_host_and_last_step(killed) -> None:
    told = re.search(r"^\[0\] rank 1 \(host (.+)\) (.+); its last word came at step (\d)$", killed.errors, re.MULTILINE)
    assert told is not None, killed.errors
    assert told.groups() == (socket.gethostname(), "was lost: its process has ended", "0")
    assert "[0] start: import penstock " in killed.errors


def test_the_others_end_with_worker_0(workers) -> None:
    """JAX sees to that, and may be faster than the exception."""
    ended = workers("failures", "coordinator_killed")
    assert ended.statuses[0] == -signal.SIGKILL
    assert ended.statuses[1] in (1, -signal.SIGABRT)
    # Orbax, which is loaded here, gives logging a handler that says where a message comes from.
    told = re.search(r"\[1\] (ERROR:[\w.]+:)?worker 0 of 2 was lost: its process has ended\n", ended.errors)
    # jaxlib 0.9.0 ends the process with status 1, later ones by SIGABRT.
    assert told or "[1] F" in ended.errors and "Terminating process because the JAX distributed" in ended.errors
    assert ended.seconds < SECONDS


def test_a_failing_program_is_named_where_others_wait_in_a_collective(workers) -> None:
    ended = workers("broken")
    assert ended.statuses == [1, 1]
    assert "[1] RuntimeError: a mistake in the program" in ended.errors
    message = "worker 1 of 2 ended with RuntimeError: a mistake in the program"
    assert f"[0] penstock.errors.WorkerError: {message}\n" in ended.errors
    assert ended.seconds < SECONDS


def test_a_process_that_cannot_be_told_is_ended(workers) -> None:
    ended = workers("failures", "out_of_reach")
    assert ended.statuses == [1, 1]
    assert (
        "[0] penstock: WorkerError: worker 1 of 2 ended with RuntimeError: a mistake in the program. worker 0 of 2 "
        "did not learn of it within 3 seconds and is ended: it waits for a worker that will not come.\n"
    ) in ended.errors
    assert ended.seconds < SECONDS


def test_a_call_of_one_worker_alone_paired_with_another_call_of_the_others(workers) -> None:
    ended = workers("failures", "extra_call")
    assert ended.statuses == [1, 1]
    step, extra = "strategy.run(extra_call.<locals>.<lambda>)", "strategy.reduce"
    assert (
        f"worker 0 of 2 made {extra} as call 5, where worker 1 of 2 made {step}: every worker must make the same calls "
        "in the same order"
    ) in ended.errors or f"worker 1 of 2 made {step} as call 5, where worker 0 of 2 made {extra}: " in ended.errors
    assert ended.seconds < SECONDS


def test_a_living_worker_absent_from_a_step_was_waited_for_without_end(workers) -> None:
    ended = workers("failures", "absent_from_a_step")
    assert ended.statuses == [1, 1]
    assert (
        "[0] penstock: WorkerError: worker 0 of 2 has given up: worker 1 of 2 did not come to call 5, strategy.reduce, "
        "within 3 seconds: every worker must make the same calls in the same order. worker 0 of 2 did not learn of "
        "it within 3 seconds and is ended: it waits for a worker that will not come.\n"
    ) in ended.errors
    assert ended.seconds < SECONDS


def test_a_worker_that_leaves_its_loop_is_named_where_others_ask_for_a_step(disagreements) -> None:
    error = [
        "WorkerError",
        "worker 1 of 2 has left its loop before step 1 of distribute_dataset (call 1), iteration 0, while worker 0 of "
        "2 continues: every worker must take the same steps",
    ]
    assert disagreements.of("left_early") == [
        {"worker": 0, "seen": [[[0, 1]]], "error": error},
        {"worker": 1, "seen": [[[2, 4]]], "error": None},
    ]
    assert disagreements.seconds < SECONDS


@pytest.mark.parametrize("case", ["broken_row", "broken_row_of_unknown_length"])
def test_a_row_that_one_worker_cannot_take(disagreements, case: str) -> None:
    """Rows 24 to 27 are the batch of step 6, of which the last two are for worker 1."""
    first, second = disagreements.of(case)
    assert second == {"worker": 1, "done": 6, "error": ["ValueError", "27 is no good"]}
    message = "worker 1 of 2 failed at step 6 of its input with ValueError: 27 is no good"
    assert first == {"worker": 0, "done": 6, "error": ["WorkerError", message]}


def test_a_step_that_one_worker_could_not_place_ended_the_others(disagreements) -> None:
    first, second = disagreements.of("row_that_fits_no_device")
    kind, message = second["error"]
    assert kind == "InvalidArgumentError" and "1099511627776, but JAX keeps only int32" in message
    assert first["error"] == ["WorkerError", f"worker 1 of 2 failed at step 6 of its input with {kind}: {message}"]
    assert first["done"] == second["done"] == 6
    assert first["after"] == second["after"] == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]


def test_an_input_that_is_cancelled_on_one_worker_is_named_on_the_others(disagreements) -> None:
    first, second = disagreements.of("cancelled_row")
    assert second["error"] == ["CancelledError", "27 was cancelled"]
    message = "worker 1 of 2 failed at step 6 of its input with CancelledError: 27 was cancelled"
    assert (first["done"], first["error"]) == (6, ["WorkerError", message])


def test_different_datasets_are_named(disagreements) -> None:
    at = r"at \S+/disagreements.py:\d+"
    expected = (
        rf"distribute_dataset \(call 1\): the workers distribute different datasets: batch\(batch_size=4\) {at} on "
        rf"worker 0 is batch\(batch_size=6\) {at} on worker 1\. Give every worker the whole dataset.* each shall read "
        "all of a dataset of its own, say so by distribute_datasets_from_function"
    )
    for seen in disagreements.of("different_datasets"):
        assert re.fullmatch(expected, seen["error"][1])


def test_workers_that_take_rows_by_hand_lost_the_rows_of_the_others(disagreements) -> None:
    first, second = disagreements.of("own_rows")
    assert first["told"] == second["told"]
    for case, words in {
        "filter": [
            "filter(predicate=own_rows.<lambda>) at",
            "disagreements.py:",
            "with rank=0 on worker 0 is",
            "with rank=1 on",
        ],
        "array": ["from_tensor_slices(int64[10]) at", "with first row np.int64(0) on worker 0 is", "np.int64(1) on"],
        "strings": ["from_list(object[10]) at", "with first row '0' on worker 0", "with first row '1' on worker 1"],
        "list": ["from_source(list) at", "with first row 0 on worker 0", "with first row 1 on worker 1"],
        "files": ["'0-5.txt', 'long.txt'] on worker 0", "'6-11.txt', 'short.txt'] on worker 1"],
        "rows of files": ["'0-5.txt', 'long.txt'] on worker 0", "'6-11.txt', 'short.txt'] on worker 1"],
        "order": ["'short.txt'] on worker 0", "'0-5.txt'] on worker 1"],
        "generator": [
            "from_generator(function=own_rows.<lambda>) at",
            "with rank=0 on worker 0",
            "with rank=1 on worker 1",
        ],
        "pattern": ["worker 0 has listed ['copies-0/0-5.txt', ", "worker 1 has listed ['copies-1/6-11.txt', "],
    }.items():
        for word in words:
            assert word in first["told"][case], case


def test_what_changes_no_row_may_differ_between_workers(disagreements) -> None:
    first, second = disagreements.of("other_settings")
    assert (first["seen"], second["seen"]) == ([[[1, 2]], [[5, 6]]], [[[30, 40]], [[70, 80]]])


def test_each_worker_reads_a_dataset_of_its_own_under_off(disagreements) -> None:
    first, second = disagreements.of("own_datasets")
    assert first["seen"] == [[[0, 2]], [[4, 6]], [[8]], [[10]]]
    assert second["seen"] == [[[1, 3]], [[5, 7]], [[9]], [[11]]]


def test_a_worker_that_distributes_no_dataset_fails_all_within_the_timeout(disagreements) -> None:
    message = (
        "worker 1 of 2 did not come to call 1 that distributes a dataset within 0.5 seconds: every worker must make "
        "the same calls in the same order; where one has more to do before it, give all of them a larger "
        "failure_timeout_seconds"
    )
    first, second = disagreements.of("absent")
    assert first["error"] == ["WorkerError", message]
    assert second["error"] == ["WorkerError", f"worker 0 of 2 has given up: {message}"]


def test_workers_that_distribute_in_different_ways_are_named(disagreements) -> None:
    message = (
        "call 1 that distributes a dataset is distribute_dataset on worker 0 and distribute_datasets_from_function on "
        "worker 1: every worker must make the same calls in the same order"
    )
    assert [seen["error"] for seen in disagreements.of("another_call")] == [["WorkerError", message]] * 2


def test_a_dataset_that_one_worker_cannot_distribute_fails_on_all_at_once(disagreements) -> None:
    first, second = disagreements.of("refused_by_one")
    kind, message = second["error"]
    assert kind == "ElementError" and "add .batch(global_batch_size) to the dataset" in message
    assert first["error"] == ["WorkerError", f"distribute_dataset failed on worker 1 of 2: ElementError: {message}"]
    message = (
        "call 2 that distributes a dataset is distribute_dataset on worker 0 and distribute_dataset with "
        'partial_batch="drop" on worker 1: every worker must make the same calls in the same order'
    )
    assert first["options"] == second["options"] == ["WorkerError", message]
    assert (first["seen"], second["seen"]) == ([[[0, 1]], [[4, 5]]], [[[2, 3]], [[6, 7]]])


def test_a_worker_that_began_another_epoch_got_halves_of_other_batches(disagreements) -> None:
    for case in ("another_epoch", "extra_iter"):
        for seen in disagreements.of(case):
            assert seen["error"][0] == "WorkerError", case
    assert "worker 0 begins epoch 0 after 0 batches, by call 1 of iter(), worker 1 begins epoch 1 " in seen["error"][1]
    assert "has left its loop before step 1 of distribute_dataset (call 1), iteration 0, while" in str(
        disagreements.of("another_epoch")
    )


def test_a_row_that_failed_on_one_host_shifted_all_later_batches_of_it(disagreements) -> None:
    first, second = disagreements.of("row_of_one_host")
    for case in ("ending", "without end", "after the batch", "of inner datasets"):
        (one, told), (other, same) = first[case], second[case]
        assert told == same, case
        assert "a row was skipped on worker 1 alone element " in told and "OSError: this copy is damaged" in told
        whole = [row for row in range(40) for _ in range(2 if case == "of inner datasets" else 1) if row != 2]
        steps = [left + right for (left,), (right,) in zip(one, other, strict=True)]
        assert steps == [whole[at : at + 4] for at in range(0, len(steps) * 4, 4)], case
        assert len(steps) == whole.index(13) // 4, case


def test_different_data_is_named_at_its_step(disagreements) -> None:
    first, second = disagreements.of("different_data")
    assert (first["seen"], second["seen"]) == ([[[0, 1]]], [[[2, 3]]])
    assert first["error"] == second["error"]
    kind, message = first["error"]
    assert kind == "WorkerError"
    assert "the workers read different data: worker 0 has a batch of 4 rows, worker 1 has a batch of 1 rows" in message


# How strategies are made.


def test_a_strategy_is_made_before_jax_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    jax.devices()
    given = {"COORDINATOR_ADDRESS": "127.0.0.1:1", "NUM_WORKERS": "2", "WORKER_INDEX": "0"}
    for name, value in given.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", value)
    message = "MultiWorkerMirroredStrategy must be made before anything else uses JAX"
    with pytest.raises(ps.InvalidArgumentError, match=f"^{message}"):
        ps.MultiWorkerMirroredStrategy()


def test_two_strategies_do_not_meet(disagreements) -> None:
    first, second = disagreements.of("two_strategies")
    assert first["seen"] == [[[[0, 1]], [[5]]]] * 4
    assert second["seen"] == [[[[2, 3]], [[]]]] * 4
    for worker, told in enumerate((first, second)):
        assert told["strategy"] == f"MultiWorkerMirroredStrategy(worker {worker} of 2, 1 replicas each)"


def test_a_process_without_others_is_the_only_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_NUM_WORKERS", "JAX_NUM_PROCESSES"):
        monkeypatch.delenv(name, raising=False)
    strategy = ps.MultiWorkerMirroredStrategy()
    replicas = strategy.num_replicas_in_sync
    assert replicas == len(strategy.local_results(0))
    distributed = strategy.distribute_dataset(ps.Dataset.range(2 * replicas + 1).batch(2 * replicas))
    totals = [int(strategy.reduce("SUM", step, axis=0)) for step in distributed]
    assert totals == [sum(range(2 * replicas)), 2 * replicas]
    assert len(distributed) == 2
    strategy.close()


def test_there_is_no_tpu_here() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="TPUStrategy needs TPU devices, and JAX finds none here"):
        ps.TPUStrategy()
