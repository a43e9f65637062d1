"""CSV and JSON lines: columns, types, headers, labels, nulls, and what is wrong with files.

`test_indexed_formats.py` has what holds for all formats.
"""

import contextlib
import csv
import gzip
import io
import json
import re
import time
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.formats.tables.csv_records import CsvRecords
from penstock.formats.tables.json_records import JsonRecords
from penstock.testing import check_conformance


def file_of(tmp_path, text, name="a.csv"):
    (tmp_path / name).write_text(text, newline="")
    return tmp_path / name


def test_types_are_guessed_or_given(tmp_path):
    path = file_of(tmp_path, "i,f,b,d,s\n1,1.5,true,2020-01-02,x\n2,2,false,2021-01-02,\n")
    spec = {"b": bool, "d": "M8[D]", "f": np.float64, "i": np.int64, "s": object}
    dataset = ps.CsvDataset(path)
    assert dataset.element_spec == {name: ps.TensorSpec((), kind) for name, kind in spec.items()}
    assert [row["s"] for row in dataset] == ["x", ""] and dataset[1]["d"] == np.datetime64("2021-01-02")
    given = ps.CsvDataset(path, ["f", "i"], {"f": np.float32, "i": pa.int8()})
    assert given.element_spec == {"f": ps.TensorSpec((), np.float32), "i": ps.TensorSpec((), np.int8)}
    assert ps.CsvDataset(path, ["i"], {"i": str})[0] == {"i": "1"}
    assert ps.CsvDataset(path, ["s"], {"s": bytes})[0] == {"s": b"x"}


def test_headers_delimiters_and_labels(tmp_path):
    path = file_of(tmp_path, "1;2;3\n4;5;6\n")
    assert {k: int(v) for k, v in ps.CsvDataset(path, header=False, delimiter=";")[1].items()} == {
        "f0": 4,
        "f1": 5,
        "f2": 6,
    }
    features, label = ps.CsvDataset(path, ["a"], header=["a", "b", "y"], delimiter=";", label="y")[0]
    assert features == {"a": 1} and label == 3
    assert {k: int(v) for k, v in ps.CsvDataset(path, delimiter=";")[0].items()} == {"1": 4, "2": 5, "3": 6}
    (tmp_path / "bom.csv").write_bytes(b'\xef\xbb\xbf"a\n",b\r\n\r\n1,2\r\n\r\n3,4')
    assert [int(row["a\n"]) for row in ps.CsvDataset(tmp_path / "bom.csv")] == [1, 3]


@pytest.mark.extended
@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_compressed_files_are_streams_of_the_same_rows(tmp_path, pack):
    rows = "".join(f'{number},"a,\n{number}"\n' for number in range(30_000))
    path = file_of(tmp_path, "x,s\n" + rows)
    (tmp_path / "packed").write_bytes(pack(path.read_bytes()))
    kind = "GZIP" if pack is gzip.compress else "ZLIB"
    stream = ps.CsvDataset(tmp_path / "packed", compression_type=kind)
    assert "stream" in stream.explain() and stream.element_spec == ps.CsvDataset(path).element_spec
    for one, other in zip(stream.batch(7000), ps.CsvDataset(path).batch(7000), strict=True):
        assert one["x"].tolist() == other["x"].tolist() and one["s"].tolist() == other["s"].tolist()
    (tmp_path / "packed").write_bytes(pack("".join(f'{number},"{number}"\n' for number in range(25)).encode()))
    check_conformance(lambda: ps.CsvDataset(tmp_path / "packed", header=False, compression_type=kind), limit=30)
    (tmp_path / "packed.json").write_bytes(pack(b'{"x": [1]}\n\n{"x": []}\n{"x": [1.5]}\n{"x": 3}\n{"x": [4]}'))
    lines = iter(
        ps.JsonLinesDataset(tmp_path / "packed.json", types={"x": pa.list_(pa.int64())}, compression_type=kind)
    )
    assert [next(lines)["x"].tolist(), next(lines)["x"].tolist()] == [[1], []]
    for line in (4, 5):
        with pytest.raises(ps.ElementError, match=f"packed.json', line {line}: .*JSON"):
            next(lines)
    assert next(lines)["x"].tolist() == [4] and list(lines) == []


cells = st.text(st.sampled_from('a1",\n \r'), max_size=4)


@pytest.mark.slow
@given(
    st.lists(st.tuples(cells, cells), min_size=1, max_size=12), st.sampled_from(["\n", "\r\n", "\r"]), st.integers(1, 9)
)
def test_records_end_where_pythons_reader_says(rows, end, size):
    text = io.StringIO()
    csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(rows)
    data = text.getvalue().encode()
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    records = CsvRecords("CsvDataset", schema, (), "", (), ("a", "b"), False, ",")
    ends = records.ends(data, True)
    found = [records.rows(records.table(data[a:b])) for a, b in zip([0, *ends], ends)]
    assert [(row["a"].tolist(), row["b"].tolist()) for row in found] == [([a], [b]) for a, b in rows]
    cut = len(data) * size // 10  # a chunk ends anywhere
    assert set(records.ends(data[:cut], False).tolist()) <= set(ends.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
def test_lines_that_end_as_on_other_systems_lose_no_row(tmp_path, end, last):
    rows = [*(f"{number},word{number}" for number in range(120_000)), f'7,"in{end}{end}quotes"', "", "8,eight"]
    path = file_of(tmp_path, end.join(["n,w", "", *rows]) + end * last)
    dataset = ps.CsvDataset(path)
    assert len(dataset) == 120_002
    found = list(dataset.batch(60_000))
    assert np.concatenate([batch["n"] for batch in found]).tolist() == [*range(120_000), 7, 8]
    assert found[2]["w"].tolist() == [f"in{end}{end}quotes", "eight"]
    path = file_of(tmp_path, end.join(["n,w", *rows[:110_000], "x,1,2", "9,nine"]) + end * last, "b.csv")
    with pytest.raises(ps.ElementError, match=r"b.csv', line 110002: CSV parse error: Expected 2 columns, got 3"):
        list(ps.CsvDataset(path).skip(109_999))


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "shift_jis", "utf-8-sig"])
@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_text_in_another_encoding(tmp_path, encoding, compression):
    first, second, head = (
        ("\u8868,", "\u4e88", "\u30bd") if encoding == "shift_jis" else ("f\xfcr,", "\xe9t\xe9", "w\xf6rt")
    )
    content = f'{head},x\n"{first}",1\n{second},2\n'.encode(encoding)
    (tmp_path / "a.csv").write_bytes(content if compression is None else gzip.compress(content))
    dataset = ps.CsvDataset(tmp_path / "a.csv", encoding=encoding, label="x", compression_type=compression)
    assert [(row, int(x)) for row, x in dataset] == [({head: first}, 1), ({head: second}, 2)]
    with pytest.raises(ps.StorageError, match="no first line from which .* codec can't decode"):
        ps.CsvDataset(tmp_path / "a.csv", encoding="ascii", compression_type=compression)


def test_encodings_that_cannot_be_read(tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    with pytest.raises(
        ps.InvalidArgumentError, match=r"encoding=...\) takes an encoding that keeps ASCII, .* 'utf-16'"
    ):
        ps.CsvDataset(tmp_path / "a.csv", encoding="utf-16")
    with pytest.raises(
        ps.InvalidArgumentError, match=r"encoding=...\) takes an encoding that Python knows, got 'utf8x'"
    ):
        ps.CsvDataset(tmp_path / "a.csv", encoding="utf8x")


def test_names_for_columns_that_are_named_in_the_file_are_no_row(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ps.InvalidArgumentError, match=r"these names in its first line, .*: give header=True"):
        ps.CsvDataset(tmp_path / "a.csv", header=["a", "b"])


@pytest.mark.parametrize(
    ("name", "instead"),
    [("label_name", "label="), ("batch_size", r"\.batch\(batch_size\)"), ("na_value", "null_values=")],
)
def test_arguments_of_make_csv_dataset_are_told_what_they_are_here(tmp_path, name, instead):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ps.InvalidTypeError, match=f"{name}.*{instead}"):
        ps.CsvDataset(tmp_path / "a.csv", **{name: "b"})


def test_what_stands_for_a_null_is_given(tmp_path):
    path = file_of(tmp_path, "n,s\n1,?\n?,x\n-,NA\n")
    dataset = ps.CsvDataset(path, mask_nulls=["n"], null_values=["?", "-"])
    assert [(int(row["n"]), bool(row["n_is_valid"]), row["s"]) for row in dataset] == [
        (1, True, "?"),
        (0, False, "x"),
        (0, False, "NA"),
    ]
    assert ps.CsvDataset(path).element_spec["n"].dtype == object
    with pytest.raises(ps.InvalidTypeError, match=r"null_values=...\) takes a list of strings, got '\?'"):
        ps.CsvDataset(path, null_values="?")


def test_line_ends_can_differ_within_a_file(tmp_path):
    path = file_of(tmp_path, "a,b\n1,2\r3,4\r\n5,6\r\r\n7,8\r\r9,10")
    assert [(int(row["a"]), int(row["b"])) for row in ps.CsvDataset(path)] == [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10)]


def test_quotes_in_words_end_no_record(tmp_path):
    path = file_of(tmp_path, 'a,b\n5" pipe,"x\n"\n"""q"" \n",6"\n"a"b,"c"\n')
    assert [(row["a"], row["b"]) for row in ps.CsvDataset(path)] == [('5" pipe', "x\n"), ('"q" \n', '6"'), ("ab", "c")]


def test_nulls_are_errors_of_their_line_or_masked(tmp_path):
    path = file_of(tmp_path, "x,y\n1,2\n,3\n4,5\n")
    rows = iter(ps.CsvDataset(path))
    assert next(rows)["x"] == 1
    advice = r"a.csv', line 3: CsvDataset takes columns without nulls, got 1 of 1 at .*: mask_nulls=\['x'\] makes"
    with pytest.raises(ps.ElementError, match=advice):
        next(rows)
    with pytest.raises(ps.InvalidArgumentError, match=r"CsvDataset\(mask_nulls=...\): cannot mask 'z'"):
        ps.CsvDataset(path, mask_nulls=["z"]).take(1).get_single_element()
    assert next(rows)["x"] == 4
    masked = ps.CsvDataset(path, mask_nulls=["x"], label="y")
    assert [(int(row["x"]), bool(row["x_is_valid"]), int(y)) for row, y in masked] == [(1, 1, 2), (0, 0, 3), (4, 1, 5)]
    lines = file_of(tmp_path, '{"x": 1}\n{}\n{"x": null}\n', "a.json")
    masked = ps.JsonLinesDataset(lines, mask_nulls=["x"])
    assert [(int(row["x"]), bool(row["x_is_valid"])) for row in masked] == [(1, True), (0, False), (0, False)]


def test_a_value_that_does_not_fit_is_told_with_its_column_and_what_to_do(tmp_path):
    paths = [file_of(tmp_path, f"x,n\n1,{value}\n", f"{value}.csv") for value in (1, 1.5)]
    message = r"1.5.csv', line 2: column 'n': CSV conversion error to int64: invalid value '1.5': types={'n': ...}"
    with pytest.raises(ps.ElementError, match=message):
        list(ps.CsvDataset(paths, ["n"]))


def test_a_json_value_that_does_not_fit_is_told_with_what_to_do(tmp_path):
    paths = [file_of(tmp_path, '{"x": 1, "s": "a"}\n', "first.json")]
    for number, line in enumerate(('{"x": 1.5, "s": "a"}', '{"x": "one", "s": "a"}')):
        other = file_of(tmp_path, line, f"{number}.json")
        advice = r"the columns are read as {'x': int64, 's': string}: types={...} gives one another type, .* as text"
        with pytest.raises(ps.ElementError, match=f"{number}.json', line 1: .*; {advice}"):
            list(ps.JsonLinesDataset([*paths, other]))
    document = file_of(tmp_path, '[\n {"x": 1},\n {"x": 2}\n]', "document.json")
    with pytest.raises(
        ps.StorageError, match=r"one JSON document is read by ps.Dataset.from_list\(json.load\(file\)\)"
    ):
        ps.JsonLinesDataset(document)


def test_objects_and_arrays_of_json(tmp_path):
    rows = [{"o": {"a": number, "b": [str(number)]}, "e": None if number else 1, "t": "ü\n"} for number in range(3)]
    path = file_of(tmp_path, "\n".join(map(json.dumps, rows)) + "\n \n", "a.json")
    row = ps.JsonLinesDataset(path, ["o", "t"])[2]
    assert row["o"]["a"] == 2 and row["o"]["b"].tolist() == ["2"] and row["t"] == "ü\n"
    assert [int(y) for _, y in ps.JsonLinesDataset(path, ["t"], mask_nulls=["e"], label="e")] == [1, 0, 0]


def test_what_is_wrong_is_said_when_the_dataset_is_made(tmp_path):
    path = file_of(tmp_path, "x,y\n1,2\n")
    other = file_of(tmp_path, "x,z\n1,2\n", "b.csv")
    lines = file_of(tmp_path, '{"x": 1, "n": null}\n', "a.json")
    text = file_of(tmp_path, "rose\n", "a.txt")
    empty = file_of(tmp_path, "", "empty")
    for make, kind, message in (
        (
            lambda: ps.CsvDataset(path, ["z"]),
            ps.InvalidArgumentError,
            r"columns=.*no column 'z'; its columns are \['x'",
        ),
        (lambda: ps.CsvDataset(path, label="z"), ps.InvalidArgumentError, "label=.*no column 'z'"),
        (lambda: ps.CsvDataset(path, types={"z": int}), ps.InvalidArgumentError, "types=.*no column 'z'"),
        (lambda: ps.CsvDataset(path, types={"x": "integer"}), ps.InvalidTypeError, "got 'integer' for 'x'"),
        (lambda: ps.CsvDataset(path, "x"), ps.InvalidTypeError, "lists of names, got a string"),
        (lambda: ps.CsvDataset(path, []), ps.InvalidArgumentError, "at least one column"),
        (lambda: ps.CsvDataset(path, header="x"), ps.InvalidTypeError, "a bool or a list of names"),
        (lambda: ps.CsvDataset(path, header=["x", "x"]), ps.InvalidArgumentError, "two columns of one name"),
        (lambda: ps.CsvDataset(path, delimiter=",,"), ps.InvalidArgumentError, "takes one character"),
        (lambda: ps.CsvDataset(path, header=["x"]), ps.StorageError, "no record fits them"),
        (lambda: ps.CsvDataset([path, other]), ps.StorageError, r"b.csv' has the columns \['x', 'z'\], expected"),
        (lambda: ps.CsvDataset(empty), ps.StorageError, "holds no row"),
        (lambda: ps.CsvDataset(path, mask_nulls=["z"]), ps.InvalidArgumentError, "no such column"),
        (lambda: ps.JsonLinesDataset(lines), ps.InvalidArgumentError, "'n' is always null.*types={'n'"),
        (lambda: ps.JsonLinesDataset(text), ps.StorageError, "first line is no JSON object"),
        (lambda: ps.JsonLinesDataset(empty), ps.StorageError, "holds no row"),
    ):
        with pytest.raises(kind, match=message):
            make()


@pytest.mark.slow
@pytest.mark.parametrize("word", ["two", '2" wide'])
def test_a_quote_that_is_not_closed_costs_the_rest_of_its_file(tmp_path, word):
    path = file_of(tmp_path, f'x,y\n1,{word}\n3,"4\n5,6\n')
    rows = iter(ps.CsvDataset([path, path]))
    for _ in range(2):
        assert next(rows)["y"] == word
        with pytest.raises(ps.ElementError, match="a.csv', line 3: a value in quotes is not closed"):
            next(rows)
    assert list(rows) == []


def test_compression_that_is_not_given_is_named(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"x\n1\n"))
    for read in (ps.CsvDataset, ps.JsonLinesDataset):
        with pytest.raises(ps.StorageError, match="a.gz' is compressed: give compression_type='GZIP'"):
            read(tmp_path / "a.gz")


@pytest.mark.parametrize("first", ["", "\n", "a,b,c\n", "a,b,c"])
@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_a_first_csv_without_rows_does_not_make_strings_of_all_columns(tmp_path, first, compression):
    for name, text in (("1.csv", first), ("2.csv", "a,b,c\n1,2.5,x\n"), ("3.csv", "")):
        content = text.encode()
        (tmp_path / name).write_bytes(content if compression is None else gzip.compress(content))
    paths = (tmp_path / f"{number}.csv" for number in (1, 2, 3))  # a generator can be gone through once
    (row,) = ps.CsvDataset(paths, compression_type=compression)
    assert row == {"a": 1, "b": 2.5, "c": "x"} and row["a"].dtype == np.int64


def test_files_that_are_only_a_header_give_no_rows(tmp_path):
    paths = [file_of(tmp_path, text, name) for name, text in (("1.csv", ""), ("2.csv", "a,b"), ("3.csv", "a,b\n"))]
    assert list(ps.CsvDataset(paths)) == [] and list(ps.CsvDataset(paths).element_spec) == ["a", "b"]
    repeated = ps.Dataset.from_tensor_slices([str(paths[0])]).repeat()
    with pytest.raises(ps.StorageError, match="1.csv' holds no row that tells what rows are"):
        ps.CsvDataset(repeated, compression_type="GZIP")


def test_a_first_json_file_without_objects_is_passed_over(tmp_path):
    paths = [file_of(tmp_path, text, name) for name, text in (("1", ""), ("2", " \n"), ("3", '{"a": 1}\n'))]
    assert list(ps.JsonLinesDataset(path for path in paths)) == [{"a": 1}]


@pytest.mark.parametrize("header", ["a\n", ""])
def test_a_first_row_of_more_than_a_mebibyte_is_read(tmp_path, header):
    text = "x" * 2_500_000
    lines = ps.JsonLinesDataset(file_of(tmp_path, json.dumps({"a": text}) + '\n{"a": "y"}\n', "a.jsonl"))
    rows = ps.CsvDataset(file_of(tmp_path, f"{header}{text}\ny\n"), header=bool(header) or ["a"])
    assert [len(row["a"]) for row in lines] == [len(row["a"]) for row in rows] == [2_500_000, 1]


def test_a_key_that_only_later_objects_have_is_told_not_dropped(tmp_path):
    first = file_of(tmp_path, '{"a": 1, "o": {"x": 1}}\n', "1.jsonl")
    for columns, key, last, advice in (
        (None, "a key 'b'", '"b": 3', r"types={'b': ...} reads it, .* and columns=\[...\] skips it"),
        (["a", "o"], r"\['o'\]\['z'\]", '"o": {"x": 1, "z": [1]}', r"types={'o': pa.struct"),
    ):
        text = '{"a": 2, "o": {"x": 2, "z": null}, "b": null}\n{"a": 3, ' + last + "}\n"
        rows = iter(ps.JsonLinesDataset([first, file_of(tmp_path, text, "2.jsonl")], columns))
        assert [int(next(rows)["a"]) for _ in range(2)] == [1, 2]
        told = f"2.jsonl', line 2: it has {key}, and the first objects do not: {advice}"
        with pytest.raises(ps.ElementError, match=told):
            next(rows)
    later = file_of(tmp_path, '{"a": 2, "o": {"x": 2, "z": 1}, "b": 3}\n', "2.jsonl")
    declared = {"b": int, "o": pa.struct([("x", pa.int64())])}
    rows = ps.JsonLinesDataset([first, later], None, declared, mask_nulls=["b"])
    assert [(int(row["b"]), row["o"]) for row in rows] == [(0, {"x": 1}), (3, {"x": 2})]
    assert ps.JsonLinesDataset([first, later], ["a"])[1] == {"a": 2}
    with pytest.raises(
        ps.InvalidArgumentError, match=r"no column 'b'; .*: types={...} declares one that later objects"
    ):
        ps.JsonLinesDataset([first, later], ["b"])


def test_objects_within_objects_without_end_are_refused(tmp_path):
    path = file_of(tmp_path, '{"a":' * 2000 + "1" + "}" * 2000 + "\n", "a.jsonl")
    with pytest.raises(
        ps.InvalidTypeError, match=r"a.jsonl': expected lists and structs up to 64 within each other, got more"
    ):
        ps.JsonLinesDataset(path)
    rows = iter(ps.JsonLinesDataset([file_of(tmp_path, '{"b": 1}\n', "first.jsonl"), path]))
    assert next(rows)["b"] == 1
    with pytest.raises(ps.ElementError, match="a.jsonl', line 1: expected lists and structs up to 64"):
        next(rows)


def test_a_first_file_in_latin_1_does_not_make_bytes_of_text(tmp_path):
    (tmp_path / "1.csv").write_bytes(b"a,b\n1,caf\xe9\n2,tea\n")
    paths = [tmp_path / "1.csv", file_of(tmp_path, "a,b\n3,rose\n", "2.csv")]
    rows = iter(ps.CsvDataset(paths))
    with pytest.raises(ps.ElementError, match="1.csv', line 2: column 'b': .*UTF8 data: encoding='latin-1' or another"):
        next(rows)
    assert [row["b"] for row in rows] == ["tea", "rose"]
    assert ps.CsvDataset(paths, types={"b": bytes})[0]["b"] == b"caf\xe9"
    assert ps.CsvDataset(paths, encoding="latin-1")[0]["b"] == "caf\xe9"


BIG = [2**64 - 1, 2**64 - 2]


def test_ids_beyond_int64_stay_apart(tmp_path):
    table = ps.CsvDataset(file_of(tmp_path, "id,x\n" + "".join(f"{one},0.5\n" for one in BIG)))
    text = "".join(json.dumps({"id": one, "in": {"l": [one], "x": 0.5}}) + "\n" for one in BIG)
    lines = ps.JsonLinesDataset(file_of(tmp_path, text, "a.jsonl"))
    for dataset in (table, lines):
        assert [int(row["id"]) for row in dataset] == BIG and dataset.element_spec["id"].dtype == np.uint64
    assert [row["in"]["l"].tolist() for row in lines] == [[one] for one in BIG] and lines[0]["in"]["x"] == 0.5


@pytest.mark.parametrize("other", ["-1", "0.5", str(2**64)])
def test_numbers_that_no_type_holds_are_refused_with_what_to_do(tmp_path, other):
    path = file_of(tmp_path, f"id\n{BIG[0]}\n{other}\n")
    advice = r"column 'id' that neither float64 nor uint64 holds, as 18446744073709551615: types={'id': "
    with pytest.raises(
        ps.InvalidArgumentError, match=f"a.csv' has numbers in its {advice}str}} keeps it as it is written"
    ):
        ps.CsvDataset(path)
    assert ps.CsvDataset(path, types={"id": str})[0]["id"] == str(BIG[0])
    assert ps.CsvDataset(path, types={"id": float})[0]["id"] == 2.0**64
    path = file_of(tmp_path, f'{{"id": {BIG[0]}}}\n{{"id": {other}}}\n', "a.jsonl")
    with pytest.raises(ps.InvalidArgumentError, match=f"a.jsonl' has numbers in its {advice}np.float64}}"):
        ps.JsonLinesDataset(path)
    assert ps.JsonLinesDataset(path, types={"id": float})[0]["id"] == 2.0**64


def test_a_number_that_a_later_row_would_lose_is_told(tmp_path):
    for value, kept in (("9007199254740993", "float64"), ("-9223372036854775809", "float64"), ("1e999", "float64")):
        path = file_of(tmp_path, f"x,s\n0.5,07\n1e300,07\n{value},07\n")
        rows = ps.CsvDataset([file_of(tmp_path, "x,s\n0.5,a\n", "first.csv"), path]).skip(1)
        message = (
            f"a.csv', line 4: column 'x' has '{value}', which double, .* types={{'x': str}} keeps it, and .*np.{kept}"
        )
        with pytest.raises(ps.ElementError, match=message):
            list(rows)
    path = file_of(tmp_path, '{"x": {"y": [0.5]}}\n{"x": {"y": [9007199254740993]}}\n', "a.jsonl")
    rows = ps.JsonLinesDataset([file_of(tmp_path, '{"x": {"y": [0.5]}}\n', "first.jsonl"), path])
    with pytest.raises(ps.ElementError, match="a.jsonl', line 2: column 'x' has 9007199254740993, which struct"):
        list(rows)
    assert rows[1]["x"]["y"].tolist() == [0.5]


def test_leading_zeros_are_kept(tmp_path):
    path = file_of(tmp_path, 'zip,day,x\n02134,2020-01-02,0\n"007",2020-01-03,-0.5\n')
    assert [row["zip"] for row in ps.CsvDataset(path)] == ["02134", "007"]
    assert [row["x"] for row in ps.CsvDataset(path)] == [0, -0.5]
    assert ps.CsvDataset(path, types={"zip": int})[1]["zip"] == 7
    first = file_of(tmp_path, "zip,day,x\n12134,2020-01-02,1.5\n", "first.csv")
    rows = iter(ps.CsvDataset([first, path]))
    assert next(rows)["zip"] == 12134
    with pytest.raises(
        ps.ElementError, match=r"line 2: column 'zip' has '02134', .*types={'zip': str} keeps it, .*np.int64"
    ):
        next(rows)


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "+", "-"]), st.from_regex(r"[0-9]{1,20}(\.[0-9])?", fullmatch=True)),
        min_size=1,
        max_size=4,
    )
)
def test_numbers_are_what_is_written_or_text_or_an_error(tmp_path_factory, cells):
    path = file_of(
        tmp_path_factory.getbasetemp(), "x,y\n" + "".join(f"{sign}{digits},1\n" for sign, digits in cells), "drawn.csv"
    )
    with contextlib.suppress(ps.PenstockError):  # it is refused, as it may be
        for row, (sign, digits) in zip(ps.CsvDataset(path), cells, strict=True):
            value, text = row["x"], sign + digits
            assert value == text if isinstance(value, str) else value == (float(text) if "." in text else int(text))


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("latin-1", "gr\xf6\xdfe\xe4\xf6\xfc,b\n1,\xfc\n"), ("shift_jis", "\u540d\u524d,\u5e74\u9f62\n\u82b1\u5b50,30\n")],
)
def test_a_header_of_many_letters_beyond_ascii_is_read(tmp_path, encoding, text):
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    head, values = (line.split(",") for line in text.split())
    assert [{k: str(v) for k, v in row.items()} for row in ps.CsvDataset(tmp_path / "a.csv", encoding=encoding)] == [
        dict(zip(head, values, strict=True))
    ]


@pytest.mark.parametrize("types", [None, {"a": int, "b": int}])
def test_a_bad_first_row_costs_itself_alone(tmp_path, types):
    path = file_of(tmp_path, "a,b\nunits\n" + "1,2\n" * 3)
    rows = iter(ps.CsvDataset(path, types=types))
    with pytest.raises(ps.ElementError, match="a.csv', line 2: .*Expected 2 columns, got 1"):
        next(rows)
    assert [(int(row["a"]), int(row["b"])) for row in rows] == [(1, 2)] * 3
    path = file_of(tmp_path, "a,b\nm,kg\n1,2\n", "b.csv")
    assert len(list(ps.CsvDataset(path, types={"a": int}).with_options(ps.Options(on_error="skip")))) == 1


@pytest.mark.parametrize("line", [b'{"a": 1, "\xcd": 2}\n', b'{"a": 1, "b": {"\xcd": 2}}\n'])
def test_keys_that_are_not_utf_8_name_their_file(tmp_path, line):
    (tmp_path / "a.jsonl").write_bytes(line)
    with pytest.raises(ps.StorageError, match="JsonLinesDataset: .*a.jsonl' cannot be read: 'utf-8' codec"):
        ps.JsonLinesDataset(tmp_path / "a.jsonl")


def test_times_of_a_day_in_csv_are_strings(tmp_path):
    path = file_of(tmp_path, "at,open\n10:11:12,09:30\n10:11:13,\n")
    assert list(ps.CsvDataset(path)) == [{"at": "10:11:12", "open": "09:30"}, {"at": "10:11:13", "open": ""}]
    other = file_of(tmp_path, "at,open\nnoon,\n", "b.csv")
    assert [row["at"] for row in ps.CsvDataset([path, other])] == ["10:11:12", "10:11:13", "noon"]


def test_files_in_utf_16_and_headers_in_latin_1_say_how_they_are_read(tmp_path):
    (tmp_path / "a.csv").write_bytes("é,b\n1,ü\n".encode("utf-16"))
    (tmp_path / "b.jsonl").write_bytes('{"é": "ü"}\n'.encode("utf-16"))
    for read, name in ((ps.CsvDataset, "a.csv"), (ps.JsonLinesDataset, "b.jsonl")):
        with pytest.raises(ps.StorageError, match=f"{name}.*it is UTF-16: convert it, as by: iconv -f UTF-16 -t UTF-8"):
            read(tmp_path / name)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes().decode("utf-16").encode())  # as iconv does
        assert [row["é"] for row in read(tmp_path / name)] in ([1], ["ü"])
    (tmp_path / "c.csv").write_bytes("é,b\n1,ü\n".encode("latin-1"))
    with pytest.raises(ps.StorageError, match="c.csv.*: encoding='latin-1', or another, reads it"):
        ps.CsvDataset(tmp_path / "c.csv")
    assert list(ps.CsvDataset(tmp_path / "c.csv", encoding="latin-1")) == [{"é": 1, "b": "ü"}]


def test_files_of_a_byte_order_mark_alone_are_empty(tmp_path):
    (tmp_path / "mark").write_bytes(b"\xef\xbb\xbf")
    table = file_of(tmp_path, "a\n1\n")
    assert [row["a"] for row in ps.CsvDataset([tmp_path / "mark", table, tmp_path / "mark"])] == [1]
    assert list(ps.TextLineDataset([tmp_path / "mark", table])) == ["a", "1"]
    assert list(ps.FilesDataset([table, tmp_path / "mark"], "text")) == ["a", "1"]


@pytest.mark.parametrize("digits", [309, 400, 5000])
def test_numbers_of_hundreds_of_digits_are_refused_by_their_row(tmp_path, digits):
    long = "9" * digits
    for read, name, text, row in (
        (ps.CsvDataset, "a.csv", "a\n{}\n", "{}"),
        (ps.JsonLinesDataset, "b.jsonl", '{{"a": {}}}\n', '{{"a": {}}}'),
    ):
        path = file_of(tmp_path, text.format(long), name)
        with pytest.raises(ps.InvalidArgumentError, match=f"{name}.*numbers in its column 'a' that neither"):
            read(path)
        path = file_of(tmp_path, text.format("1.5") + (row.format("1.5") + "\n") * 300_000 + row.format(long), name)
        with pytest.raises(ps.ElementError, match=f"{name}', line .*column 'a' has '?9999"):
            read(path)[300_001]


def test_advice_about_numbers_within_lists_and_objects_helps(tmp_path):
    path = file_of(tmp_path, '{"m": [{"x": 9007199254740993}, {"x": 1.5}]}\n', "a.jsonl")
    with pytest.raises(ps.InvalidArgumentError) as error:
        ps.JsonLinesDataset(path)
    advised = re.search(r"types=(\{.*?\}) takes the nearest number", str(error.value))
    (row,) = ps.JsonLinesDataset(path, types=eval(advised[1], {"pa": pa}))
    assert row["m"].tolist() == [{"x": 9007199254740992.0}, {"x": 1.5}]


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"b": [', "]}"), ('{"b": ', "}"), ("[[], ", "]")])
def test_json_of_thousands_of_levels_is_refused_at_once(tmp_path, begin, end):
    deep = '{"a": 1, "deep": ' + begin * 3000 + "1" + end * 3000 + "}\n"
    path = file_of(tmp_path, deep, "a.jsonl")
    began = time.thread_time()
    with pytest.raises(ps.InvalidTypeError, match="a.jsonl.*lists and structs up to 64 within each other"):
        ps.JsonLinesDataset(path)
    path = file_of(tmp_path, '{"a": 1}\n' + deep + '{"a": 2}\n', "b.jsonl")
    assert [row["a"] for row in ps.JsonLinesDataset(path, types={"a": np.int64}).ignore_errors()] == [1, 2]
    assert time.thread_time() - began < 5  # it took minutes
    drawn = json.dumps({"a": "[{" * 3000}) + "\n"
    assert [len(row["a"]) for row in ps.JsonLinesDataset(file_of(tmp_path, drawn, "c.jsonl"))] == [6000]


def test_objects_without_any_key_are_refused_in_words(tmp_path):
    for text in ('{"a": {}}\n{"a": {}}\n', '{"a": {"b": {}}}\n', "{}\n"):
        with pytest.raises(ps.InvalidArgumentError, match="takes a table with columns of values, got a Table without"):
            list(ps.JsonLinesDataset(file_of(tmp_path, text, "a.jsonl")))


@pytest.mark.parametrize(
    ("read", "name", "good", "bad"),
    [
        (ps.CsvDataset, "a.csv", "{}.5", "9007199254740993"),
        (ps.CsvDataset, "b.csv", "{}", "007"),
        (ps.JsonLinesDataset, "c.jsonl", '{{"a": {}.5}}', '{"a": 9007199254740993}'),
        (ps.JsonLinesDataset, "d.jsonl", '{{"a": {}}}', '{"a": 1, "z": 2}'),
    ],
)
def test_rows_whose_numbers_or_keys_do_not_fit_cost_few_calls(tmp_path, monkeypatch, read, name, good, bad):
    head = "a\n" if read is ps.CsvDataset else ""
    path = file_of(tmp_path, head + "".join(good.format(number) + "\n" for number in range(1000)), "first")
    lines = [bad if number % 50 == 7 else good.format(number) for number in range(1000)]
    later = file_of(tmp_path, head + "\n".join(lines) + "\n", name)
    calls = []
    for kind in (CsvRecords, JsonRecords):
        table = kind.table
        monkeypatch.setattr(kind, "table", lambda self, data, table=table: calls.append(1) or table(self, data))
    rows = iter(read([path, later]).ignore_errors())
    assert [int(row["a"]) for row in rows][1000:] == [number for number in range(1000) if number % 50 != 7]
    assert f"{name}', line {8 + len(head) // 2}" in rows.errors.rows[0].error and rows.errors.count == 20
    assert len(calls) < 100  # it took more than 200
