"""A dispatcher and data workers in this process whose answers can be altered on their way."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

import penstock as ps
from penstock.service.config import DispatcherConfig, WorkerConfig
from penstock.service.dispatcher.server import _RunningDispatcher
from penstock.service.transport import in_process
from penstock.service.wire.dispatcher_messages import ToDispatcher
from penstock.service.wire.envelope import JournalEntry, sealed, unsealed
from penstock.service.wire.interfaces import Answers
from penstock.service.wire.worker_messages import Fetch

_messages = msgspec.msgpack.Decoder(ToDispatcher)

AlterReply = Callable[[Any, Any, JournalEntry], bytes]
"""What is sent in place of an answer, given the message, the answer and the journal's entry."""

AlterAnswers = Callable[[Fetch, Answers], Answers]
"""What comes from a worker in place of its answers to a request."""


def plainly(message: Any, reply: Any, entry: JournalEntry) -> bytes:
    """What a dispatcher answers."""
    return sealed(reply, entry)


def with_fields(kind: type, **fields: Any) -> AlterReply:
    """Answers of that kind come with other values."""

    def alter(message: Any, reply: Any, entry: JournalEntry) -> bytes:
        changed = msgspec.structs.replace(reply, **fields) if isinstance(reply, kind) else reply
        return sealed(changed, entry)

    return alter


class AlteringDispatcher(_RunningDispatcher):
    """A dispatcher whose answers go through `alter`.

    Attributes:
        alter: may be changed at any time.
        heard: the messages so far, each with its answer.
    """

    def __init__(self, config: DispatcherConfig) -> None:
        self.alter: AlterReply = plainly
        self.heard: list[tuple[Any, Any]] = []
        self._listening = threading.Lock()
        super().__init__(config)

    def _hear(self, line: Any, message: Any) -> None:
        reply = self._answer(message, line.connection.secret)
        _, asked = unsealed(message, _messages, "the dispatcher", "somebody")
        with self._listening:
            self.heard.append((asked, reply))
        line.send(self.alter(asked, reply, self._entry()), number=line.number, seconds=0)

    @property
    def address(self) -> str:
        """Where it is reached."""
        return f"localhost:{self.port}"


@contextmanager
def altering_dispatcher(**config: Any) -> Iterator[AlteringDispatcher]:
    """A dispatcher that is stopped at the end."""
    dispatcher = AlteringDispatcher(DispatcherConfig(heartbeat_seconds=0.2, **config))
    try:
        yield dispatcher
    finally:
        dispatcher.stop("stop")


@contextmanager
def workers_of(address: str, alter: Sequence[AlterAnswers | None] = (None,)) -> Iterator[list[ps.service.WorkerServer]]:
    """A worker for each of the ways in which its answers are altered."""
    with ExitStack() as stack:
        servers = []
        for change in alter:
            server = stack.enter_context(ps.service.WorkerServer(WorkerConfig(dispatcher_address=address)))
            servers.append(server)
            if change is not None:
                alter_answers(server, change)
        yield servers


def alter_answers(server: ps.service.WorkerServer, change: AlterAnswers) -> None:
    """Let readers of this process get altered answers from a worker of it."""
    found = in_process.find(server.target.split("://")[1])
    assert found is not None
    produce = found.produce
    found.produce = lambda request: change(request, produce(request))
