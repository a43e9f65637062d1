"""The formats of files by their names: penstock's own, and those that users add."""

from collections.abc import Callable
from typing import Any, Final

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.formats import tables
from penstock.formats.file_format import FileFormat
from penstock.formats.records.megatron import MegatronFiles
from penstock.formats.records.npy import NpyFiles
from penstock.formats.records.record_files import RecordFiles
from penstock.formats.records.text_lines import TextLines
from penstock.formats.records.tfrecord import TFRecords

_BUILT_IN: Final[dict[str, Callable[[], FileFormat]]] = {
    "megatron": MegatronFiles,
    "npy": NpyFiles,
    "parquet": lambda: tables.parquet.ParquetFiles(),
    "text": lambda: RecordFiles(TextLines()),
    "tfrecord": lambda: RecordFiles(TFRecords()),
}
_registered: dict[str, type[FileFormat]] = {}


def register_format(name: str, kind: type[FileFormat]) -> None:
    """Let `ps.FilesDataset(..., format=name)` read files by a format, which is made without arguments.

    Raises:
        InvalidTypeError: no class of `ps.files.FileFormat`.
        InvalidArgumentError: another format has that name.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> import penstock as ps
        >>> class Samples(ps.files.FileFormat):  # numbers of two bytes
        ...     def count(self, name):
        ...         return pathlib.Path(name).stat().st_size // 2
        ...     def read(self, name, rows):
        ...         return np.fromfile(name, "<i2")[rows]
        ...     def spec(self, name):
        ...         return ps.TensorSpec((), np.int16)
        >>> ps.files.register_format("samples", Samples)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     _ = pathlib.Path(directory, "a.raw").write_bytes(bytes([1, 0, 2, 0]))
        ...     print([int(x) for x in ps.FilesDataset(f"{directory}/*.raw", format="samples")])
        [1, 2]
    """
    given: Any = kind
    if not isinstance(given, type) or not issubclass(given, FileFormat):
        raise InvalidTypeError(
            f"register_format({name!r}, ...) takes a class of ps.files.FileFormat, got {kind!r:.200}"
        )
    if name in _BUILT_IN or _registered.get(name, kind) is not kind:
        raise InvalidArgumentError(f"register_format: there is a format {name!r} already")
    _registered[name] = kind


def format_of(given: Any) -> FileFormat:
    """A format, or the one of a name.

    Raises:
        InvalidTypeError: neither.
        InvalidArgumentError: there is none of that name.
    """
    if isinstance(given, FileFormat):
        return given
    if not isinstance(given, str):
        raise InvalidTypeError(
            f"FilesDataset(format=...) takes a ps.files.FileFormat or the name of one, got {given!r:.200}"
        )
    if given in _BUILT_IN:
        return _BUILT_IN[given]()
    if given not in _registered:
        raise InvalidArgumentError(
            f"FilesDataset(format=...): there is no format {given!r}; there are {sorted({*_BUILT_IN, *_registered})}, "
            "and those that ps.files.register_format adds"
        )
    return _registered[given]()
