"""`tf.train.SequenceExample` records: features of a record, and lists of features, one for each step of a sequence.

SequenceExample { 1: Features, 2: FeatureLists }     FeatureLists { 1: entry, repeated }
entry { 1: name, 2: FeatureList }                    FeatureList { 1: Feature, repeated }
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from penstock.errors import ElementError
from penstock.formats.records.example import FIRST, Column, Integers, RecordBytes, Wanted, asked_of, first_rows
from penstock.formats.records.example_layout import sequence_of_one
from penstock.formats.records.ragged_feature import RaggedFeature
from penstock.spec import LeafSpec

_SECOND: Final = 0x12


def parse_sequence_example(
    records: bytes | Sequence[bytes] | Column,
    context_features: Mapping[str, LeafSpec | RaggedFeature] | None = None,
    sequence_features: Mapping[str, LeafSpec | RaggedFeature] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    r"""The features of `tf.train.SequenceExample` records, as TensorFlow's `tf.io.parse_sequence_example`.

    Args:
        records: one record, or a batch of them.
        context_features: features of a record, as for `ps.parse_example`.
        sequence_features: the features of each list at each step: a `ps.TensorSpec` without None in its shape for
            the same number of values at every step; with None in front, or a `ps.tfrecord.RaggedFeature`, for any
            number. A list that a record does not have is one without steps.
        defaults: of context features of fixed shape, the values for records that do not have one.

    Returns:
        Two dictionaries, of context features as `ps.parse_example` gives them, and of lists. In the second is, for a
        record, an array of shape (steps, *shape), or an object array with one array for each step where these
        have any length; for a batch, an object array of them.

    Raises:
        ElementError: a record is damaged, or has a feature of another type or length, or lacks one.
        InvalidArgumentError, InvalidTypeError: features that cannot be, or records that are not bytes.

    Example:
        >>> import penstock as ps
        >>> record = b"\x12\x18\n\x16\n\x01w\x12\x11\n\x07\n\x05\n\x03one\n\x06\n\x04\n\x02do"
        >>> context, lists = parse_sequence_example(record, {}, {"w": ps.TensorSpec((), object)})
        >>> lists["w"]
        array([b'one', b'do'], dtype=object)
    """
    context, kinds = asked_of("parse_sequence_example", context_features or {}, defaults or {})
    steps, kinds_of_steps = asked_of("parse_sequence_example", sequence_features or {}, {})
    if isinstance(records, bytes) and kinds is not None and kinds_of_steps is not None:
        alone = sequence_of_one(records, kinds, context.defaults, kinds_of_steps)
        if alone is not None:
            return alone
    batch = _Sequences([records] if isinstance(records, bytes) else list(records))
    (of_context, of_lists) = batch.halves()
    columns = context.columns(batch, batch.entries(context.keys, *of_context))
    lists = _of_lists(batch, steps, batch.entries(steps.keys, *of_lists))
    return (first_rows(columns), first_rows(lists)) if isinstance(records, bytes) else (columns, lists)


class _Sequences(RecordBytes):
    """The bytes of SequenceExamples."""

    def where(self, row: int) -> str:
        return f"parse_sequence_example: record {row}"

    def halves(self) -> list[tuple[Integers, Integers, Integers]]:
        """The records that have features and those that have lists, with the bounds of these."""
        begins, ends = np.zeros((2, 2, len(self.ends)), np.int64)
        rows = np.flatnonzero(self.ends > self.begins)
        at = self.begins[rows]
        while len(rows):
            tags = self.content[at]
            self.check((tags == FIRST) | (tags == _SECOND), rows, "it is no tf.train.SequenceExample, or damaged")
            for half, tag in enumerate((FIRST, _SECOND)):
                here = np.flatnonzero(tags == tag)
                begin, at[here] = self.message(rows[here], at[here], self.ends[rows[here]], tag)
                begins[half, rows[here]], ends[half, rows[here]] = begin, at[here]
            left = at < self.ends[rows]
            rows, at = rows[left], at[left]
        halves = [(np.flatnonzero(end > begin), begin, end) for begin, end in zip(begins, ends)]
        return [(rows, begin[rows], end[rows]) for rows, begin, end in halves]


class _Steps(RecordBytes):
    """The features of all steps of a list, one after the other, as if each step were a record.

    Args:
        records: the records with the list.
        begins: the offsets at which the list begins in each; 0, as its end, where it is missing.
        ends: the offsets at which it ends.
    """

    def __init__(self, records: RecordBytes, begins: Integers, ends: Integers) -> None:
        self.bytes = records.bytes
        self.content = records.content
        self._records = records
        self._of, self.begins, self.ends = records.repeated(np.arange(len(begins)), begins, ends)

    def where(self, row: int) -> str:
        record = self._of[row]
        return f"{self._records.where(int(record))}, step {row - int(np.searchsorted(self._of, record))}"

    def check_as_many(self, others: "_Steps", name: str, key: str) -> None:
        """Refuse a list that would divide the values of this one, and has other steps."""
        if not np.array_equal(self._of, others._of):
            raise ElementError(
                f"parse_sequence_example: feature {name!r} is divided by {key!r}, which has another number of steps in "
                "some records"
            )

    def by_record(self, column: Column, records: int) -> Column:
        """The values of each record's steps, together."""
        bounds = np.searchsorted(self._of, np.arange(records + 1)).tolist()
        together = np.empty(records, object)
        for record, (start, stop) in enumerate(pairwise(bounds)):
            together[record] = column[start:stop]
        return together


def _of_lists(batch: RecordBytes, wanted: Wanted, found: Mapping[str, tuple[Integers, Integers]]) -> dict[str, Column]:
    """The result for each list."""
    lists = {}
    for name in wanted.results:
        alone = wanted.only(name)
        steps = {key: _Steps(batch, *found[key]) for key in alone.keys}
        main = steps[alone.results[name][0][0]]
        for key, others in steps.items():
            main.check_as_many(others, name, key)
        column = alone.columns(main, {key: (each.begins, each.ends) for key, each in steps.items()})[name]
        lists[name] = main.by_record(column, len(batch.ends))
    return lists
