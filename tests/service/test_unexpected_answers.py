"""Dispatchers and data workers of other versions, or out of their minds: errors that say so, and no zombies."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import msgspec
import pytest
from forked import Forked

import penstock as ps
from penstock.errors import LostDataWorkerError
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import (
    ConsumerNews,
    Done,
    EpochOpened,
    GetDataset,
    GetStatus,
    Leased,
    RegisterDataset,
    WorkerHello,
    WorkerNews,
    WorkerWelcome,
)
from penstock.service.wire.envelope import PROTOCOL, JournalEntry, ProtocolError, sealed
from penstock.service.wire.interfaces import UnreachedDataWorkerError
from penstock.service.wire.refusals import raise_refused, refusal_of
from penstock.service.wire.subjects import DatasetInfo, Endpoint, PassInfo, Span, WorkerInfo
from penstock.service.wire.worker_messages import End, Failed, LeftOut, Making, RowLeftOut
from penstock.version import VERSION


def _loaded() -> Any:
    spec = spec_from_file_location("altering", Path(__file__).parent / "altering.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["altering"] = module
    spec.loader.exec_module(module)
    return module


altering = _loaded()


@pytest.fixture
def dispatcher() -> Iterator[Any]:
    with altering.altering_dispatcher() as started:
        yield started


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def with_one_field_more(kind: type) -> Any:
    """Answers of that kind have one field more, as in a version whose protocol's number was forgotten."""

    def alter(message: Any, reply: Any, entry: JournalEntry) -> bytes:
        if not isinstance(reply, kind):
            return sealed(reply, entry)
        content = {**msgspec.msgpack.decode(msgspec.msgpack.encode(reply)), "new": 1}
        return msgspec.msgpack.encode((PROTOCOL, VERSION, entry, content))

    return alter


def of_another_version(message: Any, reply: Any, entry: JournalEntry) -> bytes:
    return msgspec.msgpack.encode((PROTOCOL, "9.9", entry, reply))


def of_another_protocol(message: Any, reply: Any, entry: JournalEntry) -> bytes:
    return msgspec.msgpack.encode((PROTOCOL + 1, "9.9", entry, {"unheard": "of"}))


OTHER_PROTOCOL = (
    rf"the dispatcher at localhost:\d+ has penstock 9\.9, which speaks protocol {PROTOCOL + 1} of the data service, "
    rf"and this process has penstock .* with protocol {PROTOCOL}: install the same version on both"
)
ONE_FIELD_MORE = r"localhost:\d+ \(penstock .*\) cannot be read by this process .*unknown field `new`"


# Versions


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (of_another_protocol, OTHER_PROTOCOL),
        (
            of_another_version,
            r"the dispatcher at localhost:\d+ has penstock 9\.9, .*: install the same version on both",
        ),
    ],
    ids=["another protocol", "another version"],
)
def test_a_dispatcher_of_another_version_is_named_at_the_first_word(dispatcher: Any, alter: Any, message: str) -> None:
    dispatcher.alter = alter
    with pytest.raises(ps.errors.ServiceError, match=message):
        DispatcherClient(dispatcher.address).ask(GetStatus())
    with pytest.raises(ps.errors.ServiceError, match=message), altering.workers_of(dispatcher.address):
        pass
    transformation = ps.service.distribute("distributed_epoch", dispatcher.address)
    with pytest.raises(ps.errors.ServiceError, match=message):
        next(iter(ps.Dataset.range(3).apply(transformation)))


WORKER_WITH_ANOTHER_NUMPY = """
import sys
import penstock as ps
from penstock.service.wire import definitions

ours = definitions.versions()
definitions.versions = lambda: {**ours, "NumPy": "1.0"}
with ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_worker_with_another_numpy_ended_the_readers_of_others(
    dispatcher: Any, caplog: pytest.LogCaptureFixture
) -> None:
    other = Forked("-c", WORKER_WITH_ANOTHER_NUMPY, dispatcher.address, pipes=("stdin", "stdout"))
    try:
        assert other.stdout is not None and other.stdout.readline() == "ready\n"
        transformation = ps.service.distribute("distributed_epoch", dispatcher.address)
        dataset = ps.Dataset.range(1 << 40).map(lambda x: x).apply(transformation)
        message = r"a trainer with NumPy .*, this data worker has NumPy 1\.0: install the same on both"
        with iter(dataset) as iterator, pytest.raises(ps.errors.ServiceError, match=message):
            next(iterator)
        with altering.workers_of(dispatcher.address), iter(dataset) as iterator:
            # A reader that has everything does not wait for the other worker's answer.
            for position, element in enumerate(iterator):
                assert int(element) == position
                if position >= 200 and "this data worker has NumPy 1.0" in caplog.text:
                    break
    finally:
        other.communicate(60)


@pytest.mark.parametrize(
    ("alter", "message"),
    [(with_one_field_more(WorkerNews), ONE_FIELD_MORE), (of_another_protocol, OTHER_PROTOCOL)],
    ids=["one field more", "another protocol"],
)
def test_a_worker_whose_dispatcher_comes_back_in_another_version_ends(
    dispatcher: Any, alter: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with altering.workers_of(dispatcher.address) as (worker,):
        dispatcher.alter = alter
        with pytest.raises(ps.errors.ServiceError, match=message):
            worker.join(20)
    assert "this data worker ends: " in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("job_name", [None, "shared"])
@pytest.mark.parametrize(
    ("alter", "message"),
    [(with_one_field_more(ConsumerNews), ONE_FIELD_MORE), (of_another_protocol, OTHER_PROTOCOL)],
    ids=["one field more", "another protocol"],
)
@pytest.mark.extended
def test_a_reader_whose_dispatcher_comes_back_in_another_version_ends(
    dispatcher: Any, alter: Any, message: str, job_name: str | None
) -> None:
    with altering.workers_of(dispatcher.address):
        numbers = ps.Dataset.range(1 << 40).map(lambda x: x)
        transformation = ps.service.distribute("distributed_epoch", dispatcher.address, job_name=job_name)
        with iter(numbers.apply(transformation)) as iterator:
            next(iterator)
            dispatcher.alter = alter
            with pytest.raises(ProtocolError, match=message):
                sum(1 for _ in iterator)


@pytest.mark.extended
@pytest.mark.parametrize("protocol", ["in_process", "flight"])
def test_a_worker_that_meets_another_version_ends_no_reader(dispatcher: Any, protocol: str) -> None:
    """The reader was told that its own dispatcher had another version, in the words of the worker."""
    refused = []

    def alter(message: Any, reply: Any, entry: JournalEntry) -> bytes:
        if not isinstance(message, GetDataset) or not message.with_definition or refused:
            return sealed(reply, entry)
        refused.append(message)
        return of_another_protocol(message, reply, entry)

    with altering.workers_of(dispatcher.address):
        dispatcher.alter = alter
        transformation = ps.service.distribute("distributed_epoch", dispatcher.address, data_transfer_protocol=protocol)
        with iter(ps.Dataset.range(100).map(lambda x: x).apply(transformation)) as iterator:
            assert [int(x) for x in iterator] == list(range(100))
    assert refused


def test_a_worker_that_refuses_to_answer_has_not_ended_over_an_element() -> None:
    with pytest.raises(UnreachedDataWorkerError, match="it is ending"):
        raise_refused(refusal_of(LostDataWorkerError("it is ending")))


# Threads


def test_a_worker_ends_and_says_so_when_what_keeps_it_in_touch_fails(
    dispatcher: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with altering.workers_of(dispatcher.address) as (worker,):
        monkeypatch.setattr(worker._started._production, "keep", lambda datasets, silent: 1 / 0)
        with pytest.raises(
            ps.errors.ServiceError, match="failed to keep in touch with its dispatcher: ZeroDivisionError"
        ):
            worker.join(20)
    assert "this data worker ends: it failed to keep in touch with its dispatcher" in caplog.text


def test_a_dispatcher_goes_on_when_what_is_due_fails_once(
    dispatcher: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_time, calls = dispatcher._machine.pass_time, []

    def failing(now: float) -> None:
        calls.append(now)
        if len(calls) < 3:
            raise ZeroDivisionError
        pass_time(now)

    monkeypatch.setattr(dispatcher._machine, "pass_time", failing)
    wait_for(lambda: len(calls) > 3)
    assert caplog.text.count("the dispatcher failed to make the changes that are due, and tries again") == 1


# A journal that is older than what was answered


def test_a_dispatcher_with_an_older_journal_ends_when_somebody_knows_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    info = DatasetInfo(kind="rows", length=10, cardinality=10)
    with altering.altering_dispatcher(work_dir=tmp_path) as dispatcher:
        client = DispatcherClient(dispatcher.address)
        for content in (b"a", b"b"):
            client.ask(RegisterDataset(definition=content, info=info))
        dispatcher.alter = lambda message, reply, entry: sealed(reply, JournalEntry(entry.journal, 7))
        client.ask(GetStatus())
        dispatcher.alter = altering.plainly
        with pytest.raises(ps.StorageError, match=r"journal\.sqlite is older than .* knows of entry 7, .* ends with 2"):
            client.ask(GetStatus(), patience_seconds=0)
        assert dispatcher.ended.wait(20)
        assert "is older than the answers of its dispatcher" in caplog.text
    with ps.service.DispatchServer(ps.service.DispatcherConfig(work_dir=tmp_path)) as server:
        server._started.failure = dispatcher.failure
        server.stop()
        with pytest.raises(ps.StorageError, match="or choose another work_dir to start over"):
            server.join()


def test_a_worker_that_knows_of_another_journal_is_welcome(tmp_path: Path) -> None:
    with altering.altering_dispatcher(work_dir=tmp_path) as dispatcher:
        dispatcher.alter = lambda message, reply, entry: sealed(reply, JournalEntry("another", 1 << 40))
        client = DispatcherClient(dispatcher.address)
        client.ask(GetStatus())
        client.ask(GetStatus())


# Answers of a dispatcher that are none


SPAN = Span(pass_number=0, start=0, stop=4)
ENDLESS_RANGE = 1 << 40


def read_all(dispatcher: Any, job_name: str | None = None, count: int = 100) -> list[int]:
    numbers = ps.Dataset.range(count).map(lambda x: x)
    transformation = ps.service.distribute("distributed_epoch", dispatcher.address, job_name=job_name)
    with iter(numbers.apply(transformation)) as iterator:
        return sorted(int(x) for x in iterator)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Leased, {"retry_after": math.nan}, "a pause of nan s"),
        (Leased, {"retry_after": math.inf}, "a pause of inf s"),
        (Leased, {"retry_after": -1.0}, r"a pause of -1\.0 s"),
        (Leased, {"spans": []}, "neither positions nor an end nor a pause"),
        (Leased, {"spans": [msgspec.structs.replace(SPAN, stop=0)]}, "no span of a pass"),
        (Leased, {"spans": [msgspec.structs.replace(SPAN, start=9)]}, "no span of a pass"),
        (Leased, {"spans": [msgspec.structs.replace(SPAN, stop=1 << 63)]}, "no span of a pass"),
        (
            Leased,
            {"spans": [msgspec.structs.replace(SPAN, pass_number=7)]},
            "leases spans of passes that it has not announced: ",
        ),
        (Leased, {"spans": [SPAN, SPAN]}, "which overlap"),
        (Leased, {"spans": [SPAN], "ended": True}, "positions of an epoch that has ended"),
        (EpochOpened, {"passes": [PassInfo(number=1)]}, "pass 1 in the place of pass 0"),
        (EpochOpened, {"passes": [PassInfo(number=0, num_shards=0)]}, "shard 0 of 0"),
        (EpochOpened, {"passes": [PassInfo(number=0, length=-3)]}, "a pass of -3 positions"),
        (EpochOpened, {"epoch": 5}, "epoch 5 instead of 0"),
        (EpochOpened, {"leased": False}, "a reader that is to own its positions"),
        (EpochOpened, {"turn": -1}, "the turn of pass -1 of 1"),
        (EpochOpened, {"rounds": [1]}, r"rounds \[1\] of reads that are not coordinated"),
        (ConsumerNews, {"passes": [PassInfo(number=3)]}, "pass 3 in the place of pass 0"),
        (ConsumerNews, {"left": [3]}, r"of workers \[3\], which it was not asked about"),
    ],
)
def test_an_answer_of_a_dispatcher_that_is_none_is_an_error_that_says_so(
    dispatcher: Any, kind: type, fields: dict[str, Any], message: str
) -> None:
    with altering.workers_of(dispatcher.address):
        dispatcher.alter = altering.with_fields(kind, **fields)
        with pytest.raises(ps.errors.ServiceError, match=message):
            read_all(dispatcher, "shared", ENDLESS_RANGE if kind is ConsumerNews else 100)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 0.0])
def test_a_worker_is_not_told_to_report_at_impossible_times(dispatcher: Any, seconds: float) -> None:
    dispatcher.alter = altering.with_fields(WorkerWelcome, heartbeat_seconds=seconds)
    with (
        pytest.raises(ps.errors.ServiceError, match=f"a report every {seconds} s"),
        altering.workers_of(dispatcher.address),
    ):
        pass


def test_an_answer_to_another_message_is_an_error(dispatcher: Any) -> None:
    dispatcher.alter = lambda message, reply, entry: sealed(Done(), entry)
    message = r"answered a GetStatus with an invalid answer: a Status was expected, got a Done"
    with pytest.raises(ps.errors.ServiceError, match=message):
        DispatcherClient(dispatcher.address).ask(GetStatus())


@pytest.mark.slow
def test_a_pass_that_has_come_is_known_before_its_positions_are_read(dispatcher: Any) -> None:
    """Positions of a worker's pass could be leased before its readers had heard of the worker."""

    def late(message: Any, reply: Any, entry: JournalEntry) -> bytes:
        if isinstance(reply, ConsumerNews) and not any(span.pass_number for span in leased(dispatcher)):
            reply = ConsumerNews(version=message.version)
        return sealed(reply, entry)

    dispatcher.alter = late
    with altering.workers_of(dispatcher.address):
        numbers = ps.Dataset.range(1000).map(slowly)
        transformation = ps.service.distribute("parallel_epochs", dispatcher.address, job_name="shared")
        with iter(numbers.apply(transformation)) as iterator:
            given = [int(next(iterator))]
            with altering.workers_of(dispatcher.address):
                given += [int(x) for x in iterator]
    assert sorted(given) == sorted([*range(1000), *range(1000)])


def slowly(x: int) -> int:
    time.sleep(0.0005)
    return x


def leased(dispatcher: Any) -> list[Span]:
    return [span for _, reply in dispatcher.heard if isinstance(reply, Leased) for span in reply.spans]


# Answers of a worker that are none


def first_block(change: Callable[[Any, Any], Iterator[Any]]) -> Any:
    """Something else in place of the first block of each answer."""

    def alter(request: Any, answers: Any) -> Any:
        changed = False
        for answer in answers:
            if changed or not isinstance(answer, tuple):
                yield answer
            else:
                changed = True
                yield from change(*answer)

    return alter


def at(**fields: Any) -> Any:
    return first_block(lambda chunk, block: iter([(msgspec.structs.replace(chunk, **fields), block)]))


def ending(end: Any) -> Any:
    return first_block(lambda chunk, block: iter([end]))


@pytest.mark.slow
def test_an_element_over_which_workers_were_lost_is_asked_for_alone(dispatcher: Any) -> None:
    asked = []

    def alter(request: Any, answers: Any) -> Any:
        if request.span.start <= 57 < request.span.stop:
            asked.append((request.span.stop - request.span.start == 1, request.alone))
            if len(asked) < 4:
                raise LostDataWorkerError("it has ended")
        yield from answers

    with altering.workers_of(dispatcher.address, [alter] * 4):
        assert read_all(dispatcher) == list(range(100))
    assert asked == [(False, False), (False, False), (True, True), (True, True)]


LEFT_OUT = RowLeftOut(node="map", site="file.py:1", position=0, error="ValueError")
WRONG = {
    "a block again": first_block(lambda chunk, block: iter([(chunk, block), (chunk, block)])),
    "a block that is not there": first_block(lambda chunk, block: iter([])),
    "a block behind the span": at(position=1 << 40),
    "a block before the span": at(position=-1),
    "a place beyond 64 bits": at(skip=(1 << 64) - 1),
    "more rows than the block has": at(rows=1 << 40),
    "no rows": at(rows=0),
    "no time": at(seconds=math.nan),
    "a piece announced that nobody asked for": ending(Making()),
    "an end that is too early": ending(End()),
    "a length of what has not come": ending(End(length=100)),
    "a negative length": ending(End(length=-7)),
    "an end that leaves out": ending(End(skip=3)),
    "rows left out of which none is named": at(left_out=LeftOut(count=3, rows=[])),
    "more rows named than left out": at(left_out=LeftOut(count=1, rows=[LEFT_OUT, LEFT_OUT])),
    "rows left out without number": at(left_out=LeftOut(count=1 << 63, rows=[LEFT_OUT])),
    "a row left out at no position": at(
        left_out=LeftOut(count=1, rows=[msgspec.structs.replace(LEFT_OUT, position=-1)])
    ),
    "rows left out behind what goes on": ending(End(left_out=LeftOut(count=1, rows=[LEFT_OUT]))),
    "a failure without an end": ending(
        Failed(next=Span(pass_number=0, start=0, stop=100), module="builtins", name="E", arguments=[], notes=[])
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", WRONG)
def test_a_worker_that_answers_what_it_was_not_asked_is_left_to_itself(
    dispatcher: Any, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    with altering.workers_of(dispatcher.address, [WRONG[what], None]):
        assert read_all(dispatcher) == list(range(100))
        assert read_all(dispatcher, "shared") == list(range(100))
    assert "others take over" in caplog.text


@pytest.mark.extended
def test_workers_that_all_answer_what_they_were_not_asked_are_an_error(dispatcher: Any) -> None:
    message = (
        r"the data worker at localhost:\d+ gave an answer that does not fit the request: a block of \d+ rows came .* "
        r"said to have 0"
    )
    with altering.workers_of(dispatcher.address, [at(rows=0)]), pytest.raises(ps.errors.ServiceError, match=message):
        read_all(dispatcher)


# Addresses that are none


def test_a_worker_with_no_address_is_refused_by_the_dispatcher(dispatcher: Any) -> None:
    hello = WorkerHello(endpoint=Endpoint(address="bad:host:5"))
    with pytest.raises(ps.InvalidArgumentError, match="reach it at 'bad:host:5', which is no \"host:port\": start it"):
        DispatcherClient(dispatcher.address).ask(hello)


@pytest.mark.parametrize("address", ["localhost:99999", "bad:host:5", "localhost:", "localhost:1"])
def test_one_bad_endpoint_ends_no_reader_that_has_others(dispatcher: Any, address: str) -> None:
    def alter(message: Any, reply: Any, entry: JournalEntry) -> bytes:
        if isinstance(reply, EpochOpened):
            bad = WorkerInfo(worker_id=0, endpoint=Endpoint(address=address), place=5)
            reply = msgspec.structs.replace(reply, workers=[bad, *reply.workers])
        return sealed(reply, entry)

    dispatcher.alter = alter
    with altering.workers_of(dispatcher.address):
        assert read_all(dispatcher) == list(range(100))


def test_bad_endpoints_alone_are_an_error_that_says_so(dispatcher: Any) -> None:
    bad = WorkerInfo(worker_id=0, endpoint=Endpoint(address="bad:host:5"), place=5)
    dispatcher.alter = altering.with_fields(EpochOpened, workers=[bad, msgspec.structs.replace(bad, worker_id=1)])
    with pytest.raises(ps.errors.ServiceError, match="the address 'bad:host:5' of a data worker is no \"host:port\""):
        read_all(dispatcher)


@pytest.mark.slow
def test_a_worker_that_shortens_a_pass_hides_no_element(dispatcher: Any) -> None:
    with altering.workers_of(dispatcher.address, [ending(End(length=0)), None]):
        assert read_all(dispatcher) == list(range(100))
