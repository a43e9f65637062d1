r"""Lines of text, ended by "\n" or "\r\n"."""

import codecs
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.errors import ElementError, StorageError
from penstock.formats.compression import compression_of
from penstock.formats.records.record_format import Column, RecordFormat, RecordReader, Source

_NEWLINE = ord("\n")
_BYTE_ORDER_MARK = "\ufeff"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def of_utf_16(begin: bytes) -> str:
    """Advice about text that begins with these bytes; "" if they are not of UTF-16."""
    return "; it is UTF-16: convert it, as by: iconv -f UTF-16 -t UTF-8" if begin.startswith(_UTF_16) else ""


@dataclass(frozen=True)
class TextLines(RecordFormat):
    """The lines of a file as strings, without their ends, and without the mark that a file may begin with.

    Attributes:
        encoding: one in which only the end of a line has the byte of a newline.
    """

    encoding: str = "utf-8"

    def open(self, name: Source, compression: str, number: int = 0, offset: int = 0) -> "LineReader":
        return LineReader(self.encoding, name, compression, number, offset)


class LineReader(RecordReader):
    """Finds and decodes lines a chunk at a time."""

    def __init__(self, encoding: str, name: Source, compression: str, number: int, offset: int) -> None:
        self._encoding = encoding
        super().__init__(name, compression, number, max(offset - 1, 0))
        if offset:
            self._start = offset
            self._data = self._after_line(offset)

    def _after_line(self, offset: int) -> bytes:
        """The bytes from a line on. Only the end of the line before shows that a line begins there."""
        data = self._bytes.read(self._chunk)
        # The last line of a file may have no end.
        if data[:1] == b"\n" or (len(data) == 1 and not self._bytes.read(1)):
            return data[1:]
        self.close()
        raise StorageError(
            f"{self._name!r}: no line begins at byte {offset}, with which the state continues: it was another file, or "
            "other lines, when the state was saved. Restore it with the same files in the same order"
        )

    def _load(self, skipping: bool) -> npt.NDArray[np.int64]:
        parts, piece = [self._data], self._data
        while b"\n" not in piece and (piece := self._bytes.read(self._chunk)):
            parts.append(piece)
        self._data = b"".join(parts)
        if not piece:  # the rest is a line without an end, or empty
            if self._start == 0 and self._data == codecs.BOM_UTF8 and self._encoding.startswith("utf-8"):
                return np.array([], np.int64)
            return np.array([len(self._data)] if self._data else [], np.int64)
        newlines: npt.NDArray[np.int64] = (np.frombuffer(self._data, np.uint8) == _NEWLINE).nonzero()[0]
        return newlines + 1

    def _decode(self, first: int) -> Column:
        begin, end = self._begin(first), int(self._ends[-1])
        try:
            text = self._data[begin:end].decode(self._encoding)
        except UnicodeDecodeError as error:
            bad = int(np.searchsorted(self._ends, begin + error.start, side="right"))
            if bad == first:
                raise self._damaged(error) from None
            text = self._data[begin : self._begin(bad)].decode(self._encoding)
        if self.number == 0 and text[:1] == _BYTE_ORDER_MARK:
            text = text[1:]
        if "\r" in text:  # the search for one character is fast
            text = text.replace("\r\n", "\n")
        lines = text.split("\n")
        if text.endswith("\n"):
            lines.pop()
        return np.fromiter(lines, object, len(lines))

    def _damaged(self, error: UnicodeDecodeError) -> ElementError:
        where = f"{self._name!r}, line {self.number + 1}, at byte {self.offset}"
        found = f"the byte 0x{error.object[error.start]:02x} ({error.reason})"
        message = f"{where}: expected {self._encoding.upper()}, got {found}"
        compression = compression_of(error.object[:8]) if self.number == 0 else ""
        if compression:
            message += f'; it looks like a file compressed by {compression}: give compression_type="{compression}"'
        else:
            advice = of_utf_16(error.object) if self.number == 0 else ""
            message += advice or ": ps.TextLineDataset(..., encoding='latin-1'), or another, reads it"
        self._pass(1)
        return ElementError(message)
