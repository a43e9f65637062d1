"""Lists of objects, maps and nulls at any depth: one form of elements in all tables."""

import datetime
import decimal
import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps

CHATS = [
    {
        "id": 1,
        "messages": [
            {"role": "user", "content": "hi", "tools": None},
            {"role": "bot", "content": None, "tools": ["t"]},
        ],
    },
    {"id": 2, "messages": []},
    {"id": 3, "messages": [{"role": "user", "content": "ho", "tools": []}]},
]


class HuggingFace:
    """A data set over a table of two chunks, of which the rows were put into another order, as the library holds it."""

    features = format = None

    def __init__(self, table):
        self.data = SimpleNamespace(table=pa.concat_tables([table.slice(1), table.slice(0, 1)]))
        chosen = [len(table) - 1, *range(len(table) - 1)]
        self._indices = SimpleNamespace(table=pa.table({"indices": pa.array(chosen, pa.uint64())}))
        self.column_names = table.column_names

    def __len__(self):
        return len(self.data.table)

    def with_format(self, form):
        return self

    def __getitem__(self, rows):
        raise AssertionError("its rows are read from the table")


def json_lines(tmp_path, rows, **options):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ps.JsonLinesDataset(tmp_path / "a.jsonl", **options)


def parquet(tmp_path, rows, **options):
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    return ps.ParquetDataset(tmp_path / "a.parquet", **options)


def arrow(tmp_path, rows, **options):
    return ps.Dataset.from_arrow(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows), **options)


def hugging_face(tmp_path, rows, **options):
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
    return ps.Dataset.from_source(HuggingFace(table), **options)


READERS = [json_lines, parquet, arrow, hugging_face]
TABLES = READERS[1:]


def plain(value):
    if isinstance(value, dict):
        return {name: plain(below) for name, below in value.items()}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return list(map(plain, value))
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


@pytest.mark.parametrize("read", READERS)
def test_chats_are_arrays_of_dictionaries_with_none_for_nulls(tmp_path, read):
    dataset = read(tmp_path, CHATS)
    assert list(map(plain, dataset)) == CHATS
    assert [plain(dataset[row]) for row in (2, 0)] == [CHATS[2], CHATS[0]]
    assert sorted(row["id"] for row in dataset.shuffle(seed=1)) == [1, 2, 3]
    first = next(iter(dataset))["messages"]
    assert (first.shape, first.dtype) == ((2,), object) and type(first[1]["tools"]) is list
    assert [len(rows) for rows in next(iter(dataset.ragged_batch(3)))["messages"]] == [2, 0, 1]


def test_a_list_in_memory_and_a_file_give_the_same_elements(tmp_path):
    ours, theirs = ps.Dataset.from_list(CHATS), json_lines(tmp_path, CHATS)
    assert list(map(plain, ours)) == list(map(plain, theirs))
    assert [row["messages"].dtype for row in ours] == [row["messages"].dtype for row in theirs]


@pytest.mark.parametrize("read", [json_lines, parquet, hugging_face])
def test_a_row_of_objects_that_is_changed_is_not_changed_in_the_next_epoch(tmp_path, read):
    dataset = read(tmp_path, CHATS)

    def changed(row):
        for message in row["messages"]:
            message["content"] = "changed"
        return row

    for _ in range(2):
        assert [row["messages"][0]["content"] for row in dataset.take(1).map(changed)] == ["changed"]
        assert [plain(row) for row in dataset] == CHATS


@pytest.mark.parametrize("read", TABLES)
def test_maps_are_pairs_and_lists_go_to_any_depth(tmp_path, read):
    stamp = datetime.datetime(2024, 5, 1, 12)
    click = pa.struct({"item": pa.int32(), "at": pa.timestamp("us"), "tags": pa.map_(pa.string(), pa.float64())})
    table = pa.table(
        {
            "map": pa.array([[("a", 1), ("b", None)], []], pa.map_(pa.string(), pa.int64())),
            "clicks": pa.array([[{"item": 7, "at": stamp, "tags": [("x", 0.5)]}, None], []], pa.list_(click)),
            "deep": pa.array([[[{"x": [{"y": 1}]}], None], [[]]]),
            "within": pa.array([{"messages": [{"a": 1}]}, {"messages": []}]),
            "pair": pa.array([[{"a": 1}, {"a": None}], [{"a": 2}, None]], pa.list_(pa.struct({"a": pa.int8()}), 2)),
        }
    )
    first, second = read(tmp_path, table)
    assert dict(first["map"]) == {"a": 1, "b": None} and second["map"].tolist() == []
    assert first["clicks"].tolist() == [{"item": 7, "at": np.datetime64(stamp), "tags": [("x", 0.5)]}, None]
    assert type(first["clicks"][0]["at"]) is np.datetime64
    assert first["deep"].tolist() == [[{"x": [{"y": 1}]}], None] and second["deep"].tolist() == [[]]
    assert first["within"]["messages"].tolist() == [{"a": 1}]
    assert second["pair"].tolist() == [{"a": 2}, None]


def test_lists_of_objects_have_the_columns_of_the_first_objects(tmp_path):
    for last in ({"role": "user", "content": "x", "tools": [], "new": 1}, {"role": 1, "content": "x", "tools": []}):
        rows = iter(json_lines(tmp_path, [*CHATS, {"id": 4, "messages": []}], types={"id": int}))
        assert [row["id"] for row in rows] == [1, 2, 3, 4]
        (tmp_path / "b.jsonl").write_text(json.dumps({"id": 5, "messages": [last]}) + "\n")
        rows = iter(ps.JsonLinesDataset([tmp_path / "a.jsonl", tmp_path / "b.jsonl"]))
        assert [next(rows)["id"] for _ in range(4)] == [1, 2, 3, 4]
        with pytest.raises(ps.ElementError, match="b.jsonl', line 1: .*types={"):
            next(rows)


@pytest.mark.parametrize("read", READERS)
def test_a_list_of_objects_that_is_null_is_masked_by_an_empty_one(tmp_path, read):
    rows = [{"id": 1, "m": [{"a": 1}]}, {"id": 2, "m": None}, {"id": 3, "m": [None]}]
    with pytest.raises(ps.PenstockError, match=r"without nulls, got 1 of \d at \['m'\].*mask_nulls"):
        list(read(tmp_path, rows))
    found = list(read(tmp_path, rows, mask_nulls=["m"]))
    assert [(row["m"].tolist(), bool(row["m_is_valid"])) for row in found] == [
        ([{"a": 1}], True),
        ([], False),
        ([None], True),
    ]


DAY = datetime.date(2020, 1, 2)
KINDS = [
    (pa.date32(), DAY),
    (pa.date64(), DAY),
    (pa.timestamp("ns"), 1),
    (pa.timestamp("us", "UTC"), 1),
    (pa.duration("ms"), 1),
    (pa.bool_(), True),
    (pa.float16(), np.float16(1)),
    (pa.uint64(), 2**64 - 1),
    (pa.large_string(), "x"),
    (pa.binary(), b"x"),
    (pa.binary(3), b"abc"),
    (pa.dictionary(pa.int32(), pa.string()), "x"),
    (pa.list_(pa.date32()), [DAY]),
    (pa.list_(pa.float32(), 2), [1, 2]),
    (pa.list_(pa.date32(), 2), [DAY, DAY]),
    (pa.large_list(pa.list_(pa.int8())), [[1], []]),
    (pa.struct({"d": pa.date32(), "l": pa.list_(pa.bool_())}), {"d": DAY, "l": [True]}),
    (pa.map_(pa.string(), pa.int8()), [("a", 1)]),
]


@pytest.mark.parametrize(("kind", "value"), KINDS, ids=[str(kind) for kind, _ in KINDS])
@pytest.mark.parametrize("read", TABLES)
def test_nulls_of_each_type_are_masked(tmp_path, read, kind, value):
    table = pa.table({"x": pa.array([value, None, value], kind), "y": [1, 2, 3]})
    for masks in (["x"], True):
        rows = list(read(tmp_path, table, mask_nulls=masks))
        assert [bool(row["x_is_valid"]) for row in rows] == [True, False, True]
    first, second, _ = map(plain, rows)
    whole = plain(next(iter(read(tmp_path, table.slice(0, 1))))["x"])
    assert (first["x"] if not isinstance(whole, dict) else {name: first["x"][name] for name in whole}) == whole
    if isinstance(value, list):
        lengths = 2 if pa.types.is_fixed_size_list(kind) else 0
        assert len(second["x"]) == lengths


@pytest.mark.parametrize("read", TABLES)
def test_nulls_within_lists_and_structs_are_masked_as_the_errors_say(tmp_path, read):
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table(
        {
            "list": pa.array([[1, None], [2], None, []]),
            "fixed": pa.array([[1, 2], [None, 3], None, [4, 5]], pa.list_(pa.int16(), 2)),
            "words": pa.array([["x", None], [], ["y"], None]),
            "image": pa.array([{"bytes": b"j", "path": None}, {"bytes": b"k", "path": "p"}, None, {}], image),
        }
    )
    for name in table.column_names:
        with pytest.raises(ps.PenstockError, match="without nulls, got .*mask_nulls"):
            list(read(tmp_path, table.select([name])))
    rows = [plain(row) for row in read(tmp_path, table, mask_nulls=True)]
    assert [(row["list"], row["list_is_valid"]) for row in rows] == [
        ([1, 0], False),
        ([2], True),
        ([], False),
        ([], True),
    ]
    assert [(row["fixed"], row["fixed_is_valid"]) for row in rows] == [
        ([1, 2], True),
        ([0, 3], False),
        ([0, 0], False),
        ([4, 5], True),
    ]
    assert [(row["words"], row["words_is_valid"]) for row in rows] == [
        (["x", ""], False),
        ([], True),
        (["y"], True),
        ([], False),
    ]
    assert [row["image"] for row in rows[:2]] == [
        {"bytes": b"j", "path": "", "bytes_is_valid": True, "path_is_valid": False},
        {"bytes": b"k", "path": "p", "bytes_is_valid": True, "path_is_valid": True},
    ]
    assert [row["image_is_valid"] for row in rows] == [True, True, False, True]


def test_masks_of_text_tables_take_true_and_none(tmp_path):
    (tmp_path / "a.csv").write_text("day,x,s\n2020-01-02,1,a\n,,b\n")
    rows = [plain(row) for row in ps.CsvDataset(tmp_path / "a.csv", mask_nulls=True)]
    assert rows[1] == {
        "day": datetime.date(1970, 1, 1),
        "x": 0,
        "s": "b",
        "day_is_valid": False,
        "x_is_valid": False,
        "s_is_valid": True,
    }
    assert list(ps.CsvDataset(tmp_path / "a.csv", ["s"], mask_nulls=None)[0]) == ["s"]
    rows = json_lines(
        tmp_path, [{"q": "x", "meta": {"a": 1}}, {"q": "y", "meta": {"a": 1, "b": [1, None]}}], mask_nulls=True
    )
    assert [row["meta"]["b_is_valid"] for row in rows] == [False, False] and rows[1]["meta"]["b"].tolist() == [1, 0]


def test_masks_are_refused_where_there_are_no_columns_of_arrow():
    with pytest.raises(ps.InvalidArgumentError, match=r"from_source\(mask_nulls=...\) .* got a list"):
        ps.Dataset.from_source([1, 2], mask_nulls=True)


def test_types_that_numpy_lacks_are_named_within_objects_too(tmp_path):
    table = pa.table({"m": pa.array([[{"price": decimal.Decimal("1.5")}]])})
    with pytest.raises(
        ps.InvalidTypeError, match=r"got decimal128\(2, 1\) at \['m'\]: give another type for the column"
    ):
        parquet(tmp_path, table)
    kind = pa.list_(pa.struct({"price": pa.float64()}))
    assert parquet(tmp_path, table, types={"m": kind})[0]["m"].tolist() == [{"price": 1.5}]


def test_a_key_that_is_always_null_in_objects_is_none(tmp_path):
    (row,) = json_lines(tmp_path, [{"m": [{"a": None, "b": []}]}])
    assert row["m"].tolist() == [{"a": None, "b": []}]
    with pytest.raises(ps.InvalidTypeError, match=r"got null at \['o'\]\['a'\]: give another type .* types={'o'"):
        json_lines(tmp_path, [{"o": {"a": None}}])


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_strings_that_parquet_holds_by_differences_are_read(tmp_path, encoding):
    names = [f"train/picture_{number:06}" for number in range(300)]
    table = pa.table({"name": names})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, column_encoding={"name": encoding})
    assert [row["name"] for row in ps.ParquetDataset(tmp_path / "a.parquet")] == names


def test_strings_that_are_not_utf8_name_their_column(tmp_path):
    bytes_ = pa.array([b"a\xff", b"b"])
    text = pa.Array.from_buffers(pa.string(), 2, bytes_.buffers())
    objects = pa.ListArray.from_arrays([0, 1, 2], pa.StructArray.from_arrays([text], ["s"]))
    for name, column in (("text", text), ("objects", objects)):
        pq.write_table(pa.table({name: column}), tmp_path / "a.parquet")
        with pytest.raises(ps.StorageError, match=rf"a.parquet'.* got other bytes at \['{name}'\]: types={{'{name}'"):
            list(ps.ParquetDataset(tmp_path / "a.parquet"))
    pq.write_table(pa.table({"x": text}), tmp_path / "a.parquet")
    assert [row["x"] for row in ps.ParquetDataset(tmp_path / "a.parquet", types={"x": bytes})] == [b"a\xff", b"b"]
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf \n{"x": "a"}\n{"x": "\xff"}\n{"x": "b"}\n')
    rows = iter(ps.JsonLinesDataset(tmp_path / "a.jsonl"))
    assert next(rows)["x"] == "a"
    with pytest.raises(ps.ElementError, match=r"line 3: .* got other bytes at \['x'\]: types={'x': bytes}"):
        next(rows)
    assert next(rows)["x"] == "b"
    assert ps.JsonLinesDataset(tmp_path / "a.jsonl", types={"x": bytes})[1]["x"] == b"\xff"


def test_objects_are_cached_saved_and_served_unchanged(tmp_path):
    stamp = np.datetime64("2024-05-01T12:00", "us")
    rows = [
        {
            "id": 1,
            "m": [{"role": "user", "at": stamp, "n": 1, "x": 1.0, "raw": b"\xff", "none": None, "deep": [[1], []]}],
        },
        {"id": 2, "m": []},
        {"id": 3, "m": [None, {"pair": ("a", 2**60)}]},
    ]

    def signed():
        return ps.Dataset.from_list([{**row, "m": np.fromiter(row["m"], object, len(row["m"]))} for row in rows])

    signed().save(tmp_path / "saved")
    cached = signed().map(lambda row: row).cache(str(tmp_path / "cache"))
    list(cached)
    with ps.service.local(1) as service:
        served = list(signed().apply(ps.service.distribute("distributed_epoch", service.target)))
    for found in (list(ps.Dataset.load(tmp_path / "saved")), list(cached), served):
        assert list(map(plain, found)) == rows
        assert type(found[0]["m"][0]["x"]) is float and type(found[2]["m"][1]["pair"]) is tuple
        assert found[0]["m"][0]["at"].dtype == stamp.dtype
    with pytest.raises(ps.InvalidTypeError, match="cannot store objects with set in them"):
        ps.Dataset.from_list([{"m": [{"a": {1}}]}]).save(tmp_path / "other")


@pytest.mark.parametrize("read", READERS)
def test_lists_that_are_all_empty_are_read(tmp_path, read):
    rows = [{"tags": [], "x": 1}, {"tags": [], "x": 2}]
    assert list(map(plain, read(tmp_path, rows))) == rows
