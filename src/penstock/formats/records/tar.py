"""Tar archives of samples, as WebDataset has them: neighbouring members whose names are equal up to the first dot.

Members whose name begins with a dot are hidden files, as macOS adds them to an archive: they belong to no sample.
A member is a header of 512 bytes and its content, filled up to 512. Names that are too long for a header are in a
separate member before it. A block of zeros ends the archive.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.errors import ElementError, InvalidArgumentError, StorageError
from penstock.formats.compression import compression_of
from penstock.formats.records import npy
from penstock.formats.records.record_format import RecordFormat, RecordReader, Source
from penstock.spec import TensorSpec

_BLOCK: Final = 512
_FILES_OF_TAR: Final = (b"0", b"\0", b"7")
_WITHOUT_CONTENT: Final = (b"1", b"2", b"3", b"4", b"5", b"6")
"""Links, devices, folders and pipes."""
_LONG_NAME: Final = b"L"
_ATTRIBUTES: Final = b"x"
_SPARSE: Final = b"S"
_DIGITS: Final = 20
_SAMPLES: Final = 100
"""The number of samples in which the extensions that a call names are searched."""
_ADVICE: Final = ": extensions=[...] names those that each sample must have, and skips others"
KEY: Final = "__key__"


def _integer(content: bytes) -> int:
    number = int(content)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{number} does not fit in 64 bits")
    return number


def _text(content: bytes) -> str:
    return content.decode("utf-8-sig")


_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "txt": _text,
    "text": _text,
    "json": _text,
    "cls": _integer,
    "id": _integer,
    "index": _integer,
    "npy": npy.load,
}


class _Member(NamedTuple):
    """A part of a sample: where its content is in the chunk."""

    extension: str
    begin: int
    end: int


class _Sample(NamedTuple):
    key: str
    members: list[_Member]


@dataclass(frozen=True)
class TarSamples(RecordFormat):
    """Samples as dictionaries: the key, and the content of the member with each extension.

    Attributes:
        extensions: those that each sample must have; others are passed over. One such as "jpg;png" has alternatives, of
            which the first counts that a sample has.
        decode: whether contents with a known extension are decoded.
        of_first: whether the extensions are those of the first sample, which others must not add to.
    """

    extensions: tuple[str, ...]
    decode: bool
    of_first: bool = False

    @property
    def layout(self) -> str:
        return "samples of tar archives, one behind the other, without hidden members"

    @property
    def spec(self) -> Any:
        if any(_decoder(self, extension) is _DECODERS["npy"] for extension in self.extensions):
            return None
        kinds = {name: np.int64 if _decoder(self, name) is _integer else object for name in self.extensions}
        return {KEY: TensorSpec((), object), **{name: TensorSpec((), kind) for name, kind in kinds.items()}}

    def open(self, name: Source, compression: str, number: int = 0, offset: int = 0) -> "TarReader":
        return TarReader(self, name, compression, number, offset)


def tar_samples(
    call: str, name: str, compression: str, extensions: tuple[str, ...] | None, decode: bool, last: bool
) -> TarSamples | None:
    """The form of all samples, with the extensions of the first samples of a file; None if these do not show it.

    Args:
        call: the function that the user called, for errors.
        name: of the file.
        compression: of the file.
        extensions: those that are asked for; None for those of the first sample.
        decode: whether contents are decoded.
        last: whether all other files were searched before.

    Raises:
        StorageError: it cannot be read.
        InvalidArgumentError: no sample of the file has an extension that is asked for.
    """
    found: list[str] = []
    reader = TarReader(TarSamples((), False), name, compression, 0, 0)
    try:
        for number, some in enumerate(reader.extensions()):
            found += [one for one in some if one not in found]
            if extensions is None or number == _SAMPLES or all(_held(one, found) for one in extensions):
                wanted = tuple(sorted(found)) if extensions is None else extensions
                return TarSamples(wanted, decode, extensions is None)
    except StorageError:
        if last or not reader.recognised:
            raise
    finally:
        reader.close()
    if found and last:
        missing = [one for one in extensions or () if _held(one, found) is None]
        raise InvalidArgumentError(
            f"{call}(extensions=...): no sample of {name!r} has {missing[0]!r}; they have {sorted(found)}"
        )
    return None


class TarReader(RecordReader):
    """A sample is whole when the next one begins, or the archive ends."""

    def __init__(self, format: TarSamples, source: Source, compression: str, number: int, offset: int) -> None:
        self._format = format
        self._samples: list[_Sample] = []
        super().__init__(source, compression, number, offset)

    def extensions(self) -> Iterator[list[str]]:
        """The extensions of each sample, from the next one on."""
        while self._loaded(skipping=False):
            yield [member.extension for member in self._samples[self._next].members]
            self._pass(1)

    def _load(self, skipping: bool) -> list[int]:
        needed = _BLOCK
        while True:
            self._hold(needed)
            held = len(self._data)
            ends, needed = self._walk(whole=held < needed)
            if ends or not needed:
                return ends
            if not self._data.strip(b"\0"):  # zeros need not be kept
                kept = len(self._data) % _BLOCK
                self._start, self._data, needed = self._start + held - kept, self._data[held - kept :], _BLOCK

    def _walk(self, whole: bool) -> tuple[list[int], int]:
        """The ends of the whole samples of the chunk, and the bytes that there must be for one more; 0 at the end.

        A block of zeros ends an archive. Another archive may follow, as `cat a.tar b.tar` leaves it.
        """
        data = self._data
        self._samples, ends = [], list[int]()
        begin = at = 0
        given = _Given()
        key = ""  # of the sample that is not closed
        members: list[_Member] = []
        while True:
            block = data[at : at + _BLOCK]
            is_end = not block.strip(b"\0") and (len(block) == _BLOCK or whole)
            header = _header(block, given) if len(block) == _BLOCK and not is_end else _NO_HEADER
            own_key, extension = _split(header.name) if header else ("", "")
            is_member = header is not None and header.kind in _FILES_OF_TAR and bool(own_key.rpartition("/")[2])
            if members and (is_end or (is_member and own_key != key)):
                self._samples.append(_Sample(key, members))
                ends.append(begin)
                members = []
            if is_end:
                at += max(1, (len(data) - at - len(data[at:].lstrip(b"\0"))) // _BLOCK) * _BLOCK
                if at >= len(data):
                    return ends, 0 if whole else at + _BLOCK
                continue
            if header is None:
                if not ends:
                    raise self._no_header(at, given.sparse or block[156:157] == _SPARSE)
                return ends, at  # the samples before it come first
            self.recognised |= header is not _NO_HEADER
            content = at + _BLOCK
            end = content + (header.size + _BLOCK - 1) // _BLOCK * _BLOCK
            if end > len(data):
                if not ends and (whole or header is not _NO_HEADER):
                    self._check_size(at, end, whole)
                return ends, end
            if header.kind in (_LONG_NAME, _ATTRIBUTES):
                given = given.with_record(header.kind, data[content : content + header.size])
            else:
                if is_member:
                    key = own_key
                    members.append(_Member(extension, content, content + header.size))
                given, begin = _Given(), end
            at = end

    def _check_size(self, at: int, end: int, whole: bool) -> None:
        """Refuse a member that does not end within the file; where its size is known, without reading it."""
        if self._start + at == 0 and compression_of(self._data[:8]):
            raise self._no_header(at)
        missing = self._start + end - self._bytes.size if self._bytes.plain else end - len(self._data)
        if missing > 0 and (whole or self._bytes.plain):
            self.recognised = True  # even what is too short for a header, which costs itself among other archives
            raise StorageError(f"{self._where()}: the archive is cut: {missing} bytes are missing")

    def _no_header(self, at: int, is_sparse: bool = False) -> StorageError:
        compression = compression_of(self._data[:8]) if self._start + at == 0 else ""
        if compression:
            return StorageError(f"{self._name!r} is compressed: give compression_type={compression!r}")
        place = f"byte {self._start + at}"
        problem = f"there is no header of a member at {place}: the file is damaged, or no tar archive"
        if is_sparse:
            problem = f"the member at {place} is packed as a file with holes: pack it again without tar's --sparse"
        return StorageError(f"{self._where()}: {problem}; its samples before that are whole, the rest is skipped")

    def _where(self) -> str:
        return f"{self._name!r}, sample {self.number}"

    def _decode(self, first: int) -> Any:
        rows: list[list[Any]] = []
        for sample in self._samples[first:]:
            try:
                rows.append(self._row(sample))
            except ElementError as error:
                if rows:
                    break
                message = f"{self._where()}, {sample.key!r}: {error}"
                self._pass(1)
                raise ElementError(message) from error.__cause__
        columns = {}
        for name, values in zip((KEY, *self._format.extensions), zip(*rows)):
            column = np.empty(len(values), np.int64 if _decoder(self._format, name) is _integer else object)
            for row, value in enumerate(values):
                column[row] = value
            columns[name] = column
        return columns

    def _row(self, sample: _Sample) -> list[Any]:
        held = {member.extension: self._data[member.begin : member.end] for member in sample.members}
        found = {}
        for name in self._format.extensions:
            if (extension := _held(name, held)) is None:
                advice = _ADVICE if self._format.of_first else ""
                raise ElementError(f"there is no {name!r}; it has {sorted(held)}{advice}")
            found[name] = extension
        names = [member.extension for member in sample.members]
        twice = [extension for extension in found.values() if names.count(extension) > 1]
        if twice:
            raise ElementError(f"there are {names.count(twice[0])} members {twice[0]!r}")
        added = [name for name in held if name not in self._format.extensions]
        if added and self._format.of_first:
            raise ElementError(f"it has {added[0]!r}, which the first sample does not have{_ADVICE}")
        row: list[Any] = [sample.key]
        for name, extension in found.items():
            try:
                row.append(_decoder(self._format, name)(held[extension]))
            except ValueError as error:
                raise ElementError(
                    f"its {extension!r} cannot be read: {error}: decode=False leaves all contents as bytes"
                ) from error
        return row


def _held(name: str, extensions: Collection[str]) -> str | None:
    """The first alternative of a name that is among the extensions of a sample; None if none is."""
    return next((one for one in name.split(";") if one in extensions), None)


def _decoder(format: TarSamples, name: str) -> Callable[[bytes], Any]:
    """The decoder of a content: bytes as they are, unless the last part of the extension is a known one.

    Alternatives that are decoded in different ways stay bytes.
    """
    kinds = {_DECODERS.get(one.rpartition(".")[2], bytes) for one in name.split(";")}
    return kinds.pop() if format.decode and name != KEY and len(kinds) == 1 else bytes


class _Given(NamedTuple):
    """Facts that separate members hold about the one behind them, for which a header has no room.

    Attributes:
        name: "" for the one in its header.
        size: -1 for the one in its header.
        damaged: whether it cannot be read.
        sparse: whether the file has holes, and its content begins with where they are.
    """

    name: str = ""
    size: int = -1
    damaged: bool = False
    sparse: bool = False

    def with_record(self, kind: bytes, content: bytes) -> "_Given":
        """These facts, with those of another such member."""
        if kind == _LONG_NAME:
            return self._replace(name=content.partition(b"\0")[0].decode(errors="surrogateescape"))
        found = self
        while content:  # lines of "length key=value", of which the length counts the line
            digits = content.partition(b" ")[0]
            length = int(digits) if digits.isdigit() and len(digits) < _DIGITS else 0
            key, equals, value = content[len(digits) + 1 : length].partition(b"=")
            if not equals or length > len(content) or not value.endswith(b"\n"):
                return self._replace(damaged=True)
            if key == b"path":
                found = found._replace(name=value[:-1].decode(errors="surrogateescape"))
            elif key.startswith(b"GNU.sparse."):
                found = found._replace(sparse=True)
            elif key == b"size" and value[:-1].isdigit() and len(value) < _DIGITS:
                found = found._replace(size=int(value))
            content = content[length:]
        return found


class _MemberHeader(NamedTuple):
    """The facts about a member, in its header and in the separate members before it."""

    kind: bytes
    size: int
    name: str


_NO_HEADER: Final = _MemberHeader(b"", 0, "")
"""Stands for a header that is not complete."""


def _header(block: bytes, given: _Given) -> _MemberHeader | None:
    """The header in a block; None if it is none."""
    size, kind = _size(block), block[156:157]
    if size < 0 or given.damaged or given.sparse or kind == _SPARSE:
        return None
    if kind in _WITHOUT_CONTENT:  # whatever size it has: that of a hard link may be the size of the other file
        return _MemberHeader(kind, 0, "")
    if kind in (_LONG_NAME, _ATTRIBUTES):
        return _MemberHeader(kind, size, "")
    return _MemberHeader(kind, size if given.size < 0 else given.size, given.name or _short_name(block))


def _size(header: bytes) -> int:
    """The size of a member in its header; -1 if that is no header."""
    try:
        if int(header[148:156].strip(b" \0"), 8) != sum(header[:148]) + 256 + sum(header[156:]):
            return -1
        field = header[124:136]
        return int.from_bytes(field[1:], "big") if field[0] & 0x80 else int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        return -1


def _short_name(header: bytes) -> str:
    name, prefix = header[:100].partition(b"\0")[0], b""
    if header[257:263] == b"ustar\0":
        prefix = header[345:500].partition(b"\0")[0]
    return (prefix + b"/" + name if prefix else name).decode(errors="surrogateescape")


def _split(name: str) -> tuple[str, str]:
    """The key and the extension of a name: the parts before and behind the first dot of its last part."""
    folder, stroke, last = name.rpartition("/")
    key, _, extension = last.partition(".")
    return folder + stroke + key, extension.lower()
