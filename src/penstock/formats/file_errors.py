"""Errors of files, as they are said everywhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import ElementError, PenstockError, StorageError


def changed(name: str) -> StorageError:
    """The error of a file that is not what it was when the dataset was made."""
    return StorageError(
        f"{name!r} has changed since the dataset was made: write files anew under another name, and make the dataset "
        "again"
    )


@contextmanager
def named_in_errors(name: object, done: str) -> Iterator[None]:
    """A context within which what the system refuses names the file, and what cannot be done with it.

    Raises:
        StorageError: in place of other errors of the system.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{name!r} cannot be {done}: {error.strerror or error}") from error


@contextmanager
def by_library(problem: str, kind: type[PenstockError] = ElementError) -> Iterator[None]:
    """A context within which another library reads what a file holds: whatever it raises is an error of the file.

    Libraries raise all kinds of errors for damaged files, so an error is known by where it comes from.

    Args:
        problem: the file, the place in it, and what is wrong; the library's reason follows.
        kind: of the error.
    """
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) and not hasattr(error, "errno"):  # FFmpeg's says that a file claims too much
            raise
        reason = getattr(error, "error_string", None) or getattr(error, "strerror", None) or first_line(error)
        raise kind(f"{problem}: {reason or type(error).__name__}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error of a library, which may be long."""
    return str(error).partition("\n")[0].strip()[:300]
