"""What the parts of the service know of each other."""

from collections.abc import Callable, Generator
from typing import Protocol

from penstock.data.block import Block
from penstock.errors import LostDataWorkerError, ServiceError
from penstock.service.wire.worker_messages import Chunk, End, Failed, Fetch, Pause

Answer = tuple[Chunk, Block] | End | Failed | Pause
"""A piece of the answer to a `Fetch`: blocks, and last an end, a failure of the user's function, or a pause."""

Answers = Generator[Answer, None, None]
"""The answer to a `Fetch`, as it comes; closing it early stops whoever computes it."""

Produce = Callable[[Fetch], Answers]
"""What a worker does: computes the answer to a request, block by block, as fast as it is taken."""


class UnreachedDataWorkerError(LostDataWorkerError):
    """A data worker was never reached, or says nothing: it has not ended over what it was asked."""


class UnusableDataWorkerError(ServiceError):
    """This process cannot use a data worker, which may be well: what is wrong stands between the two."""


class WrongAnswerError(UnreachedDataWorkerError):
    """A data worker has answered what it was not asked, or what cannot be read: it is not to blame on an element."""


class Connection(Protocol):
    """A consumer's line to one worker. Several threads may fetch at the same time.

    Attributes:
        protocol: how blocks come: a name of `transport.connect.PROTOCOLS`.
    """

    protocol: str

    def fetch(self, request: Fetch) -> Answers:
        """The answer, as it arrives. The request is made when the first part of it is asked for.

        Arrays may be written, but for those that come by reference from a worker of this process that keeps them.

        Raises:
            UnreachedDataWorkerError: the worker cannot be reached, or is silent.
            WrongAnswerError: what it answers cannot be read.
            LostDataWorkerError: it has ended in the middle of its answer.
            UnusableDataWorkerError: it does not take this process's token.
            PenstockError: it refuses the request.
        """

    def close(self) -> None:
        """Let go of the line, and wait for nothing; what is being fetched ends with `LostDataWorkerError`."""
