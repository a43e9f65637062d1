"""Messages of every type, made from their definitions: Hypothesis strategies with values that are likely to do harm."""

import math
from typing import Any, get_args

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

INTEGERS = st.integers(-2, 12) | st.sampled_from(
    [100, 1 << 16, 1 << 31, 1 << 32, (1 << 62) - 1, 1 << 62, (1 << 62) + 1, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63)]
)
FLOATS = st.floats(0, 5) | st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 1e300, 1e-300])
TEXTS = st.sampled_from(["", "d", "j", "a", "c", "localhost:1", "COLOCATED", "ServiceError", "\x1b[2J\0", "ä" * 300])
BYTES = st.binary(max_size=20)
PLAIN = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS | BYTES,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(TEXTS, part, max_size=3),
    max_leaves=6,
)


def messages(union: Any) -> st.SearchStrategy[Any]:
    """Messages of all types of a union, or of one type."""
    kinds = get_args(union) or (union,)
    return st.one_of([_values(inspect.type_info(kind)) for kind in kinds])


def _values(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.StructType():
            return _structs(info)
        case inspect.IntType():
            return INTEGERS
        case inspect.FloatType():
            return FLOATS
        case inspect.StrType():
            return TEXTS
        case inspect.BytesType():
            return BYTES
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.LiteralType():
            return st.sampled_from(info.values)
        case inspect.UnionType():
            return st.one_of([_values(kind) for kind in info.types])
        case inspect.ListType() | inspect.VarTupleType():
            items = st.lists(_values(info.item_type), max_size=3)
            return items if isinstance(info, inspect.ListType) else items.map(tuple)
        case inspect.TupleType():
            return st.tuples(*map(_values, info.item_types))
        case inspect.DictType():
            return st.dictionaries(_values(info.key_type), _values(info.value_type), max_size=3)
        case inspect.AnyType():
            return PLAIN
    raise TypeError(f"no strategy for {info}")


def _structs(info: inspect.StructType) -> st.SearchStrategy[Any]:
    """A struct with some of its optional fields left out."""
    needed = {field.name: _values(field.type) for field in info.fields if field.required}
    optional = {field.name: _values(field.type) for field in info.fields if not field.required}
    return st.fixed_dictionaries(needed, optional=optional).map(lambda fields: _made(info.cls, fields))


def _made(kind: type, fields: dict[str, Any]) -> Any:
    return kind(**fields)


def sent(message: msgspec.Struct, union: Any) -> Any:
    """A message as it is after its way; None where it is refused as none."""
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=union)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
