"""What counts as one kind of element: strings of any width, numbers that fit their dtype, datasets joined."""

import inspect
from collections import OrderedDict, UserDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps


def generated(*values, signature=None):
    return ps.Dataset.from_generator(lambda: iter(values), output_signature=signature)


@pytest.mark.parametrize("dtype", [None, object, "U", "U3"])
def test_a_generator_yields_numpy_strings_of_any_width(dtype):
    signature = None if dtype is None else ps.TensorSpec((), dtype)
    dataset = generated(np.str_("a"), np.str_("bcd"), np.str_(""), signature=signature)
    assert list(dataset) == ["a", "bcd", ""]
    assert [batch.tolist() for batch in dataset.batch(2)] == [["a", "bcd"], [""]]


@pytest.mark.parametrize("dtype", [None, object, "S"])
def test_a_generator_yields_arrays_of_bytes_of_any_width(dtype):
    signature = None if dtype is None else ps.TensorSpec((1,), dtype)
    dataset = generated(np.array([b"a"]), np.array([b"bcd"]), signature=signature)
    assert [row.tolist() for row in dataset] == [[b"a"], [b"bcd"]]


@pytest.mark.parametrize(
    ("dtype", "shape", "values"),
    [
        ("U", (), ["a", "bcd", ""]),
        ("S", (), [b"a", b"bcd"]),
        ("U3", (), ["bcd", "a"]),
        ("U", (2,), [["a", "b"], ["cde", ""]]),
    ],
)
def test_strings_of_python_fit_a_signature_of_strings(dtype, shape, values):
    signature = ps.TensorSpec(shape, dtype)
    for dataset in (
        generated(*values, signature=signature),
        ps.Dataset.range(len(values)).map(lambda number: values[int(number)], output_signature=signature),
    ):
        assert [np.asarray(row).tolist() for row in dataset] == values
        assert {np.asarray(row).dtype.kind for row in dataset} == {dtype[0]}
        assert all(signature.is_compatible_with(row) for row in dataset)
    for wrong in (b"a" if dtype[0] == "U" else "a", "wider" if dtype == "U3" else "ends\0", 3):
        with pytest.raises(ps.ElementError, match="expected TensorSpec"):
            list(generated(wrong, signature=ps.TensorSpec((), dtype)))


def test_strings_wider_than_they_were_declared_are_refused():
    with pytest.raises(ps.ElementError, match=r"expected TensorSpec\(shape=\(\), dtype=<U2\), got .*<U3"):
        list(generated(np.str_("bcd"), signature=ps.TensorSpec((), "U2")))
    with pytest.raises(ps.ElementError, match=r"yielded \|S1 after <U1"):
        list(generated(np.str_("b"), np.bytes_(b"b")))


TOO_LARGE = {
    "from_tensors": lambda: ps.Dataset.from_tensors(1e300),
    "from_tensor_slices": lambda: ps.Dataset.from_tensor_slices([1.0, 1e300]),
    "a list with a float64": lambda: ps.Dataset.from_tensor_slices([1.0, np.float64(-1e300)]),
    "from_generator": lambda: generated(1e300),
    "a signature": lambda: generated(1e300, signature=ps.TensorSpec((), np.float32)),
    "a list and a signature": lambda: generated([1.0, 1e300], signature=ps.TensorSpec((2,), np.float32)),
    "a narrow signature": lambda: generated(70000.0, signature=ps.TensorSpec((), np.float16)),
    "map": lambda: ps.Dataset.range(1).map(lambda x: 1e300),
    "map to a pair": lambda: ps.Dataset.range(1).map(lambda x: (x, 1e300)),
    "scan": lambda: ps.Dataset.range(1).scan(0.0, lambda state, x: (state, 1e300)),
}


@pytest.mark.parametrize("make", TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_a_number_that_a_narrower_dtype_makes_infinite_is_an_error(make):
    with pytest.raises(ps.ElementError, match=r"infinite|cannot hold"):  # and a warning would be another error
        list(make())


def test_the_error_comes_at_the_element_that_is_too_large():
    iterator = iter(ps.Dataset.range(64).map(lambda x: 1e300 if x == 40 else float(x)))
    assert [float(next(iterator)) for _ in range(40)] == list(range(40))
    with pytest.raises(ps.ElementError, match="1e[+]300 would become infinite: use numpy.float64") as caught:
        next(iterator)
    assert "element 40" in caught.value.__notes__[0]
    assert float(next(iterator)) == 41


def test_numbers_that_fit_and_infinity_itself_pass():
    largest = float(np.finfo(np.float32).max)
    numbers = [largest, -largest, float("inf"), 1e-300]
    assert list(ps.Dataset.range(4).map(lambda x: numbers[x])) == [largest, -largest, np.inf, 0]
    assert list(ps.Dataset.from_tensor_slices(numbers)) == [largest, -largest, np.inf, 0]
    assert np.isnan(next(iter(ps.Dataset.from_tensors(float("nan")))))
    assert list(ps.Dataset.from_tensors(np.float64(1e300))) == [1e300]
    assert list(generated(1e300, signature=ps.TensorSpec((), np.float64))) == [1e300]


JOINED = {
    "concatenate": lambda a, b: a.concatenate(b),
    "choose_from_datasets": lambda a, b: ps.Dataset.choose_from_datasets([a, b], ps.Dataset.range(2).repeat()),
    "sample_from_datasets": lambda a, b: ps.Dataset.sample_from_datasets([a, b], seed=1),
}


@pytest.mark.parametrize("join", JOINED.values(), ids=JOINED.keys())
def test_datasets_of_unlike_dtypes_are_not_joined_and_both_lines_are_named(join):
    numbers, line = ps.Dataset.range(2), inspect.currentframe().f_lineno
    others = ps.Dataset.from_tensor_slices([1.5, 2.5])
    lines = rf"int64.*test_kinds.py:{line} and .*float32.*test_kinds.py:{line + 1}"
    with pytest.raises(ps.InvalidTypeError, match=lines):
        join(numbers, others)
    joined = join(numbers.filter(lambda x: True).map(lambda x: x), others)  # only reading the stream would tell
    with pytest.raises(ps.ElementError, match=r"of one kind.*int64.*test_kinds.*float32.*test_kinds|float32.*int64"):
        list(joined)


@pytest.mark.parametrize("join", JOINED.values(), ids=JOINED.keys())
def test_a_functions_results_by_index_do_not_join_another_kind(join):
    calls = []
    numbers, line = ps.Dataset.range(3).map(lambda x: calls.append(int(x)) or x), inspect.currentframe().f_lineno
    others = ps.Dataset.from_tensor_slices([1.5, 2.5])
    lines = rf"~int64.*test_kinds.py:{line} and .*float32.*test_kinds.py:{line + 1}"
    with pytest.raises(ps.InvalidTypeError, match=lines):
        join(numbers, others)
    with pytest.raises(ps.InvalidTypeError, match="one kind"):
        join(numbers.filter(bool), others)
    with pytest.raises(ps.InvalidTypeError, match="one kind"):
        join(others, numbers.map(lambda x: {"x": x}))
    with pytest.raises(ps.InvalidTypeError, match="one kind"):
        join(numbers.scan(0, lambda total, x: (total + x, total)), others)
    assert set(calls) == {0}, "called with the first element alone"
    assert len(list(join(numbers, numbers.map(lambda x: [x, x])).take(2))) == 2  # axes are nobody's kind
    streamed = numbers.filter(bool).map(lambda x: x)
    assert streamed.element_spec.assumed
    with pytest.raises(ps.InvalidTypeError, match="one kind"):  # it has been asked for, and so is known
        join(streamed, others)


@pytest.mark.parametrize("join", JOINED.values(), ids=JOINED.keys())
def test_functions_that_fail_or_have_no_element_are_joined_all_the_same(join):
    failing = ps.Dataset.range(3).map(lambda x: 1 // int(x)).ignore_errors()
    assert join(failing, ps.Dataset.range(2)).element_spec.dtype == np.int64
    nothing = ps.Dataset.range(0).map(lambda x: "a word")
    assert set(join(nothing, ps.Dataset.range(2))) <= {0, 1}
    with pytest.raises(ZeroDivisionError):
        list(join(ps.Dataset.range(3).map(lambda x: 1 // int(x)), ps.Dataset.range(2)))


def test_strings_of_unlike_width_and_rows_of_unlike_shape_are_one_kind():
    words = ps.Dataset.from_tensor_slices(np.array(["a"])).concatenate(ps.Dataset.from_tensor_slices(np.array(["bcd"])))
    assert list(words) == ["a", "bcd"]
    assert words.element_spec == ps.TensorSpec((), "U3")
    rows = ps.Dataset.range(1, 3).map(lambda x: [x] * int(x)).concatenate(ps.Dataset.range(2).map(lambda x: [x] * 4))
    assert [row.tolist() for row in rows] == [[1], [2, 2], [0] * 4, [1] * 4]


UNLIKE = {
    "flat_map": lambda made: ps.Dataset.range(3).flat_map(made),
    "interleave": lambda made: ps.Dataset.range(3).interleave(made, cycle_length=2, block_length=2),
    "interleave in threads": lambda made: ps.Dataset.range(3).interleave(made, cycle_length=2, num_parallel_calls=2),
    "group_by_window": lambda made: ps.Dataset.range(3).group_by_window(
        lambda x: x, lambda key, window: made(key), window_size=1
    ),
}
UNLIKE_ROWS = {
    "dtype": (lambda x: [1.5, 2.5] if x == 1 else [1, 2], "int64.*float32"),
    "structure": (lambda x: {"a": [1, 2]} if x == 1 else ([1, 2],), r"\(int64,\).*{'a': int64}"),
}


@pytest.mark.parametrize("read", UNLIKE.values(), ids=UNLIKE.keys())
@pytest.mark.parametrize(("rows", "shown"), UNLIKE_ROWS.values(), ids=UNLIKE_ROWS.keys())
@pytest.mark.parametrize("sizes", [1, 3, 64])
def test_inner_datasets_of_another_kind_are_refused_at_their_elements(read, rows, shown, sizes):
    dataset = read(lambda x: ps.Dataset.from_tensor_slices(rows(x)))
    with pytest.raises(ps.ElementError, match=rf"of one kind.*{shown}"):
        list(dataset.batch(sizes))
    skipped = [repr(row) for row in dataset.ignore_errors()]
    good = [repr(row) for x in (0, 2) for row in ps.Dataset.from_tensor_slices(rows(x))]
    assert sorted(skipped) == sorted(good)


class Rows:
    """Rows whose dictionaries have the same keys, in another order in every second one."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"w": index, "a": {"z": 2, "b": 3}} if index % 2 == 0 else {"a": {"b": 3, "z": 2}, "w": index}


READ = {
    "from_source": lambda: ps.Dataset.from_source(Rows()),
    "from_list": lambda: ps.Dataset.from_list([Rows()[index] for index in range(4)]),
    "from_generator": lambda: ps.Dataset.from_generator(lambda: map(Rows().__getitem__, range(4))),
    "map": lambda: ps.Dataset.range(4).map(lambda x: Rows()[int(x)]),
    "map in threads": lambda: ps.Dataset.range(4).map(lambda x: Rows()[int(x)], num_parallel_calls=2),
    "map of a class": lambda: ps.Dataset.range(4).map(lambda x: UserDict(Rows()[int(x)])),
    "flat_map": lambda: ps.Dataset.range(4).flat_map(lambda x: ps.Dataset.from_tensors(Rows()[int(x)])),
    "interleave": lambda: ps.Dataset.range(4).interleave(
        lambda x: ps.Dataset.from_tensors(Rows()[int(x)]), cycle_length=2, block_length=1
    ),
    "concatenate": lambda: joined_by(ps.Dataset.concatenate),
    "concatenate streams": lambda: joined_by(ps.Dataset.concatenate, stream),
    "choose_from_datasets": lambda: joined_by(lambda *both: ps.Dataset.choose_from_datasets(both, CHOICE)),
    "sorted in a buffer": lambda: stream(ps.Dataset.from_source(Rows())).shuffle(4, seed=1),
    "group_by_window": lambda: ps.Dataset.from_source(Rows()).group_by_window(lambda row: 0, lambda key, rows: rows, 2),
    "scan": lambda: ps.Dataset.from_source(Rows()).scan(0, lambda state, row: (state, row)),
    "saved": lambda: ps.Dataset.from_source(Rows()).cache(),
}
CHOICE = ps.Dataset.from_tensor_slices([0, 1])


def joined_by(join, made=lambda dataset: dataset):
    first, second = (made(ps.Dataset.from_list([Rows()[index]])) for index in (0, 1))
    return join(first, second)


def stream(dataset):
    return dataset.filter(lambda row: True)


@pytest.mark.parametrize("read", READ.values(), ids=READ.keys())
def test_rows_have_their_keys_in_the_order_of_the_first_one(read):
    dataset = read()
    found = [*dataset, *dataset.batch(2), *dataset.padded_batch(3), *dataset.batch(2).rebatch(3), dataset.element_spec]
    assert {(tuple(row), tuple(row["a"])) for row in found} == {(("w", "a"), ("z", "b"))}
    assert sorted(int(row["w"]) for row in dataset) == list(range(len(list(dataset))))


@pytest.mark.parametrize("form", ["penstock", "parquet", "npy", "tfrecord"])
def test_saved_rows_keep_the_order_of_their_keys(form, tmp_path):
    rows = ps.Dataset.range(3).map(lambda x: {"w": x, "a": x, "h": {"z": x, "b": x}})
    rows.save(str(tmp_path / "rows"), format=form)
    found = ps.Dataset.load(str(tmp_path / "rows"))
    for row in [*found, *found.batch(2), found.element_spec]:
        assert (list(row), list(row["h"])) == (["w", "a", "h"], ["z", "b"])
    if form == "parquet":
        (file,) = (tmp_path / "rows").glob("*.parquet")
        assert pq.read_schema(file).names == ["w", "a", "h"]


def test_columns_of_a_table_keep_their_order(tmp_path):
    (tmp_path / "rows.csv").write_text("weight,age,height\n1,2,3\n4,5,6\n")
    (tmp_path / "rows.jsonl").write_text('{"weight": 1, "age": 2, "height": 3}\n')
    table = pa.table({"weight": [1, 4], "age": [2, 5], "height": [3, 6]})
    pq.write_table(table, tmp_path / "rows.parquet")
    for dataset in (
        ps.CsvDataset(str(tmp_path / "rows.csv")),
        ps.JsonLinesDataset(str(tmp_path / "rows.jsonl")),
        ps.ParquetDataset(str(tmp_path / "rows.parquet")),
        ps.Dataset.from_arrow(table),
        ps.Dataset.from_tensor_slices(table),
    ):
        batch = next(iter(dataset.batch(2)))
        assert np.stack(list(batch.values()), 1)[0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("rows", [3, 200])  # many are taken by a loop that is written for them
def test_ordered_dictionaries_stay_ordered(rows):
    dataset = ps.Dataset.range(rows).map(lambda x: OrderedDict(b=x, a=x))
    for found in (*dataset, *dataset.batch(2), *ps.Dataset.from_list(list(dataset)).batch(3), dataset.element_spec):
        assert type(found) is OrderedDict
        assert list(found) == ["b", "a"]


def test_datasets_that_differ_in_the_order_of_keys_share_their_states():
    one = ps.Dataset.from_tensor_slices({"b": [1, 2, 3], "a": [4, 5, 6]})
    other = ps.Dataset.from_tensor_slices({"a": [4, 5, 6], "b": [1, 2, 3]})
    read = iter(one)
    next(read)
    resumed = iter(other)
    resumed.load_state_dict(read.state_dict())
    assert list(next(resumed).items()) == [("a", 5), ("b", 2)]


def test_joining_many_mapped_datasets_calls_each_function_once():
    called = []

    def part(number):
        return ps.Dataset.range(2).map(
            lambda x: called.append(number) or {"of": number, "rows": [x] * (1 + number % 2)}
        )

    whole = part(0)
    for number in range(1, 20):
        whole = whole.concatenate(part(number))
    spec = whole.element_spec
    assert called == list(range(20))
    assert repr(spec) == repr(ps.Dataset(whole.node).element_spec)
    assert [int(row["of"]) for row in whole] == [number for number in range(20) for _ in range(2)]


@pytest.mark.parametrize(
    ("dtype", "value"), [(bytes, b"a\x00"), ("S2", b"a\x00"), (str, "a\x00"), ("U2", "a\x00")], ids=str
)
def test_strings_that_end_with_zero_bytes_are_refused_if_numpy_drops_them(dtype, value):
    with pytest.raises(ps.ElementError, match=r"got b?'a\\x00': .*drop zero bytes \(\\x00\) at their ends; use object"):
        list(generated(value[:1], value, signature=ps.TensorSpec((), dtype)))
    assert list(generated(value[:1], value, signature=ps.TensorSpec((), object))) == [value[:1], value]


class Lists:
    """A collection of lists, some of which are empty."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


LISTS = {
    "map": lambda rows: ps.Dataset.range(len(rows)).map(lambda x: rows[int(x)]),
    "map of a stream": lambda rows: stream(ps.Dataset.range(len(rows))).map(lambda x: rows[int(x)]),
    "map in threads": lambda rows: ps.Dataset.range(len(rows)).map(lambda x: rows[int(x)], num_parallel_calls=2),
    "map to dictionaries": lambda rows: (
        ps.Dataset.range(len(rows)).map(lambda x: {"of": x, "boxes": rows[int(x)]}).map(lambda row: row["boxes"])
    ),
    "from_generator": lambda rows: generated(*rows),
    "from_list": ps.Dataset.from_list,
    "from_source": lambda rows: ps.Dataset.from_source(Lists(rows)),
    "scan": lambda rows: ps.Dataset.range(len(rows)).scan(0, lambda state, x: (state, rows[int(x)])),
    "flat_map": lambda rows: ps.Dataset.range(len(rows)).flat_map(lambda x: ps.Dataset.from_tensors(rows[int(x)])),
    "group_by_window": lambda rows: ps.Dataset.from_list(rows).group_by_window(
        lambda row: 0, lambda key, window: window, 2
    ),
}


@pytest.mark.parametrize("read", LISTS.values(), ids=LISTS.keys())
@pytest.mark.parametrize(
    ("rows", "dtype"),
    [([[1, 2], [], [3]], np.int64), ([["a", "b"], [], ["c"]], object), ([[0.5], [], []], np.float32)],
    ids=["integers", "strings", "floats"],
)
def test_an_empty_list_is_of_the_dtype_of_the_other_rows(read, rows, dtype):
    dataset = read(rows)
    for found in (dataset, dataset.batch(1).unbatch(), dataset.ragged_batch(2).unbatch(), dataset.prefetch(2)):
        made = list(found)
        assert [row.tolist() for row in made] == rows
        if read is not LISTS["map in threads"]:  # a call for an empty list may end before all others
            assert {row.dtype for row in made} == {np.dtype(dtype)}
    padded = next(iter(dataset.padded_batch(3)))
    assert padded.dtype == dtype
    assert padded.shape[0] == 3


def test_an_empty_list_among_rows_of_two_axes_has_their_second():
    boxes = [[[1, 2, 3, 4]], [], [[5, 6, 7, 8], [1, 2, 3, 4]]]
    dataset = ps.Dataset.range(3).map(lambda x: boxes[int(x)])
    assert [row.shape for row in dataset] == [(1, 4), (0, 4), (2, 4)]
    assert next(iter(dataset.padded_batch(3))).shape == (3, 2, 4)
    signature = ps.TensorSpec((None, 4), np.int64)
    assert [row.shape for row in generated(*boxes[1:], signature=signature)] == [(0, 4), (2, 4)]


def test_an_empty_list_first_takes_the_dtype_of_a_batch_or_the_signature():
    rows = [[], [1]]
    assert [row.tolist() for row in ps.Dataset.range(2).map(lambda x: rows[int(x)])] == rows
    batch = next(iter(ps.Dataset.range(2).map(lambda x: rows[int(x)]).padded_batch(2)))
    assert (batch.tolist(), batch.dtype) == ([[0], [1]], np.int64)
    signature = ps.TensorSpec((None,), np.int64)
    assert [row.dtype for row in ps.Dataset.range(2).map(lambda x: [[], [1]][int(x)], output_signature=signature)] == [
        np.int64
    ] * 2


def test_a_row_that_fails_after_empty_lists_fails_alone():
    rows = [[], [], 1 / 2, [7], [], None, [8]]

    def made(x):
        if rows[int(x)] == 1 / 2:
            raise ValueError(x)
        return rows[int(x)]

    for dataset in (ps.Dataset.range(7).map(made), stream(ps.Dataset.range(7)).map(made)):
        left = dataset.ignore_errors()
        for found in (left, left.ragged_batch(5).unbatch()):
            assert [row.tolist() for row in found] == [[], [], [7], [], [8]]


def test_the_words_of_an_empty_line_are_padded_as_words(tmp_path):
    (tmp_path / "lines.txt").write_text("a b\n\nc\n")
    words = ps.TextLineDataset(str(tmp_path / "lines.txt")).map(str.split).padded_batch(3)
    assert [batch.tolist() for batch in words] == [[["a", "b"], ["", ""], ["c", ""]]]
