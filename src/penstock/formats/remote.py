"""Files whose names have a protocol, such as "s3://bucket/name": through fsspec."""

from typing import Any

from penstock.errors import InvalidArgumentError, MissingExtraError

try:
    import fsspec
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "files with a protocol, such as s3:// or gs://, need fsspec: pip install 'penstock[cloud]'", name="fsspec"
    ) from error


def open_file(name: str) -> Any:
    """The file, opened for reading bytes.

    Raises:
        InvalidArgumentError, MissingExtraError: as `file_system`.
        OSError: it cannot be opened.
    """
    system, path = file_system(name)
    return system.open(path, "rb")


def matching(pattern: str) -> list[str]:
    """The names of the files that match a pattern, each with its protocol.

    Raises:
        InvalidArgumentError, MissingExtraError: as `file_system`.
    """
    system, path = file_system(pattern)
    found = system.glob(path, detail=True)
    return [system.unstrip_protocol(name) for name, detail in found.items() if detail["type"] == "file"]


def file_system(name: str) -> tuple[Any, str]:
    """The file system of a name, and the name's path in it.

    Raises:
        InvalidArgumentError: fsspec does not know the protocol.
        MissingExtraError: the package that fsspec needs for the protocol is not installed.
    """
    try:
        system, path = fsspec.url_to_fs(name)
    except ValueError as error:
        raise InvalidArgumentError(f"{name!r} has a protocol that fsspec does not know: {error}") from error
    except ImportError as error:
        raise MissingExtraError(
            f"{name!r} needs a package that is not installed ({error}): pip install 'penstock[cloud]' brings those for "
            "s3:// and gs://",
            name=getattr(error.__cause__, "name", None),
        ) from error
    return system, path
