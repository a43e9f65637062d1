"""`ps.parse_example`: records that TensorFlow has written, and others byte by byte from the format's definition."""

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.formats.records.example_layout import FeatureKind, columns_of_one_layout

WRITTEN = Path(__file__).parent / "written_by_others" / "examples.tfrecord"
NUMBERS = ps.TensorSpec((None,), np.int64)
WORDS = ps.TensorSpec((None,), object)


def varint(number):
    number &= 2**64 - 1
    data = b""
    while number > 0x7F:
        data += bytes([number & 0x7F | 0x80])
        number >>= 7
    return data + bytes([number])


def field(tag, content):
    return bytes([tag]) + varint(len(content)) + content


def example(**features):
    entries = [field(0x0A, field(0x0A, name.encode()) + field(0x12, value)) for name, value in features.items()]
    return field(0x0A, b"".join(entries))


def integers(*numbers):
    return field(0x1A, field(0x0A, b"".join(map(varint, numbers))))


def single_integers(*numbers):
    return field(0x1A, b"".join(b"\x08" + varint(number) for number in numbers))


def floats(*numbers):
    return field(0x12, field(0x0A, struct.pack(f"<{len(numbers)}f", *numbers)))


def single_floats(*numbers):
    return field(0x12, b"".join(b"\x0d" + struct.pack("<f", number) for number in numbers))


def words(*values):
    return field(0x0A, b"".join(field(0x0A, value) for value in values))


def test_what_tensorflow_has_written():
    features = {
        "x": ps.TensorSpec((2, 3), np.float32),
        "i": ps.TensorSpec((), np.int64),
        "s": ps.TensorSpec((), object),
        "v": NUMBERS,
        "w": WORDS,
        "e": ps.TensorSpec((None, 2), np.float64),
    }
    batches = ps.TFRecordDataset(WRITTEN).batch(5).map(lambda records: ps.parse_example(records, features, {"i": 7}))
    rows = list(batches.unbatch())
    assert len(rows) == 12
    for number, row in enumerate(rows):
        assert row["x"].tolist() == [[number + k / 4 for k in range(3)], [number + k / 4 for k in range(3, 6)]]
        assert row["i"] == (number * 1000 - 5 if number % 4 else 7) and row["s"] == b"word%d" % number
        assert row["v"].tolist() == [(-1) ** k * 2 ** (13 * k) - (k == 4) for k in range(number % 6)]
        assert row["w"].tolist() == [b"a" * k * 100 for k in range(number % 3)]
        assert row["e"].shape == (0, 2) and row["e"].dtype == np.float64
    alone = [ps.parse_example(record, features, {"i": 7}) for record in ps.TFRecordDataset(WRITTEN)]
    for one, row in zip(alone, rows, strict=True):
        assert {name: np.asarray(value).tolist() for name, value in one.items()} == {
            name: np.asarray(value).tolist() for name, value in row.items()
        }


@pytest.mark.parametrize("number", [0, 1, 127, 128, 2**31, 2**63 - 1, -1, -(2**63)])
def test_numbers_of_any_size(number):
    for write in (integers, single_integers):
        records = [example(i=write(number, 5)), example(i=write()), example(i=write(3)), b""]
        found = ps.parse_example(records, {"i": NUMBERS})["i"]
        assert [row.tolist() for row in found] == [[number, 5], [], [3], []]
    fixed = ps.parse_example([example(i=integers(number))] * 3, {"i": ps.TensorSpec((), np.int64)})["i"]
    assert fixed.tolist() == [number] * 3


def test_names_in_any_order_and_of_any_number():
    records = [
        example(a=words(b"x"), b=floats(1.5), c=words()),
        example(b=floats(2.5), a=words(b"", b"yy")),
        example(bb=words(b"other"), a=words(b"z"), b=floats(3.5)),
    ]
    found = ps.parse_example(records, {"a": WORDS, "b": ps.TensorSpec((1,), np.float32)})
    assert [row.tolist() for row in found["a"]] == [[b"x"], [b"", b"yy"], [b"z"]]
    assert found["b"].tolist() == [[1.5], [2.5], [3.5]]
    assert ps.parse_example([], {"a": ps.TensorSpec((2,))})["a"].shape == (0, 2)
    assert ps.parse_example(example(f=single_floats(1, 2)), {"f": ps.TensorSpec((2,))})["f"].tolist() == [1, 2]
    small = {"i": ps.TensorSpec((2,), np.uint8), "b": ps.TensorSpec((), bool)}
    found = ps.parse_example(example(i=integers(0, 255), b=integers(1)), small)
    assert found["i"].tolist() == [0, 255] and found["b"].dtype == bool and found["b"]


@pytest.mark.parametrize(
    ("record", "spec", "message"),
    [
        (b"rose", NUMBERS, "record 1: it is no tf.train.Example"),
        (example(i=integers(1))[:-1], NUMBERS, "record 1: it is damaged, or cut"),
        (example(i=integers(1)) + b"\0", NUMBERS, "record 1: it is no tf.train.Example"),
        (example(i=floats(1)), NUMBERS, "record 1: feature 'i' holds floats, expected int64 numbers"),
        (example(i=words(b"")), NUMBERS, "record 1: feature 'i' holds bytes, expected int64"),
        (example(i=integers(1, 2)), ps.TensorSpec((3,), np.int64), "feature 'i' has [12] values, expected 3"),
        (example(), ps.TensorSpec((1,), np.int64), r"record 1: there is no feature 'i': .*defaults"),
        (example(i=integers(256)), ps.TensorSpec((1,), np.uint8), "feature 'i' has the value 256, which is no uint8"),
        (example(i=integers(1)), ps.TensorSpec((None, 3), np.int64), r"do not fill rows of shape \(3,\)"),
        (field(0x0A, b"\xff" * 30), NUMBERS, "record 1: it is no tf.train.Example"),
        (b"\x0a" + varint(2**63 - 1) + b"\x0a", NUMBERS, "record 1: it is damaged, or cut"),
        (b"\x0a" + b"\xff" * 11, NUMBERS, "record 1: it is damaged"),
        (example(i=field(0x1A, field(0x0A, b"\xff"))), NUMBERS, "record 1: feature 'i' is damaged"),
        (example(i=field(0x1A, field(0x0A, b"\xff" * 11 + b"\1"))), NUMBERS, "more than 10 bytes"),
    ],
)
def test_which_record_is_wrong(record, spec, message):
    good = {NUMBERS: integers(1), (3,): integers(1, 2, 3), (1,): integers(1), (None, 3): integers(1, 2, 3)}
    first = example(i=good.get(spec) or good[spec.shape])
    with pytest.raises(ps.ElementError, match=message):
        ps.parse_example([first, record, first], {"i": spec})


@pytest.mark.slow
def test_any_damaged_bytes_are_an_error_or_some_values():
    record = next(iter(ps.TFRecordDataset(WRITTEN).skip(5)))
    draw = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(record)
        damaged[draw.integers(len(record))] = draw.integers(256)
        with contextlib.suppress(ps.ElementError):
            found = ps.parse_example([record, bytes(damaged)], {"v": NUMBERS, "w": WORDS})
            assert len(found["v"]) == 2 and found["v"][0].tolist()[:2] == [1, -8192]


LAID_OUT = {
    "f": ps.TensorSpec((2,), np.float32),
    "i": ps.TensorSpec((), np.int16),
    "many": ps.TensorSpec((2, 2), np.int64),
    "s": ps.TensorSpec((), object),
}


def laid_out(row):
    """Records of few lengths, whose numbers have one to three bytes."""
    many = integers(*(row + 200 + number for number in range(4)))
    other = {"other": words(b"%4d" % row)} if row % 2 else {"other": integers(*[row] * 4)}
    return example(s=words(b"w%d" % row), **other, i=integers(row * 40), f=floats(row, row / 2), many=many)


def alone(record, number):
    """What a record by itself is parsed to, or the error that it is as one of a batch."""
    try:
        return {name: np.asarray(value).tolist() for name, value in ps.parse_example(record, LAID_OUT).items()}
    except ps.ElementError as error:
        return str(error).replace("record 0", f"record {number}")


def test_records_of_few_layouts_are_parsed_as_each_alone():
    records = [laid_out(row) for row in range(80, 128)]
    number = FeatureKind(0x1A, 1, (), np.dtype(np.int64))
    assert columns_of_one_layout(records, {"i": number})["i"].tolist() == [row * 40 for row in range(80, 128)]
    batch = ps.parse_example(records, LAID_OUT)
    assert list(batch) == list(LAID_OUT)
    assert {name: (column.shape, column.dtype) for name, column in batch.items()} == {
        "f": ((48, 2), np.float32),
        "i": ((48,), np.int16),
        "many": ((48, 2, 2), np.int64),
        "s": ((48,), object),
    }
    for number, record in enumerate(records):
        assert {name: column[number].tolist() if name != "s" else column[number] for name, column in batch.items()} == (
            alone(record, number)
        )


@pytest.mark.slow
def test_a_damaged_record_among_others_of_its_layout_is_read_as_alone():
    records = [laid_out(2 * row + 101) for row in range(20)]
    for at in range(len(records[0])):
        number = 0 if at % 2 else 17
        for bits in (0x01, 0x80):
            damaged = bytearray(records[number])
            damaged[at] ^= bits
            batch = [*records[:number], bytes(damaged), *records[number + 1 :]]
            try:
                columns = ps.parse_example(batch, LAID_OUT)
                found = {name: np.asarray(column[number]).tolist() for name, column in columns.items()}
            except ps.ElementError as error:
                found = str(error)
            expected = alone(bytes(damaged), number)
            assert found == expected or "in another way than in the records before it" in found, (at, bits)


ANY = {**LAID_OUT, "v": NUMBERS, "w": WORDS, "e": ps.TensorSpec((None, 2), np.float64), "d": ps.TensorSpec((2,), "i4")}


def parsed(records):
    """What records are parsed to, or the error; with dtypes, and whether it can be written to."""
    try:
        found = ps.parse_example(records, ANY, {"d": 7})
    except ps.ElementError as error:
        return str(error)
    alone = found if isinstance(records, bytes) else {name: column[0] for name, column in found.items()}
    assert all(value.flags.writeable for value in alone.values() if isinstance(value, np.ndarray))
    return {name: (type(value), np.asarray(value).dtype, np.asarray(value).tolist()) for name, value in alone.items()}


@pytest.mark.slow
def test_a_record_alone_is_parsed_as_one_of_a_batch():
    some = {"f": floats(1, 2), "i": integers(-5), "many": integers(1, 2**63, 300, 0), "s": words(b"one")}
    whole = [
        some,
        {**some, "v": integers(1, 300, -1), "w": words(b"", b"two" * 60), "e": floats(1, 2, 3, 4), "d": integers(1, 2)},
        {**some, "v": field(0x1A, b""), "w": b"", "e": field(0x12, field(0x0A, b"")), "d": b"", "other": words(b"x")},
        {**some, "v": single_integers(1, 2), "e": single_floats(1, 2)},
        {**some, "v": integers(*range(300))},
        {**some, "i": integers(40_000)},
    ]
    for features in whole:
        assert parsed(example(**features)) == parsed([example(**features)])
    twice = example(**some)[2:] + example(i=integers(6))[2:] + example(v=integers(1))[2:] + example(v=b"")[2:]
    assert parsed(field(0x0A, twice)) == parsed([field(0x0A, twice)])
    record = example(**whole[1])
    for at in range(0, len(record), 11):
        damaged = bytearray(record)
        damaged[at] ^= (0x01, 0x80, 0x10)[at % 3]
        assert parsed(bytes(damaged)) == parsed([bytes(damaged)]), at


def test_features_and_defaults_that_change_between_calls_are_noticed():
    record, features, defaults = example(i=integers(3)), {"i": ps.TensorSpec((), np.int64)}, {}
    assert ps.parse_example(record, features, defaults) == {"i": 3}
    features["d"], defaults["d"] = ps.TensorSpec((), np.int64), 7
    assert ps.parse_example(record, features, defaults) == {"i": 3, "d": 7}
    defaults["d"] = 8
    assert ps.parse_example(record, features, defaults) == {"i": 3, "d": 8}
    features["i"] = ps.TensorSpec((1,), np.int16)
    assert ps.parse_example(record, features, defaults)["i"].tolist() == [3]
    defaults["none"] = 1
    with pytest.raises(ps.InvalidArgumentError, match="of fixed shape, got 'none'"):
        ps.parse_example(record, features, defaults)


def test_what_cannot_be_asked_for():
    for make, kind, message in (
        (lambda: ps.parse_example("rose", {}), ps.InvalidTypeError, "records of bytes, got str"),
        (lambda: ps.parse_example(b"", {"i": np.int64}), ps.InvalidTypeError, "takes a ps.TensorSpec for 'i'"),
        (lambda: ps.parse_example(b"", {"i": ps.TensorSpec((3, None))}), ps.InvalidArgumentError, "None in front"),
        (lambda: ps.parse_example(b"", {"i": ps.TensorSpec((), "U3")}), ps.InvalidArgumentError, "objects .for bytes"),
        (lambda: ps.parse_example(b"", {"i": NUMBERS}, {"i": 3}), ps.InvalidArgumentError, "of fixed shape, got 'i'"),
    ):
        with pytest.raises(kind, match=message):
            make()
