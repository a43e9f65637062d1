"""Tar archives of samples, as WebDataset has them: neighbouring members whose names are equal up to the first dot.

Members whose name begins with a dot are hidden files, as macOS adds them to an archive: they belong to no sample.
A member is a header of 512 bytes and its content, filled up to 512. Names that are too long for a header stand in a
member of their own before it. A block of zeros ends the archive.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.errors import ElementError, InvalidArgumentError, StorageError
from penstock.formats import npy
from penstock.formats.files import compression_of
from penstock.formats.records import CHUNK_BYTES, RecordFormat, RecordReader, Source
from penstock.spec import TensorSpec

_BLOCK: Final = 512
_FILES_OF_TAR: Final = (b"0", b"\0")
_LONG_NAME: Final = b"L"
_ATTRIBUTES: Final = b"x"
KEY: Final = "__key__"


def _integer(content: bytes) -> int:
    number = int(content)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{number} does not fit in 64 bits: decode=False leaves it as bytes")
    return number


_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "txt": bytes.decode,
    "text": bytes.decode,
    "json": bytes.decode,
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
    """Samples as dictionaries: the key, and what stands under each extension.

    Attributes:
        extensions: those that each sample must have; others are passed over.
        decode: whether contents are decoded whose extension says how.
    """

    extensions: tuple[str, ...]
    decode: bool

    @property
    def layout(self) -> str:
        return "samples of tar archives, without hidden members"

    @property
    def spec(self) -> Any:
        if any(_decoder(self, extension) is _DECODERS["npy"] for extension in self.extensions):
            return None
        kinds = {name: np.int64 if _decoder(self, name) is _integer else object for name in self.extensions}
        return {KEY: TensorSpec((), object), **{name: TensorSpec((), kind) for name, kind in kinds.items()}}

    def open(self, name: Source, compression: str, number: int = 0, offset: int = 0) -> "TarReader":
        return TarReader(self, name, compression, number, offset)


def tar_samples(call: str, name: str, compression: str, extensions: tuple[str, ...] | None, decode: bool) -> TarSamples:
    """What the first sample of a file says about all: which extensions they have.

    Raises:
        StorageError: it cannot be read, or holds no sample.
        InvalidArgumentError: the first sample does not have what is asked for.
    """
    reader = TarReader(TarSamples((), False), name, compression, 0, 0)
    try:
        found = reader.first_extensions()
    finally:
        reader.close()
    if found is None:
        raise StorageError(f"{call}: {name!r} holds no sample that tells which extensions there are")
    missing = [one for one in extensions or () if one not in found]
    if missing:
        raise InvalidArgumentError(
            f"{call}(extensions=...): the first sample of {name!r} has no {missing[0]!r}; it has {sorted(found)}"
        )
    return TarSamples(tuple(sorted(set(found))) if extensions is None else extensions, decode)


class TarReader(RecordReader):
    """A sample is whole when the next one begins, or the archive ends."""

    def __init__(self, format: TarSamples, source: Source, compression: str, number: int, offset: int) -> None:
        self._format = format
        self._samples: list[_Sample] = []
        self._compressed = bool(compression)
        super().__init__(source, compression, number, offset)

    def first_extensions(self) -> list[str] | None:
        """Those of the next sample; None if there is none."""
        found = self._loaded(skipping=False)
        return [member.extension for member in self._samples[0].members] if found else None

    def _load(self, skipping: bool) -> list[int]:
        needed = _BLOCK
        while True:
            parts, held = [self._data], len(self._data)
            while held < needed and (piece := self._bytes.read(max(CHUNK_BYTES, needed - held))):
                parts.append(piece)
                held += len(piece)
            self._data = b"".join(parts)
            ends, needed = self._walk(whole=held < needed)
            if not ends and not needed and self._compressed:
                self._check_rest()
            if ends or not needed:
                return ends

    def _check_rest(self) -> None:
        """Read what follows the archive: a checksum of all that was decompressed stands at the end of its file."""
        while self._bytes.read(CHUNK_BYTES):
            pass

    def _walk(self, whole: bool) -> tuple[list[int], int]:
        """Where each whole sample of the chunk ends, and how many bytes there must be for one more; 0 at the end."""
        data = self._data
        self._samples, ends = [], list[int]()
        begin = at = 0
        current: _Sample | None = None
        name = ""
        while True:
            header = data[at : at + _BLOCK]
            if not header.strip(b"\0") and (len(header) == _BLOCK or whole):  # the end
                break
            size = _size(header) if len(header) == _BLOCK else 0
            if size < 0:
                if not ends:
                    raise self._no_header(at)
                return ends, at  # the samples before it come first
            content, end = at + _BLOCK, at + _BLOCK + (size + _BLOCK - 1) // _BLOCK * _BLOCK
            if end > len(data):
                if self._start + at == 0 and compression_of(data[:8]):
                    raise self._no_header(at)
                if whole and not ends:
                    raise StorageError(f"{self._where()}: the archive is cut: {end - len(data)} bytes are missing")
                return ends, end
            kind = header[156:157]
            if kind in (_LONG_NAME, _ATTRIBUTES):
                name = _long_name(kind, data[content : content + size]) or name
            else:
                name = name or _short_name(header)
                key, extension = _split(name)
                if kind in _FILES_OF_TAR and key.rpartition("/")[2]:
                    if current is None or key != current.key:
                        if current is not None:
                            self._samples.append(current)
                            ends.append(begin)
                        current = _Sample(key, [])
                    current.members.append(_Member(extension, content, content + size))
                name, begin = "", end
            at = end
        if current is not None:
            self._samples.append(current)
            ends.append(begin)
        return ends, 0

    def _no_header(self, at: int) -> StorageError:
        compression = compression_of(self._data[:8]) if self._start + at == 0 else ""
        if compression:
            return StorageError(f"{self._name!r} is compressed: give compression_type={compression!r}")
        return StorageError(
            f"{self._where()}: there is no header of a member at byte {self._start + at}: the file is damaged, or no "
            "tar archive; its samples before that are whole, what follows is left out"
        )

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
        missing = [name for name in self._format.extensions if name not in held]
        if missing:
            raise ElementError(f"there is no {missing[0]!r}; it has {sorted(held)}")
        names = [member.extension for member in sample.members]
        twice = [name for name in self._format.extensions if names.count(name) > 1]
        if twice:
            raise ElementError(f"there are {names.count(twice[0])} members {twice[0]!r}")
        row: list[Any] = [sample.key]
        for name in self._format.extensions:
            try:
                row.append(_decoder(self._format, name)(held[name]))
            except ValueError as error:
                raise ElementError(f"its {name!r} cannot be read: {error}") from error
        return row


def _decoder(format: TarSamples, extension: str) -> Callable[[bytes], Any]:
    """What a content becomes: bytes as they are, unless the last part of the extension says more."""
    last = extension.rpartition(".")[2]
    return _DECODERS.get(last, bytes) if format.decode and extension != KEY else bytes


def _size(header: bytes) -> int:
    """The size of a member, as its header says; -1 if that is no header."""
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


def _long_name(kind: bytes, content: bytes) -> str:
    """The name that a member before another one gives it; "" for none."""
    if kind == _LONG_NAME:
        return content.partition(b"\0")[0].decode(errors="surrogateescape")
    while content:  # lines of "length key=value", of which the length counts the line
        length = int(content.partition(b" ")[0])
        key, _, value = content[:length].partition(b" ")[2].partition(b"=")
        if key == b"path":
            return value[:-1].decode(errors="surrogateescape")
        content = content[length:]
    return ""


def _split(name: str) -> tuple[str, str]:
    """The key and the extension of a name: what is before and behind the first dot of its last part."""
    folder, stroke, last = name.rpartition("/")
    key, _, extension = last.partition(".")
    return folder + stroke + key, extension.lower()
