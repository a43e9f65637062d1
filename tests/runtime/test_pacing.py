"""The size of blocks follows what they cost."""

from penstock.runtime.pacing import Pace


def after(pace, seconds, nbytes=0, rows=None):
    """The rows allowed next, after a block of so many rows, or of all that were allowed, that took this long."""
    allowed = pace.start()
    pace._started -= seconds
    pace.stop(nbytes, allowed if rows is None else rows)
    return pace.start()


def test_blocks_double_while_they_are_cheap():
    pace = Pace()
    assert [pace.start(), after(pace, 0), after(pace, 0), after(pace, 0)] == [1, 2, 4, 8]


def test_blocks_shrink_when_they_are_slow_down_to_the_minimum():
    pace = Pace(2)
    assert after(pace, 0) == 4
    assert after(pace, 0.1) == 2
    assert after(pace, 0.1) == 2


def test_blocks_stop_growing_when_they_are_large_or_take_time():
    pace = Pace()
    assert after(pace, 0, nbytes=1 << 20) == 1
    assert after(pace, 0) == 2
    assert after(pace, 0.004) == 2


def test_blocks_of_many_sources_may_take_longer():
    pace = Pace(readings=8)
    assert [after(pace, 0.02), after(pace, 0.02), after(pace, 0.1)] == [2, 4, 2]


def test_blocks_have_a_largest_size():
    pace = Pace()
    for _ in range(40):
        after(pace, 0)
    assert pace.start() == 1 << 16


def test_a_block_cut_short_does_not_stop_the_next_ones_from_growing() -> None:
    pace = Pace(seconds=10.0)
    for asked in (1, 1, 1, 1):
        pace.start()
        pace.stop(8, asked, asked)
    assert pace.start() == 2


def test_no_more_than_16_times_the_rows_that_came_are_allowed():
    pace = Pace()
    assert [after(pace, 0, rows=2) for _ in range(7)] == [2, 4, 8, 16, 32, 32, 32]
    assert after(pace, 0, rows=3) == 48
    assert after(pace, 0, rows=1) == 48  # a small block alone is no reason to allow less
