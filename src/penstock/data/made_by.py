"""Notes beside stored rows of the pipeline that made them, by which the rows of another one are refused."""

import hashlib
import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from penstock.data.fingerprint import done_by_functions, fingerprint_of
from penstock.data.identity import identities_of
from penstock.data.node import Node
from penstock.errors import InvalidTypeError, StorageError
from penstock.formats.checked_json import of_another_version, read_checked_json, write_checked_json
from penstock.options import Options
from penstock.paths import content_of_others, link_of_others

NOTE: Final = "_made_by.json"
NEW: Final = ".new"
"""The ending of a note that is being written."""
_VERSION: Final = 2
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
_OF_EARLIER_VERSIONS: Final = ("cache.json", "_snapshot.json")


class MadeBy:
    """The note of a pipeline.

    Args:
        node: the last of the pipeline.
        options: of the pipeline.
        strict: whether something that exists in this process only is an error. Otherwise functions are identified by
            their code and constants alone.

    Raises:
        InvalidTypeError: with `strict`, the pipeline uses something that exists in this process only.
    """

    def __init__(self, node: Node, options: Options, *, strict: bool = True) -> None:
        self._node = node
        self._options = options
        self._fingerprint = ""
        with suppress(*([] if strict else [InvalidTypeError])):
            self._fingerprint = fingerprint_of(node, options)

    def forget_changed(self) -> None:
        """Identify functions by their code alone if they have changed values that they use, such as a list."""
        if self._fingerprint != MadeBy(self._node, self._options, strict=False)._fingerprint:
            self._fingerprint = ""

    def write(self, directory: Path) -> None:
        """Put the note into a directory that has none.

        Raises:
            OSError: it cannot be written.
        """
        new = directory / f"_{secrets.token_hex(8)}{NEW}"
        write_checked_json(new, {"version": _VERSION, **self._content})
        with suppress(FileExistsError):  # another process was faster
            os.link(new, directory / NOTE)
        new.unlink()

    def is_of(self, directory: Path) -> bool:
        """Return whether the rows in a directory are those of this pipeline; False where it has no note.

        Raises:
            StorageError: another pipeline has made them, another user, or an earlier version of penstock.
        """
        if others := link_of_others(directory) or content_of_others(directory):
            raise StorageError(f"the rows in '{directory}' are not read: {others}")
        found = read_checked_json(directory / NOTE, _VERSION)
        if found is None:
            if any((directory / name).exists() for name in _OF_EARLIER_VERSIONS):
                raise of_another_version(directory)
            return False
        if words := self._difference(found):
            raise StorageError(
                f"'{directory}' holds rows of another dataset: {words}; delete the directory, or take another one"
            )
        return True

    @property
    def _content(self) -> dict[str, Any]:
        """Return the content of the note, as plain data."""
        code = done_by_functions(self._node)
        return {
            "python": _PYTHON,
            "fingerprint": self._fingerprint,
            "code": hashlib.blake2b(repr(code).encode(), digest_size=6).hexdigest(),
            "nodes": [identity.entry() for identity in identities_of(self._node)],
        }

    def _difference(self, found: dict[str, Any]) -> str:
        """Return how the pipeline differs from what made stored rows, in words; "" where it does not."""
        identities = identities_of(self._node)
        for number, (identity, entry) in enumerate(zip(identities, found["nodes"])):
            if (words := identity.difference(entry)) is not None:
                return f"node {number} {words}"
        if len(identities) != len(found["nodes"]):
            return f"one of {len(found['nodes'])} steps that count, and here are {len(identities)}"
        if found["python"] != _PYTHON:
            return ""
        if found["code"] != self._content["code"]:
            return "its steps are the same, but not the code of a function"
        if found["fingerprint"] and self._fingerprint and found["fingerprint"] != self._fingerprint:
            return (
                "its steps are the same, but not an array, an argument or an option of them, or what a function uses, "
                "or another version of penstock made it"
            )
        return ""
