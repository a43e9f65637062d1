"""Indexes of offsets: where each record of a file begins. They are kept in the user's cache directory.

An index belongs to a name, a layout of records and a version of the file, which is its size and the time of its last
change, or the facts that its file system gives. For another version it is made again. Indexes are not kept beside the
files, where patterns such as `data/*` would match them, and not every data directory can be written. Indexes that were
not read for a month are deleted: their files may be gone.

penstock's writers put the index of a file that they write into the directory `_offsets` beside it, which moves along
with the file. There the version is the file's size and a checksum of its last bytes.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import StorageError
from penstock.formats.opening import open_bytes
from penstock.formats.ranges import RangedFile, open_ranges
from penstock.paths import has_protocol

Edges = npt.NDArray[np.int64]
"""The offsets at which each record begins, and the last one ends."""

_BAD_INDEX: Final = (OSError, ValueError, KeyError, TypeError, StorageError, pa.ArrowException)
_BESIDE: Final = "_offsets"
_LAST_BYTES: Final = 1 << 16
_DAY: Final = 86400.0
_UNREAD_DAYS: Final = 30
_SWEPT: Final = ".swept"
"""Its time of change is that at which old indexes were looked for last."""


def cached_edges(name: str, layout: str, version: str, find: Callable[[], Edges]) -> Edges:
    """The index of a file, which `find` makes where none is kept; its errors are passed on.

    Nothing is kept where the cache directory cannot be written.
    """
    path = _path_of(name, layout)
    with suppress(*_BAD_INDEX):
        kept = _read(path.read_bytes(), version)
        if kept is not None:
            if path.stat().st_mtime < time.time() - _DAY:
                path.touch()
            return kept
    edges = find()
    with suppress(OSError):
        _write(path, version, edges)
        _sweep(path.parent)
    return edges


def _sweep(directory: Path) -> None:
    """Delete the indexes of a directory that were not read for a month; once a day."""
    swept, now = directory / _SWEPT, time.time()
    if swept.exists() and swept.stat().st_mtime > now - _DAY:
        return
    swept.touch()
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.stat().st_mtime < now - _UNREAD_DAYS * _DAY:
                os.unlink(entry)


def edges_beside(file: RangedFile, layout: str) -> Edges | None:
    """The index that the writer of a file has put beside it; None if there is none that belongs to it."""
    folder, stroke, last = file.name.rpartition("/")
    with suppress(*_BAD_INDEX), closing(open_bytes(f"{folder}{stroke}{_BESIDE}/{last}.arrow", "")) as reader:
        return _read(reader.read(reader.size), _version_beside(file, layout))
    return None


def write_edges(path: Path, layout: str, edges: Edges) -> str:
    """Write the index of a file beside it; gives its name from the file's directory on."""
    name = f"{_BESIDE}/{path.name}.arrow"
    _write(path.parent / name, _version_beside(open_ranges(str(path)), layout), edges)
    return name


def _version_beside(file: RangedFile, layout: str) -> str:
    last = file.read(np.array([max(0, file.size - _LAST_BYTES)]), np.array([file.size]))
    return f"{layout}, {file.size} bytes, {google_crc32c.value(last)}"


def cache_directory() -> Path:
    """The directory of indexes: `$PENSTOCK_CACHE`, else in `$XDG_CACHE_HOME/penstock`, else in `~/.cache/penstock`."""
    given = os.environ.get("PENSTOCK_CACHE")
    general = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return (Path(given).expanduser() if given else general / "penstock") / "offsets"


def _path_of(name: str, layout: str) -> Path:
    whole = name if has_protocol(name) else os.path.realpath(name)
    digest = hashlib.sha256(f"{layout} of {whole}".encode(errors="surrogateescape")).hexdigest()
    return cache_directory() / f"{digest[:40]}.arrow"


def _read(content: bytes, version: str) -> Edges | None:
    """The index with this content; None if it is of another version of the file, or damaged."""
    kept = pa.ipc.open_file(content).read_all()
    lengths, about = kept["length"].to_numpy(), kept.schema.metadata
    if about != _about(version, int(about[b"first"]), lengths):
        return None
    edges: Edges = np.cumsum(np.append(int(about[b"first"]), lengths), dtype=np.int64)
    return edges


def _about(version: str, first: int, lengths: npt.NDArray[Any]) -> dict[bytes, bytes]:
    """The facts that are kept of a file beside the lengths of its records."""
    checksum = google_crc32c.value(lengths.tobytes())
    return {b"version": version.encode(), b"first": b"%d" % first, b"checksum": b"%d" % checksum}


def _write(path: Path, version: str, edges: Edges) -> None:
    """Write an index, which other processes see complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lengths = np.diff(edges)
    lengths = lengths.astype(np.min_scalar_type(int(lengths.max(initial=0))))
    number, work = tempfile.mkstemp(dir=path.parent, suffix=".writing")
    try:
        about = _about(version, int(edges[0]), lengths)
        table = pa.table({"length": lengths}).replace_schema_metadata(about)
        with os.fdopen(number, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        os.replace(work, path)
    except BaseException:
        os.unlink(work)
        raise
