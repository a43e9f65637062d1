"""A consumer's dealings with the dispatcher over the spans of a shared job."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock

from msgspec.structs import replace

from penstock.service.reader.fetch_task import FetchTask
from penstock.service.reader.pace import SpanPace
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import Lease, Leased
from penstock.service.wire.spans import count
from penstock.service.wire.subjects import Span

_FEWEST_SPANS = 4
"""So many spans are leased together at least, so that a lane need not wait for the dispatcher at every span."""

Holding = tuple[int, bool, bool]
"""How many positions were not delivered, whether the caller waits for an element, and whether a lane asks for more."""

_SHORT_SECONDS, _LONG_SECONDS = 0.05, 0.2
"""How long a lease is to last: requesting for one costs the dispatcher and this process half a millisecond each."""


class Leases:
    """Asks for spans, acknowledges those that were consumed, and gives back those that others need sooner.

    Not for several threads at once, but for `ask`, `acknowledge`, `report` and `give_back`, which must not be called
    under the reader's lock: one of them at a time tells the dispatcher, and `holding` is called then.

    Args:
        holding: what the reader has.

    Attributes:
        asked_for: how many positions were asked for last.
        over: whether nothing more will come.
        pause: where `begin` said no, after how many seconds it may say yes; None where only an event changes that.
        requesting: whether a lane asks for spans, or has not taken over what it was granted.
        known: how many positions the dispatcher believes that the reader has not delivered; -1 where it does not know.
        wanted: whether the dispatcher wants positions back for a reader that has none.
        near_end: whether it soon may.
    """

    def __init__(
        self,
        consumer_id: int,
        dispatcher: DispatcherClient,
        holding: Callable[[], Holding],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer_id = consumer_id
        self._dispatcher = dispatcher
        self._holding = holding
        self._clock = clock
        self._lock = Lock()
        # What is said must not overtake what was said before: positions that are given back may be granted again.
        self._talking = Lock()
        self._granted: deque[Span] = deque()  # and not begun
        self._granted_at = float("-inf")
        self._in_full = False
        self._spans = _FEWEST_SPANS
        self._size = 1
        self._number = 0
        self.requesting = False
        self._not_before = float("-inf")
        self._consumed: list[Span] = []
        self._begun: list[Span] = []
        self._ended: dict[int, Span] = {}
        self.asked_for = 0
        self.known = -1
        self.pause: float | None = None
        self.over = self.wanted = self.near_end = False

    def next(self, room: int) -> Span | None:
        """The next span to fetch, for which there must be room; None where nothing is left of what was granted."""
        if not self._granted or room == 0:
            return None
        span, size = self._granted.popleft(), min(room, self._size)
        if span.skip or span.stop - span.start <= size:  # what it skips may run on over any of its positions
            return span
        self._granted.appendleft(replace(span, start=span.start + size))
        return replace(span, stop=span.start + size, more=0)

    def begin(self, pace: SpanPace, lanes: int, under_way: int) -> bool:
        """Whether the caller is to ask now, for which there must be room: see `SpanPace.lease`."""
        now, self.pause = self._clock(), None
        if self._granted or self.requesting or self.over:
            return False
        if now < self._not_before:
            self.pause = self._not_before - now
            return False
        lasted = now - self._granted_at
        spans = self._spans
        if lasted < _SHORT_SECONDS and self._in_full:
            spans *= 2
        elif lasted > _LONG_SECONDS:
            spans = max(_FEWEST_SPANS, spans // 2)
        positions = pace.lease(spans, lanes, under_way)
        if positions == 0:
            return False
        self.requesting, self.asked_for, self._spans = True, positions, spans
        return True

    def ask(self) -> Leased:
        """Ask, where `begin` said so; the answer is for `granted`."""
        self._number += 1
        return self._exchange(self.asked_for, self._number)

    def granted(self, reply: Leased) -> None:
        """What was granted is this consumer's from now on."""
        positions = count(reply.spans)
        self._granted.extend(reply.spans)
        self._granted_at = self._clock()
        self._in_full = positions >= self.asked_for
        self._size = -(-positions // _FEWEST_SPANS)
        self._not_before = self._granted_at + reply.retry_after
        self.requesting, self.over = False, reply.ended

    def acknowledge(self, begun: list[Span]) -> None:
        """Tell of what was consumed, `begun` besides, if that is anything new; returns when the dispatcher knows."""
        if self._consumed or begun != self._begun or self._holding()[0] != self.known:
            self.report(begun)

    def report(self, begun: list[Span]) -> None:
        """Tell of what was consumed, `begun` besides, and what could be given back; hear whether that is wanted."""
        self._exchange(0, 0, begun)
        self._begun = begun

    def give_back(self, spans: list[Span], begun: list[Span]) -> None:
        """Let others have these spans, of which nothing was delivered."""
        self._exchange(0, 0, begun, spans)

    def _exchange(
        self, positions: int, number: int, begun: Sequence[Span] = (), returned: Sequence[Span] = ()
    ) -> Leased:
        with self._talking:
            unread, waiting, requesting = self._holding()
            if requesting and not number:  # another thread may have been granted positions that are in no count yet
                unread = -1
            with self._lock:
                consumed = list(self._consumed)
                ended = list(self._ended.values())
            message = Lease(
                consumer_id=self._consumer_id,
                positions=positions,
                number=number,
                consumed=[*consumed, *begun],
                returned=list(returned),
                ended=ended,
                unread=unread,
                waiting=waiting,
            )
            reply = self._dispatcher.ask(message)
            assert isinstance(reply, Leased)
            with self._lock:
                known = set(consumed)
                self._consumed = [span for span in self._consumed if span not in known]
            self.known = -1 if unread < 0 else unread + count(reply.spans)
            self.wanted, self.near_end = reply.wanted, reply.near_end
        return reply

    @property
    def not_begun(self) -> int:
        """How many positions were granted and not begun."""
        return count(self._granted)

    def take_back(self, positions: int) -> list[Span]:
        """Up to so many positions that were granted last and not begun: they are not this consumer's any more."""
        spans: list[Span] = []
        while positions > 0 and self._granted:
            span = self._granted.pop()
            length = span.stop - span.start
            if not span.skip and length > positions:
                self._granted.append(replace(span, stop=span.stop - positions, more=0))
                span = replace(span, start=span.stop - positions)
            spans.append(span)
            positions -= count([span])
        return spans

    def used(self, tasks: Iterable[FetchTask]) -> None:
        """The caller has used up these tasks."""
        with self._lock:
            self._consumed += [task.span for task in tasks if task.span.first < task.span.end]

    def ended(self, pass_number: int, length: int) -> None:
        """A pass of unknown length has ended."""
        with self._lock:
            self._ended[pass_number] = Span(pass_number=pass_number, start=0, stop=length)

    def left(self, begun: list[Span]) -> list[Span]:
        """What was consumed and not acknowledged, `begun` besides."""
        with self._lock:
            return [*self._consumed, *begun]
