"""Compressed files: how a file is compressed, and its decompressed bytes."""

import importlib
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.errors import InvalidArgumentError, StorageError
from penstock.extras import load
from penstock.formats.byte_reader import ByteReader


def _of_python(name: str) -> Any:
    """A module that Python can be built without; None then."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


bz2, lzma = _of_python("bz2"), _of_python("lzma")

# zlib's window bits, by which it knows which header and which checksum to expect.
WINDOW_BITS = {"GZIP": 31, "ZLIB": 15}
_XZ = "XZ"
_BZ2 = "BZ2"
_ZSTD = "ZSTD"
_DAMAGE = (OSError, zlib.error) if lzma is None else (OSError, zlib.error, lzma.LZMAError)
_MAGIC = {b"\x1f\x8b": "GZIP", b"BZh": _BZ2, b"\xfd7zXZ\0": _XZ, b"\x28\xb5\x2f\xfd": _ZSTD}
_BEHIND_BZH = (b"1A", b"\x17r")  # one of these follows "BZh" and a digit, as text hardly does
_RAW_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20
_ZSTD_BYTES = 1 << 16


def check_compression(
    call: str, compression_type: str | None, known: Sequence[str] = (*WINDOW_BITS, _BZ2, _XZ, _ZSTD)
) -> str:
    """The compression as "", or one of those known, which may be given in any case; None stands for "".

    Raises:
        InvalidArgumentError: anything else.
    """
    if compression_type is None:
        return ""
    name = str(compression_type).upper()
    if name not in ("", *known):
        *others, last = map(repr, ("", *known))
        raise InvalidArgumentError(
            f"{call}(compression_type=...) takes None, {', '.join(others)} or {last}, got {compression_type!r}"
        )
    return name


def compression_of(begin: bytes) -> str:
    """The `compression_type` of a file that begins with these bytes; "" if they are of no compression."""
    found = next((kind for magic, kind in _MAGIC.items() if begin.startswith(magic)), "")
    return "" if found == _BZ2 and not begin.startswith(_BEHIND_BZH, 4) else found


def decompressed(name: str, file: Any, compression: str) -> "Decompressed":
    """The decompressed bytes of an open file.

    Raises:
        StorageError: this Python has no module for it.
        OSError: it cannot be read.
    """
    if compression == _ZSTD:
        return DecompressedZstandard(name, file)
    if compression in (_BZ2, _XZ):
        module = bz2 if compression == _BZ2 else lzma
        if module is None:
            raise StorageError(f"{name!r} cannot be decompressed: this Python was built without {compression}")
        return DecompressedParts(name, file, bz2.BZ2Decompressor if compression == _BZ2 else lzma.LZMADecompressor)
    return DecompressedParts(name, file, partial(_ZlibPart, WINDOW_BITS[compression]))


class Decompressed(ByteReader):
    """The decompressed bytes of one file.

    The pieces that are decompressed do not depend on `count`, so damage is always found at the same byte.
    """

    plain = False

    def __init__(self, name: str, file: Any) -> None:
        super().__init__(name, file)
        self._ready = b""
        self._end = 0

    def read(self, count: int) -> bytes:
        ready, self._ready = self._ready, b""
        return ready or self._next()

    def seek(self, offset: int) -> bool:
        while self._end < offset:
            self._ready = self._next()
            if not self._ready:
                return False
        self._ready = self._ready[len(self._ready) - (self._end - offset) :]
        return True

    def _next(self) -> bytes:
        """The next piece; nothing at the end."""
        try:
            piece = self._piece()
        except StorageError:
            raise
        except _DAMAGE as error:
            raise StorageError(
                f"{self.name!r} is damaged, or its compression is not the given compression_type: {error}, "
                f"after {self._end} decompressed bytes"
            ) from error
        self._end += len(piece)
        return piece

    def _piece(self) -> bytes:
        raise NotImplementedError


class DecompressedParts(Decompressed):
    """A file of several compressed parts, one after the other.

    Args:
        begin: makes what decompresses a part, with the interface of `lzma.LZMADecompressor`.
    """

    def __init__(self, name: str, file: Any, begin: Callable[[], Any]) -> None:
        super().__init__(name, file)
        self._begin = begin
        self._part: Any = None
        self._parts = 0
        self._raw = b""

    def _piece(self) -> bytes:
        while True:
            wanting = self._part is None or self._part.needs_input
            raw, self._raw = self._raw or (ByteReader.read(self, _RAW_BYTES) if wanting else b""), b""
            if self._part is None:
                if not raw:
                    return b""
                raw = raw.lstrip(b"\0") if self._parts else raw  # the last part may be padded with zeros
                if not raw:
                    continue
                self._part = self._begin()
                self._parts += 1
            piece: bytes = self._part.decompress(raw, _PIECE_BYTES)
            if self._part.eof:
                self._raw, self._part = self._part.unused_data, None
            elif wanting and not raw and not piece:
                raise StorageError(f"{self.name!r} is truncated: it ends after {self._end} decompressed bytes")
            if piece:
                return piece


class _ZlibPart:
    """A decompressor of a part by zlib."""

    def __init__(self, window_bits: int) -> None:
        self._inner = zlib.decompressobj(window_bits)

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, most: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, most)


class DecompressedZstandard(Decompressed):
    """The bytes of a Zstandard file, as Arrow decompresses them."""

    def __init__(self, name: str, file: Any) -> None:
        super().__init__(name, file)
        self._arrow = load("pyarrow", None, "Zstandard")
        self._streams: list[Any] = []  # the last is read; one that is dropped closes the file
        self._damage: OSError | None = None  # after it a stream gives old bytes again
        self._begin()

    def _begin(self) -> None:
        file = self._arrow.PythonFile(self._file, mode="r")
        self._streams.append(self._arrow.CompressedInputStream(file, "zstd"))

    def _piece(self) -> bytes:
        if self._damage is not None:
            raise self._damage
        try:
            piece: bytes = self._streams[-1].read(_ZSTD_BYTES)
            return piece
        except OSError as error:
            self._damage = error
            piece = self._before_damage()
            if not piece:
                raise
            return piece

    def _before_damage(self) -> bytes:
        """The next bytes before a damaged place, which Arrow drops when it gets there: read again, one by one."""
        self._file.seek(0)
        self._begin()
        left, found = self._end, bytearray()
        while left:
            left -= len(self._streams[-1].read(min(left, _ZSTD_BYTES)))
        with suppress(OSError):
            while byte := self._streams[-1].read(1):
                found += byte
        return bytes(found)
