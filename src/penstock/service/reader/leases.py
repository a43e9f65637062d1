"""The spans that a reader of a shared job has leased from the dispatcher."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any

from msgspec.structs import replace

from penstock.service.reader.fetch_task import FetchTask
from penstock.service.reader.pace import SpanPace
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import Lease, Leased
from penstock.service.wire.spans import count
from penstock.service.wire.subjects import Span

_FEWEST_SPANS = 4
"""At least this many spans are leased together, so that a lane does not wait for the dispatcher at every span."""

Holding = tuple[int, bool, bool]
"""How many positions were not delivered, whether the caller waits for an element, and whether a lane requests more."""

_SHORT_SECONDS, _LONG_SECONDS = 0.05, 0.2
"""How long a lease should last: a request costs the dispatcher and this process half a millisecond each."""


class Leases:
    """Requests spans, acknowledges consumed ones, and gives back those that other readers need sooner.

    Call its methods under the reader's lock, except those that talk to the dispatcher: `ask`, `acknowledge`, `report`
    and `give_back` must be called without it, because they wait for each other, and call `holding`; `claim` may be.

    Args:
        lock: the reader's.
        holding: returns the state of the reader.

    Attributes:
        asked_for: the number of positions that were requested last.
        over: whether the dispatcher has nothing more to lease.
        pause: after `begin` returned False, in how many seconds to try again; None if only an event changes the result.
        requesting: whether a lane is requesting spans, or has not taken over yet the granted ones.
        known: how many undelivered positions the dispatcher believes that this reader has; -1 if it does not know.
        wanted: whether the dispatcher wants positions back for another reader that has none.
        near_end: whether that may happen soon.
    """

    def __init__(
        self,
        consumer_id: int,
        dispatcher: DispatcherClient,
        lock: AbstractContextManager[Any],
        holding: Callable[[], Holding],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer_id = consumer_id
        self._dispatcher = dispatcher
        self._holding = holding
        self._clock = clock
        self._lock = lock
        # Messages must not overtake each other: positions that are given back may be granted again.
        self._exchanging = Lock()
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
        """The next span to fetch, of at most `room` positions; None if no granted span is left."""
        if not self._granted or room == 0:
            return None
        span, size = self._granted.popleft(), min(room, self._size)
        if span.skip or span.stop - span.start <= size:  # the skipped elements may reach over any of its positions
            return span
        self._granted.appendleft(replace(span, start=span.start + size))
        return replace(span, stop=span.start + size, more=0)

    def begin(self, pace: SpanPace, lanes: int, under_way: int) -> bool:
        """Return whether the caller should call `ask` now; that depends on the room: see `SpanPace.lease`."""
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
        """Request spans after `begin` returned True; pass the answer to `granted`."""
        self._number += 1
        return self._exchange(number=self._number, positions=self.asked_for)

    def granted(self, reply: Leased) -> None:
        """Take over the granted spans."""
        positions = count(reply.spans)
        self._granted.extend(reply.spans)
        self._granted_at = self._clock()
        self._in_full = positions >= self.asked_for
        self._size = -(-positions // _FEWEST_SPANS)
        self._not_before = self._granted_at + reply.retry_after
        self.requesting, self.over = False, reply.ended

    def acknowledge(self, begun: list[Span]) -> None:
        """Report the consumed spans, and `begun`, if any of it is new; returns when the dispatcher knows it."""
        if self._consumed or begun != self._begun or self._holding()[0] != self.known:
            self.report(begun)

    def claim(self, begun: list[Span]) -> None:
        """Report the consumed spans, and `begun`, if any of it is new; returns when the dispatcher knows it.

        It waits for no other message: a signal handler calls this, perhaps under the reader's lock, and the thread that
        sends the other message may wait for that lock. So it does not report how much could be given back: until it
        arrives, more may have been granted.
        """
        if self._consumed or begun != self._begun:
            self._send(begun)
            self._begun, self.known = begun, -1

    def report(self, begun: list[Span]) -> None:
        """Report the consumed spans, and `begun`, and how much could be given back."""
        self._exchange(begun)
        self._begun = begun

    def give_back(self, spans: list[Span], begun: list[Span]) -> None:
        """Give spans back of which nothing was delivered."""
        self._exchange(begun, returned=spans)

    def _exchange(self, begun: Sequence[Span] = (), number: int = 0, **contents: Any) -> Leased:
        with self._exchanging:
            unread, waiting, requesting = self._holding()
            if requesting and not number:  # another thread may have been granted positions that are not counted yet
                unread = -1
            reply = self._send(begun, number=number, unread=unread, waiting=waiting, **contents)
            self.known = -1 if unread < 0 else unread + count(reply.spans)
            self.wanted, self.near_end = reply.wanted, reply.near_end
        return reply

    def _send(self, begun: Sequence[Span], positions: int = 0, **contents: Any) -> Leased:
        """Send a `Lease` with the consumed spans, which count as acknowledged when the answer has come."""
        with self._lock:
            consumed, ended = list(self._consumed), list(self._ended.values())
        message = Lease(
            consumer_id=self._consumer_id, positions=positions, consumed=[*consumed, *begun], ended=ended, **contents
        )
        reply: Leased = self._dispatcher.ask(message)
        with self._lock:
            known = set(consumed)
            self._consumed = [span for span in self._consumed if span not in known]
        return reply

    @property
    def not_begun(self) -> int:
        """Return how many positions were granted and not begun."""
        return count(self._granted)

    def take_back(self, positions: int) -> list[Span]:
        """Remove and return up to `positions` positions: those granted last and not begun."""
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
        """Note that the caller has consumed these tasks completely."""
        self._consumed += [task.span for task in tasks if task.span.first < task.span.end]

    def ended(self, pass_number: int, length: int) -> None:
        """Note that a pass of unknown length has ended."""
        self._ended[pass_number] = Span(pass_number=pass_number, start=0, stop=length)

    def left(self, begun: list[Span]) -> list[Span]:
        """The spans that were consumed and not acknowledged, and `begun`."""
        return [*self._consumed, *begun]
