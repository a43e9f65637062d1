"""`tf.train.Example` records, parsed without TensorFlow, many at a time.

An Example is a message of protocol buffers: a map from names to features, each a list of bytes, of floats or of int64.
All records of a call are walked together: what one step reads of every record, NumPy reads at once.

    Example  { 1: Features }     Features { 1: entry, repeated }     entry { 1: name, 2: Feature }
    Feature  { 1: BytesList | 2: FloatList | 3: Int64List }          each list { 1: value, repeated }
"""

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError
from penstock.formats.records.example_layout import FeatureKind, columns_of_one_layout, features_of_one
from penstock.formats.records.ragged_feature import RaggedFeature
from penstock.spec import LeafSpec, TensorSpec

Integers = npt.NDArray[np.int64]
Column = npt.NDArray[Any]

FIRST: Final = 0x0A  # the tag of field 1 with a length
_SECOND: Final = 0x12
_FLOAT: Final = 0x0D  # of a float by itself, as older writers have it
_NUMBER: Final = 0x08  # of an integer by itself
_LISTS: Final = {0x0A: "bytes", 0x12: "floats", 0x1A: "int64 numbers"}
_VARINT_BYTES: Final = 10


def parse_example(
    records: bytes | Sequence[bytes] | Column,
    features: Mapping[str, LeafSpec | RaggedFeature],
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    r"""The features of `tf.train.Example` records, as TensorFlow's `tf.io.parse_example`, without TensorFlow.

    A batch is parsed at once, in less time than its records one by one. Features that are not named are passed over.

    Args:
        records: one record, or a batch of them: elements of `ps.TFRecordDataset`, with or without `batch`.
        features: the form of each feature. For a `ps.TensorSpec` without None in its shape each record must have its
            number of values; with None in front, any number that fits. Floats, integers (and bools) or `object`, for
            bytes. A `ps.tfrecord.RaggedFeature` is divided into rows by other features.
        defaults: of features of fixed shape, the values for records that do not have one, which is an error without
            them. Features of any length are then empty.

    Returns:
        A dictionary of arrays. Of a batch each has a leading axis of records; features of any length are object arrays
        with one array for each record.

    Raises:
        ElementError: a record is damaged, or has a feature of another type or length, or lacks one.
        InvalidArgumentError, InvalidTypeError: features that cannot be, or records that are not bytes.

    Example:
        >>> import numpy as np
        >>> import penstock as ps
        >>> record = b"\n\x12\n\x10\n\x01i\x12\x0b\x1a\t\n\x07\x03\x04\x05\x06\x07\x08\t"
        >>> parse_example(record, {"i": ps.TensorSpec((7,), np.int64)})
        {'i': array([3, 4, 5, 6, 7, 8, 9])}
        >>> batch = parse_example([record, record], {"i": ps.TensorSpec((None,), np.int64)})
        >>> batch["i"][1]
        array([3, 4, 5, 6, 7, 8, 9])
    """
    wanted, kinds = asked_of("parse_example", features, defaults or {})
    given = [records] if isinstance(records, bytes) else list(records)
    if kinds is not None and set(map(type, given)) == {bytes}:
        alike = (
            features_of_one(records, kinds, wanted.defaults)
            if isinstance(records, bytes)
            else columns_of_one_layout(given, kinds)
        )
        if alike is not None:
            return alike
    batch = RecordBytes(given)
    columns = wanted.columns(batch, batch.features(wanted.keys))
    return first_rows(columns) if isinstance(records, bytes) else columns


def asked_of(call: str, features: Mapping[str, LeafSpec | RaggedFeature], defaults: Mapping[str, Any]) -> "_Asked":
    """The features that a call asks for, and the kind of each if none is made of another one.

    It is kept for the next calls: of one record, working it out takes as long as parsing.

    Raises:
        InvalidArgumentError, InvalidTypeError: they cannot be.
    """
    given = *features, *features.values(), *defaults, *defaults.values()
    for known, asked in _kept:
        if len(known) == len(given) and all(map(operator.is_, known, given)):
            return asked
    wanted = Wanted.of(call, features, defaults)
    kinds = {name: kind for name, ((key, kind), ragged) in wanted.results.items() if key == name and not ragged}
    plain = len(kinds) == len(wanted.results) == len(wanted.stored) == len(wanted.keys)
    asked = wanted, kinds if plain else None
    _kept[:] = [(given, asked), *_kept[:1]]
    return asked


_Asked = tuple["Wanted", dict[str, FeatureKind] | None]
_kept: Final[list[tuple[tuple[Any, ...], _Asked]]] = []
"""The names and specifications of the last two calls, and the results of `asked_of` for them."""


def first_rows(columns: Mapping[str, Column]) -> dict[str, Any]:
    """The result of a call for one record."""
    return {name: column[0] for name, column in columns.items()}


@dataclass(frozen=True)
class Wanted:
    """The features that a call asks for.

    Attributes:
        stored: the features in the records, each with its kind.
        results: by the names in the result: the feature that it is made of, and its division into rows.
        defaults: the values of features that a record does not have.
    """

    stored: set["_Stored"]
    results: dict[str, tuple["_Stored", RaggedFeature | None]]
    defaults: Mapping[str, Any]

    @staticmethod
    def of(call: str, features: Mapping[str, Any], defaults: Mapping[str, Any]) -> "Wanted":
        """The features that arguments ask for.

        Raises:
            InvalidArgumentError, InvalidTypeError: they cannot be.
        """
        results: dict[str, tuple[_Stored, RaggedFeature | None]] = {}
        for name, feature in features.items():
            if isinstance(feature, RaggedFeature):
                kind = _kind_of(call, name, TensorSpec((None,), feature.dtype))
                results[name] = (feature.value_key or name, kind), feature
            else:
                results[name] = (name, _kind_of(call, name, feature)), None
        if defaults:
            fixed = {name for name, ((_, kind), _) in results.items() if kind.count is not None}
            unknown = sorted(set(defaults) - fixed)
            if unknown:
                raise InvalidArgumentError(f"{call}(defaults=...) takes features of fixed shape, got {unknown[0]!r}")
        return Wanted(_stored_in(results), results, defaults)

    @property
    def keys(self) -> set[str]:
        """The names of the features in the records."""
        return {key for key, _ in self.stored}

    def only(self, name: str) -> "Wanted":
        """One feature of the result."""
        results = {name: self.results[name]}
        return Wanted(_stored_in(results), results, self.defaults)

    def columns(self, batch: "RecordBytes", found: Mapping[str, tuple[Integers, Integers]]) -> dict[str, Column]:
        """The columns of the features of the result, given the bounds of those in the records."""
        read = {(key, kind): _column(batch, key, kind, *found[key], self.defaults) for key, kind in self.stored}
        return {
            name: read[feature] if ragged is None else _divided(batch, name, ragged, read, read[feature])
            for name, (feature, ragged) in self.results.items()
        }


def _divided(
    batch: "RecordBytes", name: str, ragged: RaggedFeature, read: Mapping["_Stored", Column], values: Column
) -> Column:
    """A ragged feature of all records."""
    numbers = [None if key is None else read[key, _NUMBERS] for key in ragged.keys]
    nothing = np.empty(0, np.int64)
    column = np.empty(len(values), object)
    for row, of_record in enumerate(values):
        try:
            column[row] = ragged.divided(of_record, [nothing if each is None else each[row] for each in numbers])
        except ElementError as error:
            raise ElementError(f"{batch.where(row)}: feature {name!r}: {error}") from error
    return column


def _kind_of(call: str, name: str, spec: Any) -> FeatureKind:
    if not isinstance(spec, LeafSpec):
        raise InvalidTypeError(f"{call}(features=...) takes a ps.TensorSpec for {name!r}, got {spec!r:.200}")
    tag = {"O": 0x0A, "f": 0x12, "i": 0x1A, "u": 0x1A, "b": 0x1A}.get(spec.dtype.kind)
    lengths = [length for length in spec.shape if length is not None]
    varies = len(lengths) < len(spec.shape)
    if tag is None or (varies and (spec.shape[0] is not None or len(lengths) != len(spec.shape) - 1)):
        raise InvalidArgumentError(
            f"{call} takes floats, integers, or objects (for bytes), and None in front alone, got {spec} for {name!r}"
        )
    return FeatureKind(tag, None if varies else math.prod(lengths), tuple(lengths), spec.dtype)


_NUMBERS: Final = FeatureKind(0x1A, None, (), np.dtype(np.int64))
"""The kind of the features that divide others into rows."""
_Stored = tuple[str, FeatureKind]


def _stored_in(results: Mapping[str, tuple[_Stored, RaggedFeature | None]]) -> set[_Stored]:
    """All features in the records that parts of the result are made of."""
    stored = {feature for feature, _ in results.values()}
    for _, ragged in results.values():
        if ragged is not None:
            stored.update((key, _NUMBERS) for key in ragged.keys if key is not None)
    return stored


class RecordBytes:
    """The bytes of records, one after the other, with zeros behind them."""

    def __init__(self, records: list[Any]) -> None:
        if not all(issubclass(kind, bytes) for kind in set(map(type, records))):
            wrong = next(record for record in records if not isinstance(record, bytes))
            raise InvalidTypeError(f"parse_example takes records of bytes, got {type(wrong).__name__}: {wrong!r:.100}")
        self.bytes = b"".join(records)
        # Reading a number may run beyond the end, but not out of it.
        self.content = np.frombuffer(self.bytes + bytes(2 * _VARINT_BYTES), np.uint8)
        self.ends = np.cumsum(np.fromiter(map(len, records), np.int64, len(records)))
        self.begins = np.append(0, self.ends[:-1]) if len(records) else self.ends

    def features(self, names: Collection[str]) -> dict[str, tuple[Integers, Integers]]:
        """The bounds of the named feature of each record; both are 0 where there is none."""
        rows = np.flatnonzero(self.ends > self.begins)
        at, ends = self.message(rows, self.begins[rows], self.ends[rows], FIRST)
        self.check(ends == self.ends[rows], rows, "it is no tf.train.Example")
        return self.entries(names, rows, at, ends)

    def entries(
        self, names: Collection[str], rows: Integers, at: Integers, ends: Integers
    ) -> dict[str, tuple[Integers, Integers]]:
        """`features` of maps from names to messages that begin and end at these offsets of these records."""
        count = len(self.ends)
        found = {name: (np.zeros(count, np.int64), np.zeros(count, np.int64)) for name in names}
        encoded = {name.encode(): edges for name, edges in found.items()}
        while len(rows):
            left = at < ends
            if not left.all():
                rows, at, ends = rows[left], at[left], ends[left]
            entry, stop = self.message(rows, at, ends, FIRST)
            name, name_end = self.message(rows, entry, stop, FIRST)
            value, value_end = stop.copy(), stop.copy()
            full = np.flatnonzero(name_end < stop)
            value[full], value_end[full] = self.message(rows[full], name_end[full], stop[full], _SECOND)
            self.check(value_end == stop, rows, "it is damaged")
            for text, same in self._equal(name, name_end - name):
                if text in encoded:
                    begins, stops = encoded[text]
                    begins[rows[same]], stops[rows[same]] = value[same], value_end[same]
            at = stop
        return found

    def message(self, rows: Integers, at: Integers, limits: Integers, tag: int) -> tuple[Integers, Integers]:
        """The bounds of the contents of a field that begins at these offsets."""
        self.check(self.content[at] == tag, rows, "it is no tf.train.Example, or damaged")
        lengths, begins = self._numbers(rows, at + 1)
        ends = begins + lengths
        self.check((lengths >= 0) & (begins <= ends) & (ends <= limits), rows, "it is damaged, or cut")
        return begins, ends

    def repeated(self, rows: Integers, at: Integers, ends: Integers) -> tuple[Integers, Integers, Integers]:
        """The first fields, one after the other, between these offsets of records.

        Returns for each, in the order of the records, the number of its record and the bounds of its contents.
        """
        found: list[tuple[Integers, Integers, Integers]] = []
        while (left := at < ends).any():
            rows, at, ends = rows[left], at[left], ends[left]
            begin, end = self.message(rows, at, ends, FIRST)
            found.append((rows, begin, end))
            at = end
        of, starts, stops = map(np.concatenate, zip(*found)) if found else np.zeros((3, 0), np.int64)
        order = np.argsort(of, kind="stable")
        return of[order], starts[order], stops[order]

    def _numbers(self, rows: Integers, at: Integers) -> tuple[Integers, Integers]:
        """The variable-length numbers at these offsets, and where they end."""
        values = self.content[at].astype(np.int64)
        ends = at + 1
        going = np.flatnonzero(values >= 0x80)
        if not len(going):  # nearly always
            return values, ends
        values &= 0x7F
        for byte in range(1, _VARINT_BYTES):
            if not len(going):
                break
            more = self.content[np.minimum(at[going] + byte, len(self.content) - 1)].astype(np.int64)
            values[going] |= (more & 0x7F) << (7 * byte)
            ends[going] += 1
            going = going[more >= 0x80]
        self.check(~np.isin(np.arange(len(at)), going), rows, "it is damaged")
        return values, ends

    def _equal(self, begins: Integers, lengths: Integers) -> list[tuple[bytes, Integers]]:
        """The different texts at these offsets, and the rows of each."""
        found = []
        left = np.arange(len(begins))
        while len(left):
            begin, length = int(begins[left[0]]), int(lengths[left[0]])
            text = self.bytes[begin : begin + length]
            same = lengths[left] == length
            if length:
                alike = left[same]
                same[same] = self.windows(begins[alike], length) == np.void(text)
            found.append((text, left[same]))
            left = left[~same]
        return found

    def windows(self, begins: Integers, length: int) -> Column:
        """`length` bytes from each of these offsets on, as one value each."""
        shape = (len(self.content) - length + 1,)
        return np.ndarray(shape, f"V{length}", self.content, strides=(1,))[begins]

    def ranges(self, begins: Integers, lengths: Integers) -> npt.NDArray[np.uint8]:
        """The bytes of several ranges, one after the other."""
        if len(begins) and lengths[0] and (lengths == lengths[0]).all():
            return self.windows(begins, int(lengths[0])).view(np.uint8)
        starts = np.cumsum(lengths) - lengths
        return self.content[np.repeat(begins - starts, lengths) + np.arange(int(lengths.sum()))]

    def check(self, good: npt.NDArray[np.bool_], rows: Integers, problem: str) -> None:
        """Refuse the first of these records that is not good."""
        if not good.all():
            raise ElementError(f"{self.where(int(rows[np.argmin(good)]))}: {problem}")

    def where(self, row: int) -> str:
        """The place of a record, for errors."""
        return f"parse_example: record {row}"


def _column(
    batch: RecordBytes, name: str, kind: FeatureKind, begins: Integers, ends: Integers, defaults: Mapping[str, Any]
) -> Column:
    """A feature of all records."""
    rows = np.flatnonzero(ends > begins)
    at, limits = begins[rows], ends[rows]
    tags = batch.content[at]
    if (wrong := tags != kind.tag).any():
        held = _LISTS.get(int(tags[np.argmax(wrong)]), "something else")
        batch.check(~wrong, rows, f"feature {name!r} holds {held}, expected {_LISTS[kind.tag]}")
    inner, stops = batch.message(rows, at, limits, kind.tag)
    batch.check(stops == limits, rows, f"feature {name!r} is damaged")
    read = {0x0A: _bytes, 0x12: _floats, 0x1A: _integers}[kind.tag]
    values, counts = read(batch, name, rows, inner, stops)
    cast = values.astype(kind.dtype, copy=False)
    if kind.tag == 0x1A and cast is not values and (cast != values).any():
        worst = values[np.argmax(cast != values)]
        raise ElementError(f"parse_example: feature {name!r} has the value {worst}, which is no {kind.dtype}")
    if kind.count is None:
        return _of_any_length(batch, name, kind, rows, cast, counts)
    if (wrong := counts != kind.count).any():
        found = int(counts[np.argmax(wrong)])
        batch.check(~wrong, rows, f"feature {name!r} has {found} values, expected {kind.count}")
    shaped = cast.reshape(len(rows), *kind.shape)
    if len(rows) == len(begins):
        return shaped
    if name not in defaults:
        batch.check(
            ends > begins, np.arange(len(begins)), f"there is no feature {name!r}: give parse_example(defaults=...)"
        )
    column = np.empty((len(begins), *kind.shape), kind.dtype)
    column[:] = defaults[name]
    column[rows] = shaped
    return column


def _of_any_length(
    batch: RecordBytes, name: str, kind: FeatureKind, rows: Integers, values: Column, counts: Integers
) -> Column:
    """An object array with the values of each record."""
    size = math.prod(kind.shape)
    batch.check(
        counts % max(size, 1) == 0, rows, f"the values of feature {name!r} do not fill rows of shape {kind.shape}"
    )
    lengths = np.zeros(len(batch.ends), np.int64)
    lengths[rows] = counts
    stops = np.cumsum(lengths)
    column = np.empty(len(lengths), object)
    for record, (start, stop) in enumerate(zip((stops - lengths).tolist(), stops.tolist())):
        column[record] = values[start:stop].reshape(-1, *kind.shape)
    return column


def _bytes(batch: RecordBytes, name: str, rows: Integers, at: Integers, ends: Integers) -> tuple[Column, Integers]:
    """The values of lists of bytes, record by record, and how many each has."""
    of, starts, stops = batch.repeated(rows, at, ends)
    edges = zip(starts.tolist(), stops.tolist(), strict=True)
    values = np.fromiter((batch.bytes[start:stop] for start, stop in edges), object, len(of))
    return values, np.bincount(of, minlength=len(batch.ends))[rows]


def _floats(batch: RecordBytes, name: str, rows: Integers, at: Integers, ends: Integers) -> tuple[Column, Integers]:
    data, lengths, single = _packed(batch, name, rows, at, ends, _FLOAT)
    size = 5 if single else 4
    batch.check(lengths % size == 0, rows, f"feature {name!r} is damaged")
    by_value = data.reshape(-1, size)
    if single:
        batch.check(np.full(len(rows), bool((by_value[:, 0] == _FLOAT).all())), rows, f"feature {name!r} is damaged")
        by_value = np.ascontiguousarray(by_value[:, 1:])
    return by_value.reshape(-1).view("<f4"), lengths // size


def _integers(batch: RecordBytes, name: str, rows: Integers, at: Integers, ends: Integers) -> tuple[Column, Integers]:
    data, lengths, single = _packed(batch, name, rows, at, ends, _NUMBER)
    last = np.flatnonzero(data < 0x80)
    sizes = np.diff(last, prepend=-1)
    edges = np.cumsum(lengths)
    per_row = np.diff(np.searchsorted(last, edges, side="left"), prepend=0)
    ended = (lengths == 0) | (data[np.maximum(edges, 1) - 1] < 0x80) if len(data) else np.ones(len(rows), bool)
    batch.check(ended, rows, f"feature {name!r} is damaged")
    if len(sizes) and sizes.max() > _VARINT_BYTES:
        raise ElementError(f"parse_example: feature {name!r} has a number of more than {_VARINT_BYTES} bytes")
    begins = last - sizes + 1
    values = (data[begins] & 0x7F).astype(np.uint64)
    for byte in range(1, int(sizes.max(initial=1))):
        longer = np.flatnonzero(sizes > byte)
        values[longer] |= (data[begins[longer] + byte] & 0x7F).astype(np.uint64) << np.uint64(7 * byte)
    numbers = values.view(np.int64)
    if not single:
        return numbers, per_row
    batch.check(np.full(len(rows), bool((numbers[::2] == _NUMBER).all())), rows, f"feature {name!r} is damaged")
    return numbers[1::2], per_row // 2


def _packed(
    batch: RecordBytes, name: str, rows: Integers, at: Integers, ends: Integers, single: int
) -> tuple[npt.NDArray[np.uint8], Integers, bool]:
    """The bytes of lists of numbers, their number in each record, and True if each number has a separate tag."""
    full = at < ends
    alone = full & (batch.content[at] == single)
    if alone.any():
        batch.check(alone == full, rows, f"feature {name!r} is written in another way than in the records before it")
        return batch.ranges(at, ends - at), ends - at, True
    begins, stops = at.copy(), at.copy()
    begins[full], stops[full] = batch.message(rows[full], at[full], ends[full], FIRST)
    batch.check((stops == ends) | ~full, rows, f"feature {name!r} is damaged")
    return batch.ranges(begins, stops - begins), stops - begins, False
