"""What consumers ask data workers for, and what these answer: typed messages, as those of `dispatcher_messages.py`.

The answer to a `Fetch` is a stream of blocks, each after a `Chunk`, and last an `End`, a `Failed` or a `Refused`.
"""

from typing import Annotated, Any, Final

import msgspec

from penstock.data.skipped import KEPT_ROWS
from penstock.errors import InvalidArgumentError
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.subjects import Message, Name, Pass, Refused, Span

_FARTHEST: Final = (1 << 62) + 1
LONGEST_WAIT_SECONDS: Final = 60.0


class Fetch(Message, frozen=True, tag="fetch"):
    """Ask a worker for the elements of a span; answered by a stream of blocks, each after a `Chunk`, then an `End`.

    Attributes:
        policy: the number of a ShardingPolicy: what `part` divides by.
        by_element: positions are the numbers of elements even where they could be those of rows: with coordinated
            reads and with a trainer's window.
        stride: of coordinated reads: only every `stride`-th position from `span.start` on.
        trainer: reads through the worker's window of a CrossTrainerCache: from `span.start`, or where the window
            begins if that is later. "" for others.
        consumer: the reader's own name: those of one trainer share what it gets.
        alone: may well end the worker's process, and is refused while another such request is under way: who loses the
            worker over it can take its own element for the reason.
        block_bytes: about how large the largest block should be.
        codec: a name of `compression.CODECS`, or "AUTO" for what the worker finds to pay; "" for none.
        wait_seconds: one piece is wanted, a `Chunk` or what comes in place of one, if it comes within this time. Then
            follows a `Pause`, and the worker goes on making the rest. 0 for everything, however long it takes.
        looks_in: nothing is wanted now: the reader says that it is still there.
    """

    dataset_id: str
    epoch: int
    seed: int
    policy: int
    part: Pass
    span: Span
    by_element: bool = False
    stride: int = 1
    trainer: str = ""
    consumer: str = ""
    holds_back: bool = False
    alone: bool = False
    block_bytes: int = 1 << 22
    codec: str = ""
    wait_seconds: float = 0.0
    looks_in: bool = False


def check_fetch(request: Fetch) -> None:
    """Refuse a request that is none.

    Raises:
        InvalidArgumentError: it names a policy, a part, a span or sizes that cannot be.
    """
    part, span = request.part, request.span
    if not (
        request.policy in set(ShardingPolicy)
        and 0 <= request.epoch < _FARTHEST
        and 0 <= part.shard_index < part.num_shards < _FARTHEST
        and 0 <= span.start <= span.stop < _FARTHEST
        and 0 <= span.skip < _FARTHEST
        and 1 <= request.stride < _FARTHEST
        and 1 <= request.block_bytes < _FARTHEST
        and 0 <= request.wait_seconds <= LONGEST_WAIT_SECONDS
    ):
        raise InvalidArgumentError(f"a data worker was asked for what cannot be: {request!r:.1000}")


class RowLeftOut(Message, frozen=True):
    """A row that the worker has left out: what a `SkippedRow` says of it.

    Attributes:
        log: whether the trainer's log should tell.
    """

    node: Name
    site: Name
    position: int | None
    error: Name
    log: bool = False


class LeftOut(Message, frozen=True):
    """What the worker has left out before an element, since the one before that.

    It belongs to the element as its place does: whoever makes it, with whatever blocks, leaves out the same.

    Attributes:
        count: how many rows.
        rows: the first of them.
    """

    count: int
    rows: Annotated[list[RowLeftOut], msgspec.Meta(max_length=KEPT_ROWS)]


class Chunk(Message, frozen=True, tag="chunk"):
    """Comes with every block.

    Attributes:
        position: of the block's first element.
        skip: how many elements of that position came before it.
        rows: the number of elements.
        seconds: how long it took the worker to produce it.
        left_out: what was left out before the first element.
    """

    position: int
    skip: int
    rows: int
    seconds: float = 0.0
    left_out: LeftOut | None = None


class End(Message, frozen=True, tag="end"):
    """The span is complete, or the pass ended before it: then `length` is the number of positions of the pass.

    Attributes:
        skip: how many of the elements that were to be left out come after the span.
        seconds: how long it took the worker to find the end after the last element.
        left_out: what was left out after the last element of the span. Where positions are those of elements, it
            stands at a position of its own, the last one of the pass, as a failure would.
    """

    length: int = -2
    skip: int = 0
    seconds: float = 0.0
    left_out: LeftOut | None = None


class Failed(Message, frozen=True, tag="failed"):
    """A user's function raised, at this position; what follows it can be fetched from `next`.

    Attributes:
        next: the rest of the span after the element that failed.
        module: where the exception's class is found, with `name`.
        arguments: its arguments, those that are plain values; others as text.
        notes: PEP 678, with the worker's traceback last.
        said: the exception as text.
        left_out: what was left out before the element that failed.
    """

    next: Span
    module: str
    name: str
    arguments: list[Any]
    notes: list[str]
    said: str = ""
    left_out: LeftOut | None = None


class Pause(Message, frozen=True, tag="pause"):
    """What was waited for has come, or did not come in time: the reader asks again for what is missing."""


FromWorker = Chunk | End | Failed | Pause | Refused
