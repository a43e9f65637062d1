"""`ps.tfrecord`: sequence examples and ragged features that TensorFlow has written, read as TensorFlow reads them."""

import json
from pathlib import Path

import numpy as np
import pytest

import penstock as ps

WRITTEN = Path(__file__).parent / "written_by_others"
IN_TENSORFLOW = json.loads((WRITTEN / "sequences_in_tensorflow.json").read_text())
SEQUENCES = list(ps.TFRecordDataset(WRITTEN / "sequences.tfrecord"))
RAGGED = list(ps.TFRecordDataset(WRITTEN / "ragged.tfrecord"))
CONTEXT = {"id": ps.TensorSpec((), np.int64), "tags": ps.TensorSpec((None,), object)}
LISTS = {
    "x": ps.TensorSpec((2,), np.float32),
    "words": ps.TensorSpec((None,), object),
    "label": ps.TensorSpec((1,), np.int64),
}
BY = ps.tfrecord.RaggedFeature
PARTITIONS = {
    "lengths": [BY.RowLengths("lengths")],
    "splits": [BY.RowSplits("splits")],
    "starts": [BY.RowStarts("starts")],
    "limits": [BY.RowLimits("limits")],
    "ids": [BY.ValueRowIds("ids")],
    "uniform": [BY.UniformRowLength(2)],
    "two": [BY.RowSplits("outer"), BY.RowLengths("lengths")],
    "none": [],
}


def plain(value):
    """Lists and strings, as the file of what TensorFlow has read has them."""
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    return [plain(each) for each in value] if isinstance(value, (np.ndarray, list)) and np.ndim(value) else value


def test_sequences_are_read_as_tensorflow_reads_them():
    context, lists = ps.tfrecord.parse_sequence_example(SEQUENCES, CONTEXT, LISTS)
    assert {name: plain(column) for name, column in context.items()} == IN_TENSORFLOW["context"]
    assert {name: plain(column) for name, column in lists.items()} == IN_TENSORFLOW["lists"]
    assert [rows.shape for rows in lists["x"]] == [(0, 2), (1, 2), (2, 2), (3, 2), (0, 2), (1, 2)]
    for number, record in enumerate(SEQUENCES):
        of_record, lists_of_record = ps.tfrecord.parse_sequence_example(record, CONTEXT, LISTS)
        assert of_record["id"] == context["id"][number]
        assert plain(lists_of_record["words"]) == plain(lists["words"][number])


def parsed(records):
    """The arrays of a call, or its error."""
    try:
        context, lists = ps.tfrecord.parse_sequence_example(records, CONTEXT, LISTS)
    except ps.ElementError as error:
        return str(error)
    batch = {**context, **lists}
    alone = batch if isinstance(records, bytes) else {name: column[0] for name, column in batch.items()}
    return {name: (np.asarray(value).dtype, np.shape(value), plain(value)) for name, value in alone.items()}


def test_a_sequence_alone_is_parsed_as_in_a_batch_damaged_ones_too():
    for record in SEQUENCES:
        assert parsed(record) == parsed([record])
        damaged = bytearray(record)
        for place in range(0, len(record), 9):
            damaged[place] ^= 1 << place % 8
            assert repr(parsed(bytes(damaged))) == repr(parsed([bytes(damaged)]))
            assert repr(parsed(record[:place])) == repr(parsed([record[:place]]))
            damaged[place] = record[place]


def test_sequences_one_by_one_are_not_parsed_as_batches_of_one(monkeypatch):
    monkeypatch.delattr("penstock.formats.records.sequence_example._Sequences")  # which costs 40 times as much
    assert plain(ps.tfrecord.parse_sequence_example(SEQUENCES[3], CONTEXT, LISTS)[1]["x"])


def test_sequences_of_a_dataset_become_padded_batches():
    dataset = ps.TFRecordDataset(WRITTEN / "sequences.tfrecord").map(
        lambda record: ps.tfrecord.parse_sequence_example(record, {}, {"x": ps.TensorSpec((2,), np.float32)})[1]["x"]
    )
    assert [batch.shape for batch in dataset.padded_batch(4)] == [(4, 3, 2), (2, 1, 2)]


def test_ragged_features_are_divided_as_tensorflow_divides_them():
    features = {name: BY(np.float32, "v", partitions) for name, partitions in PARTITIONS.items()}
    found = ps.parse_example(RAGGED, features)
    assert {name: plain(column) for name, column in found.items()} == IN_TENSORFLOW["ragged"]
    alone = ps.parse_example(RAGGED[0], {"v": BY(np.float32, partitions=[BY.RowLengths("lengths")]), **features})
    assert plain(alone["v"]) == IN_TENSORFLOW["ragged"]["lengths"][0]
    assert alone["v"][0].dtype == np.float32 and plain(alone["two"]) == IN_TENSORFLOW["ragged"]["two"][0]


def test_steps_are_divided_by_the_same_step_of_another_list():
    feature = BY(object, "words", [BY.UniformRowLength(1)])
    _, lists = ps.tfrecord.parse_sequence_example(SEQUENCES[:4], {}, {"rows": feature})
    assert plain(lists["rows"]) == [[[[word] for word in step] for step in steps] for steps in _words(4)]
    with pytest.raises(ps.ElementError, match="'x' is divided by 'label', which has another number of steps"):
        ps.tfrecord.parse_sequence_example(SEQUENCES, {}, {"x": BY(np.float32, partitions=[BY.RowLengths("label")])})


def _words(count):
    return IN_TENSORFLOW["lists"]["words"][:count]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ps.tfrecord.parse_sequence_example([b"", b"rose"]), "record 1: it is no tf.train.SequenceExample"),
        (lambda: ps.tfrecord.parse_sequence_example([SEQUENCES[3][:-1]]), "record 0: it is damaged, or cut"),
        (
            lambda: ps.tfrecord.parse_sequence_example(SEQUENCES, {}, {"x": ps.TensorSpec((3,))}),
            "parse_sequence_example: record 1, step 0: feature 'x' has 2 values, expected 3",
        ),
        (
            lambda: ps.tfrecord.parse_sequence_example(SEQUENCES, {}, {"words": ps.TensorSpec((1,), object)}),
            "record 2, step 0: feature 'words' has 2 values, expected 1",
        ),
        (
            lambda: ps.tfrecord.parse_sequence_example(SEQUENCES, {}, {"words": ps.TensorSpec((1,))}),
            "record 1, step 0: feature 'words' holds bytes, expected floats",
        ),
        (
            lambda: ps.tfrecord.parse_sequence_example(SEQUENCES, {"no": ps.TensorSpec(())}),
            "record 0: there is no feature 'no'",
        ),
        (
            lambda: ps.parse_example(RAGGED, {"v": BY(np.float32, partitions=[BY.RowSplits("lengths")])}),
            r"record 0: feature 'v': the row splits \[2, 0, 4\] do not divide 6 values",
        ),
        (
            lambda: ps.parse_example(RAGGED, {"v": BY(np.float32, partitions=[BY.ValueRowIds("outer")])}),
            r"record 0: feature 'v': the row numbers \[0, 3\] do not divide 6 values",
        ),
        (
            lambda: ps.parse_example(RAGGED, {"v": BY(np.float32, partitions=[BY.UniformRowLength(4)])}),
            "record 0: feature 'v': 6 values do not fill rows of 4",
        ),
    ],
)
def test_what_does_not_fit_says_which_record(call, message):
    with pytest.raises(ps.ElementError, match=message):
        call()


def test_arguments_that_never_work_are_refused():
    with pytest.raises(ps.InvalidTypeError, match="takes RaggedFeature.RowSplits"):
        BY(np.float32, partitions=["lengths"])
    with pytest.raises(ps.InvalidTypeError, match="parse_sequence_example.* takes a ps.TensorSpec for 'x', got 3"):
        ps.tfrecord.parse_sequence_example(SEQUENCES, {}, {"x": 3})
    with pytest.raises(ps.InvalidArgumentError, match="takes features of fixed shape, got 'tags'"):
        ps.tfrecord.parse_sequence_example(SEQUENCES, CONTEXT, {}, {"tags": b""})
