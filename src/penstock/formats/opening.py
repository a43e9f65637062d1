"""Files for users' own readers: local or with a protocol."""

import io
import os
from typing import Any, Final

from penstock.formats.file_errors import named_in_errors
from penstock.formats.files import open_plain
from penstock.paths import has_protocol, local_path

_BUFFER_BYTES: Final = 1 << 16


def open_file(name: str | os.PathLike[str]) -> io.BufferedReader:
    """A file for reading its bytes, as `open(name, "rb")` gives it; with a protocol too, as "s3://bucket/name".

    It can be sought in, so what takes an open file takes it: `numpy.load`, `PIL.Image.open`, `zipfile.ZipFile`,
    `h5py.File`. A remote file that is read from front to back is fetched up to 32 MiB in advance.

    Raises:
        StorageError: it cannot be opened; later, it cannot be read, or has changed since it was opened.
        MissingExtraError: what reads files with its protocol is not installed.

    Example:
        >>> import pathlib, tempfile
        >>> import penstock as ps
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "poem.txt"
        >>> _ = path.write_text("rose")
        >>> with ps.open_file(path) as file:
        ...     file.read()
        b'rose'
    """
    given = os.fspath(name)
    with named_in_errors(given, "opened"):
        raw: Any = open_plain(given if has_protocol(given) else local_path(given))
    return io.BufferedReader(raw, _BUFFER_BYTES)
