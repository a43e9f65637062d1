"""The consumer's end of the service: lanes fetch spans from workers, the caller takes what has arrived.

A lane is a thread that takes a part, asks a worker for it, and asks another one for the rest of it if that worker is
lost. A steward keeps in touch with the dispatcher. All of them end soon after `stop`, which waits for nothing.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, RLock
from typing import Any

from msgspec.structs import replace

from penstock.data.block import Block
from penstock.errors import ClosedError, LostLeaseError, LostWorkerError, PenstockError, PoisonError, ServiceError
from penstock.options import UNKNOWN_CARDINALITY
from penstock.runtime.threads import Threads
from penstock.service.asking import Reading
from penstock.service.dispatcher_client import DispatcherClient
from penstock.service.failures import to_exception
from penstock.service.fetching import End, Failed
from penstock.service.interfaces import Answer
from penstock.service.leases import Leases
from penstock.service.machine.spans import whole
from penstock.service.messages import ConsumerHeartbeat, ConsumerNews, EpochOpened, ReleaseConsumer
from penstock.service.pace import SpanPace
from penstock.service.progress import ENDLESS, Arrived, Part, PassProgress, Raised, SharedProgress, State, after
from penstock.service.staff import Staff
from penstock.service.subjects import Pass, Span

_logger = logging.getLogger(__name__)

_LANES_PER_WORKER = 2
_HEARTBEAT_SECONDS = 1.0
_NEWS_SECONDS = 0.2
"""How often the dispatcher is asked while no worker can be."""
_SILENCE_SECONDS = 5.0
"""How long the caller waits before the log says what for."""


class Reader:
    """One consumer of one epoch of a job; it owns the passes, or leases spans of them."""

    def __init__(
        self,
        reading: Reading,
        opened: EpochOpened,
        dispatcher: DispatcherClient,
        reopen: Callable[[dict[str, Any]], EpochOpened],
        staff: Staff,
        threads: Threads,
        state: Any = None,
    ) -> None:
        self._reading = reading
        self._opened = opened
        self._reopen = reopen
        self._dispatcher = dispatcher
        self._staff = staff
        self._threads = threads
        lock = RLock()
        # One for each that waits, so that an element wakes only the caller.
        self._changed, self._arrived, self._steward = Condition(lock), Condition(lock), Condition(lock)
        self._descriptions: dict[int, Pass] = {}
        self._passes: dict[int, PassProgress] = {}
        self._restored: dict[int, State] = {}
        self._delivery = reading.delivery()
        self._leases = Leases(opened.consumer_id, dispatcher) if opened.leased else None
        self._pace = SpanPace(reading.limit)
        self._lanes = 0
        self._buffered = 0  # elements that have arrived and were not handed on
        self._last: tuple[Part, Arrived] | None = None
        self._given: int | None = None  # of its elements, as the last state or the end has it
        self._failure: Exception | None = None
        self._stopping = False
        self._news_wanted = False
        self._beaten = time.monotonic()
        self._handed_on = 0
        self._skipped = 0
        self._seconds_waited = 0.0
        if state is not None:
            self._delivery.turn = int(state["turn"])
            self._restored = {int(number): position for number, position in state["passes"].items()}
        self._update(opened)
        threads.start(self._keep_in_touch, "service-steward")

    # The caller's side

    def next(self) -> Block | None:
        """The next elements, or None at the end.

        Raises:
            ClosedError: the reader was stopped.
            Exception: what a user's function raised in place of an element; the reader goes on after it.
        """
        begun = said = time.monotonic()
        with self._changed:
            self._last = None
            if self._leases is not None:
                self._leases.settle()
            while (part := self._delivery.next_part(self._passes)) is None:
                if self._failure is not None:
                    raise self._failure
                if self._ended():
                    self.stop()
                    return None
                if self._stopping:
                    raise ClosedError("this iterator was closed while an element was waited for")
                self._arrived.wait(_SILENCE_SECONDS)
                if time.monotonic() > said + _SILENCE_SECONDS:
                    said = time.monotonic()
                    _logger.warning("no element for %.0f s: %s", said - begun, self._staff.why_silent())
            self._seconds_waited += time.monotonic() - begun
            item = self._hand_on(part)
            self._changed.notify_all()
        if isinstance(item, Raised):
            if self._reading.skip_poison and isinstance(item.error, PoisonError):
                self._skipped += 1
                return self.next()
            raise item.error
        return item.block

    def state(self, rows: int | None = None) -> dict[str, Any]:
        """The positions that were handed on; of the last block only the first `rows` rows, if that is given."""
        with self._changed:
            part, position, turn = None, None, self._delivery.turn
            self._given = rows
            if rows is not None and self._last is not None:
                part, position = self._last[0], self._place(rows)
                turn = part.pass_number + (rows > 0)
            passes: dict[str, State] = {str(number): state for number, state in self._restored.items()}
            for number, progress in self._passes.items():
                passes[str(number)] = progress.state(part, position)
            return {"passes": passes, "turn": turn}

    def keep_state(self) -> None:
        """Let the dispatcher know what the last state says: nobody else is given any of it from then on.

        Raises:
            PenstockError: it does not know this reader any more, or cannot be reached.
        """
        if self._leases is None:
            return
        with self._changed:
            if self._stopping:  # its release says so
                return
            begun = self._begun(self._given)
        self._leases.acknowledge(begun)

    def unread(self, rows: int) -> None:
        """The last `rows` elements of the last block were not used, and no more will be asked for."""
        with self._changed:
            self._given = len(self._last[1].block) - rows if self._last is not None else None

    def _begun(self, rows: int | None) -> list[Span]:
        """What was handed on and is not settled; of the last block only `rows` elements, if that is given."""
        assert self._leases is not None
        if self._last is None or rows == len(self._last[1].block):
            rows = None
        last = None if rows is None or self._last is None else self._last[0]
        return self._leases.begun(self._passes, last, (0, 0) if rows is None else self._place(rows))

    def _place(self, rows: int) -> tuple[int, int]:
        """(position, skip) of what follows the first `rows` elements of the last block."""
        assert self._last is not None
        return after(self._last[1].chunk, rows, self._reading.kind, self._reading.stride)

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

    def _hand_on(self, part: Part) -> Arrived | Raised:
        item = self._delivery.take(part)
        if isinstance(item, Raised):
            part.position, part.skip = item.rest.start, item.rest.skip
        else:
            rows = item.chunk.rows
            part.position, part.skip = after(item.chunk, rows, self._reading.kind, self._reading.stride)
            self._last, self._given = (part, item), None
            self._buffered -= rows
            self._handed_on += rows
        self._forget_if_done(part)
        return item

    def _forget_if_done(self, part: Part) -> None:
        if part.done:
            self._passes[part.pass_number].finish(part)
            if self._leases is not None:
                self._leases.handed_on(part)

    def _ended(self) -> bool:
        """Whether everything that is this consumer's was handed on."""
        if any(progress.open for progress in self._passes.values()):
            return False
        if self._leases is not None:
            return self._leases.over
        return bool(self._passes) and all(progress.all_begun for progress in self._passes.values())

    # The lanes

    def _lane(self) -> None:
        try:
            while (part := self._take()) is not None:
                while not part.complete and not self._stopping:
                    self._fetch(part)
        except Exception as error:  # nobody else would hear of it
            with self._changed:
                self._failure = self._failure or error
                self._wake()
        finally:
            with self._changed:
                self._lanes -= 1

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
                    if self._reading.endless and self._leases is None:
                        return None
                    self._changed.wait(None if self._leases is None else self._leases.pause)
                    continue
            reply = self._leases.ask()
            with self._changed:
                self._leases.granted(reply)
                self._wake()

    def _waiting_part(self) -> Part | None:
        for progress in self._passes.values():
            if progress.waiting:
                return progress.waiting.popleft()
        if self._leases is not None:
            span = self._leases.next(self._pace.size(None, self._lanes, self._under_way()))
            return None if span is None else self._passes[span.pass_number].adopt(span)
        for progress in sorted(self._passes.values(), key=lambda progress: progress.frontier):
            if progress.all_begun:
                continue
            if self._reading.endless:
                return progress.begin(ENDLESS - progress.frontier)
            size = self._pace.size(progress.remaining, self._lanes, self._under_way())
            return progress.begin(size) if size else None
        return None

    def _under_way(self) -> int:
        """How many elements were asked for and not handed on."""
        requested = sum(
            part.stop - part.fetch_position
            for progress in self._passes.values()
            for part in progress.open
            if not part.complete and part.stop < ENDLESS
        )
        return requested + self._buffered

    def _fetch(self, part: Part) -> None:
        """Fetch what is missing of a part, or what a worker gives of it before it is lost."""
        description, reading = self._descriptions[part.pass_number], self._reading
        missing = part.missing()
        request = reading.request(self._opened, description, part.suspicion.next(missing, reading.stride))
        alone = part.suspicion.alone
        worker = self._staff.choose(description.worker_id, lambda: self._stopping, alone=alone)
        if worker is None:
            return
        asked = time.monotonic()
        try:
            for answer in self._staff.fetch(worker, request):
                if not self._take_in(part, answer, request.span.stop):
                    break
        except LostWorkerError as error:
            if not self._stopping and self._staff.lost(worker, error, asked):
                self._suspect(part, worker.worker_id, request.span.stop)
            if self._staff.short_handed():
                with self._changed:
                    self._news_wanted = True
                    self._steward.notify_all()
        finally:
            self._staff.leave(worker)

    def _suspect(self, part: Part, worker_id: int, stop: int) -> None:
        """Note that a worker was lost over a part; what has cost several is given up."""
        asked = replace(part.missing(), stop=stop)
        if self._reading.endless or not self._reading.by_position:
            blamed = part.suspicion.stream_lost(worker_id, asked, self._reading.stride)
        else:
            blamed = part.suspicion.worker_lost(worker_id, asked)
        if not blamed:
            return
        error = self._reading.poison(part.pass_number, asked.start)
        if not self._reading.by_position:
            raise error
        _logger.error("%s", error)
        with self._changed:
            part.arrive_failure(error, replace(asked, start=asked.start + self._reading.stride, stop=part.stop, skip=0))
            self._delivery.arrived(part)
            self._wake()

    def _take_in(self, part: Part, answer: Answer, stop: int) -> bool:
        """Note a piece of an answer, for which positions up to `stop` were asked; False if no more of it is wanted."""
        with self._changed:
            progress = self._passes[part.pass_number]
            if isinstance(answer, End):
                part.ends_at(stop, answer.skip)
                if answer.length >= 0:
                    part.complete = True
                    progress.end_at(answer.length)
                    if self._leases is not None:
                        self._leases.ended(part.pass_number, answer.length)
                self._forget_if_done(part)
                self._wake()
            elif isinstance(answer, Failed):
                part.arrive_failure(to_exception(answer), replace(answer.next, stop=part.stop))
                self._delivery.arrived(part)
                self._wake()
            else:
                chunk, block = answer
                self._pace.measured(chunk.rows, block.nbytes, chunk.seconds)
                self._changed.wait_for(
                    lambda: (
                        self._stopping
                        or self._pace.holds(self._buffered + chunk.rows)
                        or (not part.items and self._delivery.awaits(part, self._passes))
                    )
                )
                self._buffered += chunk.rows
                part.arrive(Arrived(chunk, block), self._reading.kind, self._reading.stride)
                self._delivery.arrived(part)
                self._arrived.notify_all()
            return not self._stopping and not part.complete

    # The steward

    def _keep_in_touch(self) -> None:
        """Tell the dispatcher of this consumer, and hear from it, until the end; then let go of everything."""
        try:
            while not self._paused(_NEWS_SECONDS if self._staff.short_handed() else _HEARTBEAT_SECONDS):
                self._beat()
        except PenstockError as error:
            with self._changed:
                self._failure = self._failure or error
                self._wake()
            with self._changed:
                self._steward.wait_for(lambda: self._stopping)
        self._staff.close()
        with suppress(PenstockError):  # it will miss this consumer's heartbeats
            with self._changed:
                consumed = [] if self._leases is None else self._leases.left(self._begun(self._given))
            self._dispatcher.ask(
                ReleaseConsumer(consumer_id=self._opened.consumer_id, consumed=consumed), patience_seconds=0
            )
        self._dispatcher.close()

    def _paused(self, seconds: float) -> bool:
        """Wait until there is reason to ask the dispatcher; gives whether the reader was stopped."""
        with self._changed:
            self._steward.wait_for(lambda: self._stopping or self._news_wanted, seconds)
            self._news_wanted = False
            return self._stopping

    def _beat(self) -> None:
        with self._changed:
            seconds, self._beaten = time.monotonic() - self._beaten, time.monotonic()
            handed_on, self._handed_on = self._handed_on, 0
            waited, self._seconds_waited = self._seconds_waited, 0.0
        heartbeat = ConsumerHeartbeat(
            consumer_id=self._opened.consumer_id,
            rows_per_second=handed_on / seconds,
            waiting_fraction=min(1.0, waited / seconds),
            lost_workers=self._staff.suspects(),
            skipped=self._skipped,
        )
        try:
            self._update(self._dispatcher.ask(heartbeat))
        except LostLeaseError:
            if self._leases is not None:
                raise
            # Nobody else has what it reads: a new dispatcher only has to know of it.
            self._opened = self._reopen(self.state())
            self._update(self._opened)
        if self._leases is not None:
            with self._changed:
                begun = self._begun(0)  # whoever has the last block may not have used it
            # Whole positions only: what is acknowledged of one in the middle cannot come back with an earlier state.
            self._leases.acknowledge(whole(begun))

    def _update(self, news: EpochOpened | ConsumerNews) -> None:
        """Take over what the dispatcher says: passes that have come, workers that have come or gone."""
        workers = self._staff.update(news.workers)
        with self._changed:
            self._check_same(news.passes)
            new = [description for description in news.passes if description.number not in self._passes]
            for description in news.passes:
                self._descriptions[description.number] = description
            for description in new:
                self._passes[description.number] = self._progress(description)
            if self._stopping:
                missing = 0
            elif self._reading.endless and self._leases is None:  # a lane for each pass, which ends with it
                missing = len(new)
            else:
                missing = max(0, max(1, workers) * _LANES_PER_WORKER - self._lanes)
            self._lanes += missing
            self._wake()
        for _ in range(missing):
            self._threads.start(self._lane, "service-lane")

    def _check_same(self, descriptions: Sequence[Pass]) -> None:
        """Refuse to go on in passes that are cut in another way.

        Raises:
            ServiceError: a dispatcher that was started anew, without a journal, cuts them for other workers.
        """
        for description in descriptions:
            known = self._descriptions.get(description.number, description)
            if (known.shard_index, known.num_shards) != (description.shard_index, description.num_shards):
                raise ServiceError(
                    f"the dispatcher was started anew and divides this epoch by {description.num_shards} instead of "
                    f"{known.num_shards}: go on from a checkpoint, and let the dispatcher keep a journal "
                    "(`penstock dispatcher --work-dir`)"
                )

    def _progress(self, description: Pass) -> PassProgress:
        reading = self._reading
        length = description.length if reading.length_known or description.length < 0 else UNKNOWN_CARDINALITY
        if self._leases is not None:
            progress: PassProgress = SharedProgress(description.number, length)
        else:
            progress = PassProgress(description.number, length, reading.offset)
        state = self._restored.pop(description.number, None)
        if state is not None:
            progress.restore(state)
        return progress
