"""Errors of files, as they are said everywhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import StorageError


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


def first_line(error: BaseException) -> str:
    """The first line of an error of a library, which may be long."""
    return str(error).partition("\n")[0].strip()[:300]
