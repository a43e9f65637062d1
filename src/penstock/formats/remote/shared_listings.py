"""Listings of object stores that the processes of a job share: one of them asks the store for all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Share = Callable[[str, Callable[[], list[str]]], list[str]]
"""A function that gives the names that match a pattern, by calling another one in this process or in another."""

_share: ContextVar[Share | None] = ContextVar("share", default=None)


def shared(pattern: str, look: Callable[[], list[str]]) -> list[str]:
    """The names that match a pattern, as `look` finds them here, or as it found them in another process of the job."""
    share = _share.get()
    return look() if share is None else share(pattern, look)


@contextmanager
def shared_by(share: Share | None) -> Iterator[None]:
    """A context within which this thread's listings are shared; None shares them no more."""
    token = _share.set(share)
    try:
        yield
    finally:
        _share.reset(token)
