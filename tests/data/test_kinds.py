"""What counts as one kind of element: strings of any width, numbers that fit their dtype, datasets joined."""

import inspect

import numpy as np
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
def test_what_a_function_makes_by_index_is_refused_when_it_is_joined_with_another_kind(join):
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
def test_functions_that_fail_at_once_or_have_no_element_are_joined_all_the_same(join):
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
