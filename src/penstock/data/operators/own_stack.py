"""Separate call stacks for parts of a long chain of operators, because Python limits the depth of calls."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Indices
from penstock.data.node import DependsOn, Run, SameElements, derived
from penstock.data.streams.index_reading import Awaited, Reading
from penstock.data.streams.stream import Cursor, State, Stream
from penstock.runtime.threads import OwnThread


class OwnStack(SameElements, name="own_stack"):
    """The elements of the input, made by another thread while the reader waits."""

    depends_on = DependsOn.ANY
    identity = None  # it changes no elements

    @derived
    def group_ends(self) -> npt.NDArray[np.int64] | None:
        return self.input.group_ends

    @property
    def mode(self) -> str:
        return f"{super().mode}, thread"

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        thread = run.called(self, partial(OwnThread, run.threads, lambda: None))
        below = self.input.reading(run, epoch, indices)
        try:
            while True:
                awaited, block = thread.call(partial(_next, below))
                if awaited is None:
                    return block  # type: ignore[no-any-return]
                yield awaited
        except GeneratorExit:
            with suppress(RuntimeError):  # Python ends
                run.threads.start(below.close, "closing")
            raise


def _next(reading: Reading) -> tuple[Awaited | None, Any]:
    """Return the next work that a reading waits for, or its rows."""
    try:
        return next(reading), None
    except StopIteration as end:
        return None, end.value


class OwnStackStream(Stream, of=OwnStack):
    """The state is that of the input after the last block, as it was then."""

    same_rows = True

    def __init__(self, node: OwnStack, run: Run, epoch: int) -> None:
        self._input: Cursor | None = None
        self._unread = 0
        self._thread = OwnThread(run.threads, self._close)
        self._state = self._thread.call(partial(self._open, node, run, epoch))

    def _open(self, node: OwnStack, run: Run, epoch: int) -> State:
        self._input = node.input.cursor(run, epoch)
        return self._input.state()

    def _close(self) -> None:
        if self._input is not None:
            self._input.give_back(self._unread)
            self._input.close()

    def _then(self, call: Callable[[Cursor], Any]) -> tuple[Any, BaseException | None, State]:
        """Return the result of a call, or its exception, and the state after it."""
        assert self._input is not None
        try:
            result, error = call(self._input), None
        except BaseException as raised:
            result, error = None, raised
        return result, error, self._input.state()

    def _call(self, call: Callable[[Cursor], Any]) -> Any:
        result, error, self._state = self._thread.call(partial(self._then, call))
        if error is not None:
            try:
                raise error
            finally:
                del error
        return result

    def pull(self, need: int, allow: int) -> Block | None:
        block: Block | None = self._call(lambda input: input.pull(need, allow))
        return block

    def skip(self, rows: int) -> int:
        skipped: int = self._call(lambda input: input.skip(rows))
        return skipped

    def unread(self, rows: int) -> None:
        self._unread = rows  # only `close` is called after it

    def state(self) -> State:
        return self._state

    def restore(self, state: State) -> None:
        self._call(lambda input: input.restore(state))

    def close(self) -> None:
        self._thread.end()
