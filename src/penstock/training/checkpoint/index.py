"""The index of a checkpoint: an entry for each array, and the states of iterators.

It is written beside the arrays, in the same atomic step, as JSON with its own checksum.
"""

import itertools
import json
from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Any

import google_crc32c
import msgspec

from penstock.errors import StateMismatchError, StorageError
from penstock.training.checkpoint.folders import INDEX, Folder
from penstock.training.checkpoint.numbered import damaged, folder_and_name, is_replaced, version_at

VERSION = 2

_DIFFERENCES_SHOWN = 5


class Entry(msgspec.Struct, frozen=True):
    """One array.

    Attributes:
        name: under which the array is stored, unique in the checkpoint: "model/dense/kernel", "state/params/w".
        shape: its shape.
        dtype: its dtype, or "number" for a number of Python's.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} ({self.dtype}, shape {list(self.shape)})"


class Item(msgspec.Struct, frozen=True):
    """One leaf of a named object: a part of a Keras object with its variables, an array, a string, or an iterator.

    Attributes:
        path: where it is: "model", "model/optimizer", "state/params/w".
        kind: which of these, as text for errors.
        entries: its arrays.
        states: for an object with a state, the state on each worker.
        text: for a string, the string.
        build: for a Keras object, the configuration from which it can be built.
        orders: for layers that Keras may have numbered, the order of their numbers, where it is not ascending.
    """

    path: str
    kind: str
    entries: list[Entry] = []
    states: list[Any] = []
    text: str | None = None
    build: Any = None
    orders: dict[str, list[int]] = {}


class Index(msgspec.Struct, frozen=True):
    """Everything in a checkpoint but the arrays themselves.

    Attributes:
        objects: the leaves of each named object.
        checksums: the CRC32C of each array, by its name; none of an array that several workers wrote.
        metric: how good the checkpoint is, if that was given.
        version: the version of this format.
    """

    objects: dict[str, list[Item]]
    checksums: dict[str, int] = {}
    metric: float | None = None
    version: int = VERSION

    def entries(self) -> dict[str, Entry]:
        """The entries of all arrays, by their names."""
        return {entry.name: entry for items in self.objects.values() for item in items for entry in item.entries}


def encoded(index: Index) -> dict[str, Any]:
    """An index as plain data, with its checksum."""
    content = msgspec.to_builtins(index)
    return {"content": content, "crc32c": _checksum(content)}


def decoded(data: Any, path: str) -> Index:
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


def read_index(path: str) -> Index:
    """The index of the checkpoint at a path.

    Raises:
        StorageError: there is none, or it is damaged.
        StateMismatchError: it is of another version.
    """
    folder, name = folder_and_name(path)
    if not folder.exists(name):
        raise StorageError(f"there is no checkpoint {path}: ps.latest_checkpoint(directory) finds the newest")
    if not folder.is_complete(name):
        raise StorageError(f"{path} is no checkpoint that ps.Checkpoint has written: it has no {INDEX}")
    return index_at(folder, name)


def index_at(folder: Folder, name: str) -> Index:
    """The index of a complete checkpoint.

    Raises:
        StorageError: it is damaged.
        StateMismatchError: it is of another version.
    """
    path, version = folder.path_of(name), version_at(folder.path_of(name))
    try:
        data = json.loads(folder.index(name))
    except (OSError, ValueError) as error:
        if is_replaced(path, version):
            return index_at(folder, name)
        raise damaged(path, f"its index cannot be read: {error}") from error
    return decoded(data, path)


def _checksum(content: Any) -> int:
    value: int = google_crc32c.value(json.dumps(content, sort_keys=True).encode())
    return value


def check_names(path: str, stored: Index, here: Iterable[str], *, partial: bool) -> None:
    """Refuse a checkpoint whose objects are not those of this `Checkpoint`.

    Raises:
        StateMismatchError: one is missing, or, unless `partial`, the checkpoint has one more.
    """
    here = list(here)
    missing = [name for name in here if name not in stored.objects]
    extra = [name for name in stored.objects if name not in here]
    if missing:
        start = f"{missing[0]}/"
        inside = [name for name in stored.objects if any(start in f"{item.path}/" for item in stored.objects[name])]
        advice = f"; {inside[0]!r} has one: ps.Checkpoint({inside[0]}={{{missing[0]!r}: ...}})" if inside else ""
        raise StateMismatchError(
            f"the checkpoint {path} has no {missing[0]!r}: expected {sorted(here)}, got {sorted(stored.objects)}"
            + advice
        )
    if extra and not partial:
        raise StateMismatchError(
            f"the checkpoint {path} also has {extra[0]!r}: expected {sorted(here)}, got {sorted(stored.objects)}; "
            "restore(path, partial=True) leaves it out"
        )


def difference(expected: list[Item], got: list[Item], *, partial: bool = False) -> str | None:
    """Compare an object with its stored arrays: the differences as text for an error; None where they agree.

    Args:
        partial: what is stored may have more items.
    """
    there = {item.path: item for item in got}
    agree = all(_agree(item, there.get(item.path)) for item in expected)
    extra = there.keys() - {item.path for item in expected}
    if agree and (partial or not extra):
        return None
    compared = [item for item in got if not partial or item.path in {item.path for item in expected}]
    differing = _differing_entries(expected, compared)
    if differing:
        differences = [f"expected {mine or 'nothing'}, got {other or 'nothing'}" for mine, other in differing]
        more = len(differences) - _DIFFERENCES_SHOWN
        return (
            "; ".join(differences[:_DIFFERENCES_SHOWN])
            + (f"; and {more} more" if more > 0 else "")
            + _advice(expected, got)
        )
    for item in expected:
        if item.path in there and item.orders != there[item.path].orders:
            layers = sorted({*item.orders, *there[item.path].orders})[0]
            return (
                f"the layers {layers}, {layers}_1, ... come in another order of their numbers: give them names of "
                "their own, which say which is which"
            )
    kinds = [", ".join(f"{item.path} ({item.kind})" for item in one) or "nothing" for one in (expected, compared)]
    return f"expected {kinds[0]}, got {kinds[1]}"


def _agree(mine: Item, other: Item | None) -> bool:
    if mine.kind == "metrics":
        return True  # Keras makes some with the first batch; metrics that one of the two lacks start from zero
    if other is None or mine.kind != other.kind:
        return False
    return mine.kind == "state" or set(mine.entries) == set(other.entries) and mine.orders == other.orders


def _differing_entries(expected: list[Item], got: list[Item]) -> list[tuple[Entry | None, Entry | None]]:
    alike = {item.path for item in expected if item.kind == "metrics"}
    here, there = (
        [entry for item in items if item.path not in alike for entry in item.entries] for items in (expected, got)
    )
    if set(here) == set(there):
        return []
    return [
        pair
        for tag, *(i, j, m, n) in SequenceMatcher(None, here, there, autojunk=False).get_opcodes()
        if tag != "equal"
        for pair in itertools.zip_longest(here[i:j], there[m:n])
    ]


def _advice(expected: list[Item], got: list[Item]) -> str:
    mine, other = ({item.path for item in items if item.path.endswith("/optimizer")} for items in (expected, got))
    if other - mine:
        return "; compile the model before, or omit the optimizer and metrics of compile by restore(path, partial=True)"
    return "; it was saved before it was compiled: restore it before compile, too" if mine - other else ""
