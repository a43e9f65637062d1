"""Whatever a message says, as long as it is one: the dispatcher answers, and its journal can be read."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.service.config import DispatcherConfig
from penstock.service.dispatcher.journal import Journal
from penstock.service.dispatcher.machine.machine import Machine
from penstock.service.dispatcher.machine.state import State
from penstock.service.wire.dispatcher_messages import (
    FromDispatcher,
    GetStatus,
    Lease,
    OpenEpoch,
    RegisterDataset,
    ReleaseConsumer,
    ToDispatcher,
    WorkerHello,
)
from penstock.service.wire.subjects import DatasetInfo, Endpoint, JobParameters, Refused, Span


def _loaded() -> Any:
    spec = spec_from_file_location("typed", Path(__file__).parent / "typed.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["typed"] = module
    spec.loader.exec_module(module)
    return module


typed = _loaded()

INFO = DatasetInfo(kind="rows", length=10, cardinality=10)
UNKNOWN = DatasetInfo(kind="sequence", length=-2, cardinality=-2)


def opening(job_name: str, policy: int, **fields: Any) -> OpenEpoch:
    parameters = JobParameters(dataset_id="d", policy=policy)
    return OpenEpoch(
        **{"job_name": job_name, "parameters": parameters, "epoch": 0, "seed": 0, "consumer": "c", **fields}
    )


# What makes it likely that a message is about something.
USUAL = st.sampled_from(
    [
        RegisterDataset(definition=b"x", info=INFO, dataset_id="d"),
        RegisterDataset(definition=b"x", info=UNKNOWN, dataset_id="d"),
        WorkerHello(endpoint=Endpoint(address="localhost:1", process="p")),
        WorkerHello(endpoint=Endpoint(address="localhost:2", process="p")),
        opening("j", 1),
        opening("j", 0, consumer="a"),
        opening("", 0),
        *(Lease(consumer_id=consumer, positions=3, number=1, waiting=True, unread=0) for consumer in range(3)),
    ]
)
SPANS = st.lists(
    st.builds(
        Span,
        pass_number=st.integers(0, 3),
        start=st.integers(0, 4),
        stop=st.integers(0, 11),
        skip=st.integers(0, 3),
        more=st.integers(0, 3),
    ),
    max_size=3,
)
ABOUT = st.one_of(
    st.builds(opening, st.just("j"), st.sampled_from([0, 1]), resumed=SPANS, consumer=st.sampled_from("abc")),
    st.builds(
        Lease,
        consumer_id=st.integers(0, 2),
        positions=st.integers(0, 4),
        number=st.integers(0, 3),
        consumed=SPANS,
        returned=SPANS,
        ended=SPANS,
    ),
    st.builds(ReleaseConsumer, consumer_id=st.integers(0, 2), consumed=SPANS),
)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator["Kept"]:
    made = Kept(str(tmp_path))
    yield made
    made.journal.close()


class Kept:
    """A machine with a journal in a directory of its own."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.journal = Journal(directory, State())
        self.machine = Machine(DispatcherConfig(worker_addresses=["localhost"] * 2), 0.0, self.journal.write)

    def tell(self, message: Any, now: float) -> None:
        before, number = msgspec.msgpack.encode(self.machine.state), self.journal.number
        reply = self.machine.answer(message, now)
        msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=FromDispatcher)
        if isinstance(reply, Refused):
            assert (msgspec.msgpack.encode(self.machine.state), self.journal.number) == (before, number)
            assert "do not apply" not in reply.reason

    def found_again(self) -> State:
        self.journal.close()
        again = Journal(self.directory, State())
        again.close()
        return again.state


@pytest.mark.extended
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_message_makes_a_journal_that_cannot_be_read(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as ending:
        kept = Kept(directory)
        ending.callback(kept.journal.close)  # Hypothesis may give an example up before its end
        for now in range(data.draw(st.integers(1, 12))):
            message = data.draw(USUAL | ABOUT | typed.messages(ToDispatcher))
            if typed.sent(message, ToDispatcher) is not None:
                kept.tell(typed.sent(message, ToDispatcher), float(now))
            if data.draw(st.integers(0, 9)) == 0:
                kept.machine.pass_time(now + data.draw(st.sampled_from([1.0, 20.0, 1000.0, 5000.0])))
        kept.machine.answer(GetStatus(), 20.0)
        stopping = kept.machine.state.stopping
        found = kept.found_again()
        assert msgspec.msgpack.encode(msgspec.structs.replace(found, stopping=stopping)) == msgspec.msgpack.encode(
            kept.machine.state
        )


def test_a_state_of_passes_unknown_to_an_epoch_is_refused(kept: Kept) -> None:
    kept.tell(RegisterDataset(definition=b"x", info=INFO, dataset_id="d"), 0.0)
    for span in (
        Span(pass_number=3, start=0, stop=0, more=2),
        Span(pass_number=3, start=0, stop=4),
    ):
        reply = kept.machine.answer(opening("j", 1, resumed=[span]), 0.0)
        assert isinstance(reply, Refused) and "which this epoch does not have: it has 1 passes" in reply.reason
    assert kept.found_again().jobs == {}


def test_what_does_not_apply_is_refused_and_changes_nothing(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept.tell(RegisterDataset(definition=b"x", info=INFO, dataset_id="d"), 0.0)
    monkeypatch.setattr("penstock.service.dispatcher.machine.opening.check_past", lambda past, parts: None)
    reply = kept.machine.answer(opening("j", 1, resumed=[Span(pass_number=3, start=0, stop=4)]), 0.0)
    assert isinstance(reply, Refused)
    assert reply.reason == "this OpenEpoch asks for changes that do not apply: IndexError('list index out of range')"
    assert "a OpenEpoch asks for changes that do not apply" in caplog.text
    assert kept.machine.state.jobs == {} and kept.found_again().jobs == {}


@pytest.mark.parametrize("field", ["length", "cardinality"])
@pytest.mark.parametrize("value", [-3, (1 << 62) + 1])
def test_a_dataset_of_an_impossible_length_is_refused(kept: Kept, field: str, value: int) -> None:
    info = msgspec.structs.replace(INFO, **{field: value})
    reply = kept.machine.answer(RegisterDataset(definition=b"x", info=info), 0.0)
    assert isinstance(reply, Refused) and f"a dataset's {field} is a number up to 2**62" in reply.reason


def test_a_specification_that_is_nested_too_deeply_is_refused(kept: Kept) -> None:
    deep: Any = None
    for _ in range(150):
        deep = [deep]
    info = msgspec.structs.replace(INFO, element_spec=deep)
    reply = kept.machine.answer(RegisterDataset(definition=b"x", info=info), 0.0)
    assert isinstance(reply, Refused) and "nested more than 100 deep" in reply.reason
    assert ps.InvalidArgumentError.__name__ == reply.kind
