"""What is learned of tokens: vocabularies, and counts of keys."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.accumulators.counts import Counts
from penstock.errors import ElementError, InvalidTypeError
from penstock.transform.columns import flat, is_text, texts_of
from penstock.transform.information import mutual_information
from penstock.transform.learners import Learner
from penstock.transform.operations import aligned
from penstock.transform.vocabularies import Vocabulary

_NEITHER_EMPTY_NOR_LINES = r"^[^\n\r]+$"


class LearnCountPerKey(Learner):
    """The distinct keys in order, and how often each occurs."""

    accumulator: Counts

    def empty(self) -> Counts:
        return Counts()

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


class VocabularyLearner(Learner):
    """Tokens in a file, ranked by what is counted of them."""

    accumulator: Counts

    def empty(self) -> Counts:
        return Counts()

    def result(self, assets: Path) -> tuple[Any, ...]:
        name, with_frequency = self.arguments["vocab_filename"], self.arguments["store_frequency"]
        path = assets / name
        size = 0
        with open(path, "wb") as file:
            for tokens, frequencies in self._chosen():
                lines = tokens.to_pylist()
                if with_frequency:
                    lines = [b"%s %s" % (str(f).encode(), token) for token, f in zip(lines, frequencies, strict=True)]
                file.write(b"".join(line + b"\n" for line in lines))
                size += len(lines)
        return (Vocabulary(str(path), size, with_frequency),)

    @abstractmethod
    def _ranked(self) -> Iterator[pa.Table]:
        """The tokens, and by what they are ranked, the first ones first."""

    def _chosen(self) -> Iterator[tuple[pa.LargeBinaryArray, list[Any]]]:
        """The tokens of the file in its order, with their frequencies."""
        reserved = [token.encode() for token in self.arguments["reserved_tokens"]]
        if reserved:
            yield pa.array(reserved, pa.large_binary()), [-1] * len(reserved)
        left = self.arguments["top_k"]
        parts = []
        for table in self._ranked():
            table = table.filter(pc.match_substring_regex(table["token"], pattern=_NEITHER_EMPTY_NOR_LINES))
            if self.arguments["frequency_threshold"] is not None:
                table = table.filter(pc.greater_equal(table["rank"], self.arguments["frequency_threshold"]))
            if reserved:
                table = table.filter(
                    pc.invert(pc.is_in(table["token"], value_set=pa.array(reserved, pa.large_binary())))
                )
            table = table if left is None else table.slice(0, left)
            left = None if left is None else left - len(table)
            if self.arguments["fingerprint_shuffle"]:
                parts.append(table)
            else:
                yield table["token"].combine_chunks(), table["rank"].to_pylist()
        if parts:
            table = pa.concat_tables(parts)
            order = sorted(
                range(len(table)), key=[hashlib.sha1(t).digest() for t in table["token"].to_pylist()].__getitem__
            )
            table = table.take(pa.array(order, pa.int64()))
            yield table["token"].combine_chunks(), table["rank"].to_pylist()


class LearnVocabulary(VocabularyLearner):
    """The tokens, the most frequent first."""

    def add(self, column: Any, weights: Any = None) -> None:
        values = flat(column)
        self.dtype = self.dtype or ("text" if is_text(values) else values.dtype.str)
        heavy = None
        if weights is not None:
            _, (_, given) = aligned("vocabulary", column, weights)
            heavy = np.asarray(flat(given), np.float64)
            if len(heavy) != len(flat(column)):
                raise ElementError(f"vocabulary: expected a weight for each of {len(values)} tokens, got {len(heavy)}")
        self.accumulator.add(texts_of(values), heavy)

    def _ranked(self) -> Iterator[pa.Table]:
        weighted = self.arguments["weighted"]
        for table in self.accumulator.by_frequency(weighted):
            yield table.select(["token", "weight" if weighted else "count"]).rename_columns(["token", "rank"])


class LearnInformativeVocabulary(VocabularyLearner):
    """The tokens that say most about the labels of their rows.

    Counted are labels and tokens together, as "label token", and labels of rows alone, as "label ".
    """

    def add(self, column: Any, labels: Any, weights: Any = None) -> None:
        marks = np.asarray(labels)
        if marks.dtype.kind not in "iu" or marks.ndim != 1:
            raise InvalidTypeError(f"vocabulary(labels=...) takes an integer for each row, got {marks.dtype}")
        heavy = np.ones(len(marks)) if weights is None else np.asarray(weights, np.float64).reshape(len(marks))
        _, (tokens, owners, light) = aligned("vocabulary", column, marks, heavy)
        names = texts_of(tokens)
        filled = pc.greater(pc.binary_length(names), 0)
        pairs = pc.binary_join_element_wise(texts_of(owners), names, pa.scalar(b" ", pa.large_binary()))
        self.accumulator.add(pairs.filter(filled), light[filled.to_numpy(zero_copy_only=False)])
        nothing = pa.scalar(b"", pa.large_binary())
        alone = pc.binary_join_element_wise(texts_of(marks), nothing, pa.scalar(b" ", pa.large_binary()))
        self.accumulator.add(alone, heavy)

    def _ranked(self) -> Iterator[pa.Table]:
        table = pa.concat_tables(self.accumulator.tables())
        pairs = [pair.split(b" ", 1) for pair in table["token"].to_pylist()]
        weights = table["weight"].to_numpy()
        labels = sorted({label for label, _ in pairs})
        tokens = sorted({token for _, token in pairs if token})
        rows, columns = ({name: place for place, name in enumerate(names)} for names in ([b"", *tokens], labels))
        together = np.zeros((len(rows), len(columns)))
        places = [(rows[token], columns[label]) for label, token in pairs]
        if places:
            together[tuple(np.array(places).T)] = weights
        arguments = self.arguments
        found = mutual_information(
            together[1:], together[0], arguments["min_diff_from_avg"], arguments["use_adjusted_mutual_info"]
        )
        ranked = pa.table({"token": pa.array(tokens, pa.large_binary()), "rank": found})
        yield ranked.sort_by([("rank", "descending"), ("token", "descending")])
