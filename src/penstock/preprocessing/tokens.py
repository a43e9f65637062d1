"""Tokens as Arrow arrays: strings as their bytes, numbers as int64.

Strings become bytes, and bytes strings, by the encoding of a layer. Bytes that are invalid in it are escaped as in
Python's file names ("surrogateescape"), so that a vocabulary of any bytes can be shown, written as JSON and read.
"""

import codecs
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidTypeError

Shape = tuple[int, ...]

TEXT = pa.large_binary()
INTEGERS = pa.int64()


def text_array(call: str, inputs: Any, encoding: str = "utf-8") -> tuple[pa.LargeBinaryArray, Shape]:
    """Strings or bytes in any array, flattened, and their shape; strings become bytes in this encoding.

    Raises:
        InvalidTypeError: something other than strings or bytes.

    Example:
        >>> text_array("StringLookup", [["a", "b"]])[1]
        (1, 2)
    """
    if isinstance(inputs, (pa.Array, pa.ChunkedArray)):
        return _arrow_text(call, inputs, encoding), (len(inputs),)
    array = inputs if isinstance(inputs, np.ndarray) else _object_array(call, inputs)
    if array.dtype.kind not in "OUST":
        raise InvalidTypeError(
            f"{call} takes strings or bytes, got an array of {array.dtype}: use IntegerLookup, or str"
        )
    return _arrow_text(call, _converted(call, array.reshape(-1), encoding), encoding), array.shape


def _object_array(call: str, inputs: Any) -> npt.NDArray[Any]:
    try:
        return np.array(inputs, dtype=object)
    except ValueError as error:
        raise InvalidTypeError(f"{call} takes lists of equal length, got {inputs!r:.100}") from error


def _converted(call: str, flat: npt.NDArray[Any], encoding: str) -> Any:
    if flat.dtype.kind in "OUT" and not is_utf8(encoding):
        return pa.array(_encoded(call, flat.tolist(), encoding), TEXT)
    try:
        if flat.dtype.kind == "O":
            return pa.array(flat, TEXT)
        return pa.array(flat)
    except UnicodeEncodeError:
        return pa.array(_encoded(call, flat.tolist(), encoding), TEXT)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        if flat.dtype.kind == "T":  # this Arrow does not know NumPy's StringDType
            return pa.array(flat.astype(object), TEXT)
        raise InvalidTypeError(f"{call} takes strings or bytes: {error}") from error


def _encoded(call: str, values: list[Any], encoding: str) -> list[Any]:
    if any(not isinstance(value, (str, bytes)) for value in values):
        raise InvalidTypeError(f"{call} takes strings or bytes, got {values!r:.100}")
    return [encode_text(value, encoding) for value in values]


def encode_text(value: str | bytes, encoding: str) -> bytes:
    """One string as bytes; bytes as they are.

    Raises:
        InvalidTypeError: the encoding has no bytes for it.
    """
    if isinstance(value, bytes):
        return value
    try:
        return value.encode(encoding, "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidTypeError(f"encoding={encoding!r} cannot write {value!r:.100}: {error.reason}") from error


def is_utf8(encoding: str) -> bool:
    """Return whether this is a name of UTF-8, the encoding of Arrow's strings."""
    return codecs.lookup(encoding).name == "utf-8"


def _arrow_text(call: str, array: Any, encoding: str) -> pa.LargeBinaryArray:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (is_text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise InvalidTypeError(f"{call} takes strings or bytes, got an Arrow array of {kind}")
    if array.null_count:
        raise InvalidTypeError(f"{call} takes strings or bytes, got None: put a string in its place")
    if is_text and not is_utf8(encoding):
        return pa.array(_encoded(call, array.to_pylist(), encoding), TEXT)
    return array if kind == TEXT else array.cast(TEXT)


def integer_array(call: str, inputs: Any) -> tuple[pa.Int64Array, Shape]:
    """Integers in any array as int64, flat, and the shape they came in.

    Raises:
        InvalidTypeError: something other than integers.
    """
    if isinstance(inputs, (pa.Array, pa.ChunkedArray)):
        inputs = inputs.to_numpy() if isinstance(inputs, pa.ChunkedArray) else inputs.to_numpy(zero_copy_only=False)
    try:
        array = np.asarray(inputs)
    except ValueError as error:
        raise InvalidTypeError(f"{call} takes lists of equal length, got {inputs!r:.100}") from error
    if array.size == 0 and array.dtype == np.float64:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise InvalidTypeError(f"{call} takes integers, got an array of {array.dtype}")
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise InvalidTypeError(f"{call} takes integers below 2**63, got {array.max()}")
    return pa.array(np.ascontiguousarray(array, dtype=np.int64).reshape(-1)), array.shape


def decoded(tokens: pa.LargeBinaryArray, encoding: str) -> npt.NDArray[np.object_]:
    """Tokens as an array of Python strings."""
    if is_utf8(encoding):
        try:
            strings: npt.NDArray[np.object_] = tokens.cast(pa.large_string()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:  # some are not UTF-8
            pass
        else:
            return strings
    column = np.empty(len(tokens), dtype=object)
    column[:] = [token.decode(encoding, "surrogateescape") for token in tokens.to_pylist()]
    return column
