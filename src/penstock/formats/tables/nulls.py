"""Nulls of tables as zeros, empty strings and empty lists, with columns of booleans that mark their places.

| a column "x"                          | "x_is_valid" beside it is True where there is                           |
|---------------------------------------|-------------------------------------------------------------------------|
| numbers, strings, bytes, times        | a value                                                                 |
| a struct                              | a struct; within it, each of its fields has a mask too                  |
| lists                                 | a list, with a value in each of its places                              |
| lists of objects, maps                | a list; nulls within it are None, as Python has them                    |
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidArgumentError
from penstock.formats.tables.objects import holds_objects, is_list

MaskNulls = bool | Sequence[str] | None
"""The columns that get a mask; True stands for all, False and None for none."""
_INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def masked(table: pa.Table, names: MaskNulls, call: str) -> pa.Table:
    """The table with a column "x_is_valid" beside each "x" of these names, which has no nulls any more.

    Args:
        table: of Arrow.
        names: of columns; True stands for all that have no such column beside them yet, of `from_arrow` for those that
            have nulls.
        call: the function that the user called, for errors.

    Raises:
        InvalidArgumentError: a column that is not there, or a mask whose name is taken.
    """
    known, columns = table.column_names, table.columns
    places = {name: place for place, name in enumerate(known)}
    if names is True:
        names = [
            name for name in maskable(known) if call != "from_arrow" or not without_nulls(columns[places[name]]).all()
        ]
    if not names:
        return table
    for name in names:
        mask = f"{name}_is_valid"
        if name not in places or mask in places:
            why = "there is no such column" if name not in places else f"there is a column {mask!r} already"
            raise InvalidArgumentError(
                f"{call}(mask_nulls=...): cannot mask {name!r}, as {why}; the columns are {known}"
            )
        chunks = columns[places[name]].chunks or [pa.array([], columns[places[name]].type)]
        chunks = list(map(_decoded, chunks))
        columns[places[name]] = pa.chunked_array([_filled(chunk) for chunk in chunks])
        columns.append(pa.chunked_array([pa.array(_valid(chunk)) for chunk in chunks]))
    return pa.Table.from_arrays(columns, [*known, *(f"{name}_is_valid" for name in names)])


def maskable(names: Sequence[str]) -> list[str]:
    """The columns that have no mask beside them yet."""
    known = set(names)
    return [name for name in names if f"{name}_is_valid" not in known]


def without_nulls(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """True for each row without a null that NumPy cannot hold."""
    return np.concatenate([np.empty(0, bool), *map(_whole, column.chunks)])


def _whole(array: pa.Array) -> npt.NDArray[np.bool_]:
    array = _decoded(array)
    fields = map(_whole, array.flatten()) if pa.types.is_struct(array.type) else ()
    whole: npt.NDArray[np.bool_] = np.logical_and.reduce([_valid(array), *fields])
    return whole


def _decoded(array: pa.Array) -> pa.Array:
    """Dictionaries written out, and views as plain strings or bytes."""
    if pa.types.is_dictionary(array.type):
        return _decoded(array.dictionary_decode())
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        return array.cast(pa.string() if pa.types.is_string_view(array.type) else pa.binary())
    return _decoded(array.storage) if isinstance(array, pa.ExtensionArray) and array.null_count else array


def _valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    """True for each value that is not null; of lists, neither may any of their values be."""
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    if not is_list(array.type) or holds_objects(array.type):
        return valid
    lacking = np.append(0, np.cumsum(~_valid(_decoded(array.flatten()))))
    lengths = array.value_lengths().fill_null(0).to_numpy()
    ends = np.cumsum(lengths)
    whole: npt.NDArray[np.bool_] = lacking[ends] == lacking[ends - lengths]
    return valid & whole


def _filled(array: pa.Array) -> pa.Array:
    """An array without nulls, also within; one of a type that is refused later as it is."""
    array = _decoded(array)
    kind = array.type
    if pa.types.is_struct(kind):
        fields = dict(zip([field.name for field in kind], array.flatten(), strict=True))
        masks = {f"{name}_is_valid": pa.array(_valid(_decoded(fields[name]))) for name in maskable(list(fields))}
        filled = {name: _filled(field) if f"{name}_is_valid" in masks else field for name, field in fields.items()}
        made = filled | masks
        return pa.StructArray.from_arrays(list(made.values()), list(made)) if made else array.fill_null({})
    if pa.types.is_fixed_size_list(kind) and not holds_objects(kind):
        places = np.arange(len(array) * kind.list_size)
        missing = ~np.repeat(array.is_valid().to_numpy(zero_copy_only=False), kind.list_size)
        values = array.values.take(pa.array(places + array.offset * kind.list_size, mask=missing))
        return pa.FixedSizeListArray.from_arrays(_filled(values), kind.list_size)
    if pa.types.is_fixed_size_list(kind):
        array = array.cast(pa.list_(kind.value_type))
    if is_list(array.type) or pa.types.is_map(kind):
        array = array.fill_null(pa.scalar([], array.type))
        if holds_objects(kind):
            return array
        lists = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        offsets = np.append(0, np.cumsum(array.value_lengths()))
        return lists.from_arrays(
            offsets.astype(np.int64 if lists is pa.LargeListArray else np.int32), _filled(array.flatten())
        )
    zero = _zero(kind)
    return array if zero is None else array.fill_null(zero)


def _zero(kind: pa.DataType) -> pa.Scalar | None:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.scalar("", kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.scalar(b"", kind)
    if pa.types.is_fixed_size_binary(kind):
        return pa.scalar(bytes(kind.byte_width), kind)
    if pa.types.is_boolean(kind):
        return pa.scalar(False)
    width = kind.bit_width if pa.types.is_primitive(kind) else 0
    return pa.array([0], _INTEGERS[width]).view(kind)[0] if width in _INTEGERS else None
