"""Messages between coordinator, workers and servers."""

import socket
from typing import Final

import msgspec

from penstock.rpc.connection import SocketConnection
from penstock.rpc.frames import ArrayPart
from penstock.rpc.line import Line
from penstock.runtime.shared_memory import Arena

CONTROL: Final = -1
READER: Final = -2
"""Who dials, if it is not the process of a worker, which gives its number."""


Arrays = tuple[ArrayPart, ...]


class Create(msgspec.Struct, frozen=True, tag="create"):
    """To a server: hold these shards of some variables. `rule` is a pickle; of a table, rows are pushed."""

    variables: int
    rule: bytes
    table: bool
    values: Arrays


class ReadVariables(msgspec.Struct, frozen=True, tag="read"):
    """To a server: the newest values of its shards."""

    variables: int


class ReadState(msgspec.Struct, frozen=True, tag="read state"):
    """To a server: the arrays of the rule's state."""

    variables: int


class ReadRows(msgspec.Struct, frozen=True, tag="read rows"):
    """To a server: some rows of its shards of a table, one array of row numbers for each shard."""

    variables: int
    rows: Arrays


class LoadVariables(msgspec.Struct, frozen=True, tag="load"):
    """To a server: take these values, and these arrays of the rule's state. Entries that are None or missing stay."""

    variables: int
    values: tuple[ArrayPart | None, ...] = ()
    state: tuple[ArrayPart | None, ...] = ()


class Push(msgspec.Struct, frozen=True, array_like=True):
    """Gradients of a server's shards; of a table, for each shard its row numbers and then their gradients."""

    variables: int
    gradients: Arrays


class StagePushes(msgspec.Struct, frozen=True, tag="stage"):
    """To a server from a worker: what a closure has pushed. It is applied when the coordinator commits the closure."""

    closure: int
    pushes: tuple[Push, ...]


class Connect(msgspec.Struct, frozen=True, tag="connect"):
    """To a server: the line of a new worker process comes with this message."""

    process: int


class Commit(msgspec.Struct, frozen=True, tag="commit"):
    """To a server: apply what this worker process has staged for the closure.

    Attributes:
        alone: no other server has a part of it. Otherwise `Settle` says whether it is kept.
    """

    closure: int
    process: int
    alone: bool


class Settle(msgspec.Struct, frozen=True, tag="settle"):
    """To a server: keep the last changes, or undo them because another server could not apply its part."""

    keep: bool


class Discard(msgspec.Struct, frozen=True, tag="discard"):
    """To a server: forget a worker process and its staged pushes."""

    process: int


class TakeSnapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """To a server: everything it holds now."""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """A server's answer; `error` is what went wrong."""

    values: Arrays = ()
    error: str = ""


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    """From a server: a closure's pushes were applied; `error` says why they could not be."""

    closure: int
    error: str = ""


class SavedVariables(msgspec.Struct, frozen=True, array_like=True):
    """The values of some variables on one server, and the arrays of their optimizer."""

    variables: int
    values: Arrays
    state: Arrays


class SnapshotTaken(msgspec.Struct, frozen=True, tag="snapshot taken"):
    """From a server: the answer to `TakeSnapshot`; `error` says why there is none."""

    saved: tuple[SavedVariables, ...]
    error: str = ""


class Define(msgspec.Struct, frozen=True, tag="define"):
    """To a worker: a function that closures will name by its number."""

    function: int
    content: bytes


class ForgetFunction(msgspec.Struct, frozen=True, tag="forget function"):
    """To a worker: forget a function, which no closure will name any more."""

    function: int


class OpenIterator(msgspec.Struct, frozen=True, tag="open"):
    """To a worker: open an iterator over its dataset, at a position if there is one."""

    iterator: int
    dataset: bytes
    position: bytes = b""


class ForgetIterator(msgspec.Struct, frozen=True, tag="forget"):
    """To a worker: close an iterator, which no function will read any more."""

    iterator: int


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """From a worker: it has opened an iterator that had no position; this is its first one."""

    iterator: int
    position: bytes


class RunClosure(msgspec.Struct, frozen=True, tag="run"):
    """To a worker: run a closure. `arguments` is the pickle of its args and kwargs."""

    closure: int
    function: int
    arguments: bytes


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """From a worker: a closure has ended.

    Attributes:
        result: the pickle of its result, or of the exception that it raised.
        servers: where it has staged pushes.
        positions: the state of each iterator that it has read, as a pickle.
    """

    closure: int
    result: bytes
    failed: bool
    servers: tuple[int, ...]
    positions: tuple[tuple[int, bytes], ...]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """From a worker or a server: it has started."""


Message = (
    Create
    | ReadVariables
    | ReadRows
    | ReadState
    | LoadVariables
    | StagePushes
    | Connect
    | Commit
    | Settle
    | Discard
    | TakeSnapshot
    | Answer
    | Committed
    | SnapshotTaken
    | Define
    | ForgetFunction
    | OpenIterator
    | ForgetIterator
    | RunClosure
    | Opened
    | Finished
    | Ready
)


ProcessLine = Line[Message]
"""A line between two processes of a strategy."""


def process_line(connection: socket.socket | SocketConnection, arena: Arena | None) -> ProcessLine:
    """The line over a connection, which on one machine shares the arena's memory."""
    local = isinstance(connection, socket.socket) or connection.on_one_machine
    return Line(connection, Message, arena if local else None)
