"""A consumer's dealings with the dispatcher over the spans of a shared job."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock

from msgspec.structs import replace

from penstock.service.dispatcher_client import DispatcherClient
from penstock.service.machine.spans import count
from penstock.service.messages import Lease, Leased
from penstock.service.pace import SpanPace
from penstock.service.progress import Part
from penstock.service.subjects import Span

_FEWEST_SPANS = 4
"""So many spans are leased together at least, so that a lane need not wait for the dispatcher at every span."""

_SHORT_SECONDS, _LONG_SECONDS = 0.05, 0.2
"""How long a lease is to last: asking for one costs the dispatcher and this process half a millisecond each."""


class Leases:
    """Asks for spans, and acknowledges those that were consumed.

    Not for several threads at once, but for `ask` and `acknowledge`.

    Attributes:
        wanted: how many positions were asked for last.
        over: whether nothing more will come.
        pause: seconds to wait before asking again, or None while there is nothing to wait for.
    """

    def __init__(
        self, consumer_id: int, dispatcher: DispatcherClient, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._consumer_id = consumer_id
        self._dispatcher = dispatcher
        self._clock = clock
        self._lock = Lock()
        self._granted: deque[Span] = deque()  # and not begun
        self._granted_at = float("-inf")
        self._in_full = False
        self._spans = _FEWEST_SPANS
        self._size = 1
        self._number = 0
        self._asking = False
        self._not_before = float("-inf")
        self._consumed: list[Span] = []
        self._begun: list[Span] = []
        self._ended: dict[int, Span] = {}
        self.wanted = 0
        self.over = False

    @property
    def pause(self) -> float | None:
        """Seconds until it makes sense to ask again; None while somebody else asks or nothing more will come."""
        left = self._not_before - self._clock()
        return None if self._asking or self.over or left <= 0 else left

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
        now = self._clock()
        if self._granted or self._asking or self.over or now < self._not_before:
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
        self._asking, self.wanted, self._spans = True, positions, spans
        return True

    def ask(self) -> Leased:
        """Ask, where `begin` said so; the answer is for `granted`."""
        self._number += 1
        return self._exchange(self.wanted, self._number)

    def granted(self, reply: Leased) -> None:
        """What was granted is this consumer's from now on."""
        positions = count(reply.spans)
        self._granted.extend(reply.spans)
        self._granted_at = self._clock()
        self._in_full = positions >= self.wanted
        self._size = -(-positions // _FEWEST_SPANS)
        self._not_before = self._granted_at + reply.retry_after
        self._asking, self.over = False, reply.ended

    def acknowledge(self, begun: list[Span]) -> None:
        """Tell of what was consumed, `begun` besides, if that is anything new; returns when the dispatcher knows."""
        if self._consumed or begun != self._begun:
            self._exchange(0, 0, begun)
            self._begun = begun

    def _exchange(self, positions: int, number: int, begun: Sequence[Span] = ()) -> Leased:
        with self._lock:
            consumed = list(self._consumed)
            ended = list(self._ended.values())
        message = Lease(
            consumer_id=self._consumer_id,
            positions=positions,
            number=number,
            consumed=[*consumed, *begun],
            ended=ended,
        )
        reply = self._dispatcher.ask(message)
        assert isinstance(reply, Leased)
        with self._lock:  # until now it may not have been heard of, and is said again by whoever comes in between
            known = set(consumed)
            self._consumed = [span for span in self._consumed if span not in known]
        return reply

    def used(self, parts: Iterable[Part]) -> None:
        """The caller has used up these parts."""
        with self._lock:
            self._consumed += [part.span for part in parts]

    def ended(self, pass_number: int, length: int) -> None:
        """A pass of unknown length has ended."""
        with self._lock:
            self._ended[pass_number] = Span(pass_number=pass_number, start=0, stop=length)

    def left(self, begun: list[Span]) -> list[Span]:
        """What was consumed and not acknowledged, `begun` besides."""
        with self._lock:
            return [*self._consumed, *begun]
