"""The requests of readers to data workers, and their answers: typed messages, as those of `dispatcher_messages.py`.

The answer to a `Fetch` is a stream of blocks, each after a `Chunk`, and finally an `End`, a `Failed` or a `Refused`.
"""

from typing import Annotated, Any, Final

import msgspec

from penstock.data.skipped import KEPT_ROWS
from penstock.errors import InvalidArgumentError
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.subjects import Message, Name, PassInfo, Refused, Span

_FARTHEST: Final = (1 << 62) + 1


class Fetch(Message, frozen=True, tag="fetch"):
    """Ask a worker for the elements of a span; answered by a stream of blocks, each after a `Chunk`, then an `End`.

    Attributes:
        policy: the number of a ShardingPolicy: what `pass_info` divides by.
        by_element: positions count elements even if rows could be read by index: for coordinated reads and windows.
        stride: only every `stride`-th position from `span.start` on is wanted: for coordinated reads, the number of
            consumers.
        trainer: reads through the worker's window of a CrossTrainerCache: from `span.start`, or where the window
            begins if that is later. "" for others.
        consumer: the reader's own name: those of one trainer share its elements.
        alone: the request may kill the worker's process, which makes nothing else meanwhile, and nothing ahead. The
            answer begins with a `Making`, so that a reader that loses the worker knows whether to blame the element.
        block_bytes: about how large the largest block should be.
        codec: a name of `compression.CODECS`, or "AUTO" for what the worker finds to pay; "" for none.
    """

    dataset_id: str
    epoch: int
    seed: int
    policy: int
    pass_info: PassInfo
    span: Span
    by_element: bool = False
    stride: int = 1
    trainer: str = ""
    consumer: str = ""
    holds_back: bool = False
    alone: bool = False
    block_bytes: int = 1 << 22
    codec: str = ""


def check_fetch(request: Fetch) -> None:
    """Refuse an invalid request.

    Raises:
        InvalidArgumentError: its policy, pass, span or a size is impossible.
    """
    info, span = request.pass_info, request.span
    if not (
        request.policy in set(ShardingPolicy)
        and 0 <= request.epoch < _FARTHEST
        and 0 <= info.shard_index < info.num_shards < _FARTHEST
        and 0 <= span.start <= span.stop < _FARTHEST
        and 0 <= span.skip < _FARTHEST
        and 1 <= request.stride < _FARTHEST
        and 1 <= request.block_bytes < _FARTHEST
    ):
        raise InvalidArgumentError(f"a data worker got an impossible request: {request!r:.1000}")


class RowLeftOut(Message, frozen=True):
    """A row that the worker has skipped: the content of a `SkippedRow`.

    Attributes:
        log: whether the trainer should log it.
    """

    node: Name
    site: Name
    position: int | None
    error: Name
    source: Name = ""
    log: bool = False


class LeftOut(Message, frozen=True):
    """The rows that the worker has skipped between an element and the one before it.

    They belong to the element as its position does: every worker skips the same, in blocks of any size.

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
        left_out: the rows skipped before the first element.
    """

    position: int
    skip: int
    rows: int
    seconds: float = 0.0
    left_out: LeftOut | None = None


class End(Message, frozen=True, tag="end"):
    """The span is complete, or the pass ended before it: then `length` is the number of positions of the pass.

    Attributes:
        skip: how many of the elements to skip come after the span.
        seconds: how long it took the worker to find the end after the last element.
        left_out: the rows skipped after the last element of the span. If positions count elements, they take one more
            position, the last one of the pass, as a failure would.
    """

    length: int = -2
    skip: int = 0
    seconds: float = 0.0
    left_out: LeftOut | None = None


class Failed(Message, frozen=True, tag="failed"):
    """A user's function raised, at this position; the elements after it can be fetched from `next`.

    Attributes:
        next: the rest of the span after the element that failed.
        module: where the exception's class is found, with `name`.
        arguments: its arguments, those that are plain values; others as text.
        notes: PEP 678, with the worker's traceback last.
        message: the exception as text.
        left_out: the rows skipped before the element that failed.
    """

    next: Span
    module: str
    name: str
    arguments: list[Any]
    notes: list[str]
    message: str = ""
    left_out: LeftOut | None = None


class Making(Message, frozen=True, tag="making"):
    """The worker begins to make the elements of a request, and nothing else until all of them were sent."""


FromWorker = Chunk | End | Failed | Making | Refused
