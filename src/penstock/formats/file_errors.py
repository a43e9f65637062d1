"""Errors of files, with the same messages everywhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import ElementError, PenstockError, StorageError


def changed(name: str) -> StorageError:
    """The error of a file that has changed since the dataset was made."""
    return StorageError(
        f"{name!r} has changed since the dataset was made: make the dataset again, and write files under new names"
    )


@contextmanager
def named_in_errors(name: object, done: str) -> Iterator[None]:
    """A context within which errors of the system name the file and the action that failed.

    Raises:
        StorageError: instead of other errors of the system.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{name!r} cannot be {done}: {error.strerror or error}") from error


@contextmanager
def by_library(problem: str, kind: type[PenstockError] = ElementError) -> Iterator[None]:
    """A context within which another library reads the content of a file, and all its errors are errors of the file.

    Libraries raise all kinds of errors for damaged files, so an error is known by where it comes from.

    Args:
        problem: the beginning of the message, with the file and the place in it; the library's reason follows.
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
