"""The consumer's end of the service: lanes fetch spans from workers, the caller takes what has arrived.

A lane is a thread that takes a part, asks a worker for it, and asks another one for the rest of it if that worker is
lost. Of passes that are fetched in one go each has a lane; where they are many, each has its turn (`turns.py`).
A steward keeps in touch with the dispatcher. All of them end soon after `stop`, which waits for nothing.
"""

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Condition, Lock, RLock
from typing import Any

from msgspec.structs import replace

from penstock.data.block import Block
from penstock.errors import ClosedError, LostDataWorkerError, LostLeaseError, PenstockError, ServiceError
from penstock.options import UNKNOWN_CARDINALITY
from penstock.runtime.threads import Threads
from penstock.service.reader.fetched import Arrived, Behind, Item, Part
from penstock.service.reader.heartbeat import Pulse
from penstock.service.reader.leases import Holding, Leases
from penstock.service.reader.pace import SpanPace, Usage
from penstock.service.reader.position import Position
from penstock.service.reader.requests import Reading
from penstock.service.reader.turns import LOOK_SECONDS, MOST_LANES, TURN_SECONDS, Turns
from penstock.service.reader.workers import Staff
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import ConsumerNews, EpochOpened, ReleaseConsumer
from penstock.service.wire.envelope import ProtocolError
from penstock.service.wire.failures import to_exception
from penstock.service.wire.interfaces import Answer, WrongAnswerError
from penstock.service.wire.spans import count
from penstock.service.wire.subjects import Pass, Span, WorkerInfo
from penstock.service.wire.worker_answers import checked
from penstock.service.wire.worker_messages import End, Failed, Fetch, LeftOut, Pause

_logger = logging.getLogger(__name__)

_LANES_PER_WORKER = 2
_HEARTBEAT_SECONDS = 1.0
_NEWS_SECONDS = 0.2
"""How often the dispatcher is asked while no worker can be."""
_RECALL_SECONDS = 0.1
"""How often it is asked near the end of a shared epoch whether it wants anything back."""
_GOODBYE_SECONDS = 1.0
"""How long the dispatcher is asked whether a worker that is lost had said that it ends."""
_KEPT_SECONDS = 0.2
"""What the caller uses in this time is not given back."""
_MOST_WRONG_ANSWERS = 3
_SILENCE_SECONDS = 5.0
"""How long the caller waits before the log says what for."""


class Reader:
    """One consumer of one epoch of a job; it owns the passes, or leases spans of them.

    Args:
        reopen: opens the epoch again at a dispatcher that knows nothing of it.
        position: where it stands.
        left_out: counts what the workers have left out before an element, given its number.
    """

    def __init__(
        self,
        reading: Reading,
        opened: EpochOpened,
        dispatcher: DispatcherClient,
        reopen: Callable[[dict[str, Any]], EpochOpened],
        staff: Staff,
        threads: Threads,
        position: Position,
        left_out: Callable[[int, LeftOut], None],
    ) -> None:
        self._left_out = left_out
        self._reading = reading
        self._opened = opened
        self._reopen = reopen
        self._dispatcher = dispatcher
        self._staff = staff
        self._threads = threads
        lock = RLock()
        # One for each that waits, so that an element wakes only the caller.
        self._changed, self._arrived, self._steward = Condition(lock), Condition(lock), Condition(lock)
        self._turn = Condition(lock)
        self._position = position
        self._leases = Leases(opened.consumer_id, dispatcher, self._holding) if opened.leased else None
        self._turns = Turns(reading.holds_back) if reading.endless and not opened.leased else None
        self._usage = Usage()
        self._pace = SpanPace(reading.limit, self._usage if opened.leased or reading.trainer else None)
        self._lanes = 0
        self._buffered = 0  # elements that have arrived and were not handed on
        self._unread = 0  # elements at the end of what was handed on that were not used
        self._failure: Exception | None = None
        self._waiting = False  # the caller, for an element
        self._stopping = False
        self._replaced = False
        self._over = False
        self._beat_at = time.monotonic() + _HEARTBEAT_SECONDS
        self._pulse = Pulse()
        self._hearing = Lock()
        self._version = -1
        self._passes: list[Pass] = []
        self._enter(opened)
        threads.start(self._keep_in_touch, "service-steward")

    # The caller's side

    @property
    def number(self) -> int:
        """The number of the element that comes next, failures counted."""
        return self._position.handed_on.number

    @property
    def shared(self) -> bool:
        """Whether other readers have had something of the epoch."""
        with self._changed:
            return self._leases is not None and not self._position.all_read

    def next(self) -> Block | None:
        """The next elements, or None at the end.

        Raises:
            ClosedError: the reader was stopped.
            TooManySkippedError: too many rows were left out; the next elements come after it.
            Exception: what a user's function raised in place of an element; the reader goes on after it.
        """
        with self._changed:
            while (part := self._awaited_part()) is not None:
                self._position.count_left_out(part, self._left_out)
                item = self._hand_on(part)
                self._changed.notify_all()
                self._turn.notify()
                if isinstance(item, Arrived):
                    return item.block
                if isinstance(item, Behind):
                    continue
                if not self._reading.leaves_out(item):
                    raise item.error
                self._pulse.skipped += 1
            return None

    def _awaited_part(self) -> Part | None:
        """The part from which the next elements are handed on, when they are there; None at the end."""
        begun = said = time.monotonic()
        while (part := self._position.next_part()) is None:
            if self._failure is not None:
                raise self._failure
            if self._position.all_handed_on and (self._leases is None or self._leases.over):
                self.stop()
                return None
            if self._stopping:
                raise ClosedError("this iterator was closed while an element was waited for")
            self._waiting = True
            self._turn.notify()
            self._arrived.wait(_SILENCE_SECONDS)
            self._waiting = False
            if time.monotonic() > said + _SILENCE_SECONDS:
                said = time.monotonic()
                why = self._dispatcher.trouble or self._staff.why_silent()
                _logger.warning("no element for %.0f s: %s", said - begun, why)
        self._pulse.seconds_waited += time.monotonic() - begun
        return part

    def _hand_on(self, part: Part) -> Item:
        item = self._position.hand_on(part)
        if isinstance(item, Arrived):
            self._buffered -= item.chunk.rows
            self._pulse.rows += item.chunk.rows
            self._usage.used(item.chunk.rows)
        self._finish(part)
        return item

    def _finish(self, part: Part) -> None:
        if self._position.finish(part) and self._leases is not None:
            self._leases.used([part])

    def consumed(self, number: int) -> None:
        """The caller has used all elements before this number."""
        with self._changed:
            used = self._position.handed_on.use(number)
            if self._leases is not None:
                self._leases.used(used)

    def record(self, number: int, *, bare: bool) -> dict[str, Any]:
        """How to have the elements again from `number` on: see `LiveStream.record`."""
        with self._changed:
            return self._position.record(number, bare=bare)

    def claim(self) -> None:
        """Let the dispatcher know what the last record says: nobody else is given any of it from then on.

        Raises:
            PenstockError: it does not know this reader any more, or cannot be reached.
        """
        if self._leases is None:
            return
        with self._changed:
            begun = self._position.begun(self._position.claimed)
        try:
            if not self._stopping:
                self._leases.acknowledge(begun)
        except (LostLeaseError, ClosedError):
            # A thread that reads ahead may come to the end meanwhile: the reader is then released, and its line closed.
            if not self._stopping:
                raise
        if self._stopping:  # the release has told the dispatcher of all that was handed on
            with self._changed:
                self._changed.wait_for(lambda: self._over)

    def unread(self, rows: int) -> None:
        """The last `rows` elements that were handed on were not used, and no more will be asked for."""
        self._unread = max(self._unread, rows)

    def leave(self) -> None:
        """It will be stopped, and another one takes its place, which is to have back what it was given."""
        self._replaced = self._leases is not None

    def stop(self) -> None:
        """Let everything end that runs for this reader; waits for nothing."""
        with self._changed:
            self._stopping = True
            self._steward.notify_all()
            self._wake()

    def _wake(self) -> None:
        """Let the lanes and the caller look at what has changed."""
        self._changed.notify_all()
        self._arrived.notify_all()
        self._turn.notify_all()

    # The lanes

    def _lane(self) -> None:
        try:
            while (part := self._take()) is not None:
                while not part.complete and not self._stopping and self._failure is None:
                    self._fetch(part)
        except Exception as error:  # nobody else would hear of it
            self._fail(error)
        finally:
            with self._changed:
                self._lanes -= 1

    def _lane_of_turns(self, turns: Turns) -> None:
        """As `_lane`, where a part that is not complete may have to wait for others."""
        try:
            while (part := self._take_turn(turns)) is not None:
                while not part.complete and not self._stopping and self._failure is None:
                    self._fetch(part)
                    if turns.crowded:
                        break
                with self._changed:
                    turns.over(part)
                    self._turn.notify(1 if turns.crowded else MOST_LANES)
        except Exception as error:  # nobody else would hear of it
            self._fail(error)

    def _take_turn(self, turns: Turns) -> Part | None:
        """The part whose turn it is, when there is room for what it gives; None where there are more lanes than parts.

        A lane that gets none ends, and is counted no more.
        """
        with self._changed:
            while not self._stopping and self._failure is None and turns.count >= self._lanes:
                part = turns.next(
                    self._lanes, lambda rows: self._pace.holds(self._buffered + rows), self._position.awaited
                )
                if part is not None:
                    self._turn.notify()
                    return part
                self._turn.wait(LOOK_SECONDS if self._reading.holds_back else None)
            self._lanes -= 1
            return None

    def _fail(self, error: Exception) -> None:
        """Let the caller meet an error that ends the reader."""
        with self._changed:
            self._failure = self._failure or error
            self._wake()

    def _take(self) -> Part | None:
        """A part to fetch, when there is one and there is room for it; None when there will be no more."""
        while True:
            with self._changed:
                if self._stopping or self._failure is not None:
                    return None
                part = self._waiting_part()
                if part is not None:
                    return part
                if self._leases is None or not self._leases.begin(self._pace, self._lanes, self._under_way()):
                    self._changed.wait(None if self._leases is None else self._leases.pause)
                    continue
            reply = self._leases.ask()
            self._meet_passes(reply.spans)
            with self._changed:
                self._leases.granted(reply)
                if reply.wanted or reply.near_end:
                    self._steward.notify_all()
                self._wake()

    def _meet_passes(self, spans: list[Span]) -> None:
        """Hear of passes that have come since the last heartbeat, where some of them were leased.

        Raises:
            ProtocolError: there are none.
        """
        if any(span.pass_number not in self._position.passes for span in spans):
            self._hear()
        unknown = [span for span in spans if span.pass_number not in self._position.passes]
        if unknown:
            raise ProtocolError(f"the dispatcher at {self._dispatcher.address} leases what it never told of: {unknown}")

    def _waiting_part(self) -> Part | None:
        part = self._position.waiting()
        if part is not None:
            return part
        if self._leases is not None:
            span = self._leases.next(self._pace.size(None, self._lanes, self._under_way()))
            return None if span is None else self._position.passes[span.pass_number].adopt(span)
        left = (progress for progress in self._position.passes.values() if not progress.all_begun)
        progress = min(left, key=lambda progress: progress.frontier, default=None)
        if progress is None:
            return None
        size = self._pace.size(progress.remaining, self._lanes, self._under_way())
        return progress.begin(size) if size else None

    def _under_way(self) -> int:
        """How many elements were asked for and not handed on; of a shared job positions."""
        buffered = self._buffered if self._leases is None else self._pace.positions_of(self._buffered)
        return self._position.requested + math.ceil(buffered)

    def _fetch(self, part: Part) -> None:
        """Fetch what is missing of a part, or what a worker gives of it before it is lost."""
        description, reading = self._position.descriptions[part.pass_number], self._reading
        span = part.suspicion.next(part.missing(), reading.stride)
        wait_seconds = TURN_SECONDS if self._turns is not None and self._turns.crowded else 0.0
        looks_in = part.looks_in and wait_seconds > 0
        alone = part.suspicion.alone
        request = reading.request(
            self._opened, description, span, alone=alone, wait_seconds=wait_seconds, looks_in=looks_in
        )
        worker = self._staff.choose(description.worker_id, lambda: self._stopping, alone=alone)
        if worker is None:
            return
        asked = time.monotonic()
        try:
            length = self._position.passes[part.pass_number].length if request.stride == 1 else UNKNOWN_CARDINALITY
            for answer in checked(self._staff.fetch(worker, request), request, reading.kind, length):
                part.wrong_answers = 0
                if not self._take_in(part, answer, request):
                    break
        except LostDataWorkerError as error:
            if not self._stopping:
                blamed = self._staff.lost(worker, error, asked)
                left = self._has_left(worker.worker_id)
                self._staff.tell(worker, error, left=left)
                if blamed and not left:
                    self._suspect(part, worker.worker_id, request.span.stop)
                if isinstance(error, WrongAnswerError):
                    self._count_wrong_answer(part, worker, error)
            if self._staff.short_handed():
                with self._changed:
                    self._beat_at = 0.0
                    self._steward.notify_all()
        finally:
            self._staff.leave(worker)

    def _count_wrong_answer(self, part: Part, worker: WorkerInfo, error: WrongAnswerError) -> None:
        """Let the caller know where nobody gives a right one."""
        part.wrong_answers += 1
        if part.wrong_answers == _MOST_WRONG_ANSWERS:
            self._fail(
                ServiceError(
                    f"the data worker at {worker.endpoint.address} answers what it was not asked: {error}. So it was "
                    f"{_MOST_WRONG_ANSWERS} times in a row: are all data workers of the penstock of this process?"
                )
            )

    def _has_left(self, worker_id: int) -> bool:
        """Whether a worker had told the dispatcher that it ends: then nothing that it was asked for is the reason."""
        with suppress(PenstockError):
            news = self._hear(worker_id, patience_seconds=_GOODBYE_SECONDS)
            return news is not None and worker_id in news.left
        return False

    def _suspect(self, part: Part, worker_id: int, stop: int) -> None:
        """Note that a worker was lost over a part; what has cost several is given up."""
        asked = replace(part.missing(), stop=stop)
        if self._reading.endless or not self._reading.by_position:
            blamed = part.suspicion.stream_lost(worker_id, asked, self._reading.stride)
        else:
            blamed = part.suspicion.worker_lost(worker_id, asked)
        if not blamed or part.complete:
            return
        error = self._reading.poison(part.pass_number, asked.start)
        if not self._reading.by_position:
            self._fail(error)  # not raised here: it would keep what it was raised in, and with that a line to a worker
            return
        _logger.error("%s", error)
        with self._changed:
            part.arrive_failure(error, asked.start + self._reading.stride, 0)
            self._position.delivery.arrived(part)
            self._wake()

    def _take_in(self, part: Part, answer: Answer, request: Fetch) -> bool:
        """Note a piece of an answer; False if no more of it is wanted."""
        stop, in_turn = request.span.stop, request.wait_seconds > 0
        if isinstance(answer, Pause):
            return False
        with self._changed:
            if part.done:  # the rest of it was given back
                return False
            progress, before = self._position.passes[part.pass_number], part.fetch_position
            if isinstance(answer, End):
                end = stop if answer.length < 0 else answer.length
                self._pace.measured(max(0, end - before), 0, answer.seconds)
                if answer.left_out is not None:
                    part.arrive_behind(answer.left_out, self._reading.behind(part, stop))
                    self._position.delivery.arrived(part)
                part.ends_at(stop, answer.skip)
                if answer.length >= 0:
                    part.complete = True
                    progress.end_at(answer.length)
                    if self._leases is not None:
                        self._leases.ended(part.pass_number, answer.length)
                self._finish(part)
                self._wake()
            elif isinstance(answer, Failed):
                place = answer.next
                part.arrive_failure(to_exception(answer), place.start, place.skip, answer.left_out)
                self._position.delivery.arrived(part)
                self._wake()
            else:
                chunk, block = answer
                self._pace.arrived(chunk.rows, block.nbytes)
                if not in_turn and not self._has_room(part, chunk.rows):
                    return False
                self._buffered += part.arrive(Arrived(chunk, block), self._reading.kind, self._reading.stride)
                self._pace.measured(max(0, part.fetch_position - before), block.nbytes, chunk.seconds)
                self._position.delivery.arrived(part)
                self._arrived.notify_all()
            more = in_turn or self._turns is None or not self._turns.crowded
            return more and not self._stopping and not part.complete

    def _has_room(self, part: Part, rows: int) -> bool:
        """Wait until more may be buffered; gives whether it is still wanted."""
        self._changed.wait_for(
            lambda: (
                self._stopping
                or part.done
                or (self._turns is not None and self._turns.crowded)
                or self._pace.holds(self._buffered + rows)
                or (not part.items and part in self._position.awaited())
            )
        )
        return not part.done

    # The steward

    def _keep_in_touch(self) -> None:
        """Tell the dispatcher of this consumer, and hear from it, until the end; then let go of everything."""
        try:
            while not self._paused():
                if time.monotonic() >= self._beat_at:
                    self._beat()
                    self._beat_at = time.monotonic() + (
                        _NEWS_SECONDS if self._staff.short_handed() else _HEARTBEAT_SECONDS
                    )
                elif self._leases is not None:
                    self._leases.report(self._begun())
                self._give_back()
        except Exception as error:  # nobody else would hear of it
            self._fail(error)
            with self._changed:
                self._steward.wait_for(lambda: self._stopping)
        self._staff.close()
        if not self._replaced:
            with suppress(PenstockError):  # it will miss this consumer's heartbeats
                self._dispatcher.ask(self._release(), patience_seconds=0)
        self._dispatcher.close()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _release(self) -> ReleaseConsumer:
        with self._changed:
            used = self._position.handed_on.number - self._unread
            consumed = [] if self._leases is None else self._leases.left(self._position.begun(used))
        return ReleaseConsumer(consumer_id=self._opened.consumer_id, consumed=consumed)

    def _paused(self) -> bool:
        """Wait until there is reason to ask the dispatcher; gives whether the reader was stopped."""
        with self._changed:
            since = time.monotonic()
            while not self._stopping:
                recall = self._leases is not None and self._leases.near_end and (self._held() or self._leases.known)
                until = min(self._beat_at, since + _RECALL_SECONDS) if recall else self._beat_at
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._steward.wait(left)
            return self._stopping

    def _held(self) -> int:
        """How many positions of a shared job this reader has that were not handed on."""
        assert self._leases is not None
        return self._leases.not_begun + self._position.unread

    def _holding(self) -> Holding:
        """What the dispatcher is told of that."""
        with self._changed:
            assert self._leases is not None
            return self._held(), self._waiting, self._leases.asking

    def _begun(self) -> list[Span]:
        """What the caller has used of spans that are not used up."""
        with self._changed:
            return self._position.begun(self._position.handed_on.used_until)

    def _give_back(self) -> None:
        """Where another reader has nothing, let it have what the caller of this one does not need soon."""
        leases = self._leases
        if leases is None or not leases.wanted:
            return
        with self._changed:
            leases.wanted = False
            held = self._held()
            left = held - min(held // 2, self._pace.used_in(_KEPT_SECONDS))
            spans = leases.take_back(left)
            given = self._position.give_up(left - count(spans))
            self._buffered -= given.rows
            leases.used(given.used)
            self._wake()
        if spans or given.spans:
            leases.give_back([*spans, *given.spans], self._begun())

    def _beat(self) -> None:
        try:
            self._hear()
        except LostLeaseError:
            if self._leases is not None:
                raise
            # Nobody else has what it reads: a new dispatcher only has to know of it.
            self._opened = self._reopen(self.record(self.number, bare=True))
            self._enter(self._opened)
        if self._leases is not None:
            self._leases.acknowledge(self._begun())

    def _reads(self, part: Pass) -> bool:
        """Whether a pass is this reader's; one that it has begun stays so, whoever makes it."""
        begun = part.number in self._position.passes
        return begun or not self._reading.own_passes or self._staff.has(part.worker_id)

    def _hear(self, *lost: int, patience_seconds: float | None = None) -> ConsumerNews | None:
        """Tell the dispatcher of this reader and of workers that it cannot reach; take over what it answers.

        Returns:
            The answer; None where another thread is waiting for one for so long.
        """
        # Answers must be taken over in the order in which they were given: each says what has changed since the last.
        if not self._hearing.acquire(timeout=-1 if patience_seconds is None else patience_seconds):
            return None
        try:
            with self._changed:
                rounds, turn = self._position.rounds()
                unreachable = sorted({*lost, *self._staff.suspects()})
                heartbeat = self._pulse.heartbeat(self._opened.consumer_id, self._version, rounds, turn, unreachable)
            news: ConsumerNews = self._dispatcher.ask(heartbeat, patience_seconds)
            workers = self._staff.update(news.workers, news.gone, whole=news.whole)
            self._update(workers, news.version, news.passes)
            if self._leases is not None and news.wanted:
                self._leases.wanted = True
            return news
        finally:
            self._hearing.release()

    def _enter(self, opened: EpochOpened) -> None:
        """Take over what a dispatcher says that has just opened the epoch."""
        workers = self._staff.update(opened.workers, whole=True)
        self._update(workers, opened.version, opened.passes)

    def _update(self, workers: int, version: int, passes: list[Pass] | None) -> None:
        """Begin what can be begun with so many workers, and these passes, where they are others than before."""
        with self._changed:
            self._version = version
            self._passes = self._passes if passes is None else passes
            new = self._position.update([part for part in self._passes if self._reads(part)])
            if self._stopping:
                missing = 0
            elif self._turns is not None:
                for part in self._position.begin_all():
                    self._turns.add(part)
                missing = min(new, MOST_LANES - self._lanes)
            else:
                missing = max(0, min(MOST_LANES, max(1, workers) * _LANES_PER_WORKER) - self._lanes)
            self._lanes += missing
            self._wake()
        lane = self._lane if self._turns is None else partial(self._lane_of_turns, self._turns)
        for _ in range(missing):
            self._threads.start(lane, "service-lane")
