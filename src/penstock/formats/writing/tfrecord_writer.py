"""Writing TFRecord files."""

import os
import zlib
from contextlib import suppress
from typing import Any

from penstock.errors import ClosedError, InvalidArgumentError, InvalidTypeError, StorageError
from penstock.formats.compression import WINDOW_BITS, check_compression
from penstock.formats.records.tfrecord import frame
from penstock.other_names import OtherNames
from penstock.paths import has_protocol, local_path


@OtherNames(keywords={"__init__": {"filename": "path"}})
class TFRecordWriter:
    """Writes one TFRecord file, which appears under its name when it is complete.

    Until `close`, or the end of a `with` block, the records are in `<path>.writing`, so other programs see complete
    files only. If an exception leaves the `with` block, the written records are removed. An existing file of that name
    is replaced.

    Args:
        path: a local path.
        compression_type: None or "" for none; "GZIP" or "ZLIB", in any case.

    Raises:
        InvalidArgumentError: another compression type, or a path with a protocol.
        StorageError: the file cannot be written, as on a full disk; the written records are removed.

    Example:
        >>> import os, tempfile
        >>> import penstock as ps
        >>> path = os.path.join(tempfile.mkdtemp(), "words.tfrecord")
        >>> with ps.TFRecordWriter(path) as writer:
        ...     writer.write(b"one")
        ...     writer.write(b"two")
        >>> list(ps.TFRecordDataset(path))
        [b'one', b'two']
    """

    def __init__(self, path: str | os.PathLike[str], compression_type: str | None = None) -> None:
        self._path = os.fspath(path)
        compression = check_compression("TFRecordWriter", compression_type, tuple(WINDOW_BITS))
        if has_protocol(self._path):
            raise InvalidArgumentError(
                f"TFRecordWriter takes a local path, got {self._path!r}: write the file here, then copy it there"
            )
        self._path = local_path(self._path)
        self._work = f"{self._path}.writing"
        self._compressor: Any = zlib.compressobj(wbits=WINDOW_BITS[compression]) if compression else None
        try:
            self._file = open(self._work, "wb")  # noqa: SIM115  # `close` closes it
        except OSError as error:
            raise self._not_written(error) from error

    def write(self, record: bytes) -> None:
        """Append one record.

        Raises:
            InvalidTypeError: not bytes.
            ClosedError: the writer was closed.
        """
        if not isinstance(record, (bytes, bytearray, memoryview)):
            raise InvalidTypeError(f"TFRecordWriter.write takes bytes, got {type(record).__name__}: encode it first")
        self._check_open()
        framed = frame(bytes(record))
        try:
            self._file.write(framed if self._compressor is None else self._compressor.compress(framed))
        except OSError as error:
            raise self._given_up(error) from error

    def flush(self) -> None:
        """Hand everything written so far to the operating system: it then survives the end of this process.

        Raises:
            ClosedError: the writer was closed.
        """
        self._check_open()
        try:
            if self._compressor is not None:
                self._file.write(self._compressor.flush(zlib.Z_SYNC_FLUSH))
            self._file.flush()
        except OSError as error:
            raise self._given_up(error) from error

    def close(self) -> None:
        """Complete the file and give it its name. May be called again."""
        if self._file.closed:
            return
        try:
            with self._file:
                if self._compressor is not None:
                    self._file.write(self._compressor.flush())
            os.replace(self._work, self._path)
        except OSError as error:
            raise self._given_up(error) from error

    def _given_up(self, error: OSError) -> StorageError:
        self._remove()
        return self._not_written(error)

    def _not_written(self, error: OSError) -> StorageError:
        return StorageError(f"{self._path!r} cannot be written: {error.strerror or error}")

    def _remove(self) -> None:
        """Remove the records that were written."""
        with suppress(OSError):  # the buffer cannot be written
            self._file.close()
        with suppress(OSError):
            os.unlink(self._work)

    def _check_open(self) -> None:
        if self._file.closed:
            raise ClosedError(f"the writer of {self._path!r} was closed")

    def __enter__(self) -> "TFRecordWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None:
            self.close()
        elif not self._file.closed:
            self._remove()
