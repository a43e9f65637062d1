"""JSON documents that describe a directory of files, with a checksum and a version."""

import json
from pathlib import Path
from typing import Any

import google_crc32c

from penstock.errors import StorageError


def write_checked_json(path: Path, content: dict[str, Any]) -> None:
    """Write a document whose content has a "version"."""
    path.write_text(json.dumps({"content": content, "crc32c": _checksum(content)}))


def read_checked_json(path: Path, version: int) -> dict[str, Any] | None:
    """The content of a document; None if there is none.

    Raises:
        StorageError: it cannot be read, is damaged, or of another version.
    """
    try:
        data = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise StorageError(f"{path} is damaged: {error}") from error
    content = data.get("content") if isinstance(data, dict) else None
    if not isinstance(content, dict) or data.get("crc32c") != _checksum(content):
        raise not_as_written(path)
    if content.get("version") != version:
        raise of_another_version(path.parent)
    return content


def not_as_written(path: Path) -> StorageError:
    """The error of a document that says other things than penstock writes."""
    return StorageError(f"{path} is damaged, or another penstock's: it is not as this one writes it")


def of_another_version(directory: Path) -> StorageError:
    """The error of a directory whose description is of another version."""
    return StorageError(
        f"'{directory}' was written by another version of penstock, in a format that this one does not read: delete it "
        "and write it again, or take another directory"
    )


def _checksum(content: Any) -> int:
    value: int = google_crc32c.value(json.dumps(content, sort_keys=True).encode())
    return value
