"""The control channel: small messages with which workers agree on steps, and learn of each other's failures.

Worker 0 runs a hub that forwards every message to all other workers. Device collectives are not used for this: JAX
needs them in the same order in every process, which a thread that reads ahead cannot keep.
"""

import logging
import os
import sys
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from penstock.distribute.control.call_log import CallLog
from penstock.distribute.control.messages import (
    EXIT_SECONDS,
    GatherItem,
    InputFailed,
    MadeCalls,
    Message,
    Payload,
    Preempted,
    Told,
    WorkerFailed,
    WorkerLeft,
    control_line,
    decode_payload,
)
from penstock.errors import WorkerError
from penstock.printing import text_of_error
from penstock.rpc.line import SILENT_SECONDS, TICK_SECONDS
from penstock.rpc.listener import Address, dial
from penstock.runtime.at_exit import end_before_libraries, forget
from penstock.runtime.channel import Closed

_logger = logging.getLogger(__name__)

FAILURE_TIMEOUT_SECONDS = 30.0
"""After a failure, the seconds that a process may stay blocked in a collective or in JAX's exit, unless it is given."""
CALL_SECONDS = 300.0
"""The seconds that a call which all make waits for workers that do not make it, unless it is given."""


def call_seconds(failure_timeout_seconds: float | None) -> float:
    """Return how long a call that all workers make waits for those that do not make it."""
    return CALL_SECONDS if failure_timeout_seconds is None else failure_timeout_seconds


def did_not_come(who: str, call: str, seconds: float, member: str, *, advice: bool = True) -> str:
    """The error for those that did not make a call within a time, with what helps if they only needed longer."""
    longer = "; where one has more to do before it, give all of them a larger failure_timeout_seconds" * advice
    return f"{who} did not come to {call} within {seconds:g} seconds: {_same_calls(member)}{longer}"


def _same_calls(member: str) -> str:
    return f"every {member} must make the same calls in the same order"


_ABSENT_SECONDS = 1800.0
"""How long a worker waits for others at a step, unless it is given: one may evaluate or save a model alone before."""
_BLAME_SECONDS = 2.0
_ELSEWHERE_SECONDS = 2.0
"""Two workers that wait at different calls for so long wait for each other; another thread of a program could come."""
_CONNECTING_SECONDS = 60.0
_INTERRUPTING_SECONDS = 0.1
"""How long the garbage collector, which may have interrupted who sends, and the thread that receives wait to send."""
_LEAVING_SECONDS = 1.0
"""How long a worker that ends waits until the hub has taken its last word."""


_channels: "weakref.WeakValueDictionary[int, Control]" = weakref.WeakValueDictionary()
_numbers = count()


def first_open_channel() -> "Control | None":
    """The oldest channel of this process that is open: the same on all workers, which open them in one order."""
    return min((one for one in _channels.items() if not one[1].closed), default=(0, None))[1]


class _DidNotComeError(WorkerError):
    """A worker did not make a call that all must make, within the limit."""


class Control:
    """One worker's end of the control channel.

    Every failure is final: the workers are no longer in step, and have to be started again.

    Args:
        address: where the hub listens.
        key: the secret that the hub knows its workers by.
        worker: the number of this worker.
        workers: the number of workers.
        failure_timeout_seconds: after another worker's failure, how long until this process is ended if its main
            thread has not learned of it: it is then blocked in a collective that will never complete. It is also the
            longest that the process waits for the others at its own end, and for a call that all make. By default it
            is 30 s, and 300 s for such a call.
        member: what users call a worker, for errors.

    Attributes:
        lost: why each worker that has failed did, in the order in which that was learned.
    """

    def __init__(
        self,
        address: tuple[str, int],
        key: bytes,
        worker: int,
        workers: int,
        failure_timeout_seconds: float | None = None,
        member: str = "worker",
    ) -> None:
        self.worker = worker
        self.workers = workers
        self.sent = 0
        self.call_seconds = call_seconds(failure_timeout_seconds)
        self.failure_timeout_seconds = (
            FAILURE_TIMEOUT_SECONDS if failure_timeout_seconds is None else failure_timeout_seconds
        )
        self._absent_seconds = _ABSENT_SECONDS if failure_timeout_seconds is None else failure_timeout_seconds
        self._calls = CallLog(worker, workers)
        self._line = control_line(dial(Address(*address), key, worker, seconds=_CONNECTING_SECONDS))
        self.member = member
        self._changed = threading.Condition()
        self._received: dict[str, dict[int, deque[msgspec.Raw]]] = defaultdict(lambda: defaultdict(deque))
        # At which topics other workers' programs wait for this one, and since when.
        self._waits_at: dict[tuple[int, str], float] = {}
        self._told: dict[tuple[str, int], msgspec.Raw] = {}
        self._left: set[int] = set()
        self.lost: dict[int, str] = {}
        self._input_failures: dict[str, InputFailed] = {}
        self._given: dict[str, int] = {}  # the last step that was handed out, for each topic
        self._answered = 0  # questions of `asked_to_end`
        self._ends: dict[int, int] = {}  # how many of them each worker had been answered when it learned of an end
        self._failure: str | None = None
        self._failed_topic = ""
        self._own_failed_topic = ""
        self._last_call = time.monotonic()
        self._acknowledged = threading.Event()
        self.closed = False  # whether this worker has left the channel
        self._exit_seconds: float | None = None
        self._thread = threading.Thread(target=self._receive, name="penstock-control", daemon=True)
        self._thread.start()
        # Made now, because none can be made when the interpreter ends.
        self._watch = threading.Thread(target=self._end_if_stuck, name="penstock-control-watch", daemon=True)
        self._watch.start()
        end_before_libraries(self, Control._leave)  # JAX waits at exit for all other workers
        _channels[next(_numbers)] = self

    def gather(
        self,
        topic: str,
        own: Payload,
        kind: type[Payload],
        *,
        timeout: float | None = None,
        closed: Callable[[], bool] | None = None,
    ) -> list[Payload]:
        """Exchange messages with all workers, which must all call this; returns them in the workers' order.

        Args:
            topic: what the messages are about; shown in errors.
            own: this worker's message.
            kind: the type of the messages: a struct of `messages.py`, or plain data.
            timeout: the seconds to wait for the others: by default `call_seconds`, and half an hour in a thread unless
                it is given; `math.inf` where they may take any time, and their loss alone ends it.
            closed: given by a thread beside the program's calls, and called after `wake`: whether to give up.

        Raises:
            WorkerError: another worker failed, has left, did not answer in time, which fails all, or sent something
                else.
            Closed: `closed()` returned True.
        """
        self.post(GatherItem.of(self.worker, topic, own, blocks=closed is None))
        if timeout is None:
            timeout = self.call_seconds if closed is None else self._absent_seconds
        others = [worker for worker in range(self.workers) if worker != self.worker]
        try:
            payloads = self._awaited(topic, others, timeout, closed)
        except WorkerError as error:
            late = isinstance(error, _DidNotComeError)
            if late:
                self._announce(f"has given up: {error}")
            if closed is None:  # otherwise a thread calls this, and the main thread learns of it later
                self.acknowledge_failure()
            if late:
                raise WorkerError(str(error)) from None
            raise
        messages = {worker: self._read(topic, payloads[worker], kind, worker) for worker in others}
        return [messages.get(worker, own) for worker in range(self.workers)]

    def _awaited(
        self, topic: str, others: list[int], timeout: float, closed: Callable[[], bool] | None
    ) -> dict[int, msgspec.Raw]:
        """The next message of each of the others about a topic."""
        deadline = time.monotonic() + timeout
        with self._changed:
            queues = self._received[topic]
            while missing := [worker for worker in others if not queues[worker]]:
                self.check(topic)
                if topic in self._input_failures:
                    raise WorkerError(self._description_of(self._input_failures[topic]))
                if closed is not None and closed():
                    raise Closed
                if gone := self._left.intersection(missing):
                    raise WorkerError(
                        f"{self._name(min(gone))} has ended its program, while {self._name(self.worker)} waits for it "
                        f"at {topic}: every {self.member} must take the same steps"
                    )
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    late = self._name(missing[0])
                    raise _DidNotComeError(
                        did_not_come(late, topic, timeout, self.member, advice=timeout == self.call_seconds)
                    )
                if closed is None:
                    self._check_others_calls(topic, missing)
                    remaining = min(_ELSEWHERE_SECONDS, remaining)
                self._changed.wait(min(remaining, threading.TIMEOUT_MAX))
            payloads = {worker: queues[worker].popleft() for worker in others}
            for worker in others:
                self._waits_at.pop((worker, topic), None)
            if not any(queues.values()):
                del self._received[topic]
        return payloads

    def _check_others_calls(self, topic: str, missing: list[int]) -> None:
        """Raise an error where a worker that is waited for waits for this one elsewhere: neither will ever continue."""
        for (worker, other), since in self._waits_at.items():
            if worker in missing and other != topic and time.monotonic() - since >= _ELSEWHERE_SECONDS:
                raise _DidNotComeError(
                    f"{self._name(worker)} waits at {other} while {self._name(self.worker)} waits at {topic}: "
                    f"{_same_calls(self.member)}"
                )

    def _read(self, topic: str, payload: msgspec.Raw, kind: type[Payload], worker: int) -> Payload:
        try:
            return decode_payload(payload, kind)
        except msgspec.DecodeError as error:
            raise WorkerError(
                f"{self._name(worker)} said something else than {self._name(self.worker)} at {topic} ({error}): every "
                f"{self.member} must make the same calls, with the same version of penstock"
            ) from None

    def waits_for(self) -> str:
        """Say in words what a call of this worker waits for."""
        others = {worker for worker in range(self.workers) if worker != self.worker}
        absent = {topic: [one for one in others if not queues[one]] for topic, queues in [*self._received.items()]}
        missing = [f"{self.member} {one} at {topic}" for topic, missing in absent.items() for one in missing]
        return f"{', '.join(missing) or 'nobody'}, as {self._name(self.worker)}"

    def wake(self) -> None:
        """Make every waiting `gather` check again whether to give up."""
        with self._changed:
            self._changed.notify_all()

    def check(self, topic: str = "") -> None:
        """Raise the failure of another worker, if any; not one that only ends this topic, which raises it at its step.

        Raises:
            WorkerError: a worker failed or was lost.
        """
        if self._failure is not None and not (topic and topic in (self._failed_topic, self._own_failed_topic)):
            raise WorkerError(self._failure)

    def check_collective(self, call: str) -> None:
        """Variant of `check_in_main`, before a call with a collective, which all workers must make in the same order.

        Raises:
            WorkerError: a worker failed, was lost, or has ended its program.
        """
        self.check_in_main(self._failed_topic)
        if self._left:
            self.acknowledge_failure()
            raise WorkerError(
                self._failure
                or f"{self._name(min(self._left))} has ended its program, while {self._name(self.worker)} continues: "
                f"every {self.member} must take the same steps"
            )
        self._calls.note(call)

    def check_in_main(self, topic: str = "") -> None:
        """Variant of `check`, in the main thread, which learns of the failure by the error."""
        self._last_call = time.monotonic()
        try:
            self.check(topic)
        except WorkerError:
            self.acknowledge_failure()
            raise

    def raise_cause_of(self, error: Exception) -> None:
        """After a collective has failed, wait a moment for the failure of the worker that caused it, and raise that.

        Raises:
            WorkerError: a worker failed or was lost.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None, timeout=_BLAME_SECONDS)
        if self._failure is not None:
            self.acknowledge_failure()
            raise WorkerError(self._failure) from error

    def acknowledge_failure(self) -> None:
        """Note that the main thread knows of a failure, and will end the process itself."""
        self._acknowledged.set()

    def check_step(self, topic: str, step: int) -> None:
        """Note that this step of a topic is handed out now, unless another worker has none.

        Raises:
            WorkerError: another worker has no such step, because its input failed or it takes no more of them.
        """
        self._given[topic] = step  # before the look at the failures, which the thread that notes them does after that
        failed = self._input_failures.get(topic)
        if failed is not None and failed.step <= step:
            self.acknowledge_failure()
            self.announce_leaving(topic)
            raise WorkerError(self._description_of(failed))

    def leave_steps(self, topic: str, step: int) -> None:
        """Tell all other workers that this one takes no step from this number on. May be called by the collector."""
        if self._failure is None and not self.closed:
            self.post(InputFailed(self.worker, topic, step), seconds=_INTERRUPTING_SECONDS)

    def announce_leaving(self, topic: str) -> None:
        """If steps of a topic are missed because a worker has left it, tell all, that one too."""
        failed = self._input_failures.get(topic)
        if failed is not None and not failed.reason:
            failure = WorkerFailed(self.worker, f"has given up: {self._description_of(failed)}")
            self.post(failure, seconds=_INTERRUPTING_SECONDS)
            self._note_failure(failure)

    def asked_to_end(self, signalled: bool) -> bool:
        """Return whether all workers are to end. All ask equally often, and each question has one answer on all.

        It costs nothing until one of them is signalled. Then each worker sends how many of its questions were answered
        by no, without waiting for its program, and answers no other before all have sent it: the first one that none
        of them has asked yet is answered by yes, and all after it.

        Args:
            signalled: whether this worker was asked to end.

        Raises:
            WorkerError: another worker failed or was lost meanwhile.
        """
        with self._changed:
            number = self._answered
            tells = signalled and self._note_end()
        if tells:
            self.post(Preempted(self.worker, number))
        with self._changed:
            if self._ends:
                self._changed.wait_for(lambda: self._failure is not None or not self._unanswered())
                self.check_in_main()
            # How far a worker came that has left without a word is not known.
            if not self._ends or self._left.difference(self._ends) or number < max(self._ends.values()):
                self._answered = number + 1
                return False
        return True

    def _note_end(self) -> bool:
        """Record how many questions were answered when this worker learns of an end; False if it knew before."""
        first = self.worker not in self._ends
        if first:
            self._ends[self.worker] = self._answered
        return first

    def _unanswered(self) -> set[int]:
        """The workers of which is not known how many questions they had answered."""
        return set(range(self.workers)) - self._ends.keys() - self._left

    def fail_step(self, topic: str, step: int, reason: str) -> None:
        """Tell all other workers that this one cannot give this step of a topic; all may take the steps before it."""
        self._own_failed_topic = topic
        self.post(InputFailed(self.worker, topic, step, reason))

    def fail(self, reason: str, topic: str = "") -> None:
        """Tell all workers that this one has failed; after `fail_step` the others may take the earlier steps."""
        self._acknowledged.set()
        self._announce(reason, topic)

    def _announce(self, reason: str, topic: str = "") -> None:
        self.post(WorkerFailed(self.worker, reason, topic))
        self._note_failure(WorkerFailed(self.worker, reason))

    def tell(self, topic: str, content: Any) -> None:
        """Tell all other workers something that none of them waits for."""
        self.post(Told(self.worker, topic, msgspec.Raw(msgspec.msgpack.encode(content))))

    def told(self, topic: str, kind: type[Payload]) -> dict[int, Payload]:
        """Return what other workers have told last about a topic."""
        found = {worker: payload for (other, worker), payload in list(self._told.items()) if other == topic}
        return {worker: decode_payload(payload, kind) for worker, payload in found.items()}

    def post(self, message: Message, *, seconds: float = SILENT_SECONDS) -> None:
        """Send a message to all other workers, waiting at most `seconds`."""
        try:
            self._line.send(message, seconds=seconds)
            self.sent += 1
        except OSError as error:  # the receiving thread reports what happened to the hub
            _logger.debug("a message could not be sent: %r", error)

    def _receive(self) -> None:
        connected = True
        while connected:
            try:
                message = self._next()
            except (EOFError, OSError) as error:
                if self.closed:
                    return
                connected = False
                reason = "its process has ended" if isinstance(error, EOFError) else str(error)
                message = WorkerLeft(0) if 0 in self._left else WorkerFailed(0, f"was lost: {reason}")
            missed: list[str] = []
            tells, differs = False, None
            if isinstance(message, WorkerFailed):
                self._note_failure(message)
            elif not self.closed:
                with self._changed:
                    if isinstance(message, InputFailed):
                        self._input_failures[message.topic] = message
                        if message.step <= self._given.get(message.topic, -1):
                            missed.append(message.topic)
                    elif isinstance(message, GatherItem):
                        self._received[message.topic][message.worker].append(message.payload)
                        if message.blocks:
                            self._waits_at[message.worker, message.topic] = time.monotonic()
                    elif isinstance(message, Told):
                        self._told[message.topic, message.worker] = message.payload
                    elif isinstance(message, MadeCalls):
                        differs = self._calls.compare(message)
                    elif isinstance(message, Preempted):
                        tells = self._note_end()
                        self._ends[message.worker] = message.answered
                    else:
                        self._left.add(message.worker)
                    self._changed.notify_all()
            for topic in missed:
                self.announce_leaving(topic)
            if tells:
                self.post(Preempted(self.worker, self._ends[self.worker]), seconds=_INTERRUPTING_SECONDS)
            if differs is not None and isinstance(message, MadeCalls):
                self._announce(self._other_calls(message.worker, *differs))

    def _next(self) -> Message:
        """The next message.

        Raises:
            EOFError: the hub's process has ended.
            OSError: it is silent, or sent something that is no message.
        """
        line, looked = self._line, time.monotonic()
        while True:
            while line.has_more():
                if (message := line.receive_one()) is not None:
                    return message
            if not line.fill():
                line.connection.wait(time.monotonic() + TICK_SECONDS)
                line.flush()  # what the hub had no room for before
            before, looked = looked, time.monotonic()
            if line.is_silent(looked - before):
                raise ConnectionError(f"nothing was heard of it for {line.quiet:.0f} seconds")

    def _note_failure(self, failed: WorkerFailed) -> None:
        with self._changed:
            self.lost.setdefault(failed.worker, failed.reason)
            if self._failure is not None:
                return
            self._failure = f"{self._name(failed.worker)} {failed.reason}"
            self._failed_topic = failed.topic
            self._changed.notify_all()
        if failed.worker != self.worker:
            _logger.error("%s", self._failure)

    def _other_calls(self, other: int, number: int, here: str, there: str) -> str:
        names = f"{here} as call {number}, where {self._name(other)} made {there}"
        return f"made {names if number else f'other calls than {self._name(other)}'}: {_same_calls(self.member)}"

    def _compare_calls(self) -> None:
        """Send the others the calls made here, and give up if one of them has not made them for too long."""
        news = self._calls.news()
        if news is not None:
            self.post(news, seconds=_INTERRUPTING_SECONDS)
        missing = self._calls.missing(self._absent_seconds)
        if missing is not None:
            worker, number, name = missing
            call, seconds = f"call {number}, {name},", self._absent_seconds
            self._announce(
                f"has given up: {did_not_come(self._name(worker), call, seconds, self.member, advice=False)}"
            )

    def _end_if_stuck(self) -> None:
        """After a failure, end the process if it waits for a worker that will never answer.

        It does so in a collective, which blocks its main thread, or at its end, where JAX waits for all others.
        """
        over = False
        while not over:
            self._compare_calls()
            with self._changed:
                over = self._changed.wait_for(lambda: self._failure is not None or self.closed, TICK_SECONDS)
        failed = time.monotonic()
        while not self._acknowledged.wait(
            max(failed, self._last_call) + self.failure_timeout_seconds - time.monotonic()
        ):
            if time.monotonic() >= max(failed, self._last_call) + self.failure_timeout_seconds:
                self._end(
                    f"did not learn of it within {self.failure_timeout_seconds:.0f} seconds and is ended: it "
                    f"waits for a {self.member} that will not come"
                )
        with self._changed:
            self._changed.wait_for(lambda: self.closed)
            # At the exit JAX waits for all others, also for one that fails later.
            self._changed.wait_for(lambda: self._failure is not None or self._exit_seconds is None)
            self._changed.wait_for(lambda: self._exit_seconds is None, self._exit_seconds)
            if self._exit_seconds is None:
                return
        self._end("has ended its program and waits for the others no longer")

    def _end(self, why: str) -> None:
        sys.stderr.write(f"penstock: WorkerError: {self._failure}. {self._name(self.worker)} {why}.\n")
        sys.stderr.flush()
        os._exit(1)

    def _description_of(self, failed: InputFailed) -> str:
        if not failed.reason:
            return (
                f"{self._name(failed.worker)} has left its loop before step {failed.step} of {failed.topic}, while "
                f"{self._name(self.worker)} continues: every {self.member} must take the same steps"
            )
        return f"{self._name(failed.worker)} failed at step {failed.step} of its input with {failed.reason}"

    def _name(self, worker: int) -> str:
        return f"{self.member} {worker} of {self.workers}"

    def _leave(self) -> None:
        """At the interpreter's exit: tell the others whether the program has succeeded."""
        error = getattr(sys, "last_value", None)
        self._exit_seconds = self.failure_timeout_seconds
        if error is not None and not isinstance(error, WorkerError) and self._failure is None:
            self.fail(f"ended with {text_of_error(error)}")
            if self.worker != 0:  # JAX ends all other processes with worker 0, and they may still be working
                self._exit_seconds = min(EXIT_SECONDS, self.failure_timeout_seconds / 2)
        self._say_goodbye()
        if self._failure is not None:
            self._line.connection.shut_down()  # otherwise it hears of a later failure, as JAX waits for the others

    def close(self) -> None:
        """Leave the channel, which is not a failure. Messages that are received afterwards are ignored."""
        self._say_goodbye()
        with self._changed:
            self._exit_seconds = None
            self._changed.notify_all()
        self._line.connection.shut_down()  # closing it would not wake the thread that waits for data
        self._thread.join()
        self._watch.join()
        self._line.close()

    def _say_goodbye(self) -> None:
        forget(self)
        if self._failure is None and not self.closed:
            news = self._calls.news()
            if news is not None:
                self.post(news, seconds=_LEAVING_SECONDS)
            self.post(WorkerLeft(self.worker), seconds=_LEAVING_SECONDS)
        self._acknowledged.set()
        with self._changed:
            self.closed = True
            self._changed.notify_all()
