"""The program of a server: one thread, which answers lines in turn and applies what the coordinator commits."""

import selectors
from contextlib import suppress

from penstock.parameter_server.closures import loads
from penstock.parameter_server.held import HeldTable, HeldVariables
from penstock.parameter_server.messages import (
    Answer,
    Arrays,
    Commit,
    Committed,
    Connect,
    Create,
    Discard,
    LoadVariables,
    Message,
    ProcessLine,
    Push,
    ReadRows,
    ReadState,
    ReadVariables,
    Ready,
    SavedVariables,
    Settle,
    SnapshotTaken,
    StagePushes,
    TakeSnapshot,
    process_line,
)
from penstock.printing import text_of_error
from penstock.rpc.line import SECONDS, Array
from penstock.rpc.listener import Listener
from penstock.runtime.shared_memory import Arena


class Server:
    """Holds shards of variables until the coordinator's line ends.

    Args:
        control: the line on which the coordinator commits closures.
        reader: the line on which the coordinator's program reads and creates variables.
        listener: takes the calls of workers' processes, whose lines do not come with `Connect` then.
    """

    def __init__(
        self, control: ProcessLine, reader: ProcessLine, arena: Arena, listener: Listener | None = None
    ) -> None:
        self._control = control
        self._reader = reader
        self._arena = arena
        self._held: dict[int, HeldVariables | HeldTable] = {}
        self._workers: dict[int, ProcessLine] = {}
        self._staged: dict[tuple[int, int], list[tuple[int, list[Array]]] | str] = {}
        self._unsettled: set[int] = set()
        self._discarded: set[int] = set()
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, (control, -1))
        self._selector.register(reader, selectors.EVENT_READ, (reader, -1))
        if listener is not None:
            self._selector.register(listener, selectors.EVENT_READ, (listener, 0))

    def run(self) -> None:
        """Answer until the coordinator's line ends; then close all lines."""
        try:
            self._control.send(Ready())
            for line in (self._control, self._reader):
                self._exchange(line, -1, selectors.EVENT_READ)  # bytes that came with its proof are here already
            while True:
                while more := [(line, process) for line, process in self._lines() if line.has_more()]:
                    for line, process in more:
                        self._hear(line, process)
                for key, events in self._selector.select():
                    line, process = key.data
                    if isinstance(line, Listener):
                        self._admit(line)
                    else:
                        self._exchange(line, process, events)
        except _CoordinatorEnded:
            return
        finally:
            self._selector.close()
            for line, _ in self._lines():
                line.close()
            if self._listener is not None:
                self._listener.close()

    def _lines(self) -> list[tuple[ProcessLine, int]]:
        return [(self._control, -1), (self._reader, -1), *((line, process) for process, line in self._workers.items())]

    def _admit(self, listener: Listener) -> None:
        """Take the line of a worker that has called; it waits for the answer before it says that it is ready."""
        process, connection = listener.take()
        line = process_line(connection, self._arena)
        if process in self._discarded:  # its actor was killed before it could call
            line.close()
            return
        self._add(process, line)
        with suppress(OSError):  # it has ended, which the end of its line reports
            line.send(Ready())

    def _add(self, process: int, line: ProcessLine) -> None:
        self._workers[process] = line
        self._selector.register(line, selectors.EVENT_READ, (line, process))
        self._exchange(line, process, selectors.EVENT_READ)  # bytes that came with its proof are here already

    def _exchange(self, line: ProcessLine, process: int, events: int) -> None:
        """Receive and send what can be without waiting for the other end, or note its end."""
        try:
            if events & selectors.EVENT_READ:
                line.fill()
            if events & selectors.EVENT_WRITE:
                line.flush()
                self._watch(line, process)
        except (EOFError, OSError) as end:
            self._end(line, process, end)

    def _hear(self, line: ProcessLine, process: int) -> None:
        """Answer one frame of a line that has arrived."""
        # A commit that was answered before, in this round, may have discarded the line or read all of it.
        if not (process < 0 or process in self._workers) or not line.has_more():
            return
        try:
            message = line.receive_one()
            if message is not None:
                self._answer(line, process, message)
            line.give_back()
        except (EOFError, OSError) as end:
            self._end(line, process, end)

    def _end(self, line: ProcessLine, process: int, end: Exception) -> None:
        if process < 0:
            raise _CoordinatorEnded from end
        # Its staged pushes may still be committed: the coordinator commits or discards them.
        if self._is_watched(line):
            self._selector.unregister(line)

    def _is_watched(self, line: ProcessLine) -> bool:
        return line.fileno() >= 0 and line.fileno() in self._selector.get_map()

    def _send(self, line: ProcessLine, process: int, answer: Answer) -> None:
        """Send an answer, or as much of it as there is room for: one slow process holds up no other."""
        self._send_or_say_why(line, answer, seconds=0)
        self._watch(line, process)

    def _send_or_say_why(self, line: ProcessLine, answer: Answer | SnapshotTaken, *, seconds: float = SECONDS) -> None:
        try:
            line.send(answer, number=line.number, seconds=seconds)
        except MemoryError as error:  # what found no shared memory is a part of the message, which needs as much
            without = (Answer if isinstance(answer, Answer) else SnapshotTaken)((), _said(error))
            line.send(without, number=line.number, seconds=seconds)

    def _watch(self, line: ProcessLine, process: int) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.unsent else 0)
        if self._is_watched(line) and self._selector.get_key(line).events != events:
            self._selector.modify(line, events, (line, process))

    def _hear_coordinator(self) -> None:
        """Do what the coordinator has said by now: what a program reads afterwards shows it."""
        try:
            self._control.fill()
            while self._unsettled or self._control.has_more():
                message = self._control.receive() if self._unsettled else self._control.receive_one()
                if message is not None:
                    self._answer(self._control, -1, message)
                elif self._unsettled:
                    raise _CoordinatorEnded
        except (EOFError, OSError) as end:
            raise _CoordinatorEnded from end

    def _answer(self, line: ProcessLine, process: int, message: Message) -> None:
        if isinstance(message, Commit):
            self._commit(message)
        elif isinstance(message, StagePushes):
            self._stage(process, message)
            if line.remote:
                self._send(line, process, Answer())
        elif isinstance(message, Connect):
            self._add(message.process, process_line(self._control.lines.pop(), self._arena))
        elif isinstance(message, Discard):
            self._discard(message.process)
        elif isinstance(message, TakeSnapshot):
            self._send_or_say_why(self._control, self._snapshot())
        elif isinstance(message, Settle):
            self._settle(keep=message.keep)
        else:
            self._hear_coordinator()
            self._send(line, process, self._answer_to(line, message))

    def _answer_to(self, line: ProcessLine, message: Message) -> Answer:
        try:
            return Answer(tuple(line.part(value) for value in self._values(line, message)))
        except Exception as error:  # such as for want of memory
            line.withdraw()
            return Answer(error=_said(error))

    def _values(self, line: ProcessLine, message: Message) -> list[Array]:
        if isinstance(message, ReadVariables):
            return self._held[message.variables].read()
        if isinstance(message, ReadState):
            return self._held[message.variables].state()
        if isinstance(message, ReadRows):
            table = self._held[message.variables]
            assert isinstance(table, HeldTable)
            return table.read_rows(_arrays(line, message.rows))
        if isinstance(message, LoadVariables):
            values, state = (
                [None if part is None else line.array(part) for part in parts]
                for parts in (message.values, message.state)
            )
            self._held[message.variables].load(values, state)
            return []
        assert isinstance(message, Create)
        kind = HeldTable if message.table else HeldVariables
        held = kind(_arrays(line, message.values), loads(message.rule), self._arena)
        self._held[message.variables] = held
        return []

    def _stage(self, process: int, message: StagePushes) -> None:
        line = self._workers[process]

        def gradients(push: Push) -> list[Array]:
            return _arrays(line, push.gradients)

        staged: list[tuple[int, list[Array]]] | str
        try:
            staged = [(push.variables, gradients(push)) for push in message.pushes]
        except MemoryError as error:  # the closure has failed, once it is committed
            staged = _said(error)
        self._staged[process, message.closure] = staged

    def _commit(self, message: Commit) -> None:
        """Apply what a worker has staged; it was sent before the coordinator could hear of it, on another line."""
        line, key = self._workers[message.process], (message.process, message.closure)
        while key not in self._staged:
            staged = line.receive()
            if isinstance(staged, StagePushes):  # a worker that has finished its closure asks for nothing
                self._stage(message.process, staged)
            else:
                self._staged[key] = "its worker's line has ended"
        pushes, error = self._staged.pop(key), ""
        if isinstance(pushes, str):
            pushes, error = [], f"the server cannot take what was pushed: {pushes}"
        try:
            for variables, gradients in pushes:
                self._unsettled.add(variables)
                self._held[variables].push(gradients)
                del gradients
        except Exception as failure:  # of the user's optimizer
            error = f"the optimizer failed on the server: {_said(failure)}"
        if message.alone:
            self._settle(keep=not error)
        self._control.send(Committed(message.closure, error))
        try:
            line.give_back()
        except OSError:  # the worker has ended meanwhile; the coordinator discards it
            return

    def _settle(self, *, keep: bool) -> None:
        for variables in self._unsettled:
            self._held[variables].settle(keep=keep)
        self._unsettled.clear()

    def _discard(self, process: int) -> None:
        line = self._workers.pop(process, None)
        if line is None:
            self._discarded.add(process)
            return
        if self._is_watched(line):
            self._selector.unregister(line)
        line.close()
        self._staged = {key: staged for key, staged in self._staged.items() if key[0] != process}

    def _snapshot(self) -> SnapshotTaken:
        try:
            return SnapshotTaken(tuple(self._saved(number) for number in self._held))
        except Exception as error:  # such as for want of memory: the server continues
            self._control.withdraw()
            return SnapshotTaken((), _said(error))

    def _saved(self, number: int) -> SavedVariables:
        held = self._held[number]
        parts = [tuple(self._control.part(array) for array in arrays) for arrays in (held.read(), held.state())]
        return SavedVariables(number, *parts)


class _CoordinatorEnded(Exception):
    """The coordinator's line has ended."""


def _said(error: Exception) -> str:
    """Return the text of an error, with a remedy where memory is missing."""
    said = text_of_error(error)
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in said:
        return f"{said}; the server is out of memory: give it more, or divide the variables among more servers (num_ps)"
    return said


def _arrays(line: ProcessLine, parts: Arrays) -> list[Array]:
    return [line.array(part) for part in parts]
