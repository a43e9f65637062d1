"""The interfaces between readers, transports and workers, which do not import each other."""

from collections.abc import Callable, Generator
from typing import Protocol

from penstock.data.block import Block
from penstock.errors import LostDataWorkerError, ServiceError
from penstock.service.wire.worker_messages import Chunk, End, Failed, Fetch, Making

Answer = tuple[Chunk, Block] | End | Failed | Making
"""A piece of the answer to a `Fetch`: blocks, and finally an end or a failure of the user's function.

If the request is `alone`, a `Making` comes first."""

Answers = Generator[Answer, None, None]
"""The answer to a `Fetch`, as it arrives; closing it early stops its production."""

Produce = Callable[[Fetch], Answers]
"""Computes the answer to a request, block by block, as fast as it is taken."""


class UnreachedDataWorkerError(LostDataWorkerError):
    """A data worker was not reached, or is silent: it has not died over a request."""


class UnusableDataWorkerError(ServiceError):
    """This process cannot use a data worker, which itself may be in order."""


class WrongAnswerError(UnreachedDataWorkerError):
    """A data worker has given a wrong or unreadable answer. No element is to blame."""


class Connection(Protocol):
    """A reader's connection to one worker. Several threads may fetch at the same time.

    Attributes:
        protocol: how blocks come: a name of `transport.connect.PROTOCOLS`.
    """

    protocol: str

    def fetch(self, request: Fetch) -> Answers:
        """The answer, as it arrives. The request is sent when the first piece is taken.

        Arrays are writable, except those that a worker of this process passes by reference and keeps.

        Raises:
            UnreachedDataWorkerError: the worker cannot be reached, or is silent.
            WrongAnswerError: its answer cannot be read.
            LostDataWorkerError: it died in the middle of its answer.
            UnusableDataWorkerError: it does not take this process's token.
            PenstockError: it refuses the request.
        """

    def close(self) -> None:
        """Close the connection without waiting; requests under way raise `LostDataWorkerError`."""
