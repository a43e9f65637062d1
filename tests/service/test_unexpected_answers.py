"""Dispatchers and data workers of other versions, or out of their minds: errors that say so, and no zombies."""

import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock as ps
from penstock.service.dispatcher_client import DispatcherClient
from penstock.service.envelope import PROTOCOL, JournalEntry, ProtocolError, sealed
from penstock.service.messages import (
    ConsumerNews,
    GetStatus,
    RegisterDataset,
    WorkerNews,
)
from penstock.service.subjects import DatasetInfo


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


def of_the_next_version(kind: type) -> Any:
    """Answers of that kind have one field more."""

    def alter(message: Any, reply: Any, entry: JournalEntry) -> bytes:
        if not isinstance(reply, kind):
            return sealed(reply, entry)
        content = {**msgspec.msgpack.decode(msgspec.msgpack.encode(reply)), "new": 1}
        return msgspec.msgpack.encode((PROTOCOL, "9.9", entry, content))

    return alter


def of_another_protocol(message: Any, reply: Any, entry: JournalEntry) -> bytes:
    return msgspec.msgpack.encode((PROTOCOL + 1, "9.9", entry, {"unheard": "of"}))


OTHER_PROTOCOL = (
    rf"the dispatcher at localhost:\d+ has penstock 9\.9, which speaks protocol {PROTOCOL + 1} of the data service, "
    rf"and this process has penstock .* with protocol {PROTOCOL}: install the same version on both"
)
ONE_FIELD_MORE = r"localhost:\d+ \(penstock 9\.9\) cannot be read by this process .*unknown field `new`"


# Versions


def test_a_dispatcher_of_another_version_is_named_at_the_first_word(dispatcher: Any) -> None:
    dispatcher.alter = of_another_protocol
    with pytest.raises(ps.ServiceError, match=OTHER_PROTOCOL):
        DispatcherClient(dispatcher.address).ask(GetStatus())
    with pytest.raises(ps.ServiceError, match=OTHER_PROTOCOL), altering.workers_of(dispatcher.address):
        pass
    transformation = ps.service.distribute("distributed_epoch", dispatcher.address)
    with pytest.raises(ps.ServiceError, match=OTHER_PROTOCOL):
        next(iter(ps.Dataset.range(3).apply(transformation)))


@pytest.mark.parametrize(
    ("alter", "message"),
    [(of_the_next_version(WorkerNews), ONE_FIELD_MORE), (of_another_protocol, OTHER_PROTOCOL)],
    ids=["one field more", "another protocol"],
)
def test_a_worker_whose_dispatcher_comes_back_in_another_version_ends(
    dispatcher: Any, alter: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with altering.workers_of(dispatcher.address) as (worker,):
        dispatcher.alter = alter
        with pytest.raises(ps.ServiceError, match=message):
            worker.join(20)
    assert "this data worker ends: " in caplog.text


@pytest.mark.parametrize("job_name", [None, "shared"])
@pytest.mark.parametrize(
    ("alter", "message"),
    [(of_the_next_version(ConsumerNews), ONE_FIELD_MORE), (of_another_protocol, OTHER_PROTOCOL)],
    ids=["one field more", "another protocol"],
)
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
                for _ in iterator:
                    pass


def test_two_answers_to_one_message_are_an_error(dispatcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = dispatcher.do_action
    monkeypatch.setattr(type(dispatcher), "do_action", lambda self, context, action: answer(context, action) * 2)
    with pytest.raises(ps.ServiceError, match=r"the dispatcher at localhost:\d+ gave 2 answers to one message"):
        DispatcherClient(dispatcher.address).ask(GetStatus())


# Threads


def test_a_worker_ends_and_says_so_when_what_keeps_it_in_touch_fails(
    dispatcher: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with altering.workers_of(dispatcher.address) as (worker,):
        monkeypatch.setattr(worker._duty._production, "keep", lambda datasets: 1 / 0)
        with pytest.raises(ps.ServiceError, match="failed to keep in touch with its dispatcher: ZeroDivisionError"):
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
    assert caplog.text.count("the dispatcher failed to do what is due, and tries again") == 1


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
        assert "is older than what its dispatcher has answered" in caplog.text
    with ps.service.DispatchServer(ps.service.DispatcherConfig(work_dir=tmp_path)) as server:
        server._shell.failure = dispatcher.failure
        server.stop()
        with pytest.raises(ps.StorageError, match="or choose another work_dir to begin anew on purpose"):
            server.join()


def test_a_worker_that_knows_of_another_journal_is_welcome(tmp_path: Path) -> None:
    with altering.altering_dispatcher(work_dir=tmp_path) as dispatcher:
        dispatcher.alter = lambda message, reply, entry: sealed(reply, JournalEntry("another", 1 << 40))
        client = DispatcherClient(dispatcher.address)
        client.ask(GetStatus())
        client.ask(GetStatus())
