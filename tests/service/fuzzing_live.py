"""Messages of every type, made from their definitions, against a dispatcher and a worker that run, both ways.

    python tests/service/fuzzing_live.py [-max_total_time=SECONDS] [WAY]

Each way does one thing for as long as that; `make fuzz` runs all of them. What is found is printed with its traceback.
"""

import faulthandler
import logging
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import msgspec
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.data.block import Block
from penstock.errors import PenstockError
from penstock.service.config import WorkerConfig
from penstock.service.dispatcher.journal import Journal
from penstock.service.dispatcher.machine.state import State
from penstock.service.reader import session
from penstock.service.transport.connect import PROTOCOLS, connect
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import FromDispatcher, GetStatus, Stop, ToDispatcher
from penstock.service.wire.envelope import JournalEntry, sealed
from penstock.service.wire.failures import to_exception
from penstock.service.wire.refusals import raise_refused
from penstock.service.wire.subjects import Refused
from penstock.service.wire.worker_messages import Chunk, End, Failed, Fetch, Making
from penstock.structure import flatten

sys.path.insert(0, str(Path(__file__).parent))

import altering
import typed

_FOREIGN = (ValueError, TypeError, KeyError)
"""What a failure of a function may be by its own word: the classes that `Failed` is given here."""
_LONGEST_SECONDS = 60.0
_PATIENCE_SECONDS = 1.0
_MOST_MESSAGES = 500


class _Log(logging.Handler):
    """Keeps what was logged with a traceback: nobody meant that."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(self.format(record))


@contextmanager
def _nothing_unexpected() -> Iterator[None]:
    """Raise what was logged with a traceback, or ended a thread."""
    log, found, hook = _Log(), [], threading.excepthook
    logging.getLogger("penstock").addHandler(log)
    threading.excepthook = lambda arguments: found.append("".join(traceback.format_exception(arguments.exc_value)))
    try:
        yield
    finally:
        threading.excepthook = hook
        logging.getLogger("penstock").removeHandler(log)
    if log.found or found:
        raise AssertionError("\n".join([*log.found, *found]))


def _many(strategy: st.SearchStrategy[Any], times: int) -> Callable[[Callable[[Any], None]], None]:
    """Calls a function with so many examples; the first that it does not bear is made small."""

    def run(function: Callable[[Any], None]) -> None:
        phases = (Phase.generate, Phase.shrink)
        checks = list(HealthCheck)
        settings(max_examples=times, deadline=None, suppress_health_check=checks, phases=phases, database=None)(
            given(strategy)(function)
        )()

    return run


def to_dispatcher(times: int) -> None:
    """Any messages to a dispatcher with a journal, which goes on, and whose journal can be read then."""
    with tempfile.TemporaryDirectory() as directory:
        with (
            altering.altering_dispatcher(work_dir=directory, worker_addresses=["localhost"]) as dispatcher,
            closing(DispatcherClient(dispatcher.address, patience_seconds=0)) as client,
        ):

            def tell(message: Any) -> None:
                if isinstance(message, Stop) or typed.sent(message, ToDispatcher) is None:
                    return
                with _nothing_unexpected(), suppress(PenstockError):
                    client.ask(message)
                client.ask(GetStatus())

            _many(typed.messages(ToDispatcher), times)(tell)
        Journal(directory, State()).close()


def to_worker(times: int) -> None:
    """Any requests to a worker, by each protocol."""
    with altering.altering_dispatcher() as dispatcher, ExitStack() as stack:
        server = stack.enter_context(ps.service.WorkerServer(WorkerConfig(dispatcher_address=dispatcher.address)))
        numbers = ps.Dataset.range(20).map(lambda x: x)
        for kind, dataset in {"d": numbers, "j": numbers.repeat(2), "a": numbers.filter(lambda x: x % 2 == 0)}.items():
            ps.service.register_dataset(dispatcher.address, dataset, dataset_id=kind)
        assert server._started is not None
        endpoint = server._started._endpoint
        lines = [stack.enter_context(closing(connect(endpoint, protocol))) for protocol in PROTOCOLS]

        def fetch(request: Fetch) -> None:
            if typed.sent(request, Fetch) is None:
                return
            for line in lines:
                with _nothing_unexpected(), suppress(PenstockError):
                    answers = line.fetch(request)
                    with closing(answers):
                        for _, answer in zip(range(5), answers, strict=False):
                            assert isinstance(answer, (tuple, End, Failed, Making))

        _many(typed.messages(Fetch), times)(fetch)


def from_dispatcher(times: int) -> None:
    """Any answers of a dispatcher to a reader: its elements, or an error that is one of penstock's."""
    kinds = get_args(FromDispatcher)
    one_of_each = st.fixed_dictionaries({kind: st.deferred(lambda kind=kind: typed.messages(kind)) for kind in kinds})
    with (
        altering.altering_dispatcher() as dispatcher,
        altering.workers_of(dispatcher.address),
        patch.object(session, "_HEARTBEAT_SECONDS", 0.005),
    ):
        _many(st.tuples(one_of_each, st.integers(0, 6), st.integers(0, 1 << 30)), times)(
            lambda drawn: _read_altered(dispatcher, *drawn)
        )


def _read_altered(dispatcher: Any, replies: dict[type, Any], after: int, seed: int) -> None:
    """Read while one or two answers after the first few are others, or have a field of others."""
    chance = random.Random(seed)
    asked, left = 0, chance.choice([1, 1, 2, 1000])

    def alter(message: Any, reply: Any, entry: JournalEntry) -> bytes:
        nonlocal asked, left
        if type(message).__name__.startswith("Worker"):
            return sealed(reply, entry)
        asked += 1
        if asked <= after or not left:
            return sealed(reply, entry)
        left -= 1
        other = replies[chance.choice(list(replies))] if chance.random() < 0.1 else replies[type(reply)]
        if type(other) is type(reply) and reply.__struct_fields__ and chance.random() < 0.8:
            name = chance.choice(reply.__struct_fields__)
            other = msgspec.structs.replace(reply, **{name: getattr(other, name)})
        return sealed(other, entry)

    dispatcher.alter = alter
    try:
        with _nothing_unexpected():
            _read(dispatcher.address, job_name=chance.choice([None, f"job {seed}"]))
        assert asked < _MOST_MESSAGES, f"{asked} messages"
    finally:
        dispatcher.alter = altering.plainly


def _slowly(x: int) -> int:
    time.sleep(0.001)
    return x


def _read(address: str, **arguments: Any) -> list[int]:
    mode = random.Random(len(address)).choice(["distributed_epoch", "parallel_epochs"])
    numbers = ps.Dataset.range(60).map(_slowly)
    transformation = ps.service.distribute(mode, address, dispatcher_timeout_seconds=0.5, **arguments)
    faulthandler.dump_traceback_later(_LONGEST_SECONDS, exit=True)
    given: list[int] = []
    try:
        with iter(numbers.apply(transformation)) as iterator, _closed_after(_PATIENCE_SECONDS, iterator.close):
            for _ in range(200):
                try:
                    given.append(int(next(iterator)))
                except StopIteration:
                    break
    except (PenstockError, *_FOREIGN) as error:
        if not isinstance(error, PenstockError) and not getattr(error, "__notes__", ()):
            raise
    finally:
        faulthandler.cancel_dump_traceback_later()
    return given


@contextmanager
def _closed_after(seconds: float, close: Callable[[], None]) -> Iterator[None]:
    """A reader may wait for what it was told to wait for, such as a worker to come: it is closed then."""
    timer = threading.Timer(seconds, close)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def from_worker(times: int) -> None:
    """Any answers of a worker to a reader that has another one: exactly its elements."""
    kinds = typed.messages(Chunk | End | Making)
    with altering.altering_dispatcher() as dispatcher:
        drawn: list[Any] = []

        def change(request: Fetch, answers: Any) -> Iterator[Any]:
            for answer in answers:
                other = drawn.pop() if drawn else None
                if other is None or not isinstance(answer, tuple):
                    yield answer
                elif isinstance(other, Chunk):
                    yield other, (answer[1] if len(drawn) % 2 else _other_block())
                else:
                    yield other
                    return

        def read_all(others: list[Any]) -> None:
            drawn[:] = others
            numbers = ps.Dataset.range(60).map(lambda x: x)
            transformation = ps.service.distribute("distributed_epoch", dispatcher.address)
            faulthandler.dump_traceback_later(_LONGEST_SECONDS, exit=True)
            with _nothing_unexpected(), iter(numbers.apply(transformation)) as iterator:
                given = sorted(int(x) for x in iterator)
            faulthandler.cancel_dump_traceback_later()
            assert len(given) == 60, f"{len(given)} elements after {others}"

        with altering.workers_of(dispatcher.address, [change, None]):
            _many(st.lists(kinds, min_size=1, max_size=2), times)(read_all)


def _other_block() -> Block:
    leaves, structure = flatten(np.arange(3))
    return Block(tuple(leaves), structure, 3)


def refusals(times: int) -> None:
    """Any refusals and failures, as errors."""

    def meet(message: Any) -> None:
        if isinstance(message, Failed):
            str(to_exception(message))
        else:
            with suppress(PenstockError):
                raise_refused(message)

    _many(typed.messages(Failed | Refused), times)(meet)


WAYS: dict[str, Callable[[int], None]] = {
    way.__name__: way for way in (to_dispatcher, to_worker, from_dispatcher, from_worker, refusals)
}


def main(arguments: Sequence[str]) -> int:
    """Do each way, or the one that is named, for as long as was asked."""
    seconds = next((float(one.partition("=")[2]) for one in arguments if one.startswith("-max_total_time=")), 60.0)
    logging.getLogger("penstock").propagate = False
    failed = []
    for name in [one for one in arguments if one in WAYS] or WAYS:
        until, rounds = time.monotonic() + seconds, 0
        print(f"{name}: {seconds:g} s", flush=True)  # noqa: T201
        try:
            while time.monotonic() < until:
                WAYS[name](20)
                rounds += 1
        except Exception:
            traceback.print_exc()
            failed.append(name)
        print(f"{name}: {rounds} rounds of 20", flush=True)  # noqa: T201
    print("failed: " + ", ".join(failed) if failed else "nothing was found")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
