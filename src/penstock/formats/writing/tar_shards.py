"""Datasets saved as tar archives of samples, as in WebDataset: each leaf of an element is a member."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock.errors import ElementError, InvalidTypeError
from penstock.formats.columns import not_unicode
from penstock.formats.records.offsets import write_edges
from penstock.formats.records.tar import KEY, TarSamples
from penstock.formats.writing.leaves import Column, Columns, Kind, is_ragged, kind_of, names_of
from penstock.formats.writing.shard_format import ShardWriter
from penstock.spec import LeafSpec
from penstock.structure import Structure

_BLOCK: Final = 512
_TEXTS: Final = ("txt", "text", "json")
_INTEGERS: Final = ("cls", "id", "index")
_LONGEST_NAME: Final = 100
_END: Final = bytes(2 * _BLOCK)


class TarShards(ShardWriter):
    """Each element becomes a sample. Its key is the leaf `__key__`, or else its number; other names are extensions.

    A name without a known extension gets one: ".txt" for strings, ".cls" for integers, ".npy" for arrays.
    """

    ending = "tar"

    @classmethod
    def check(cls, structure: Structure, specs: Sequence[LeafSpec], columns: Columns) -> None:
        super().check(structure, specs, columns)
        members_of(structure, [kind_of(column) for column in columns], columns)

    def __init__(self, directory: Path, number: int, specs: Sequence[LeafSpec] = ()) -> None:
        super().__init__(directory, number)
        self._prefix = f"{number:05d}-"
        self._members: list[str] = []
        self._ends: list[int] = [0]
        self._last_key = ""

    def _append(self, columns: Columns, structure: Structure, rows: int) -> None:
        members = members_of(structure, self.leaves.kinds, columns)
        if not self._members:
            self._members = members
            self._file = self.path.open("wb")
        if members != self._members:
            raise ElementError(f"rows with members {members} follow rows with {self._members}")
        contents = [_contents(name, column) for name, column in zip(members, columns, strict=True)]
        keys = contents[members.index(KEY)] if KEY in members else None
        parts: list[bytes] = []
        end = self._ends[-1]
        for row in range(rows):
            key = f"{self._prefix}{len(self._ends) - 1:09d}" if keys is None else self._key(keys[row].decode())
            for name, values in zip(members, contents, strict=True):
                if name != KEY:
                    content = values[row]
                    member = _header(f"{key}.{name}", len(content)), content, bytes(-len(content) % _BLOCK)
                    parts += member
                    end += sum(map(len, member))
            self._ends.append(end)
        self._file.write(b"".join(parts))

    def _key(self, key: str) -> str:
        if key == self._last_key or "." in key.rpartition("/")[2] or not key or "\0" in key:
            raise ElementError(
                f"samples of a tar archive need names without dots that differ from the one before, got {key!r} after "
                f"{self._last_key!r}"
            )
        self._last_key = key
        return key

    def _end(self) -> list[str]:
        self._file.write(_END)
        self.close()
        return [write_edges(self.path, TarSamples((), False).layout, np.array(self._ends, np.int64))]


def _contents(name: str, column: Column) -> list[bytes]:
    """The content of the member of each row."""
    kind = kind_of(column)
    if kind == "bytes":
        return list(map(bytes, column.tolist()))
    if kind == "text":
        try:
            return [str(value).encode() for value in column.tolist()]
        except UnicodeEncodeError as error:
            raise not_unicode(error) from error
    if name.rpartition(".")[2] in _INTEGERS:
        return [b"%d" % value for value in column.tolist()]
    found = []
    for value in column:
        file = io.BytesIO()
        np.lib.format.write_array(file, np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value))
        found.append(file.getvalue())
    return found


def _header(name: str, size: int) -> bytes:
    encoded = name.encode(errors="surrogateescape")
    if len(encoded) > _LONGEST_NAME:
        long = encoded + b"\0"
        before = _plain_header(b"././@LongLink", len(long), b"L") + long + bytes(-len(long) % _BLOCK)
        return before + _plain_header(encoded[:_LONGEST_NAME], size, b"0")
    return _plain_header(encoded, size, b"0")


def _plain_header(name: bytes, size: int, kind: bytes) -> bytes:
    number = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    before = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + number + b"00000000000\0"
    after = kind + bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2
    header = (before + b" " * 8 + after).ljust(_BLOCK, b"\0")
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


def members_of(structure: Structure, kinds: Sequence[Kind], columns: Columns) -> list[str]:
    """The extension of each leaf's member; `__key__` for the leaf with the keys.

    Raises:
        InvalidTypeError: a name that cannot be an extension, or values that cannot be members.
    """
    found = []
    for name, kind, column in zip(names_of(structure), kinds, columns, strict=True):
        if name == KEY:
            if kind != "text" or column.ndim > 1:
                raise InvalidTypeError(f"tar archives need strings in {KEY!r}, the names of samples, got {kind}")
            found.append(KEY)
            continue
        dtype = column[0].dtype if is_ragged(column) else column.dtype
        if kind == "numbers" and dtype.kind == "V":
            raise InvalidTypeError(
                f"members of tar archives are arrays of NumPy, which have no type for {dtype}, of {name!r}: convert it "
                "by map, such as to float32, or save in penstock's own format"
            )
        if "/" in name or "\0" in name or not name:
            raise InvalidTypeError(f"a tar archive has no member of the name {name!r}: rename it by map")
        found.append(_extension(name.lower(), kind, dtype, is_ragged(column) or column.ndim > 1))
    if set(found) <= {KEY}:
        raise InvalidTypeError("a sample of a tar archive needs a member besides its name")
    twice = sorted({one for one in found if found.count(one) > 1})
    if twice:
        raise InvalidTypeError(f"two leaves would be members {twice[0]!r} of a tar archive: rename one of them")
    return found


def _extension(name: str, kind: Kind, dtype: np.dtype[Any], many: bool) -> str:
    last = name.rpartition(".")[2]
    if many and kind != "numbers":
        raise InvalidTypeError(f"tar archives hold strings and bytes by themselves, got arrays of them in {name!r}")
    if kind == "bytes":
        return name
    if kind == "text":
        return name if last in _TEXTS else f"{name}.txt"
    if dtype.kind in "iu" and not many:
        return name if last in _INTEGERS else f"{name}.cls"
    return name if last == "npy" else f"{name}.npy"
