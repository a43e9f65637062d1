"""What is sent and what comes of it are the same, and bytes that are something else are refused."""

import dataclasses
import json
from typing import Any, NamedTuple

import ml_dtypes
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.data.block import Block, object_column
from penstock.errors import InvalidArgumentError, InvalidTypeError, ServiceError
from penstock.service.wire.blocks import BlockHeader, Buffer, ColumnHeader, pack, spec_of_data, spec_to_data, unpack
from penstock.service.wire.compression import CODECS, AutomaticCodec, as_codec, cheapest_codec, compress, decompress
from penstock.structure import flatten


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Image:
    pixels: Any
    label: Any


class Sneaky:
    """Neither a dataclass nor a named tuple: calling it would be the wrong thing to do."""

    def __init__(self, **values: Any) -> None:
        raise AssertionError("called by what came over the wire")


def crossed(block: Block) -> Block:
    """The block after its way through another process's memory."""
    header, buffers = pack(block)
    header = msgspec.msgpack.decode(msgspec.msgpack.encode(header), type=BlockHeader)
    return unpack(header, [np.frombuffer(buffer.tobytes(), np.uint8) for buffer in buffers])


def assert_same(found: Any, expected: Any) -> None:
    """Equal leaves of equal dtypes, down to the entries of object columns."""
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        if expected.dtype == object:
            for a, b in zip(found.flat, expected.flat, strict=True):
                assert_same(a, b)
        else:
            assert found.tobytes() == expected.tobytes()
    else:
        assert found == expected


DTYPES = [
    "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", "F", "D", ">i4", ">f8",
    "M8[ns]", "m8[D]", "U3", "S5", "V4", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
    np.dtype([("a", "i4"), ("b", "f8", (2,)), ("c", [("d", "U2")])]),
]  # fmt: skip
dtypes = st.sampled_from(list(map(np.dtype, DTYPES)))
row_shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def dense_columns(draw: st.DrawFn, rows: int) -> Any:
    """Any bytes, but for text, of which not all bytes are."""
    dtype, shape = draw(dtypes), (rows, *draw(row_shapes))
    if dtype.kind == "U":
        return np.full(shape, draw(st.text(max_size=3)), dtype)
    if dtype.names:
        return np.zeros(shape, dtype)
    count = int(np.prod(shape)) * dtype.itemsize
    content = draw(st.binary(min_size=count, max_size=count))
    return np.ndarray(shape, dtype, bytearray(content or b"0" * dtype.itemsize))


@st.composite
def ragged_columns(draw: st.DrawFn, rows: int) -> Any:
    dtype = draw(st.sampled_from(["i4", "f8", "?", ml_dtypes.bfloat16]))
    axes = draw(st.integers(1, 2))
    shapes = [tuple(draw(st.integers(0, 3)) for _ in range(axes)) for _ in range(rows)]
    return object_column([np.ones(shape, dtype) for shape in shapes])


def text_columns(rows: int) -> Any:
    strings = st.lists(st.text(max_size=5), min_size=rows, max_size=rows)
    return st.one_of(strings, st.lists(st.binary(max_size=5), min_size=rows, max_size=rows)).map(object_column)


def wide_text_columns(rows: int) -> Any:
    """Batches of strings: an object column of two axes."""
    return st.text(max_size=4).map(lambda text: np.array([[text, text + "b"]] * rows, object).reshape(rows, 2))


elements = st.recursive(
    st.just(0),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Image, inner, inner),
        st.none(),
    ),
    max_leaves=5,
)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    rows = draw(st.integers(1, 4))
    leaves, structure = flatten(draw(elements))
    kinds = st.one_of(dense_columns(rows), ragged_columns(rows), text_columns(rows), wide_text_columns(rows))
    return Block(tuple(draw(kinds) for _ in leaves), structure, rows)


@pytest.mark.slow
@given(block=blocks())
def test_every_block_crosses_as_it_is(block: Block) -> None:
    found = crossed(block)
    assert len(found) == len(block) and found.structure == block.structure
    for column, expected in zip(found.columns, block.columns, strict=True):
        assert_same(column, expected)


def test_variable_width_strings_of_numpy_cross() -> None:
    column = np.array(["a", "", "longer than the rest"], np.dtypes.StringDType())
    found = crossed(Block((column,), flatten(0)[1], 3)).columns[0]
    assert found.dtype == column.dtype and found.tolist() == column.tolist()


def test_a_dense_column_is_neither_copied_to_be_packed_nor_to_be_unpacked() -> None:
    column = np.arange(12.0).reshape(3, 4)
    header, buffers = pack(Block((column,), flatten(0)[1], 3))
    found = unpack(header, buffers).columns[0]
    assert found.ctypes.data == buffers[0].ctypes.data == column.ctypes.data


def test_ragged_rows_can_be_written_where_they_arrive() -> None:
    found = crossed(Block((object_column([np.arange(2), np.arange(3)]),), flatten(0)[1], 2))
    found.columns[0][0][0] = 7
    assert found.columns[0][0].tolist() == [7, 1]


def test_numbers_that_came_to_an_odd_address_are_aligned() -> None:
    header, buffers = pack(Block((np.arange(3.0),), flatten(0)[1], 3))
    odd = np.zeros(25, np.uint8)
    odd[1:] = buffers[0]
    column = unpack(header, [odd[1:]]).columns[0]
    assert column.flags.aligned and column.tolist() == [0.0, 1.0, 2.0]


def test_the_error_names_the_leaf_that_cannot_cross() -> None:
    block = Block.of_rows([{"id": 1, "model": object()}])
    with pytest.raises(InvalidTypeError, match=r"cannot be sent at \['model'\]: .*objects of type object"):
        pack(block)


def test_a_class_inside_a_function_cannot_cross() -> None:
    Local = NamedTuple("Local", [("x", int)])  # noqa: UP014  # a name that nobody can find
    Local.__qualname__ = "f.<locals>.Local"
    with pytest.raises(InvalidTypeError, match=r"f.<locals>.Local values .* top of a module"):
        pack(Block.of_rows([Local(1)]))


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        ("no_such_module", "Point", "no_such_module.Point values, which this process does not know"),
        (__name__, "NoSuchClass", "NoSuchClass values, which this process does not know"),
        (__name__, "Sneaky", "no dataclass and no named tuple"),
        ("os", "system", "no dataclass and no named tuple"),
        ("penstock", "MirroredStrategy", "does not know"),
    ],
)
def test_what_comes_over_the_wire_imports_and_calls_nothing(module: str, name: str, message: str) -> None:
    header, buffers = pack(Block.of_rows([Point(1, 2)]))
    data = [*header.structure[:3], module, name]
    with pytest.raises(ServiceError, match=message):
        unpack(BlockHeader(data, header.length, header.columns), buffers)


def test_a_header_that_does_not_fit_its_buffers_is_an_error() -> None:
    header, buffers = pack(Block.of_rows([(1, 2.0)]))
    with pytest.raises(ServiceError, match="came with 1 buffers for 2 columns"):
        unpack(header, buffers[:1])
    with pytest.raises(ServiceError, match=r"7 bytes came for a column of \(1,\) values of int64"):
        unpack(header, [buffers[0][:7], buffers[1]])
    with pytest.raises(ServiceError, match=r"block of 2 rows came with columns of the shapes \[\(1,\), \(1,\)\]"):
        unpack(BlockHeader(header.structure, 2, header.columns), buffers)


def test_addresses_never_come_over_the_wire() -> None:
    header, _ = pack(Block.of_rows([1]))
    forged = BlockHeader(header.structure, 1, (msgspec.structs.replace(header.columns[0], dtype="|O"),))
    with pytest.raises(ServiceError, match="8 bytes came for a column"):
        unpack(forged, [np.zeros(8, np.uint8)])


@given(element=elements, leaf=st.tuples(dtypes, st.lists(st.none() | st.integers(0, 5), max_size=3)))
def test_specifications_cross(element: Any, leaf: Any) -> None:
    leaves, structure = flatten(element)
    spec = structure.unflatten([ps.TensorSpec(leaf[1], leaf[0])] * len(leaves))
    assert spec_of_data(msgspec.msgpack.decode(msgspec.msgpack.encode(spec_to_data(spec)))) == spec


@pytest.mark.parametrize(
    "spec",
    [
        ps.RaggedTensorSpec((None, 2, None), np.int16, ragged_rank=2),
        ps.Dataset.range(3).map(lambda x: (x, np.zeros((2, 3)))).batch(2).element_spec,
    ],
)
def test_what_is_ragged_and_what_is_assumed_crosses(spec: Any) -> None:
    assert repr(spec_of_data(msgspec.msgpack.decode(msgspec.msgpack.encode(spec_to_data(spec))))) == repr(spec)


def test_no_specification_crosses_as_none() -> None:
    assert spec_to_data(ps.TensorSpec((), "T")) == [["leaf", [], []], [[[], "T", 0, [], False]]]
    assert spec_of_data(spec_to_data(None)) is None


def test_an_unknown_dtype_is_a_clear_error() -> None:
    with pytest.raises(ServiceError, match="dtype float3, which NumPy does not know here: `import ml_dtypes`"):
        spec_of_data([["leaf", [], []], [[[], "float3", 0, [], False]]])


def test_too_few_specifications_for_a_structure_are_an_error() -> None:
    structure, leaves = spec_to_data({"a": ps.TensorSpec((), "int64"), "b": (ps.TensorSpec((), "int64"),)})
    with pytest.raises(ServiceError, match="no specification of elements: 1 specifications of 2 leaves"):
        spec_of_data([structure, leaves[:1]])


@pytest.mark.parametrize("codec", CODECS)
@given(content=st.binary(max_size=2000), times=st.integers(1, 50))
def test_codecs_give_back_what_they_were_given(codec: str, content: bytes, times: int) -> None:
    buffer: Buffer = np.frombuffer(content * times, np.uint8)
    [compressed] = compress(codec, [buffer])
    assert compressed.size <= buffer.size
    assert decompress(codec, compressed, buffer.size).tobytes() == buffer.tobytes()


def test_compressible_data_becomes_smaller_and_other_data_stays_as_it_is() -> None:
    zeros, noise = np.zeros(1 << 16, np.uint8), np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8)
    small, same = compress("LZ4", [zeros, noise])
    assert small.size < 1000 and same is noise


def test_a_compression_is_checked_where_it_is_named() -> None:
    assert [as_codec(name) for name in (None, "auto", "lz4", "ZSTD", "snappy")] == ["", "AUTO", "LZ4", "ZSTD", "SNAPPY"]
    for wrong in ("gzip", 3, ""):
        with pytest.raises(InvalidArgumentError, match='compression must be "AUTO", None or one of "LZ4", "ZSTD"'):
            as_codec(wrong)


def test_compression_pays_on_a_slow_link_and_not_on_a_fast_one() -> None:
    regular = np.resize(np.arange(100, dtype=np.uint8), 1 << 20)
    noise = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
    assert cheapest_codec(regular, link=1e6) in ("LZ4", "ZSTD")
    assert cheapest_codec(regular, link=1e13) == ""
    assert cheapest_codec(noise, link=1e6) == ""


def test_a_codec_is_chosen_when_the_link_is_known() -> None:
    automatic, zeros = AutomaticCodec(), np.zeros(8 << 20, np.uint8)
    automatic.sent([zeros], 8.0)
    assert automatic.codec == ""
    automatic.sent([zeros], 8.0)
    assert automatic.codec in ("LZ4", "ZSTD")


# What no worker of penstock's sends


def of_arrow(array: pa.Array, kind: dict[str, Any], shape: tuple[int, ...]) -> Block:
    """A column of an Arrow array, as a header says that it is."""
    field = pa.field("rows", array.type, metadata={b"penstock": json.dumps(kind).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([field])) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([array], schema=pa.schema([field])))
    header = BlockHeader(["leaf", [], []], 1, (ColumnHeader(shape, None, arrow=True),))
    return unpack(header, [np.frombuffer(sink.getvalue(), np.uint8)])


def test_values_without_bytes_claim_no_time_and_no_memory() -> None:
    """A terabyte of items without bytes was copied one by one."""
    lists = pa.LargeListArray.from_arrays(pa.array([0, 1], pa.int64()), pa.array([1], pa.int64()))
    rows = pa.StructArray.from_arrays([lists, pa.array([[1]], pa.list_(pa.int64()))], names=["values", "shape"])
    for dtype in ("|V0", "<U0", "<i8"):
        with pytest.raises(ServiceError, match="came with columns that its header does not describe"):
            of_arrow(rows, {"kind": "dense", "dtype": dtype, "shape": [1 << 40]}, (1,))


def test_a_column_without_rows_is_refused() -> None:
    with pytest.raises(ServiceError, match=r"a block of 1 rows came with columns of the shapes \[\(\)\]"):
        of_arrow(pa.array([1]), {"kind": "dense", "dtype": "<i8", "shape": []}, ())


@pytest.mark.parametrize("dtype", ["<U1", ">U1", [["a", "<i4"], ["b", "<U1"]]])
def test_text_that_is_none_is_refused_where_it_comes(dtype: Any) -> None:
    size = np.dtype("<U1").itemsize if isinstance(dtype, str) else 8
    header = BlockHeader(["leaf", [], []], 1, (ColumnHeader((1,), dtype),))
    with pytest.raises(ServiceError, match="U1 came with the number 4294967295 instead of a character"):
        unpack(header, [np.full(size, 0xFF, np.uint8)])


def test_a_stream_that_ends_early_is_refused() -> None:
    header = BlockHeader(["leaf", [], []], 1, (ColumnHeader((1,), None, arrow=True),))
    for stream in (b"", b"\xff\xff\xff\xff\x00\x00\x00\x00"):
        with pytest.raises(ServiceError, match="came with columns that its header does not describe"):
            unpack(header, [np.frombuffer(stream, np.uint8)])
