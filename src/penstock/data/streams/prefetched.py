"""A stream that a separate thread reads, a bounded distance ahead of the consumer."""

from dataclasses import dataclass

from penstock.data.block import Block
from penstock.data.skipped import Noticed, SkipsAhead
from penstock.data.streams.stream import State, Stream
from penstock.runtime.channel import Channel, Closed
from penstock.runtime.pacing import Pace
from penstock.runtime.threads import Threads, failures

_AUTOTUNED_BLOCKS = 2


@dataclass(frozen=True)
class _Item:
    """A block that the thread has read, the failure of a row, or the end.

    Attributes:
        after: the state after it.
        skips: the elements that were skipped before it.
    """

    block: Block | None
    error: BaseException | None
    after: State
    skips: list[Noticed]


class PrefetchedStream(Stream):
    """`stream`, with up to `rows` rows made before they are requested (None: two blocks of adapted size).

    The state is that of the stream after the last block that was taken, regardless of what the thread has read since.
    The thread starts with the first `pull`, ends with the data or soon after `close`, and closes the stream it reads.
    `skips` collects the elements that the stream skips.
    """

    def __init__(self, stream: Stream, rows: int | None, threads: Threads, skips: SkipsAhead) -> None:
        self._stream = stream
        self._pull = stream.meter.measuring(stream.pull)
        self.same_rows = stream.same_rows
        self._threads = threads
        self._by_rows = rows is not None
        self._channel: Channel[_Item] = Channel(_AUTOTUNED_BLOCKS if rows is None else rows)
        self._state = stream.state()
        self._skips = skips
        self._started = False
        self._ended = False

    def pull(self, need: int, allow: int) -> Block | None:
        if self._ended:
            return None
        if not self._started:
            self._started = True
            self._threads.start(self._produce, "prefetch")
        item = self._channel.get()
        self._skips.count(item.skips)
        self._state = item.after
        if item.error is not None:
            raise item.error
        self._ended = item.block is None
        return item.block

    def _produce(self) -> None:
        pace = Pace()
        try:
            while self._produce_one(pace):
                pass
        except Closed:
            return
        finally:
            self._stream.close()

    def _produce_one(self, pace: Pace) -> bool:
        """Read one block into the channel; False at the end of the data."""
        room = self._channel.room()
        allowed = pace.start()
        try:
            block = self._pull(1, min(allowed, room) if self._by_rows else allowed)
        except failures() as error:
            self._put(None, error)
            return True
        if block is None:
            self._put(None)
            return False
        pace.stop(block.nbytes, len(block))
        self._put(block, rows=len(block) if self._by_rows else 1)
        return True

    def _put(self, block: Block | None, error: BaseException | None = None, rows: int = 1) -> None:
        self._channel.put(_Item(block, error, self._stream.state(), self._skips.taken()), rows)

    def skip(self, rows: int) -> int:
        if self._started:
            return 0
        skipped = self._stream.skip(rows)
        self._state = self._stream.state()
        return skipped

    def state(self) -> State:
        return self._state

    def advanced(self, state: State, rows: int) -> State | None:
        return self._stream.advanced(state, rows)

    def fits(self, state: State) -> bool:
        return self._stream.fits(state)

    def restore(self, state: State) -> None:
        self._stream.restore(state)
        self._state = state

    def close(self) -> None:
        self._channel.close()
        if not self._started:
            self._stream.close()
