"""NumPy's files of arrays (.npy), read by one thread at a time.

NumPy reads their headers with Python's parser, which in Python 3.11 fails now and then where several threads use it:
"AST constructor recursion depth mismatch".
"""

import io
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

_lock = threading.Lock()


def read_header(file: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape, whether it is stored by columns, and the dtype of an array; the file is then where its values begin.

    Raises:
        ValueError: it is no such file.
    """
    with _lock:
        major, _ = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        return read(file)


def load(content: bytes) -> npt.NDArray[Any]:
    """The array of a file with this content.

    Raises:
        ValueError: it is no such file, or holds Python objects.
    """
    with _lock:
        array: npt.NDArray[Any] = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
        return array
