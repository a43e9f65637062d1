"""Decompresses Zstandard by Arrow; a file of its own, so that Arrow is imported only for such files."""

from typing import Any

import pyarrow as pa


def decompressed(file: Any) -> Any:
    """The decompressed bytes of an open file, as a file."""
    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")
