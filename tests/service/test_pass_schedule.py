"""A reader of many workers: so many threads and no more, and no worker that has nothing keeps others waiting."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import pytest
from until import until

import penstock as ps
from penstock.data.block import Block
from penstock.errors import LostDataWorkerError
from penstock.service.reader import pass_schedule
from penstock.service.reader.fetch_task import Arrived, FetchTask
from penstock.service.reader.pass_schedule import MOST_LANES, PassSchedule
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.transport.identity import this_process
from penstock.service.transport.in_process import InProcessServer
from penstock.service.wire.dispatcher_messages import GetDataset, WorkerHello
from penstock.service.wire.interfaces import Answers, WrongAnswerError
from penstock.service.wire.subjects import Endpoint, PassInfo, Span
from penstock.service.wire.worker_answers import checked
from penstock.service.wire.worker_messages import Chunk, End, Failed, Fetch, Pause
from penstock.service.worker import paused_answers
from penstock.service.worker.paused_answers import PausedAnswers
from penstock.service.worker.production import Production
from penstock.structure import LEAF

ELEMENTS = 7


class Fleet:
    """Workers without processes or ports, at a dispatcher of their own.

    Attributes:
        silent: workers with these numbers give nothing before `speak` is set.
    """

    def __init__(self, dispatcher: ps.service.DispatchServer, **settings: Any) -> None:
        self.target = dispatcher.target
        self.silent: set[int] = set()
        self.speak = threading.Event()
        self.servers: list[InProcessServer] = []
        self.most_lanes = 0
        self._settings = settings
        self._client = DispatcherClient(dispatcher.target)
        self._definitions: dict[str, bytes] = {}
        self._productions: list[Production] = []

    def join(self, count: int) -> None:
        for number in range(len(self.servers), len(self.servers) + count):
            production = Production(lambda name, number=number: self._definition(name, number), **self._settings)
            self._productions.append(production)
            self.servers.append(InProcessServer(self._counted(production), f"host{number}:1"))
            self._client.ask(WorkerHello(endpoint=Endpoint(address=f"host{number}:1", process=this_process())))

    def _definition(self, name: str, number: int) -> bytes:
        if number in self.silent:
            assert self.speak.wait(60)
        if name not in self._definitions:
            self._definitions[name] = bytes(self._client.ask(GetDataset(dataset_id=name)).definition)
        return self._definitions[name]

    def _counted(self, production: Production) -> Callable[[Fetch], Answers]:
        def produce(request: Fetch) -> Answers:
            self.most_lanes = max(self.most_lanes, lanes())
            yield from production.fetch(request)

        return produce

    def close(self) -> None:
        self.speak.set()
        for server in self.servers:
            server.stop()
        for production in self._productions:
            production.close()
        self._client.close()


def lanes() -> int:
    return sum(thread.name == "penstock-service-lane" for thread in threading.enumerate())


@contextmanager
def fleet_of(count: int, **settings: Any) -> Iterator[Fleet]:
    config = ps.service.DispatcherConfig(
        heartbeat_seconds=60, lease_seconds=600, worker_addresses=settings.pop("addresses", ())
    )
    with ps.service.DispatchServer(config) as dispatcher:
        fleet = Fleet(dispatcher, **settings)
        try:
            fleet.join(count)
            yield fleet
        finally:
            fleet.close()


@pytest.fixture
def few_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were many workers where there are twelve."""
    monkeypatch.setattr(pass_schedule, "MOST_STREAMS", 4)
    monkeypatch.setattr("penstock.service.reader.lanes.MOST_LANES", 6)
    monkeypatch.setattr("penstock.service.reader.lanes.TURN_SECONDS", 0.1)


def stream(count: int = ELEMENTS) -> ps.Dataset:
    return ps.Dataset.from_generator(lambda: iter(range(count)), output_signature=ps.TensorSpec((), "int64"))


def reading(fleet: Fleet, mode: str, **more: Any) -> ps.Dataset:
    if mode == "coordinated":
        return stream().apply(ps.service.distribute("parallel_epochs", fleet.target, job_name="step", **more))
    if mode == "trainer":
        cache = ps.service.CrossTrainerCache(more.pop("trainer", "a"), wait_for_slowest=True)
        shared = ps.service.distribute("parallel_epochs", fleet.target, job_name="shared", cross_trainer_cache=cache)
        return stream().repeat().apply(shared)
    return stream(more.pop("count", ELEMENTS)).apply(ps.service.distribute(mode, fleet.target, **more))


def numbers(dataset: Any) -> list[int]:
    return [int(x) for x in dataset]


def all_numbers(passes: int, elements: int = ELEMENTS) -> list[int]:
    return sorted([*range(elements)] * passes)


@pytest.mark.slow
def test_the_threads_of_a_reader_do_not_grow_with_the_number_of_workers() -> None:
    with fleet_of(150) as fleet:
        given = numbers(reading(fleet, "parallel_epochs"))
    assert sorted(given) == all_numbers(150)
    assert 0 < fleet.most_lanes <= MOST_LANES


@pytest.mark.slow
@pytest.mark.usefixtures("few_lanes")
def test_parts_of_a_stream_under_a_static_policy_are_exact() -> None:
    with fleet_of(12, addresses=[f"host{number}:1" for number in range(12)]) as fleet:
        given = numbers(reading(fleet, "data", count=60))
    assert sorted(given) == [*range(60)]
    assert fleet.most_lanes <= 6


@pytest.mark.slow
@pytest.mark.usefixtures("few_lanes")
def test_readers_in_step_have_a_few_lanes_each_and_stay_in_step() -> None:
    with fleet_of(12) as fleet, ThreadPoolExecutor(2) as threads:
        readers = [reading(fleet, "coordinated", consumer_index=index, num_consumers=2) for index in range(2)]
        first, second = threads.map(numbers, readers)
    assert first == [number for number in range(0, ELEMENTS - 1, 2) for _ in range(12)]
    assert second == [number + 1 for number in first]
    assert fleet.most_lanes <= 2 * 6


@pytest.mark.slow
@pytest.mark.usefixtures("few_lanes")
def test_passes_of_known_length_come_to_their_end() -> None:
    with fleet_of(12) as fleet:
        scanned = ps.Dataset.range(9).scan(0, lambda total, x: (total + x, total + x))
        assert len(numbers(scanned.apply(ps.service.distribute("parallel_epochs", fleet.target)))) == 12 * 9
        rows = ps.service.distribute("distributed_epoch", fleet.target, job_name="r", consumer_index=0, num_consumers=1)
        assert sorted(numbers(ps.Dataset.range(90).apply(rows))) == [*range(90)]


@pytest.mark.slow
@pytest.mark.usefixtures("few_lanes")
def test_readers_in_step_wait_for_the_worker_whose_round_it_is() -> None:
    """The others have far more than there is room for meanwhile."""
    with fleet_of(12) as fleet:
        fleet.silent = {1}
        limited = reading(fleet, "coordinated", consumer_index=0, num_consumers=1, max_outstanding_requests=2)
        with iter(limited) as elements:
            given = [int(next(elements))]
            threading.Timer(0.5, fleet.speak.set).start()
            given += numbers(elements)
    assert given == [number for number in range(ELEMENTS) for _ in range(12)]


@pytest.mark.slow
@pytest.mark.usefixtures("few_lanes")
def test_trainers_that_wait_for_each_other_at_many_workers_go_on_and_miss_nothing() -> None:
    """All lanes of one could be at workers where it is held back, and all lanes of the other at other workers."""

    def first_of(fleet: Fleet, trainer: str) -> list[int]:
        with iter(reading(fleet, "trainer", trainer=trainer)) as elements:
            given = numbers(islice(elements, 1000))
            both.wait(60)  # so long it is waited for
            return given

    both = threading.Barrier(2)
    with fleet_of(12, window_bytes=1 << 10) as fleet, ThreadPoolExecutor(2) as threads:
        for given in threads.map(lambda name: first_of(fleet, name), "ab"):
            expected: Counter[int] = Counter()  # of each pass its next element
            for number in given:
                expected -= Counter({number: 1})
                expected[(number + 1) % ELEMENTS] += 1
            assert expected.total() <= 12  # who comes second goes on where a window begins by then
    assert fleet.most_lanes <= 2 * 6


@pytest.mark.slow
@pytest.mark.usefixtures("few_lanes")
def test_workers_that_have_nothing_keep_no_lane_from_others() -> None:
    with fleet_of(12) as fleet:
        fleet.silent = set(range(9))
        with iter(reading(fleet, "parallel_epochs")) as elements:
            given = numbers(islice(elements, 3 * ELEMENTS))
            assert sorted(given) == all_numbers(3)
            fleet.speak.set()
            given += numbers(elements)
    assert sorted(given) == all_numbers(12)


@pytest.mark.slow
@pytest.mark.usefixtures("few_lanes")
def test_workers_that_join_are_asked_though_each_lane_waits_for_one_that_has_nothing() -> None:
    with fleet_of(4) as fleet:
        fleet.silent = set(range(4))
        with iter(reading(fleet, "parallel_epochs")) as elements:
            threading.Timer(0.3, fleet.join, [8]).start()
            given = numbers(islice(elements, 8 * ELEMENTS))
            assert sorted(given) == all_numbers(8)
            fleet.speak.set()
            given += numbers(elements)
    assert sorted(given) == all_numbers(12)
    assert fleet.most_lanes <= 6


@pytest.mark.slow
@pytest.mark.usefixtures("few_lanes")
def test_workers_that_are_lost_between_two_turns_cost_no_element() -> None:
    with fleet_of(12) as fleet, iter(reading(fleet, "parallel_epochs", count=2000)) as elements:
        given = numbers(islice(elements, 100))
        for server in fleet.servers[:3]:
            server.stop()
        given += numbers(elements)
    assert sorted(given) == all_numbers(12, 2000)


@pytest.mark.slow
@pytest.mark.usefixtures("few_lanes")
def test_a_state_taken_between_turns_is_exact() -> None:
    with fleet_of(12) as fleet:
        dataset = reading(fleet, "parallel_epochs", count=50)
        with iter(dataset) as elements:
            given = numbers(islice(elements, 333))
            state = elements.state_dict()
        with iter(dataset) as restored:
            restored.load_state_dict(state)
            given += numbers(restored)
    assert sorted(given) == all_numbers(12, 50)


@pytest.mark.slow
@pytest.mark.usefixtures("few_lanes")
def test_a_function_that_fails_is_met_at_its_elements() -> None:
    def fails_at_three(x: int) -> int:
        if x == 3:
            raise ValueError("no")
        return x

    with fleet_of(12) as fleet:
        failing = stream().map(fails_at_three).apply(ps.service.distribute("parallel_epochs", fleet.target))
        given, errors = [], 0
        with iter(failing) as elements:
            while True:
                try:
                    given.append(int(next(elements)))
                except StopIteration:
                    break
                except ValueError:
                    errors += 1
    assert errors == 12
    assert sorted(given) == sorted([0, 1, 2, 4, 5, 6] * 12)


# Whose turn it is


def schedule_of(count: int, **settings: Any) -> tuple[PassSchedule, list[FetchTask]]:
    schedule, tasks = PassSchedule(settings.get("holds_back", False)), []
    for number in range(count):
        tasks.append(FetchTask(Span(pass_number=number, start=0, stop=100)))
        schedule.add(tasks[-1])
    return schedule, tasks


def next_of(
    schedule: PassSchedule, lanes: int = 8, room: int = 1000, awaited: FetchTask | None = None
) -> FetchTask | None:
    return schedule.next(lanes, lambda rows: rows <= room, lambda: [] if awaited is None else [awaited])


def give(task: FetchTask, rows: int) -> None:
    chunk = Chunk(position=task.position, skip=0, rows=rows)
    task.arrive(Arrived(chunk, Block((np.zeros(rows),), LEAF, rows)), "rows", 1)


@pytest.mark.usefixtures("few_lanes")
def test_those_that_gave_something_come_first_and_a_few_lanes_are_for_the_others() -> None:
    schedule, tasks = schedule_of(10)
    asked = [next_of(schedule) for _ in range(10)]
    assert asked == tasks
    for number, task in enumerate(tasks):
        if number >= 6:
            give(task, 1)
        schedule.over(task)
    silent, giving = tasks[:6], tasks[6:]
    assert [next_of(schedule) for _ in range(8)] == [*silent[:2], *giving, *silent[2:4]]
    for task in giving:
        give(task, 1)
        schedule.over(task)
    schedule.over(silent[0])
    assert [next_of(schedule) for _ in range(5)] == [*giving, silent[4]]


@pytest.mark.usefixtures("few_lanes")
def test_without_room_only_what_is_awaited_is_asked_for() -> None:
    schedule, tasks = schedule_of(10)
    assert next_of(schedule, room=0) is None
    assert next_of(schedule, room=0, awaited=tasks[7]) is tasks[7]
    assert next_of(schedule, room=0, awaited=tasks[7]) is None  # it is asked already
    give(tasks[7], 20)
    schedule.over(tasks[7])
    assert next_of(schedule, room=0, awaited=tasks[7]) is None  # something of it is there
    assert [next_of(schedule, room=9) for _ in range(9)] == [*tasks[:7], *tasks[8:]]
    assert next_of(schedule, room=28) is None  # it will have twenty more
    assert next_of(schedule, room=29) is tasks[7]


@pytest.mark.usefixtures("few_lanes")
def test_few_passes_are_asked_without_a_look_at_the_room() -> None:
    """Each has its lane, which waits for room with a block in its hand."""
    schedule, tasks = schedule_of(4)
    assert [next_of(schedule, room=0) for _ in range(5)] == [*tasks, None]


@pytest.mark.usefixtures("few_lanes")
def test_a_reader_that_holds_others_back_looks_in_where_it_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, tasks = schedule_of(5, holds_back=True)
    assert next_of(schedule, room=0) is tasks[0]
    assert tasks[0].looks_in
    schedule.over(tasks[0])
    monkeypatch.setattr(pass_schedule, "LOOK_SECONDS", 1e9)
    assert next_of(schedule, room=0) is None
    assert next_of(schedule) is tasks[1]
    assert not tasks[1].looks_in


# The worker's side


def asked(start: int = 0, stop: int = 1 << 40, **more: Any) -> Fetch:
    info, span = PassInfo(number=0), Span(pass_number=0, start=start, stop=stop)
    more = {"wait_seconds": 30.0, "dataset_id": "d", "consumer": "c", "policy": 0, **more}
    return Fetch(epoch=0, seed=0, pass_info=info, span=span, **more)


class Made:
    """An answer of three blocks of two rows, each of which waits until it may be made."""

    def __init__(self) -> None:
        self.may = threading.Semaphore(0)
        self.begun: list[int] = []
        self.closed = threading.Event()

    def __call__(self, request: Fetch) -> Answers:
        try:
            for position in range(request.span.start, 6, 2):
                self.begun.append(position)
                self.may.acquire()
                yield Chunk(position=position, skip=0, rows=2), Block((np.array([position, position + 1]),), LEAF, 2)
            yield End(length=6)
        finally:
            self.closed.set()


def turn(paused: PausedAnswers, request: Fetch) -> list[Any]:
    return [answer[1].columns[0].tolist() if isinstance(answer, tuple) else answer for answer in paused.turn(request)]


def test_a_turn_gives_one_piece_and_the_worker_goes_on_meanwhile() -> None:
    made = Made()
    paused = PausedAnswers(made)
    assert turn(paused, asked(wait_seconds=0.01)) == [Pause()]
    made.may.release(3)
    assert turn(paused, asked()) == [[0, 1], Pause()]
    until(lambda: made.begun == [0, 2])
    assert turn(paused, asked(2)) == [[2, 3], Pause()]
    assert turn(paused, asked(4)) == [[4, 5], Pause()]
    assert turn(paused, asked(6)) == [End(length=6)]
    until(made.closed.is_set)


def test_what_trainers_share_is_made_when_it_is_asked_for() -> None:
    made = Made()
    paused = PausedAnswers(made)
    made.may.release(3)
    assert turn(paused, asked(trainer="t")) == [[0, 1], Pause()]
    assert turn(paused, asked(2, wait_seconds=0.01, trainer="u")) == [[2, 3], Pause()]  # another answer
    assert made.begun == [0, 2]
    paused.close()
    until(made.closed.is_set)


def test_a_reader_that_asks_for_something_again_gets_it_again() -> None:
    made = Made()
    paused = PausedAnswers(made)
    made.may.release(6)
    assert [turn(paused, asked())[0] for _ in range(2)] == [[0, 1]] * 2
    paused.close()
    with pytest.raises(LostDataWorkerError, match="stopped"):
        turn(paused, asked())


def test_a_reader_that_asks_for_less_gets_no_more() -> None:
    """It does where workers were lost over what follows."""
    made = Made()
    paused = PausedAnswers(made)
    made.may.release(6)
    turn(paused, asked(stop=6))
    until(lambda: made.begun == [0, 2])
    assert turn(paused, asked(2, 4)) == [[2, 3], Pause()]
    assert made.begun[:3] == [0, 2, 2]  # what was made ahead is made again
    paused.close()


def test_answers_that_nobody_asks_for_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made()
    paused = PausedAnswers(made)
    made.may.release(3)
    turn(paused, asked())
    paused.close_idle()
    assert turn(paused, asked(2, looks_in=True)) == [Pause()]  # a reader that looks in
    assert not made.closed.is_set()
    monkeypatch.setattr(paused_answers, "IDLE_SECONDS", -1.0)
    paused.close_idle()
    until(made.closed.is_set)
    assert turn(paused, asked(2, looks_in=True)) == [Pause()]


def test_what_is_wrong_with_an_answer_is_raised_in_a_turn() -> None:
    def refuse(request: Fetch) -> Answers:
        raise LostDataWorkerError("gone")
        yield

    with pytest.raises(LostDataWorkerError, match="gone"):
        turn(PausedAnswers(refuse), asked())


@pytest.mark.slow
def test_a_failure_ends_a_turn() -> None:
    def fail(request: Fetch) -> Answers:
        rest = Span(pass_number=0, start=1, stop=request.span.stop)
        yield Failed(next=rest, module="builtins", name="KeyError", arguments=[], notes=[])

    (answer,) = turn(PausedAnswers(fail), asked())
    assert isinstance(answer, Failed)


def test_a_pause_that_nobody_asked_for_is_a_wrong_answer() -> None:
    def pauses() -> Answers:
        yield Pause()

    with pytest.raises(WrongAnswerError, match="the whole answer was asked for"):
        list(checked(pauses(), asked(wait_seconds=0.0), "sequence", -2))
    with pytest.raises(WrongAnswerError, match=r"and 30\.0 s were to be waited"):  # it would be asked without a pause
        list(checked(pauses(), asked(), "sequence", -2))
    assert list(checked(pauses(), asked(looks_in=True), "sequence", -2)) == [Pause()]
