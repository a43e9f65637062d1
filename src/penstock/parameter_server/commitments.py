"""Commits of finished closures, and snapshots of the servers."""

import socket
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import UnavailableError, WorkerError
from penstock.parameter_server.engine import Process
from penstock.parameter_server.functions import PickledFunction
from penstock.parameter_server.messages import (
    Commit,
    Committed,
    Finished,
    Message,
    ProcessLine,
    Settle,
    SnapshotTaken,
    TakeSnapshot,
)
from penstock.parameter_server.variables import lost, silent
from penstock.rpc.line import SECONDS, Array


@dataclass(eq=False)
class Closure:
    """A scheduled call."""

    number: int
    function: PickledFunction
    arguments: bytes
    value: "Future[bytes]" = field(default_factory=Future)
    runs: int = 0


@dataclass(eq=False)
class StartedWorker:
    """A worker's newest process.

    Attributes:
        number: differs from that of every other process that was started.
        line: None until it can be reached.
        status: how it has ended, once it is lost.
        closure: the one that it runs; or that it has finished, until the servers have heard that it counts.
        functions: the numbers of those that it knows.
    """

    index: int
    number: int
    process: Process
    line: ProcessLine | None = None
    ready: bool = False
    lost: bool = False
    status: str = ""
    quick_ends: int = 0
    closure: Closure | None = None
    finished: bool = False
    since: float = 0.0
    functions: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Commitment:
    """A finished closure, until the servers have applied its pushes.

    Attributes:
        waiting: how many servers have not yet.
        refused: why one of them could not.
    """

    worker: StartedWorker
    closure: Closure
    finished: Finished
    waiting: int
    refused: str = ""


@dataclass
class _Snapshot:
    """A snapshot of all servers, until all have sent theirs.

    Attributes:
        positions: of the workers' iterators.
        taken: the values and states of the variables of each server that has shown them.
    """

    future: "Future[Any]"
    positions: dict[tuple[int, int], bytes]
    taken: dict[int, dict[int, tuple[list[Array], list[Array]]]] = field(default_factory=dict)
    refused: str = ""


class Servers:
    """The servers, as the coordinator's thread speaks to them.

    Args:
        lines: to each server.
        processes: of the servers, in the same order.
        complete: called with a commitment that all its servers have answered.
        release: called with a worker that may have its next closure.

    Attributes:
        settling: a commitment of several servers, which keep their part once all could apply it.
        silent_seconds: after which silence one is given up: a read waits as long. An update of many variables, or a
            snapshot, may take minutes.
    """

    def __init__(
        self,
        lines: Sequence[ProcessLine],
        processes: Sequence[Process],
        complete: Callable[[Commitment], None],
        release: Callable[[StartedWorker], None],
    ) -> None:
        self._lines = list(lines)
        self._processes = list(processes)
        self._complete, self._release = complete, release
        self._finished: deque[Commitment] = deque()
        self._committed: dict[int, Commitment] = {}
        self._snapshots: deque[_Snapshot] = deque()
        self.settling: Commitment | None = None
        self.silent_seconds = SECONDS

    @property
    def committing(self) -> list[Closure]:
        """The closures that a server has not yet applied."""
        return [commitment.closure for commitment in self._committed.values()]

    @property
    def awaited_snapshots(self) -> "list[Future[Any]]":
        """The results that a server has not yet shown."""
        return [snapshot.future for snapshot in self._snapshots]

    def send(self, server: int, message: Message, lines: tuple[socket.socket, ...] = ()) -> None:
        """Send to one server.

        Raises:
            UnavailableError: it has ended.
        """
        try:
            self._lines[server].send(message, lines)
        except OSError as error:
            raise self._lost(server) from error

    def _lost(self, server: int) -> UnavailableError:
        return lost(server, self._processes[server].status())

    def watch(self, seconds: float) -> None:
        """Look for servers that give no sign of life, `seconds` after the last look.

        Raises:
            UnavailableError: one has been silent for too long.
        """
        for server, line in enumerate(self._lines):
            try:
                gone = line.is_silent(seconds, self.silent_seconds)
            except OSError as error:
                raise self._lost(server) from error
            if gone:
                raise silent(server, line.quiet)

    def send_to_all(self, message: Message) -> None:
        """Send to every server.

        Raises:
            UnavailableError: one has ended.
        """
        for server in range(len(self._lines)):
            self.send(server, message)

    def take_snapshot(self, future: "Future[Any]", positions: dict[tuple[int, int], bytes]) -> None:
        """Ask all servers for their values now; the result also has the positions."""
        self._snapshots.append(_Snapshot(future, positions))
        self.send_to_all(TakeSnapshot())

    def commit(self, commitment: Commitment) -> None:
        """Have the servers apply what a closure has pushed, as soon as none of those before is to be settled."""
        self._finished.append(commitment)
        self._commit()

    def _commit(self) -> None:
        """Commit the closures that have finished, until one has to be settled on several servers."""
        while self._finished and self.settling is None:
            commitment = self._finished.popleft()
            worker, servers = commitment.worker, commitment.finished.servers
            self._committed[commitment.closure.number] = commitment
            for server in servers:
                self.send(server, Commit(commitment.closure.number, worker.number, len(servers) == 1))
            if len(servers) > 1:
                self.settling = commitment
            else:  # the server answers reads of its next closure after this commit
                self._release(worker)

    def hear(self, server: int) -> None:
        """Do what a server has said.

        Raises:
            UnavailableError: it has ended.
        """
        line = self._lines[server]
        try:
            line.fill()
        except EOFError as end:
            raise self._lost(server) from end
        while line.has_more():
            message = line.receive_one()
            if isinstance(message, SnapshotTaken):
                self._note_snapshot(server, message)
            elif message is not None:
                assert isinstance(message, Committed)
                self._count(self._committed[message.closure], message.error)

    def _count(self, commitment: Commitment, error: str) -> None:
        """Note the answer of one server."""
        commitment.waiting -= 1
        commitment.refused = commitment.refused or error
        if commitment.waiting:
            return
        del self._committed[commitment.closure.number]
        settles = commitment is self.settling
        if settles:
            for settled in commitment.finished.servers:
                self.send(settled, Settle(not commitment.refused))
            self.settling = None
        self._complete(commitment)
        if settles:
            self._release(commitment.worker)
            self._commit()

    def _note_snapshot(self, server: int, message: SnapshotTaken) -> None:
        """Note what one server has shown."""
        snapshot, line = self._snapshots[0], self._lines[server]
        if message.error and not snapshot.refused:
            snapshot.refused = f"parameter server {server} cannot show what it holds: {message.error}"
        snapshot.taken[server] = {
            saved.variables: (list(map(line.array, saved.values)), list(map(line.array, saved.state)))
            for saved in message.saved
        }
        if len(snapshot.taken) < len(self._lines):
            return
        self._snapshots.popleft()
        if snapshot.refused:
            snapshot.future.set_exception(WorkerError(snapshot.refused))
            return
        arrays = {(server, number): held for server, shown in snapshot.taken.items() for number, held in shown.items()}
        snapshot.future.set_result((snapshot.positions, arrays))
