"""What is in a checkpoint, as data: one entry for each array, and the states of iterators.

It is written beside the arrays, in the same atomic step, as JSON with a checksum of its own.
"""

import itertools
import json
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec

from penstock.errors import InvalidTypeError, StateMismatchError
from penstock.training.checkpoint_files import damaged

VERSION = 1

_DIFFERENCES_SAID = 5


class Entry(msgspec.Struct, frozen=True):
    """One array.

    Attributes:
        name: what it is, as errors say it: "dense/kernel", "state['w']".
        shape: its shape.
        dtype: its dtype, or "number" for a number of Python's.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} ({self.dtype}, shape {list(self.shape)})"


class Item(msgspec.Struct, frozen=True):
    """One leaf of a named object: a Keras object with its variables, an array, or an iterator.

    Attributes:
        kind: which of these, as errors say it.
        entries: its arrays.
        states: of an iterator the state of each worker's.
    """

    kind: str
    entries: list[Entry]
    states: list[Any] = []


class Index(msgspec.Struct, frozen=True):
    """Everything in a checkpoint but the arrays themselves.

    Attributes:
        objects: the leaves of each named object.
        checksums: the CRC32C of each array, in the order of the entries.
        version: of this form.
    """

    objects: dict[str, list[Item]]
    checksums: list[int] = []
    version: int = VERSION

    def entries(self) -> list[Entry]:
        """The entries of all arrays, in their order."""
        return [entry for items in self.objects.values() for item in items for entry in item.entries]


def encoded(index: Index) -> dict[str, Any]:
    """An index as plain data, with its checksum."""
    content = msgspec.to_builtins(index)
    return {"content": content, "crc32c": _checksum(content)}


def decoded(data: Any, path: Path) -> Index:
    """The index of the checkpoint at `path`.

    Raises:
        StorageError: it is damaged.
        StateMismatchError: it is of another version.
    """
    if not isinstance(data, dict) or data.get("crc32c") != _checksum(data.get("content")):
        raise damaged(path, "its index does not have the checksum it was written with")
    version = data["content"]["version"]
    if version != VERSION:
        raise StateMismatchError(
            f"the checkpoint {path} has version {version}, this penstock reads version {VERSION}: restore it with the "
            "penstock that saved it"
        )
    return msgspec.convert(data["content"], Index)


def _checksum(content: Any) -> int:
    value: int = google_crc32c.value(json.dumps(content, sort_keys=True).encode())
    return value


def plain(name: str, state: Any) -> Any:
    """A state that JSON gives back as it is, but for tuples, which become lists.

    Raises:
        InvalidTypeError: there is something else in it.
    """
    if isinstance(state, dict) and all(isinstance(key, str) for key in state):
        return {key: plain(f"{name}[{key!r}]", value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [plain(f"{name}[{number}]", value) for number, value in enumerate(state)]
    if state is None or type(state) in (str, int, float, bool):
        return state
    raise InvalidTypeError(
        f"a state in a checkpoint is made of dictionaries with strings as keys, lists, strings and numbers, got "
        f"{state!r:.80} at {name}"
    )


def check_names(path: str, stored: Index, here: dict[str, Any], *, partial: bool) -> None:
    """Refuse a checkpoint of other objects than those that are here.

    Raises:
        StateMismatchError: one is missing, or, unless `partial`, the checkpoint has one more.
    """
    missing = [name for name in here if name not in stored.objects]
    extra = [name for name in stored.objects if name not in here]
    if missing:
        raise StateMismatchError(
            f"the checkpoint {path} has no {missing[0]!r}: expected {sorted(here)}, got {sorted(stored.objects)}"
        )
    if extra and not partial:
        raise StateMismatchError(
            f"the checkpoint {path} also has {extra[0]!r}: expected {sorted(here)}, got {sorted(stored.objects)}; "
            "restore(path, partial=True) leaves it out"
        )


def difference(expected: list[Item], got: list[Item]) -> str | None:
    """What two objects differ in, array by array, as words for an error; None where they agree."""
    here = [entry for item in expected for entry in item.entries]
    there = [entry for item in got for entry in item.entries]
    differing = [
        pair
        for tag, *(i, j, m, n) in SequenceMatcher(None, here, there, autojunk=False).get_opcodes()
        if tag != "equal"
        for pair in itertools.zip_longest(here[i:j], there[m:n])
    ]
    if differing:
        said = [f"expected {mine or 'nothing'}, got {other or 'nothing'}" for mine, other in differing]
        more = len(said) - _DIFFERENCES_SAID
        return "; ".join(said[:_DIFFERENCES_SAID]) + (f"; and {more} more" if more > 0 else "")
    parts = [[(item.kind, len(item.entries)) for item in items] for items in (expected, got)]
    if parts[0] != parts[1]:
        kinds = [", ".join(kind for kind, _ in one) or "nothing" for one in parts]
        return f"expected {kinds[0]}, got {kinds[1]}"
    return None
