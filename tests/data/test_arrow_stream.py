"""Streams of Arrow batches: nulls, damage, lists, states, and what is no stream."""

import gc
import weakref

import numpy as np
import pyarrow as pa
import pytest
from past_errors import read_past_errors

import penstock as ps


def stream_of(*batches):
    """A dataset of these batches, of which one that is an exception is raised instead."""

    def given():
        for batch in batches:
            if isinstance(batch, Exception):
                raise batch
            yield pa.record_batch(batch)

    return ps.Dataset.from_arrow_stream(
        lambda: pa.RecordBatchReader.from_batches(pa.record_batch(batches[0]).schema, given())
    )


def test_rows_of_all_batches_and_of_a_table():
    dataset = stream_of({"x": [1, 2, 3]}, {"x": pa.array([], pa.int64())}, {"x": [4]})
    assert [int(row["x"]) for row in dataset] == [1, 2, 3, 4] == [int(row["x"]) for row in dataset.repeat(1)]
    assert dataset.batch(4).get_single_element()["x"].tolist() == [1, 2, 3, 4]
    table = pa.table({"x": [1, None], "word": ["a", "b"]})
    rows = list(ps.Dataset.from_arrow_stream(lambda: table, mask_nulls=True))
    assert rows[1] == {"x": 0, "word": "b", "x_is_valid": False, "word_is_valid": True}
    assert not list(ps.Dataset.from_arrow_stream(lambda: table.slice(0, 0)))


def test_lists_of_one_length_in_one_batch_and_of_others_in_the_next():
    lists = [[1, 2], [3, 4], [5], []]
    dataset = stream_of({"x": lists[:2]}, {"x": lists[2:]})
    assert [row["x"].tolist() for row in dataset] == lists


def test_rows_are_read_only():
    row = next(iter(stream_of({"x": [[1.5, 2.5]]})))["x"]
    with pytest.raises(ValueError, match="read-only"):
        row[0] = 0


def test_a_null_fails_at_its_row_after_the_rows_before_it():
    dataset = stream_of({"x": [1, 2, None, 4]}, {"x": [5]})
    rows, errors = read_past_errors(dataset.map(lambda row: row["x"]), ps.InvalidArgumentError)
    assert rows == [1, 2, 4, 5] and len(errors) == 1
    assert "mask_nulls=['x']" in str(errors[0]) and "element 2" in errors[0].__notes__[0]


def test_a_stream_that_breaks_off_gives_the_rows_before():
    dataset = stream_of({"x": [1, 2]}, OSError("the connection was lost"))
    rows, errors = read_past_errors(dataset.map(lambda row: row["x"]), OSError)
    assert rows == [1, 2]
    assert len(errors) == 1 and "the connection was lost" in str(errors[0])


def test_a_state_within_a_batch_opens_the_stream_again():
    dataset = stream_of({"x": [1, 2, 3]}, {"x": [4, 5]})
    for taken in range(6):
        first = iter(dataset)
        before = [int(next(first)["x"]) for _ in range(taken)]
        second = iter(dataset)
        second.load_state_dict(first.state_dict())
        assert before + [int(row["x"]) for row in second] == [1, 2, 3, 4, 5]


def test_a_closed_iterator_lets_go_of_the_stream():
    opened = []

    def make():
        reader = pa.table({"x": np.arange(10)}).to_reader(max_chunksize=2)
        opened.append(weakref.ref(reader))
        return reader

    iterator = iter(ps.Dataset.from_arrow_stream(make))
    next(iterator)
    iterator.close()
    gc.collect()
    assert opened[0]() is None


def test_what_is_no_stream_is_refused():
    with pytest.raises(ps.InvalidTypeError, match="takes a function that opens a stream.*got pyarrow.Table"):
        ps.Dataset.from_arrow_stream(pa.table({"x": [1]}))
    with pytest.raises(ps.InvalidTypeError, match="got one that gives a list"):
        list(ps.Dataset.from_arrow_stream(lambda: [1]))
