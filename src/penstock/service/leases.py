"""A consumer's dealings with the dispatcher over the spans of a shared job."""

import time
from collections.abc import Iterable, Sequence
from threading import Lock

from penstock.service.dispatcher_client import DispatcherClient
from penstock.service.messages import Lease, Leased
from penstock.service.progress import Part
from penstock.service.subjects import Span

SPANS_AT_A_TIME = 4
"""How many spans are leased together, so that a lane need not wait for the dispatcher at every span."""


class Leases:
    """Asks for spans, and acknowledges those that were consumed.

    Attributes:
        over: whether nothing more will come.
        pause: seconds to wait before asking again, or None while there is nothing to wait for.
    """

    def __init__(self, consumer_id: int, dispatcher: DispatcherClient) -> None:
        self._consumer_id = consumer_id
        self._dispatcher = dispatcher
        self._lock = Lock()
        self._wanted = 0
        self._number = 0
        self._asking = False
        self._not_before = 0.0
        self._consumed: list[Span] = []
        self._begun: list[Span] = []
        self._ended: dict[int, Span] = {}
        self.over = False

    @property
    def pause(self) -> float | None:
        """Seconds until it makes sense to ask again; None while somebody else asks or nothing more will come."""
        left = self._not_before - time.monotonic()
        return None if self._asking or self.over or left <= 0 else left

    def begin(self, room: int) -> bool:
        """Whether the caller is to ask now, for which there must be room."""
        if self._asking or self.over or room == 0 or time.monotonic() < self._not_before:
            return False
        self._asking, self._wanted = True, room
        return True

    def ask(self) -> list[Span]:
        """Spans that are this consumer's from now on."""
        self._number += 1
        try:
            reply = self._exchange(self._wanted, self._number)
        finally:
            self._asking = False
        self.over = reply.ended
        self._not_before = time.monotonic() + reply.retry_after
        return reply.spans

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
            self._consumed += [Span(pass_number=part.pass_number, start=part.start, stop=part.stop) for part in parts]

    def ended(self, pass_number: int, length: int) -> None:
        """A pass of unknown length has ended."""
        with self._lock:
            self._ended[pass_number] = Span(pass_number=pass_number, start=0, stop=length)

    def left(self, begun: list[Span]) -> list[Span]:
        """What was consumed and not acknowledged, `begun` besides."""
        with self._lock:
            return [*self._consumed, *begun]
