"""The coordinator's promises, with servers and workers that really run, and are really killed."""

import gc
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import optax
import promises
import pytest
from memory_limit import memory_left

import penstock as ps
from penstock.parameter_server import datasets, dispatch
from penstock.parameter_server import worker as program


@pytest.fixture(scope="module")
def coordinator() -> Iterator[ps.ClusterCoordinator]:
    partitioner = ps.parameter_server.FixedShardsPartitioner(2)
    with ps.ParameterServerStrategy(num_workers=2, num_ps=2, variable_partitioner=partitioner) as strategy:
        yield ps.ClusterCoordinator(strategy)


def both_work(coordinator: ps.ClusterCoordinator, directory: Path) -> None:
    """Return when both workers have started."""

    def meet(number):
        (directory / f"worker {number}").touch()
        while len(list(directory.glob("worker *"))) < 2:
            time.sleep(0.001)

    coordinator.fetch([coordinator.schedule(meet, args=(number,)) for number in range(2)])


@pytest.mark.slow
def test_pushes_are_applied_in_every_shard_and_arguments_and_results_travel(coordinator) -> None:
    promises.pushes_are_applied_in_every_shard_and_arguments_and_results_travel(coordinator)


def test_a_function_that_ends_its_workers_says_with_what(coordinator, monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "MOST_RUNS", 2)
    value = coordinator.schedule(lambda: os._exit(3))
    with pytest.raises(ps.WorkerError, match="a function has cost 2 workers their process.* has ended with status 3"):
        value.fetch()
    with pytest.raises(ps.WorkerError, match="a function has cost 2 workers"):
        coordinator.join()
    assert coordinator.schedule(lambda: 4).fetch() == 4


@pytest.mark.slow
def test_a_function_waited_for_ever_for_a_stopped_server(monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "TICK_SECONDS", 0.05)
    with ps.ParameterServerStrategy(num_workers=1, num_ps=1) as strategy:
        coordinator = ps.ClusterCoordinator(strategy)
        variables = strategy.create_variables(np.zeros(2), optax.sgd(-1.0))
        coordinator.schedule(variables.push, args=(np.ones(2),)).fetch()
        os.kill(strategy.servers[0].pid, signal.SIGSTOP)
        coordinator._dispatch._servers.silent_seconds = 0.5
        value = coordinator.schedule(variables.push, args=(np.ones(2),))
        with pytest.raises(ps.errors.UnavailableError, match="parameter server 0 has not answered for .* is given up"):
            value.fetch()


@pytest.mark.slow
def test_values_that_were_read_never_change(coordinator) -> None:
    variables = coordinator.strategy.create_variables(np.zeros(100_000, np.float32), optax.sgd(-1.0))
    before = variables.read()
    for _ in range(3):
        coordinator.schedule(lambda: variables.push(np.ones(100_000, np.float32)))
    coordinator.join()
    assert before.max() == 0.0
    assert not before.flags.writeable
    assert variables.read().tolist() == [3.0] * 100_000
    variables.assign(np.full(100_000, 5.0))
    assert variables.read().min() == 5.0


@pytest.mark.slow
def test_the_optimizer_is_optaxs(coordinator) -> None:
    first = np.asarray([1.0, 2.0, 3.0], np.float32)
    variables = coordinator.strategy.create_variables(first, optax.adam(0.1))
    gradients = [np.asarray([0.5, -1.0, 2.0], np.float32), np.asarray([1.0, 1.0, -3.0], np.float32)]
    for gradient in gradients:
        coordinator.schedule(variables.push, args=(gradient,)).fetch()
    optimizer, expected = optax.adam(0.1), first
    state = optimizer.init(first)
    for gradient in gradients:
        updates, state = optimizer.update(gradient, state, expected)
        expected = optax.apply_updates(expected, updates)
    np.testing.assert_allclose(variables.read(), expected, rtol=1e-6)


def test_rows_of_a_table_are_read_and_pushed(coordinator) -> None:
    table = coordinator.strategy.create_table(np.zeros((7, 2), np.float32), optax.sgd(-1.0))

    def add():
        table.push_rows([6, 0, 4, 0], np.asarray([[1, 1], [2, 2], [3, 3], [4, 4]], np.float32))
        return table.read_rows([4, 4, 6])

    assert coordinator.schedule(add).fetch().tolist() == [[0, 0]] * 3
    assert table.read_rows([6, 0, 4, 1]).tolist() == [[1, 1], [6, 6], [3, 3], [0, 0]]
    assert table.read()[:, 0].tolist() == [6, 0, 0, 0, 3, 0, 1]
    with pytest.raises(ps.InvalidArgumentError, match="the table has rows 0 to 6, got 2 to 7"):
        table.read_rows([2, 7])


@pytest.mark.slow
def test_momentum_of_rows_that_are_not_pushed_stays(coordinator) -> None:
    table = coordinator.strategy.create_table(np.zeros((4, 1), np.float32), optax.sgd(-1.0, momentum=0.5))
    for rows in ([0, 1], [0], [0, 1]):
        coordinator.schedule(table.push_rows, args=(rows, np.ones((len(rows), 1), np.float32))).fetch()
    assert table.read().ravel().tolist() == [1 + 1.5 + 1.75, 1 + 1.5, 0, 0]


def test_the_first_error_cancels_the_rest_and_is_raised_once(coordinator, tmp_path: Path) -> None:
    promises.the_first_error_cancels_the_rest_and_is_raised_once(coordinator, tmp_path)


@pytest.mark.slow
def test_killed_workers_apply_every_update_once_and_read_on_where_they_were(coordinator) -> None:
    promises.killed_workers_apply_every_update_once_and_read_on_where_they_were(coordinator)


@pytest.mark.slow
def test_one_epoch_of_a_data_service_is_visited_once_by_all_workers(coordinator) -> None:
    rows = 200
    variables = coordinator.strategy.create_variables(np.zeros(rows, np.float32), optax.sgd(-1.0))

    def step(batches):
        batch = next(batches, None)
        if batch is None:
            time.sleep(0.01)  # the other worker has the rest, or is lost with it
        else:
            variables.push(np.bincount(batch, minlength=rows))

    with ps.service.DispatchServer(ps.service.DispatcherConfig()) as dispatcher:
        target = dispatcher.target
        config = ps.service.WorkerConfig(dispatcher_address=target.split("://")[1])
        with ps.service.WorkerServer(config):
            job = ps.service.distribute("distributed_epoch", target, job_name="epoch")
            iterator = iter(coordinator.create_per_worker_dataset(lambda: ps.Dataset.range(rows).apply(job).batch(5)))
            values = [coordinator.schedule(step, args=(iterator,)) for _ in range(20)]
            values[5].fetch()
            os.kill(coordinator.worker_processes[0], signal.SIGKILL)
            while not variables.read().all():  # each worker may wait for what the other one has
                coordinator.fetch([coordinator.schedule(step, args=(iterator,)) for _ in range(2)])
            coordinator.join()
            assert variables.read().tolist() == [1.0] * rows


@pytest.mark.slow
def test_a_worker_lost_in_its_first_function_leaves_its_rows(coordinator, tmp_path: Path) -> None:
    died = tmp_path / "died"

    def step(rows):
        read = next(rows, None)
        if not died.exists():
            died.touch()
            # The data service knows by then that this reader has had its row, and the coordinator does not.
            program.Finished = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        return read

    with ps.service.DispatchServer(ps.service.DispatcherConfig()) as dispatcher:
        config = ps.service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1])
        with ps.service.WorkerServer(config):
            job = ps.service.distribute("distributed_epoch", dispatcher.target, job_name="rows")
            iterator = iter(coordinator.create_per_worker_dataset(ps.Dataset.range(8).apply(job)))
            read = [coordinator.schedule(step, args=(iterator,)).fetch()]
            both_work(coordinator, tmp_path)
            for _ in range(9):
                read += coordinator.fetch([coordinator.schedule(step, args=(iterator,)) for _ in range(2)])
            coordinator.join()
    assert sorted(row for row in read if row is not None) == list(range(8))


def test_functions_that_are_scheduled_one_by_one_go_to_all_workers_in_turn(coordinator, tmp_path: Path) -> None:
    both_work(coordinator, tmp_path)
    first, second, third, fourth = [coordinator.schedule(os.getpid).fetch() for _ in range(4)]
    assert first == third != second == fourth


@pytest.mark.long
def test_twenty_kills_lose_and_repeat_no_update(coordinator) -> None:
    variables = promises.counter(coordinator)
    random = np.random.default_rng(65)
    for trial in range(20):
        values = [coordinator.schedule(variables.push, args=({"w": np.ones((3, 2)), "b": 1.0},)) for _ in range(60)]
        values[random.integers(60)].fetch()
        os.kill(coordinator.worker_processes[trial % 2], signal.SIGKILL)
        coordinator.join()
        assert variables.read()["b"] == 60.0 * (trial + 1)
        assert variables.read()["w"].tolist() == [[60.0 * (trial + 1)] * 2] * 3


def test_workers_are_pipelines_and_not_in_sync(coordinator) -> None:
    """As in TensorFlow: a batch is one worker's, and no part of it another's."""

    def described(context):
        row = [context.num_input_pipelines, context.num_replicas_in_sync, context.get_per_replica_batch_size(7)]
        return ps.Dataset.from_tensors(np.asarray(row)).repeat()

    iterator = iter(coordinator.create_per_worker_dataset(described))
    assert coordinator.schedule(lambda elements: next(elements).tolist(), args=(iterator,)).fetch() == [2, 1, 7]


def open_on_both(coordinator: ps.ClusterCoordinator, directory: Path) -> list[list[int]]:
    """The numbers of the iterators that each worker has open."""

    def held(number):
        (directory / f"worker {number}").touch()
        while len(list(directory.glob("worker *"))) < 2:
            time.sleep(0.001)
        return sorted(datasets._opened)

    directory.mkdir()
    coordinator.schedule(os.getpid).fetch()  # what was forgotten before it was scheduled has been announced by now
    return coordinator.fetch([coordinator.schedule(held, args=(number,)) for number in range(2)])


@pytest.mark.slow
def test_workers_close_the_iterators_that_the_program_forgets(coordinator, tmp_path) -> None:
    both_work(coordinator, tmp_path)
    before = coordinator._dispatch.opened
    per_worker = coordinator.create_per_worker_dataset(ps.Dataset.range(5))
    kept = iter(per_worker)
    values = [coordinator.schedule(lambda own: int(next(own)), args=(iter(per_worker),)) for _ in range(100)]
    assert coordinator.fetch(values) == [0] * 100, "queued functions read iterators that are forgotten already"
    coordinator.join()
    assert open_on_both(coordinator, tmp_path / "all") == [[before]] * 2
    assert list(coordinator._dispatch.iterators) == [before]
    assert {number for _, number in coordinator._dispatch.positions} == {before}

    for process in coordinator.worker_processes:
        os.kill(process, signal.SIGKILL)
    assert open_on_both(coordinator, tmp_path / "restarted") == [[before]] * 2
    assert coordinator.schedule(lambda own: int(next(own)), args=(kept,)).fetch() == 0
    del kept
    assert open_on_both(coordinator, tmp_path / "none") == [[], []]
    assert coordinator._dispatch.iterators == coordinator._dispatch.positions == {}


class Captured:
    """What a function of one step captures, which is sent with it."""

    def __init__(self, step: int, size: int) -> None:
        self.step = step
        self.content = np.full(size, step % 251, np.uint8)


def schedule_functions(coordinator: ps.ClusterCoordinator, steps: int, size: int) -> None:
    """Schedule a new function in each step."""

    def one(captured):
        return coordinator.schedule(lambda: captured.step)

    assert coordinator.fetch([one(Captured(step, size)) for step in range(steps)]) == list(range(steps))


def held_functions() -> int:
    gc.collect()
    return sum(type(found) is Captured for found in gc.get_objects())


@pytest.mark.extended
@pytest.mark.parametrize(("size", "most"), [(1, 256), (1 << 22, 15)], ids=["small", "64 MiB"])
def test_functions_that_a_program_makes_for_each_step_are_released(size, most) -> None:
    with ps.ParameterServerStrategy(num_workers=1) as strategy:
        coordinator = ps.ClusterCoordinator(strategy)
        calls = []

        def counts():
            calls.append(len(calls))
            return len(calls)

        assert coordinator.schedule(counts).fetch() == 1
        schedule_functions(coordinator, 2 * most, size)
        assert coordinator.schedule(held_functions).fetch() <= most
        assert len(coordinator._functions._by_content) <= most + 2
        assert coordinator.schedule(counts).fetch() == 2, "the program still has this function"

        os.kill(coordinator.worker_processes[0], signal.SIGKILL)
        assert coordinator.schedule(counts).fetch() == 1
        schedule_functions(coordinator, 2 * most, size)
        assert coordinator.schedule(held_functions).fetch() <= most


def test_a_lambda_in_a_loop_is_one_function_of_the_workers(coordinator) -> None:
    variables = coordinator.strategy.create_variables(np.zeros((), np.float32), optax.sgd(-1.0))
    before = next(coordinator._functions._numbers)
    for _ in range(20):
        coordinator.schedule(lambda: variables.push(1.0))
    coordinator.join()
    assert next(coordinator._functions._numbers) == before + 2
    assert variables.read() == 20


def test_the_end_of_a_per_worker_dataset_is_an_error_of_its_own(coordinator) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(ps.Dataset.range(0)))
    with pytest.raises(ps.OutOfRangeError, match="to the end"):
        coordinator.schedule(next, args=(iterator,)).fetch()
    with pytest.raises(ps.OutOfRangeError):
        coordinator.join()


def test_get_next_of_a_per_worker_iterator_is_as_that_of_a_distributed_one(coordinator) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(ps.Dataset.range(1)))
    assert coordinator.schedule(lambda own: int(own.get_next()), args=(iterator,)).fetch() == 0
    empty = iter(coordinator.create_per_worker_dataset(ps.Dataset.range(0)))
    with pytest.raises(ps.OutOfRangeError, match="has no further element"):
        coordinator.schedule(lambda own: own.get_next(), args=(empty,)).fetch()
    with pytest.raises(ps.OutOfRangeError):
        coordinator.join()


def test_a_dataset_function_that_fails_fails_only_what_reads_it(coordinator, tmp_path: Path) -> None:
    def read(missing: Path) -> ps.Dataset:
        return ps.Dataset.range(int(missing.read_text()))

    rows = tmp_path / "rows"
    iterator = iter(coordinator.create_per_worker_dataset(lambda: read(rows)))
    for _ in range(2):
        with pytest.raises(FileNotFoundError) as raised:
            coordinator.schedule(next, args=(iterator,)).fetch()
        assert raised.value.__notes__[-1].count("in read\n") == 1
        with pytest.raises(FileNotFoundError):
            coordinator.join()
        assert coordinator.schedule(len, args=("abc",)).fetch() == 3
    rows.write_text("4")
    assert coordinator.schedule(next, args=(iterator,)).fetch() == 0


def test_an_error_that_is_raised_again_does_not_grow(coordinator) -> None:
    def fails() -> None:
        if not hasattr(datasets, "kept_error"):
            datasets.kept_error = ZeroDivisionError("no data")
        raise datasets.kept_error

    notes = []
    for _ in range(6):
        with pytest.raises(ZeroDivisionError) as raised:
            coordinator.schedule(fails).fetch()
        notes.append(len(raised.value.__notes__))
        with pytest.raises(ZeroDivisionError):
            coordinator.join()
    assert notes == [1] * 6


def test_a_position_that_cannot_be_saved_fails_the_function_that_read(coordinator) -> None:
    dataset = ps.Dataset.range(3).scan("", lambda state, x: (threading.Lock(), x))
    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    with pytest.raises(ps.InvalidTypeError, match="cannot save .* in a state"):
        coordinator.schedule(next, args=(iterator,)).fetch()
    with pytest.raises(ps.InvalidTypeError):
        coordinator.join()


def test_misuse_is_refused_where_it_happens(coordinator) -> None:
    variables = promises.counter(coordinator)
    lock = threading.Lock()
    with pytest.raises(ps.InvalidTypeError, match="cannot be sent to another process.*lock"):
        coordinator.schedule(lambda: lock)
    with pytest.raises(ps.InvalidTypeError, match="fetch it first"):
        coordinator.schedule(print, args=(coordinator.schedule(lambda: 1),))
    with pytest.raises(ps.InvalidArgumentError, match="push is for functions that"):
        variables.push({"w": np.ones((3, 2)), "b": 1.0})
    with pytest.raises(ps.ElementError, match=r"variable at \['w'\] has shape \(3, 2\), got \(2,\)"):
        variables.assign({"w": np.ones(2), "b": 1.0})
    with pytest.raises(ps.InvalidTypeError, match="expected a pytree like"):
        variables.assign([1.0])
    with pytest.raises(ps.InvalidArgumentError, match="read on the workers"):
        next(iter(coordinator.create_per_worker_dataset(ps.Dataset.range(3))))
    with pytest.raises(ps.InvalidArgumentError, match="has a ps.ClusterCoordinator already"):
        ps.ClusterCoordinator(coordinator.strategy)
    with pytest.raises(ps.InvalidTypeError, match=r"expected a ps\.Dataset or a function"):
        coordinator.create_per_worker_dataset(3)
    coordinator.join()


@pytest.mark.extended
def test_a_lost_server_is_unavailable_until_a_checkpoint_restores_it(tmp_path, capfd) -> None:
    def start() -> tuple[ps.ClusterCoordinator, ps.parameter_server.ServerVariables]:
        strategy = ps.ParameterServerStrategy(num_workers=1, num_ps=1)
        variables = strategy.create_variables(np.zeros(2, np.float32), optax.sgd(-1.0, momentum=0.5))
        return ps.ClusterCoordinator(strategy, watchdog_seconds=0.1), variables

    coordinator, variables = start()
    iterator = iter(coordinator.create_per_worker_dataset(ps.Dataset.range(100)))

    def step(elements):
        variables.push(np.ones(2, np.float32))
        return int(next(elements))

    assert [coordinator.schedule(step, args=(iterator,)).fetch() for _ in range(2)] == [0, 1]
    path = ps.Checkpoint(coordinator=coordinator).save(tmp_path / "saved")
    assert coordinator.schedule(step, args=(iterator,)).fetch() == 2
    coordinator.strategy.servers[0].end()
    with pytest.raises(ps.errors.UnavailableError, match="parameter server 0 has ended"):
        variables.read()
    with pytest.raises(
        ps.errors.UnavailableError, match="SIGKILL, which a system sends that has no memory left, .*restore a ch"
    ):
        coordinator.schedule(step, args=(iterator,)).fetch()
    with pytest.raises(ps.errors.UnavailableError, match="restore a checkpoint"):
        coordinator.join()
    coordinator.strategy.stop()

    coordinator, variables = start()
    coordinator.schedule(os.getpid).fetch()  # its worker has started, and opens the iterator when it is made
    ps.Checkpoint(coordinator=coordinator).restore(path)
    assert variables.read().tolist() == [2.5, 2.5]
    iterator = iter(coordinator.create_per_worker_dataset(ps.Dataset.range(100)))
    assert coordinator.schedule(step, args=(iterator,)).fetch() == 2
    coordinator.join()
    assert variables.read().tolist() == [4.25, 4.25]

    if sys.platform == "linux":
        _refused_for_want_of_memory(coordinator.strategy)
        assert variables.read().tolist() == [4.25, 4.25]
    _writes_stacks_of_what_takes_long(coordinator, tmp_path / "written", capfd)
    coordinator.strategy.stop()
    with pytest.raises(ps.errors.ClosedError, match="was stopped"):
        coordinator.join()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["variables", "table"])
def test_an_optimizer_that_fails_on_one_server_changes_nothing_on_the_other(coordinator, kind) -> None:
    def init(values):
        return {"count": np.zeros((), np.int32)}

    def update(gradients, state, values):
        # Of five rows the first server holds three and the second two.
        if gradients[0].shape[0] == 2 if kind == "variables" else gradients.shape[0] == 2:
            raise RuntimeError("two rows are too few")
        return gradients, {"count": state["count"] + 1}

    optimizer = optax.GradientTransformation(init, update)
    strategy = coordinator.strategy
    before = promises.counter(coordinator)
    if kind == "variables":
        fails = strategy.create_variables(np.zeros((5, 1), np.float32), optimizer)
    else:
        fails = strategy.create_table(np.zeros((5, 1), np.float32), optimizer)

    def step():
        before.push({"w": np.ones((3, 2)), "b": 1.0})
        if kind == "variables":
            fails.push(np.ones((5, 1), np.float32))
        else:
            fails.push_rows([0, 1, 2, 3, 4], np.ones((5, 1), np.float32))

    for _ in range(2):
        with pytest.raises(ps.WorkerError, match="two rows are too few"):
            coordinator.schedule(step).fetch()
        with pytest.raises(ps.WorkerError):
            coordinator.join()
        assert fails.read().tolist() == [[0.0]] * 5
        assert before.read()["w"].tolist() == [[0.0, 0.0]] * 3
    coordinator.schedule(before.push, args=({"w": np.ones((3, 2)), "b": 1.0},)).fetch()
    assert before.read()["w"].tolist() == [[1.0, 1.0]] * 3


def _refused_for_want_of_memory(strategy: ps.ParameterServerStrategy) -> None:
    with (
        memory_left(strategy.servers[0].pid, 64),
        pytest.raises(ps.InvalidArgumentError, match=r"refused the request.*cannot be mapped into memory"),
    ):
        strategy.create_variables(np.zeros(100 << 20, np.float32), optax.adam(0.1))


def _writes_stacks_of_what_takes_long(coordinator: ps.ClusterCoordinator, written: Path, capfd) -> None:
    def stall():
        while not written.exists():
            time.sleep(0.01)

    coordinator.schedule(stall)
    stacks = ""
    while not re.search("most recent call first.*in stall", stacks, re.DOTALL):
        stacks += capfd.readouterr().err  # which may lose what comes meanwhile; stacks come every 0.1 s
    written.touch()
    coordinator.join()
