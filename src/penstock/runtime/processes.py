"""Processes that answer messages: started as calls come, and kept for the next iteration.

A process gets four descriptors: the pipe that announces messages, the one that announces answers, and the
mailboxes of both. It ends when its pipe is closed, as the system does if this process is killed.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from io import FileIO
from queue import Empty, SimpleQueue
from subprocess import Popen, TimeoutExpired
from typing import Final

from penstock.runtime.at_exit import end_at_exit
from penstock.runtime.channel import Closed
from penstock.runtime.child_process import end_with_parent, leave_sigterm_to_parent, start_child
from penstock.runtime.forking import close_in_forked_processes
from penstock.runtime.mailbox import Mailbox, Part
from penstock.runtime.shared_memory import nameless_file
from penstock.runtime.threads import Threads
from penstock.runtime.watchdog import answer_dumps
from penstock.statistics import tracing

_TOLD: Final = b"."
_END: Final = None
_IDLE_SECONDS: Final = 60.0
_END_SECONDS: Final = 5.0
_PATIENCE_SECONDS: Final = 1.0
"""Limit of calls whose results are no longer wanted."""


class LostProcess(Exception):  # the caller makes an error of it
    """A process ended before it had answered.

    Attributes:
        status: as of `subprocess.Popen`.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"ended with status {status}")
        self.status = status


class Processes:
    """One process for each call made at the same time, shared by all iterations that use them.

    They end when this object is no longer referenced, when they were idle for a minute, and with this process.

    Args:
        module: what the processes run, by `answer_until_told`.
        first: the message that each process gets before all others.
    """

    def __init__(self, module: str, first: Sequence[Part]) -> None:
        self.first = first
        self._running = _Running(module, first)
        weakref.finalize(self, self._running.told.put, _END).atexit = False

    def caller(self, threads: Threads) -> "ProcessCaller":
        """Return what asks the processes for one iteration, until its threads are stopped."""
        caller = ProcessCaller(self, self._running)
        threads.end_with(caller)
        return caller


class ProcessCaller:
    """Asks processes for one iteration. Several threads may do so, each with its own process meanwhile."""

    def __init__(self, processes: Processes, running: "_Running") -> None:
        self._processes = processes  # they end when nothing refers to them
        self._running = running
        self._calls: set[_Call] = set()
        self._ended = False

    def end(self) -> None:
        """Give up the calls that are made now, without waiting for anything."""
        self._ended = True
        self._running.told.put(tuple(self._calls))

    def answer_to(self, message: Sequence[Part]) -> list[memoryview]:
        """Return what a process answers to a message.

        Raises:
            Closed: the iteration has ended.
            LostProcess: the process ended by itself. The next call has another one.
            OSError: no process can be started, or there is no room for the message.
        """
        call = self._running.begin()
        self._calls.add(call)
        try:
            if self._ended:
                raise Closed
            return call.process.answer_to(message)
        except Closed:
            raise
        except BaseException as error:  # its next answer may belong to this request
            self._running.give_up(call.process)
            if self._ended:
                raise Closed from error
            raise
        finally:
            self._calls.discard(call)
            self._running.finish(call)


class _Call:
    """One question to a process, which answers others before and after it."""

    def __init__(self, process: "_Process") -> None:
        self.process = process


class _Running:
    """The running part, which refers to nothing that the user holds."""

    def __init__(self, module: str, first: Sequence[Part]) -> None:
        self._module = module
        self._first = first
        self._changed = threading.Condition()
        self._processes: set[_Process] = set()
        self._idle: list[_Process] = []
        # Messages to the thread: to end, or which calls are unwanted. The garbage collector may write to a queue
        # of this kind.
        self.told: SimpleQueue[tuple[_Call, ...] | None] = SimpleQueue()
        # A daemon: the interpreter waits for all other threads before it calls what ends them.
        self._thread = threading.Thread(target=self._supervise, name="penstock-processes", daemon=True)
        self._thread.start()
        end_at_exit(self, _Running._end)

    def _end(self) -> None:
        self.told.put(_END)
        self._thread.join()

    def _supervise(self) -> None:
        while True:
            try:
                unwanted = self.told.get(timeout=_IDLE_SECONDS)
            except Empty:
                self._end_all(self._taken_idle())
                continue
            if unwanted is _END:
                with self._changed:
                    every = list(self._processes)
                self._end_all(every)
                return
            with self._changed:
                self._changed.wait_for(partial(self._all_finished, unwanted), _PATIENCE_SECONDS)
                busy = [call.process for call in unwanted if call.process.call is call]
                self._processes.difference_update(busy)
            self._end_all(busy)

    def _all_finished(self, calls: Sequence[_Call]) -> bool:
        return not any(call.process.call is call for call in calls)

    def _taken_idle(self) -> list["_Process"]:
        with self._changed:
            taken, self._idle = self._idle, []
        return taken

    def _end_all(self, processes: Sequence["_Process"]) -> None:
        for process in processes:
            process.kill()
        for process in processes:
            process.status()
        with self._changed:
            self._processes.difference_update(processes)

    def begin(self) -> _Call:
        """A call whose process is not asked now."""
        with self._changed:
            while self._idle:
                process = self._idle.pop()
                if not process.ended:
                    break
                self._processes.discard(process)  # somebody has killed it
            else:
                process = _Process(self._module, self._first)
                self._processes.add(process)
            process.call = call = _Call(process)
            return call

    def finish(self, call: _Call) -> None:
        """Take the process of a call back, unless it was given up."""
        with self._changed:
            call.process.call = None
            if call.process in self._processes:
                self._idle.append(call.process)
            self._changed.notify_all()

    def give_up(self, process: "_Process") -> None:
        """End a process that has not answered."""
        self._end_all([process])


class _Process:
    """A process, and the call that it answers now."""

    def __init__(self, module: str, first: Sequence[Part]) -> None:
        self._question, self._answer = Mailbox(nameless_file(0)), Mailbox(nameless_file(0))
        files = self._question.file, self._answer.file
        its_end, tells = os.pipe()
        told, its_answers = os.pipe()
        self._tells, self._told = FileIO(tells, "w"), FileIO(told)
        for file in (self._tells, self._told):
            weakref.finalize(self, file.close)
            close_in_forked_processes(file)
        descriptors = (its_end, its_answers, *files)
        try:
            self._process: Popen[bytes] = start_child(module, *map(str, descriptors), descriptors=descriptors)
        finally:
            os.close(its_end)
            os.close(its_answers)
        self._first: Sequence[Part] | None = first
        self.call: _Call | None = None
        self._lock = threading.Lock()  # two threads may end it

    def answer_to(self, message: Sequence[Part]) -> list[memoryview]:
        first, self._first = self._first, None
        if first is not None:
            self._ask(first)
        return self._ask(message)

    def _ask(self, message: Sequence[Part]) -> list[memoryview]:
        self._question.write(message)
        begun = time.perf_counter()
        try:
            self._tells.write(_TOLD)
        except BrokenPipeError:
            raise LostProcess(self.status()) from None
        if not self._told.read(1):
            raise LostProcess(self.status())
        if tracing.recorder is not None:
            tracing.recorder.add("calls", begun, time.perf_counter() - begun, self._process.pid)
        return self._answer.read()

    def waits_for(self) -> str:
        """Say in words what a call waits for."""
        return f"process {self._process.pid}"

    @property
    def ended(self) -> bool:
        """Return whether it has ended, as far as the system knows."""
        with self._lock:
            return self._process.poll() is not None

    def kill(self) -> None:
        """Kill it, without waiting until it has ended."""
        with self._lock:
            self._process.kill()

    def status(self) -> int:
        """Wait until it has ended, of itself or killed; how it did."""
        with self._lock:
            try:
                return self._process.wait(_END_SECONDS)
            except TimeoutExpired:  # it has closed its pipe, and keeps running
                self._process.kill()
                return self._process.wait()


def answer_until_told(descriptors: Sequence[int], answer: Callable[[list[memoryview]], Sequence[Part]]) -> None:
    """Answer messages in a process that `Processes` has started, until no more can come.

    Args:
        descriptors: what the process was given, in this order.
        answer: gives the answer to a message.
    """
    end_with_parent()
    answer_dumps()
    leave_sigterm_to_parent()
    told, tells = FileIO(descriptors[0]), FileIO(descriptors[1], "w")
    close_in_forked_processes(told, tells)  # by the user's function
    question, reply = map(Mailbox, descriptors[2:])
    with told, tells, suppress(BrokenPipeError):  # who has asked may have ended meanwhile
        while told.read(1):
            reply.write(answer(question.read()))
            tells.write(_TOLD)
