"""Windows over an index are read by index, and are those of a stream."""

from itertools import product

import numpy as np
import pytest

import penstock as ps


def rows_of(dataset: ps.Dataset) -> list[list[int]]:
    return [[int(x) for x in window] for window in dataset]


@pytest.mark.parametrize(
    ("size", "shift", "stride", "drop"), list(product((1, 3), (1, 2, 9, 40), (1, 2), (False, True)))
)
def test_windows_over_an_index_are_those_of_a_stream(size: int, shift: int, stride: int, drop: bool) -> None:
    for count in (0, 1, 5, 20):
        windows = ps.Dataset.range(count).window(size, shift, stride, drop_remainder=drop)
        expected = [
            list(range(start, min(start + (size - 1) * stride + 1, count), stride))
            for start in range(0, count, shift)
            if not drop or start + (size - 1) * stride < count
        ]
        stream = ps.Dataset.range(count).filter(lambda x: True).window(size, shift, stride, drop_remainder=drop)
        assert rows_of(windows) == rows_of(stream) == expected
        assert len(expected) == windows.cardinality()
        assert sorted(rows_of(windows.shuffle(100, seed=1))) == expected
        assert rows_of(windows.skip(2).take(3)) == expected[2:5]


def test_windows_are_views_of_the_rows_they_share() -> None:
    windows = list(ps.Dataset.from_tensor_slices(np.arange(100)).window(10, shift=1).take(9))
    first, second = (np.array([*window.batch(10)])[0] for window in windows[:2])
    assert (second[:9] == first[1:]).all()
    columns = [window.node.columns[0] for window in windows]
    assert np.shares_memory(columns[0], columns[1])


def test_a_row_that_fails_costs_the_windows_it_is_in() -> None:
    def fails_at_5(x: np.int64) -> np.int64:
        if x == 5:
            raise ValueError("five")
        return x

    iterator = iter(ps.Dataset.range(10).map(fails_at_5).window(2, shift=2))
    seen: list[list[int]] = []
    for _ in range(6):
        try:
            seen.extend([int(x) for x in window] for window in [next(iterator)])
        except ValueError:
            seen.append([])
        except StopIteration:
            break
    assert seen == [[0, 1], [2, 3], [], [6, 7], [8, 9]]


@pytest.mark.parametrize("source", ["generator", "map"])
def test_a_key_function_that_writes_changes_no_row_of_its_window(source):
    def lengths():
        return (np.arange(n) for n in (3, 5, 4, 6))

    def key(row):
        row[0] = 99
        return np.int64(0)

    if source == "generator":
        rows = ps.Dataset.from_generator(lengths, output_signature=ps.TensorSpec((None,), np.int64))
    else:
        rows = ps.Dataset.range(4).map(lambda i: list(lengths())[int(i)])
    found = rows.group_by_window(key, lambda key, window: window, window_size=2)
    assert [row.tolist() for row in found] == [row.tolist() for row in lengths()]
