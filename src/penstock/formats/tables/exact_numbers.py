"""Numbers in text whose type was guessed, and those among them that the guess would change.

Arrow's guesses make int64 of "007", float64 of integers beyond int64, and of those between fractions.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ElementError
from penstock.formats.file_errors import by_library

_ROUNDED: Final = pa.scalar(2.0**53)
"""From here on float64 has no place for every integer."""
_INTEGER: Final = re.compile(r"\s*[+-]?[0-9]+\s*")
_LONG: Final = 309
"""The digits of integers that are beyond float64."""
_LEADING_ZERO: Final = r"^\s*[+-]?0[0-9xX]"


def may_be_rounded(array: pa.Array | pa.ChunkedArray) -> bool:
    """True if an array has floats, also in lists and structs, that are so large that integers are rounded to them."""
    if isinstance(array, pa.ChunkedArray):
        return any(map(may_be_rounded, array.chunks))
    if pa.types.is_struct(array.type):
        return any(map(may_be_rounded, array.flatten()))
    if pa.types.is_list(array.type):
        return may_be_rounded(array.flatten())
    return bool(pa.types.is_float64(array.type) and pc.any(pc.greater_equal(pc.abs(array), _ROUNDED)).as_py())


def may_have_leading_zeros(data: bytes, delimiter: bytes) -> bool:
    """True if the text of a table may have numbers that begin with a zero before another digit."""
    content = np.frombuffer(b"\n" + data + b"\n", np.uint8)
    begins = np.zeros(256, bool)
    begins[: ord('"') + 1] = begins[delimiter[0]] = True
    bound = max(ord("-"), delimiter[0])  # most zeros are within a number, and cost no more than this
    zeros = np.flatnonzero((content[1:] == ord("0")) & (content[:-1] <= bound)) + 1
    before, after = content[zeros - 1], content[zeros + 1]
    signed = (before == ord("+")) | (before == ord("-"))
    before = np.where(signed, content[zeros - 2], before)
    more = (after - np.uint8(ord("0")) < 10) | (after | 0x20 == ord("x"))
    return bool((begins[before] & more).any())


def type_of_texts(column: pa.ChunkedArray, text: pa.ChunkedArray) -> tuple[pa.DataType | None, str]:
    """The type that keeps the numbers of a column as they are written, and the first of them that its own does not.

    None stands for no type of numbers; where nothing is lost, the type is the column's own and the text empty.
    """
    text = text.filter(column.is_valid())
    zeros = text.filter(pc.match_substring_regex(text, _LEADING_ZERO))
    if len(zeros):
        return pa.string(), zeros[0].as_py()
    if not may_be_rounded(column):
        return column.type, ""
    large = text.filter(pc.greater_equal(pc.abs(column.drop_null()), _ROUNDED)).to_pylist()
    lost = next((one for one in large if _is_rounded(one)), "")
    if not lost:
        return column.type, ""
    try:
        return text.cast(pa.uint64()).type, lost
    except pa.ArrowInvalid:
        return None, lost


def _is_rounded(text: str) -> bool:
    """True if a number in text is another one as float64; fractions are expected to be."""
    if _INTEGER.fullmatch(text):
        return len(text.strip()) > _LONG + 1 or bool(int(text) != float(text))
    return bool(np.isinf(float(text)) and "inf" not in text.lower())


def type_of_values(kind: pa.DataType, values: Sequence[Any]) -> tuple[pa.DataType | None, Any]:
    """`type_of_texts` of values as Python reads them from JSON, of a type that may have others within it."""
    if pa.types.is_struct(kind):
        parts = [(field, type_of_values(field.type, [one.get(field.name) for one in values if one])) for field in kind]
        lost = next((one for _, (_, one) in parts if one is not None), None)
        kept = [(field.name, inner) for field, (inner, _) in parts]
        return None if any(inner is None for _, inner in kept) else pa.struct(kept), lost
    if pa.types.is_list(kind):
        inner, lost = type_of_values(kind.value_type, [value for one in values for value in one or ()])
        return None if inner is None else pa.list_(inner), lost
    if not pa.types.is_float64(kind):
        return kind, None
    numbers = [one for one in values if one is not None]
    large = 10 ** (_LONG - 1)
    lost = next((one for one in numbers if isinstance(one, int) and (abs(one) > large or one != float(one))), None)
    if lost is None:
        return kind, None
    fits = all(isinstance(one, int) and 0 <= one < 1 << 64 for one in numbers)
    return pa.uint64() if fits else None, lost


def values_in_json(line: bytes) -> Any:
    """The object of a line; of integers that are beyond all types, the first digits alone.

    Raises:
        ElementError: Python cannot read it.
    """
    with by_library("its large numbers cannot be compared with the text"):
        return json.loads(line, parse_int=lambda digits: int(digits[: 2 * _LONG]))


def in_python(kind: pa.DataType) -> str:
    """A type of numbers, or of what JSON has, as a program writes it."""
    if not pa.types.is_nested(kind):
        return f"np.{kind.to_pandas_dtype().__name__}"
    return _in_python(kind)


def _in_python(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"pa.list_({_in_python(kind.value_type)})"
    if pa.types.is_struct(kind):
        return f"pa.struct([{', '.join(f'({field.name!r}, {_in_python(field.type)})' for field in kind)}])"
    if pa.types.is_timestamp(kind):
        return f"pa.timestamp({kind.unit!r})"
    return f"pa.{ {'bool': 'bool_', 'double': 'float64'}.get(str(kind), str(kind)) }()"


def refuse(name: str, lost: Any, kind: pa.DataType, advice: str, row: int) -> NoReturn:
    """Raise the error of a number that the type of its column would change.

    Raises:
        ElementError: always.
    """
    error = ElementError(
        f"column {name!r} has {lost!s:.60}, which {kind}, its type in the first rows, would change: {advice}, and "
        f"types={{{name!r}: {in_python(kind)}}} takes the nearest number"
    )
    error.positions = (row,)
    raise error
