"""Trainers as processes that are killed and go on from their states: what they are made of is exact in the end.

Plain rows are the simplest kind: with them `tests/chaos` kills trainers too, and here they are marked `long`.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from forked import Forked

import penstock as ps
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import ConsumerStatus, GetStatus

pytestmark = pytest.mark.slow

COUNT = 1200
HEARTBEAT = 0.2  # seconds
READING = Path(__file__).parent / "reading.py"


@contextmanager
def service(**config: Any) -> Iterator[str]:
    """A service with two workers, in this process."""
    with ps.service.DispatchServer(ps.service.DispatcherConfig(heartbeat_seconds=HEARTBEAT, **config)) as dispatcher:
        address = dispatcher.target.split("://")[1]
        worker = ps.service.WorkerConfig(dispatcher_address=address)
        with ps.service.WorkerServer(worker), ps.service.WorkerServer(worker):
            yield address


class Trainer:
    """A trainer that can be killed and started again.

    Attributes:
        steps: the elements of each step, as it holds them now: those that a restored one takes again are replaced.
    """

    def __init__(
        self,
        directory: Path,
        address: str,
        *,
        kind: str = "rows",
        saving: str = "state",
        every: int = 3,
        **arguments: Any,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self._states = directory / "state"
        self._command = [
            str(READING),
            str(directory),
            address,
            kind,
            saving,
            str(every),
            json.dumps({"processing_mode": "distributed_epoch", **arguments}),
        ]
        self.steps: dict[int, list[int]] = {}
        self.redone: list[tuple[list[int], list[int]]] = []
        self.restored: list[int] = []
        self.weight = 0
        self.ended = False
        self._changed = threading.Condition()
        self.launch()

    def start(self) -> None:
        """Let it go on in a new process."""
        self.launch()
        self.begin()

    def launch(self) -> None:
        """Start its process, which does not read yet."""
        self._ready = False
        self._process = Forked(*self._command, pipes=("stdin", "stdout"))
        self._thread = threading.Thread(target=self._listen, args=(self._process,))
        self._thread.start()

    def _listen(self, process: Forked) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):  # otherwise it was killed while it wrote
                with self._changed:
                    self._note(json.loads(line))
                    self._changed.notify_all()

    def begin(self) -> None:
        """Let it read, as soon as it can."""
        self.await_ready()
        self.go_on()

    def await_ready(self) -> None:
        """Wait until it waits for `go_on`."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._ready, 60)

    def _note(self, line: dict[str, Any]) -> None:
        if "ready" in line:
            self._ready = True
        elif "restored" in line:
            self.restored.append(line["restored"])
            self.ended = False
            self._undone = {step: self.steps.pop(step) for step in list(self.steps) if step > line["restored"]}
        elif "step" in line:
            self.steps[line["step"]] = line["elements"]
            if line["step"] in self._undone:
                self.redone.append((self._undone[line["step"]], line["elements"]))
        elif "weight" in line:
            self.weight = line["weight"]
        self.ended = self.ended or "ended" in line

    def go_on(self) -> None:
        """Let one that waits go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def await_step(self, step: int) -> None:
        """Wait until it has done so many, or has come to its end before: others may have read faster."""
        with self._changed:
            assert self._changed.wait_for(lambda: max(self.steps, default=0) >= step or self.ended, 60)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()

    def lose_newest_state(self) -> None:
        """Let it go on from the state before, as when it was killed while it wrote a checkpoint."""
        older, _ = json.loads(self._states.read_text())
        self._states.write_text(json.dumps([older]))

    def finish(self) -> None:
        """Wait until it has read to its end."""
        self._thread.join(60)
        assert self._process.wait(60) == 0
        assert self.ended
        self.kill()

    @property
    def elements(self) -> list[int]:
        return [element for step in sorted(self.steps) for element in self.steps[step]]


@pytest.fixture
def start_trainer(tmp_path: Path) -> Iterator[Callable[..., Trainer]]:
    started: list[Trainer] = []

    def start(address: str, **arguments: Any) -> Trainer:
        started.append(Trainer(tmp_path / str(len(started)), address, **arguments))
        started[-1].begin()
        return started[-1]

    yield start
    for trainer in started:
        trainer.kill()


@pytest.fixture
def start_both(tmp_path: Path) -> Iterator[Callable[..., list[Trainer]]]:
    """Starts two trainers of a job, which begin to read at the same time."""
    started: list[Trainer] = []

    def start(address: str, **arguments: Any) -> list[Trainer]:
        started.extend(Trainer(tmp_path / name, address, job_name="shared", **arguments) for name in ("one", "two"))
        for trainer in started:
            trainer.await_ready()
        for trainer in started:
            trainer.go_on()
        return started

    yield start
    for trainer in started:
        trainer.kill()


ROWS = pytest.param("rows", marks=pytest.mark.long)


@pytest.mark.extended
@pytest.mark.parametrize("kind", [ROWS, "groups"])
def test_a_trainer_that_reads_alone_goes_on_in_its_order(start_trainer: Callable[..., Trainer], kind: str) -> None:
    with service() as address:
        trainer = start_trainer(address, kind=kind)
        trainer.await_step(8)
        trainer.kill()
        trainer.start()
        trainer.finish()
        assert trainer.restored[1] >= 6
        assert trainer.elements == list(range(COUNT if kind == "rows" else 3 * COUNT))
        assert all(before == after for before, after in trainer.redone)


@pytest.mark.extended
@pytest.mark.parametrize("kind", [ROWS, "groups"])
def test_a_shared_job_loses_nothing_and_gives_nothing_twice(
    start_both: Callable[..., list[Trainer]], kind: str
) -> None:
    with service() as address:
        first, second = start_both(address, kind=kind)
        for trainer, step in ((first, 6), (second, 10)):
            trainer.await_step(step)
            trainer.kill()
            trainer.start()
        first.finish()
        second.finish()
        assert first.restored[1] + second.restored[1] > 0  # one may have come when the other had read all
        assert sorted(first.elements + second.elements) == list(range(COUNT if kind == "rows" else 3 * COUNT))


@pytest.mark.extended
def test_what_a_killed_trainer_had_left_goes_to_others_after_its_lease(
    start_both: Callable[..., list[Trainer]], start_trainer: Callable[..., Trainer]
) -> None:
    with service(lease_seconds=2.0) as address:
        gone, left = start_both(address, every=1)
        gone.await_step(10)
        gone.kill()
        left.finish()
        late = start_trainer(address, job_name="shared")  # in case the other one was at its end before
        late.finish()
        given = left.elements + late.elements
        # It has saved after every step but perhaps the last one, which it may not have told of either.
        assert not set(given) & {x for step in sorted(gone.steps)[:-1] for x in gone.steps[step]}
        assert len(set(given)) == len(given)
        assert len(set(range(COUNT)) - set(given) - set(gone.elements)) <= 20


@pytest.mark.extended
@pytest.mark.parametrize("kind", [ROWS, "shuffled", pytest.param("strategy", marks=pytest.mark.extended)])
def test_a_trainer_resumes_with_the_rest_after_its_lease(start_both: Callable[..., list[Trainer]], kind: str) -> None:
    with service(lease_seconds=1.0) as address:
        first, second = start_both(address, kind=kind, every=4)
        first.await_step(10)
        first.kill()
        so_far = len(second.steps)
        second.await_step(so_far + 30)
        first.start()
        first.finish()
        second.finish()
        assert sorted(first.elements + second.elements) == list(range(COUNT))


ELEMENTS = {
    "rows": range(COUNT),
    "uneven groups": [60 * x + n for x in range(COUNT) for n in range((0, 0, 50, 1)[x % 4])],
    "filtered": [x for x in range(COUNT) if x % 5 < 2],
}


@pytest.mark.extended
@pytest.mark.parametrize("kind", [ROWS, pytest.param("uneven groups", marks=pytest.mark.extended), "filtered"])
def test_a_trainer_with_an_older_state_after_its_lease_misses_nothing(
    start_both: Callable[..., list[Trainer]], kind: str
) -> None:
    with service(lease_seconds=1.0) as address:
        first, second = start_both(address, kind=kind, every=2)
        first.await_step(7)
        first.kill()
        first.lose_newest_state()
        second.finish()  # with all that the other one had not used
        first.start()
        first.finish()
        assert sorted(first.elements + second.elements) == list(ELEMENTS[kind])


@pytest.mark.extended
def test_a_dispatcher_killed_meanwhile_knows_the_gap_of_an_older_state(
    start_both: Callable[..., list[Trainer]], start_dispatcher: Callable[..., Any], tmp_path: Path
) -> None:
    dispatcher = start_dispatcher("--work-dir", str(tmp_path / "journal"), "--lease-seconds", "1")
    worker = ps.service.WorkerConfig(dispatcher_address=dispatcher.address)
    with ps.service.WorkerServer(worker), ps.service.WorkerServer(worker):
        first, second = start_both(dispatcher.address, kind="uneven groups", every=2)
        first.await_step(7)
        first.kill()
        first.lose_newest_state()
        dispatcher.kill()
        dispatcher.start()
        second.finish()
        dispatcher.kill()
        dispatcher.start()
        first.start()
        first.finish()
        assert sorted(first.elements + second.elements) == list(ELEMENTS["uneven groups"])


def test_an_older_state_gives_back_a_row_whose_rest_others_had() -> None:
    def shared(address: str) -> ps.Dataset:
        rows = ps.Dataset.range(40).flat_map(lambda x: ps.Dataset.range(10 * x, 10 * x + 10))
        return rows.apply(ps.service.distribute("distributed_epoch", address, job_name="older"))

    with service() as address:
        with iter(shared(address)) as iterator:
            used = [int(next(iterator)) for _ in range(4)]
            older = iterator.state_dict()
            undone = [int(next(iterator)) for _ in range(33)]
            iterator.state_dict()
        others = [int(x) for x in shared(address)]
        assert sorted(used + undone + others) == list(range(400))
        for count in (5, 100):  # the first time it does not come far, and is closed without a state
            with iter(shared(address)) as iterator:
                iterator.load_state_dict(older)
                again = [int(x) for x in islice(iterator, count)]
        assert sorted(again) == sorted(undone)
        assert list(shared(address)) == []


@pytest.mark.extended
def test_a_trainer_and_the_dispatcher_die_together(
    start_both: Callable[..., list[Trainer]], start_dispatcher: Callable[..., Any], tmp_path: Path
) -> None:
    dispatcher = start_dispatcher("--work-dir", str(tmp_path / "journal"))
    worker = ps.service.WorkerConfig(dispatcher_address=dispatcher.address)
    with ps.service.WorkerServer(worker), ps.service.WorkerServer(worker):
        first, second = start_both(dispatcher.address)
        first.await_step(10)
        first.kill()
        dispatcher.kill()
        dispatcher.start()
        first.start()
        first.finish()
        second.finish()
        assert sorted(first.elements + second.elements) == list(range(COUNT))


@pytest.mark.extended
def test_coordinated_trainers_that_are_restored_are_in_step_again(start_trainer: Callable[..., Trainer]) -> None:
    with service() as address:
        first, second = (
            start_trainer(address, job_name="step", consumer_index=index, num_consumers=2) for index in range(2)
        )
        first.await_step(8)
        first.kill()
        first.start()
        first.finish()
        second.finish()
        assert first.restored[1] > 0
        pairs = list(zip(first.elements, second.elements, strict=True))
        assert [pair for pair in pairs if pair[1] != pair[0] + 2] == []
        assert sorted(first.elements + second.elements) == list(range(COUNT))
        assert all(before == after for before, after in first.redone)


@pytest.mark.extended
def test_a_coordinated_trainer_without_a_state_is_in_step_again(
    start_trainer: Callable[..., Trainer],
) -> None:
    reading = {"saving": "nothing", "every": 1, "job_name": "step", "num_consumers": 2}
    with service() as address:
        first = start_trainer(address, consumer_index=0, **reading)
        [its_id] = [one.consumer_id for one in await_consumers(address, lambda consumers: len(consumers) == 1)]
        second = start_trainer(address, consumer_index=1, **reading)
        for step in range(1, 4):
            for trainer in (first, second):
                trainer.await_step(step)
                if step < 3:
                    trainer.go_on()
        # They have had 60 elements each, and have not come for more.
        await_consumers(address, lambda consumers: all(one.round >= 59 for one in consumers))
        before, first.steps = first.elements, {}
        first.kill()
        # Before the dispatcher misses it, its index is its own.
        await_consumers(address, lambda consumers: silence_of(its_id, consumers) > 3 * HEARTBEAT)
        first.start()
        first.await_step(1)
        second.go_on()
        second.await_step(4)
        assert first.elements[0] == before[-1]
        assert [x + 2 for x in first.elements] == second.elements[59:79]


def silence_of(consumer_id: int, consumers: list[ConsumerStatus]) -> float:
    """For how many seconds the dispatcher has not heard of it; infinity where it has given it up."""
    return next((one.seconds_since_heard for one in consumers if one.consumer_id == consumer_id), math.inf)


def await_consumers(address: str, holds: Callable[[list[ConsumerStatus]], bool]) -> list[ConsumerStatus]:
    """Wait until that holds for the consumers that the dispatcher knows, and return them."""
    client = DispatcherClient(address)
    try:
        while not holds(consumers := [one for epoch in client.ask(GetStatus()).epochs for one in epoch.consumers]):
            time.sleep(0.01)
        return consumers
    finally:
        client.close()


@pytest.mark.extended
def test_a_checkpoint_holds_the_reader_and_the_model_of_one_moment(start_trainer: Callable[..., Trainer]) -> None:
    with service() as address:
        first = start_trainer(address, job_name="shared", saving="checkpoint")
        first.await_step(4)
        second = start_trainer(address, job_name="shared")
        first.await_step(8)
        first.kill()
        first.start()
        first.finish()
        second.finish()
        assert first.restored[1] > 0
        assert sorted(first.elements + second.elements) == list(range(COUNT))
        assert first.weight == sum(first.elements)
