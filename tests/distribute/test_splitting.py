"""The one splitting rule gives every row to exactly one replica, in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.sharding import SliceRule, slice_bounds

ROWS = st.integers(0, 10_000)
REPLICAS = st.integers(1, 300)


@given(ROWS, REPLICAS)
def test_the_slices_cover_all_rows_in_order_and_none_twice(rows: int, replicas: int) -> None:
    covered = [row for start, stop in slice_bounds(rows, replicas) for row in range(start, stop)]
    assert covered == list(range(rows))


@given(ROWS, REPLICAS)
def test_every_slice_is_full_until_the_rows_run_out(rows: int, replicas: int) -> None:
    sizes = [stop - start for start, stop in slice_bounds(rows, replicas)]
    full = -(-rows // replicas)
    filled = [size for size in sizes if size > 0]
    assert len(sizes) == replicas
    assert sizes == filled + [0] * (replicas - len(filled))
    assert all(size == full for size in filled[:-1])
    assert all(0 < size <= full for size in filled[-1:])


@given(ROWS, REPLICAS, st.integers(0, 200))
def test_slices_of_at_least_so_many_rows_are_full_in_front(rows: int, replicas: int, least: int) -> None:
    bounds = SliceRule(replicas, least).bounds(rows)
    size = max(least, -(-rows // replicas))
    assert bounds == [(min(number * size, rows), min((number + 1) * size, rows)) for number in range(replicas)]
    assert bounds[-1][1] == rows


@given(ROWS, REPLICAS)
def test_even_slices_leave_out_fewer_rows_than_there_are_slices(rows: int, replicas: int) -> None:
    bounds = SliceRule(replicas, even=True).bounds(rows)
    assert {stop - start for start, stop in bounds} == {rows // replicas}
    assert [row for start, stop in bounds for row in range(start, stop)] == list(range(rows // replicas * replicas))


@pytest.mark.parametrize(
    ("rows", "replicas", "error"),
    [(-1, 2, ps.InvalidArgumentError), (3, 0, ps.InvalidArgumentError), (2.5, 2, ps.InvalidTypeError)],
)
def test_what_cannot_be_split_is_refused(rows: int, replicas: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="slice_bounds"):
        slice_bounds(rows, replicas)
