"""Bytes compressed by Zstandard, which Arrow decompresses."""

from typing import Any

import pyarrow as pa


def decompressed(file: Any) -> Any:
    """The decompressed bytes of an open file, as a file."""
    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")
