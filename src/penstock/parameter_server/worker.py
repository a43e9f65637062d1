"""The program of a worker: runs closures one after the other, and stages their pushes at the servers."""

import faulthandler
import signal
import traceback
from collections import defaultdict
from contextlib import suppress

from penstock.distribute.contexts import InputContext
from penstock.parameter_server.closures import error_bytes, loads, result_bytes
from penstock.parameter_server.datasets import close_iterator, open_iterator, positions
from penstock.parameter_server.functions import FunctionsOfWorker
from penstock.parameter_server.held import copied
from penstock.parameter_server.messages import (
    Define,
    Finished,
    ForgetFunction,
    ForgetIterator,
    Opened,
    OpenIterator,
    ProcessLine,
    Push,
    Ready,
    RunClosure,
    StagePushes,
)
from penstock.parameter_server.variables import ServerLines, enter, lost
from penstock.rpc.line import Array
from penstock.runtime.shared_memory import Arena


class WorkerProgram:
    """Runs the closures that arrive on the coordinator's line, until that ends."""

    def __init__(
        self, index: int, workers: int, coordinator: ProcessLine, servers: list[ProcessLine], arena: Arena
    ) -> None:
        self._context = InputContext(workers, index)  # workers are not in sync with each other
        self._coordinator = coordinator
        self._servers = servers
        self._arena = arena
        self._functions = FunctionsOfWorker()
        self._pushed: dict[int, list[tuple[int, list[Array]]]] = defaultdict(list)
        self._lines = ServerLines(servers, self._push, index)
        enter(self._lines)

    def run(self) -> None:
        """Run closures until the coordinator's line ends, or that to a server does.

        A server that this process alone has lost may be there for the next one, to which the coordinator gives the
        closure then. If it is gone, the coordinator knows.
        """
        faulthandler.register(signal.SIGUSR1, all_threads=True)  # the coordinator's watchdog
        try:
            self._coordinator.send(Ready())
            self._hear()
        finally:
            self._coordinator.close()

    def _hear(self) -> None:
        while (message := self._coordinator.receive(None)) is not None:
            if isinstance(message, RunClosure):
                finished = self._finished(message)
                if self._lines.broken:
                    return
                self._coordinator.send(finished)
            elif isinstance(message, Define):
                self._functions.define(message.function, message.content)
            elif isinstance(message, OpenIterator):
                with suppress(Exception):  # a closure that reads it tries again, and raises why
                    self._open_iterator(message)
            elif isinstance(message, ForgetIterator):
                close_iterator(message.iterator)
            elif isinstance(message, ForgetFunction):
                self._functions.forget(message.function)

    def _open_iterator(self, message: OpenIterator) -> None:
        """Open an iterator, and let the coordinator know where it begins.

        If this worker is lost in its first closure, the next one is then the same reader of a data service, which gives
        it back what this one has read.
        """
        state = open_iterator(message.iterator, message.dataset, message.position, self._context)
        if not message.position:
            self._coordinator.send(Opened(message.iterator, state))

    def _finished(self, run: RunClosure) -> Finished:
        self._pushed.clear()
        self._lines.before_end.clear()
        self._lines.closures += 1
        try:
            function = self._functions.get(run.function)
            args, kwargs = loads(run.arguments)
            result = result_bytes(function(*args, **kwargs))
            for call in self._lines.before_end:
                call()
            read = positions()
            for server, pushes in self._pushed.items():
                self._stage(run.closure, server, pushes)
            return Finished(run.closure, result, False, tuple(self._pushed), read)
        except Exception as error:
            self._pushed.clear()
            return Finished(run.closure, error_bytes(error, traceback.format_exc()), True, (), positions())

    def _push(self, server: int, variables: int, arrays: list[Array]) -> None:
        self._pushed[server].append((variables, [copied(array, self._arena) for array in arrays]))

    def _stage(self, closure: int, server: int, pushes: list[tuple[int, list[Array]]]) -> None:
        line = self._servers[server]
        line.take_back()
        number = self._lines.next_number()
        staged = tuple(Push(variables, tuple(line.part(array) for array in arrays)) for variables, arrays in pushes)
        try:
            line.send(StagePushes(closure, staged), number=number)
        except OSError as error:
            self._lines.broken = True
            raise lost(server) from error
        # The coordinator may commit only what no loss of this machine can take back.
        if line.remote and line.answer_to(number) is None:
            self._lines.broken = True
            raise lost(server)
