"""Learners of tokens: vocabularies, and counts of keys."""

import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.accumulators.counts import WeightCounts
from penstock.errors import ElementError, InvalidTypeError
from penstock.preprocessing.tokens import TEXT, decoded
from penstock.transform.columns import Array, Integers, Ragged, as_ragged, flat, is_text, texts_of, weights_of
from penstock.transform.functions import imported
from penstock.transform.information import mutual_information
from penstock.transform.learners import Learner
from penstock.transform.operations import spread
from penstock.transform.vocabularies import Vocabulary
from penstock.transform.vocabulary_files import RECORDS_SUFFIX, with_frequencies, write_tokens

_NEITHER_EMPTY_NOR_LINES = r"^[^\n\r]+$"


class LearnCountPerKey(Learner, call="count_per_key", empty=lambda _: WeightCounts()):
    """The distinct keys in order, and how often each occurs."""

    def add(self, column: Any) -> None:
        values = flat(column)
        self.dtype = self.dtype or ("text" if is_text(values) else values.dtype.str)
        self.accumulator.add(texts_of(values))

    def result(self, assets: Path) -> tuple[Any, ...]:
        table = pa.concat_tables(self.accumulator.tables()).sort_by("token")
        keys, counts = table["token"].combine_chunks(), table["count"].to_numpy()
        if self.dtype in ("", "text"):
            return keys, counts
        numbers = keys.cast(pa.large_string()).cast(pa.int64()).to_numpy()
        return numbers, counts


class VocabularyLearner(Learner, empty=lambda _: WeightCounts()):
    """Tokens in a file, ranked by their counts."""

    def result(self, assets: Path) -> tuple[Any, ...]:
        path = assets / (self.arguments["vocab_filename"] + RECORDS_SUFFIX * self._records)
        size = write_tokens(path, self._lines(), self._records)
        return (Vocabulary(str(path), size, self.arguments["store_frequency"], self._records),)

    @property
    def _records(self) -> bool:
        """Return whether the file holds a record for each token, which may be of any bytes."""
        return self.arguments.get("file_format") == "tfrecord_gzip"

    def _lines(self) -> Iterator[list[bytes]]:
        """Read the file."""
        for tokens, frequencies in self._chosen():
            lines = tokens.to_pylist()
            if self.arguments["store_frequency"]:
                lines = with_frequencies(lines, frequencies, self._records)
            yield lines

    @abstractmethod
    def _ranked(self) -> Iterator[pa.Table]:
        """Return the tokens and their ranks, the first ones first."""

    def _chosen(self) -> Iterator[tuple[pa.LargeBinaryArray, list[Any]]]:
        """The tokens of the file in its order, with their frequencies."""
        reserved = pa.array(
            [token.encode("utf-8", "surrogateescape") for token in self.arguments["reserved_tokens"]], TEXT
        )
        if len(reserved):
            yield reserved, [-1] * len(reserved)
        for table in self._ordered():
            # As in tft: a reserved token counts among the top_k though it is not repeated.
            table = table.filter(pc.invert(pc.is_in(table["token"], value_set=reserved)))
            yield table["token"].combine_chunks(), table["rank"].to_pylist()

    def _ordered(self) -> Iterator[pa.Table]:
        """The tokens that are kept, in the order of the file."""
        covered, shuffled = "key_fn" in self.arguments, self.arguments["fingerprint_shuffle"]
        if not covered and not shuffled:
            yield from self._best()
            return
        table = pa.concat_tables(self._best())
        if covered:
            both = pa.concat_tables([table, self._best_of_each_key()]).group_by("token").aggregate([("rank", "max")])
            table = both.rename_columns(["token", "rank"]).sort_by([("rank", "descending"), ("token", "descending")])
        if shuffled:
            hashes = [hashlib.sha1(token).digest() for token in table["token"].to_pylist()]
            table = table.take(pa.array(sorted(range(len(table)), key=hashes.__getitem__), pa.int64()))
        yield table

    def _best(self) -> Iterator[pa.Table]:
        """The tokens that rank first among all."""
        left = self.arguments["top_k"]
        for table in self._at_least(self.arguments["frequency_threshold"]):
            table = table if left is None else table.slice(0, left)
            left = None if left is None else left - len(table)
            yield table

    def _best_of_each_key(self) -> pa.Table:
        """The tokens that rank first among those of their key."""
        name, most = self.arguments["key_fn"], self.arguments["coverage_top_k"]
        key_of, taken, parts = imported(name), Counter[Any](), []
        for table in self._at_least(self.arguments["coverage_frequency_threshold"]):
            chosen = []
            for place, token in enumerate(decoded(table["token"].combine_chunks(), "utf-8")):
                try:
                    key = key_of(token)
                    taken[key] += 1
                except Exception as error:
                    error.add_note(f"in key_fn={name} of the preprocessing function, for the token {token!r}")
                    raise
                if most is None or taken[key] <= most:
                    chosen.append(place)
            parts.append(table.take(pa.array(chosen, pa.int64())))
        return pa.concat_tables(parts)

    def _at_least(self, threshold: float | None) -> Iterator[pa.Table]:
        """The tokens that a file can hold and that rank so high, the first ones first."""
        for table in self._ranked():
            if not self._records:
                table = table.filter(pc.match_substring_regex(table["token"], pattern=_NEITHER_EMPTY_NOR_LINES))
            yield table if threshold is None else table.filter(pc.greater_equal(table["rank"], threshold))


class LearnVocabulary(VocabularyLearner, call="vocabulary"):
    """The tokens, the most frequent first."""

    def add(self, column: Any, weights: Any = None) -> None:
        values = flat(column)
        self.dtype = self.dtype or ("text" if is_text(values) else values.dtype.str)
        heavy = None
        if weights is not None:
            heavy = weights_of("vocabulary", spread("vocabulary", column, weights)[1])
        self.accumulator.add(texts_of(values), heavy)

    def _ranked(self) -> Iterator[pa.Table]:
        weighted = self.arguments["weighted"]
        for table in self.accumulator.by_frequency(weighted):
            yield table.select(["token", "weight" if weighted else "count"]).rename_columns(["token", "rank"])


class LearnInformativeVocabulary(VocabularyLearner, call="informative_vocabulary"):
    """The tokens that say most about the labels of their rows.

    Counted are labels and tokens together, as "label token"; tokens alone, as " token"; labels alone, as "label "; and
    rows, as " ".
    """

    def add(self, column: Any, labels: Any, weights: Any = None) -> None:
        tokens, owners, marks, bearers, heavy = _related(column, labels, weights)
        filled = pc.greater(pc.binary_length(tokens), 0).to_numpy(zero_copy_only=False)
        tokens, owners = tokens.filter(pa.array(filled)), owners[filled]
        # Each token with each label of its row: the labels of a row follow each other.
        counts = np.bincount(bearers, minlength=len(heavy))
        each, starts = counts[owners], np.cumsum(counts) - counts
        places = np.repeat(np.arange(len(owners)), each)
        chosen = np.repeat(starts[owners] - (np.cumsum(each) - each), each) + np.arange(len(places))
        self.accumulator.add(_pairs(marks.take(pa.array(chosen)), tokens.take(pa.array(places))), heavy[owners[places]])
        self.accumulator.add(_pairs(_nothing(len(tokens)), tokens), heavy[owners])
        self.accumulator.add(_pairs(marks, _nothing(len(marks))), heavy[bearers])
        self.accumulator.add(_pairs(_nothing(len(heavy)), _nothing(len(heavy))), heavy)

    def _ranked(self) -> Iterator[pa.Table]:
        table = pa.concat_tables(self.accumulator.tables())
        pairs = [pair.split(b" ", 1) for pair in table["token"].to_pylist()]
        rows, columns = (
            {name: place for place, name in enumerate(sorted({b"", *names}))}
            for names in ((token for _, token in pairs), (label for label, _ in pairs))
        )
        together = np.zeros((len(rows), len(columns)))
        places = [(rows[token], columns[label]) for label, token in pairs]
        if places:
            together[tuple(np.array(places).T)] = table["weight"].to_numpy()
        arguments = self.arguments
        found = mutual_information(together, arguments["min_diff_from_avg"], arguments["use_adjusted_mutual_info"])
        ranked = pa.table({"token": pa.array([*rows][1:], TEXT), "rank": found})
        yield ranked.sort_by([("rank", "descending"), ("token", "descending")])


def _related(column: Any, labels: Any, weights: Any) -> tuple[Any, Integers, Any, Integers, Array]:
    """Tokens, the row of each, labels, the row of each, and the weight of each row."""
    marks = flat(labels)
    if not isinstance(labels, Ragged) and not is_text(labels) and labels.ndim > 1:
        raise InvalidTypeError(f"vocabulary(labels=...) takes an integer for each row, got shape {labels.shape[1:]}")
    if is_text(marks) or marks.dtype.kind not in "iu":
        kind = "strings" if is_text(marks) else marks.dtype
        raise InvalidTypeError(f"vocabulary(labels=...) takes integers, got {kind}: look them up in a vocabulary first")
    of_rows = as_ragged(labels)
    rows = len(of_rows.lengths)
    heavy = np.ones(rows) if weights is None else weights_of("vocabulary", weights)
    if len(heavy) != rows:
        raise ElementError(f"vocabulary: expected a weight for each of {rows} rows, got {len(heavy)}")
    return texts_of(column), as_ragged(column).rows, texts_of(marks), of_rows.rows, heavy


def _nothing(count: int) -> pa.LargeBinaryArray:
    return pa.repeat(pa.scalar(b"", TEXT), count)


def _pairs(labels: pa.LargeBinaryArray, tokens: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    return pc.binary_join_element_wise(labels, tokens, pa.scalar(b" ", TEXT))
