"""A stream that is read by a thread of its own, a bounded distance ahead of the consumer."""

import threading
from dataclasses import dataclass

from penstock.data.block import Block
from penstock.data.stream import State, Stream
from penstock.runtime.channel import Channel, Closed
from penstock.runtime.pacing import Pace

_AUTOTUNED_BLOCKS = 2


@dataclass(frozen=True)
class _Ready:
    block: Block
    after: State


@dataclass(frozen=True)
class _Failed:
    error: Exception
    after: State


@dataclass(frozen=True)
class _Ended:
    after: State


class Ahead(Stream):
    """`stream`, with up to `rows` rows made before they are asked for (None: two blocks of a size that pays).

    The state is that of the stream after the last block that was taken, whatever the thread has read since. The thread
    starts with the first `pull`, and ends with the data or with `close`.
    """

    def __init__(self, stream: Stream, rows: int | None) -> None:
        self._stream = stream
        self._by_rows = rows is not None
        self._channel: Channel[_Ready | _Failed | _Ended] = Channel(_AUTOTUNED_BLOCKS if rows is None else rows)
        self._state = stream.state()
        self._ended = False
        self._thread: threading.Thread | None = None

    def pull(self, need: int, allow: int) -> Block | None:
        if self._ended:
            return None
        if self._thread is None:
            self._thread = threading.Thread(target=self._produce, name="penstock-prefetch", daemon=True)
            self._thread.start()
        item = self._channel.get()
        self._state = item.after
        if isinstance(item, _Failed):
            raise item.error
        if isinstance(item, _Ended):
            self._ended = True
            return None
        return item.block

    def _produce(self) -> None:
        pace = Pace()
        try:
            while True:
                room = self._channel.room()
                allowed = pace.start()
                try:
                    block = self._stream.pull(1, min(allowed, room) if self._by_rows else allowed)
                except Exception as error:
                    self._channel.put(_Failed(error, self._stream.state()))
                    continue
                if block is None:
                    self._channel.put(_Ended(self._stream.state()))
                    return
                pace.stop(block.nbytes)
                self._channel.put(_Ready(block, self._stream.state()), len(block) if self._by_rows else 1)
        except Closed:
            return

    def state(self) -> State:
        return self._state

    def restore(self, state: State) -> None:
        self._stream.restore(state)
        self._state = state

    def close(self) -> None:
        self._channel.close()
        # Garbage collection may close a stream from within its own thread.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._stream.close()
