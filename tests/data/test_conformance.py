"""Every operator passes one suite by being listed here: over an index, over a stream, and over nothing at all."""

import atexit
import functools
import gzip
import itertools
import os
import shutil
import tempfile
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import penstock as ps
from penstock.testing import assert_same_elements, check_conformance
from penstock.testing.conformance import _frozen


def numbers(count: int = 12) -> ps.Dataset:
    return ps.Dataset.range(count)


def streamed(count: int = 12) -> ps.Dataset:
    """The same numbers as a stream."""
    return ps.Dataset.range(count).filter(lambda x: True)


def generated(count: int = 12) -> ps.Dataset:
    return ps.Dataset.from_generator(lambda: iter(range(count)))


def ragged(dataset: ps.Dataset) -> ps.Dataset:
    return dataset.map(lambda x: np.arange(int(x) % 4))


def mixed(x):
    return {"image": np.full((2, 3), x, np.float32), "name": f"row {x}", "pair": (x, float(x))}


def with_lengths(dataset: ps.Dataset) -> ps.Dataset:
    """Rows by index, with lengths; never none."""
    rows = (dataset if dataset.node.indexable else numbers()).concatenate(numbers(1))
    return rows.with_lengths(np.arange(len(rows)) % 4)


def mixture(own: ps.Dataset, other: ps.Dataset, weights=None, **given) -> ps.Dataset:
    """A mixture of two sources, neither of which is empty: it refuses those."""
    return ps.Dataset.mix({"own": own.concatenate(numbers(1)), "other": other}, weights, seed=1, **given)


class OnDisk:
    """An array as those of HDF5 and zarr, of which only slices can be read."""

    def __init__(self, values):
        self._values, self.shape, self.dtype, self.chunks = values, values.shape, values.dtype, (7, *values.shape[1:])

    def __len__(self):
        return len(self._values)

    def __getitem__(self, rows):
        assert isinstance(rows, slice)
        return self._values[rows].copy()


def document(x):
    return np.arange(int(x) % 4 + 1)


def pictured(x):
    return {"tokens": np.arange(int(x) % 5 + 1), "name": f"text {x}", "image": np.full((int(x) % 2 + 1, 2), x)}


class EveryThird:
    """A sampler of every third position, that begins anew in every epoch."""

    def __init__(self):
        self.at = self.start = 0

    def __iter__(self):
        self.at, self.start = self.start, 0
        while self.at < 20:
            self.at += 3
            yield self.at - 3

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = self.start = state["at"]


def noisy(x, randomness):
    return x + randomness.integers(0, 1000)


def totals() -> ps.Reducer:
    return ps.Reducer(lambda key: (key, 0), lambda state, x: (state[0], state[1] + x), lambda key, total: (total, key))


@functools.cache
def files() -> Path:
    """A directory of small files, one of each kind empty."""
    made = Path(tempfile.mkdtemp(prefix="pytest-files-"))
    atexit.register(shutil.rmtree, made)
    for name, count in {"a": 3, "b": 0, "c": 5, "d": 1}.items():
        lines = "".join(f"{name} {number}\n" for number in range(count)).encode()
        (made / f"{name}.txt").write_bytes(lines)
        (made / f"{name}.txt.gz").write_bytes(gzip.compress(lines))
        for compression in ("", "GZIP", "ZLIB"):
            with ps.TFRecordWriter(made / f"{name}.tfrecord{compression}", compression) as writer:
                for line in lines.splitlines():
                    writer.write(line)
    return made


@functools.cache
def folder() -> Path:
    """A directory with images and texts of two classes."""
    made = Path(tempfile.mkdtemp(prefix="pytest-folder-"))
    atexit.register(shutil.rmtree, made)
    for number in range(9):
        (made / "ab"[number % 2]).mkdir(exist_ok=True)
        Image.fromarray(np.full((5, 6), number, np.uint8)).save(made / "ab"[number % 2] / f"{number}.png")
        (made / "ab"[number % 2] / f"{number}.txt").write_text(f"text {number}")
    return made


def new_directory() -> str:
    return tempfile.mkdtemp(prefix="rows-", dir=os.environ["PENSTOCK_CACHE"])


def named(pattern: str, **arguments) -> ps.Dataset:
    return ps.Dataset.list_files(files() / pattern, **arguments)


def rows_of(dataset: ps.Dataset) -> list[tuple]:
    """The rows of an element to be skipped, if there is one; below batches that fail, no row can be told."""
    batched = any(node.rows_per_batch for node in dataset.node.walk())
    return dataset.rows(2) if dataset.cardinality() and not batched else []


def fails_at_two(x):
    if x % 4 == 2:
        raise ZeroDivisionError(f"no {x}")
    return x + 1


OPERATORS = {
    "map": lambda d: d.map(lambda x: x * 2 + 1),
    "map to a structure": lambda d: d.map(mixed),
    "map ragged": ragged,
    "map in threads": lambda d: d.map(mixed, num_parallel_calls=3),
    "map with a signature": lambda d: d.map(lambda x: int(x), output_signature=ps.TensorSpec((), np.float64)),
    "map with randomness": lambda d: d.map(noisy, seed=5),
    "map with randomness in threads": lambda d: d.map(noisy, num_parallel_calls=3, seed=5),
    "filter": lambda d: d.filter(lambda x: x % 3 != 1),
    "flat_map": lambda d: d.flat_map(lambda x: ps.Dataset.range(int(x) % 4)),
    "flat_map of streams": lambda d: d.flat_map(lambda x: generated(int(x) % 4)),
    "flat_map with shuffle": lambda d: d.flat_map(lambda x: ps.Dataset.range(5).shuffle(5)),
    "interleave": lambda d: d.interleave(lambda x: ps.Dataset.range(int(x), int(x) + 3), 3, 2),
    "interleave in threads": lambda d: d.interleave(lambda x: ps.Dataset.range(int(x) % 5), 3, 1, 3),
    "scan with a signature": lambda d: d.scan(0, lambda s, x: (s + x, int(s)), ps.TensorSpec((), np.float32)),
    "scan": lambda d: d.scan((0, np.zeros(2)), lambda s, x: ((s[0] + x, s[1] + 1), s[0] + x)),
    "ignore_errors": lambda d: d.map(fails_at_two).ignore_errors(),
    "ignore_errors in threads": lambda d: (
        d.map(fails_at_two, num_parallel_calls=2).ignore_errors().prefetch(2).filter(fails_at_two).ignore_errors()
    ),
    "take_while": lambda d: d.take_while(lambda x: x < 7),
    "unique": lambda d: d.map(lambda x: x % 5).unique(),
    "rejection_resample": lambda d: d.rejection_resample(lambda x: x % 2, [0.8, 0.2], seed=1),
    "rejection_resample with initial": lambda d: d.rejection_resample(lambda x: x % 2, [0.8, 0.2], [0.5, 0.5], 1),
    "pack": lambda d: d.map(document).pack(7, window=5),
    "pack long documents": lambda d: d.map(document).pack(3, "first_fit", 5, "split", align=3, cu_seqlens=True),
    "pack with carried leaves": lambda d: d.map(pictured).pack(5, window=3, carry=["image"], max_segments=2),
    "pack by cuts": lambda d: d.map(document).pack(3, "concat_split"),
    "batch": lambda d: d.batch(5),
    "batch without remainder": lambda d: d.batch(5, drop_remainder=True),
    "batch in threads": lambda d: d.batch(5, num_parallel_calls=3),
    "batch of large rows in threads": lambda d: (
        d.map(lambda x: np.full(1 << 18, x, np.uint8))
        .cache()
        .shuffle(9, seed=1)
        .batch(5, num_parallel_calls=2)
        .map(lambda rows: rows[:, -1])
    ),
    "batch of batches": lambda d: d.batch(2).batch(4),
    "padded_batch": lambda d: ragged(d).padded_batch(5),
    "padded_batch of a shape": lambda d: ragged(d).padded_batch(5, padded_shapes=(6,), padding_values=-1),
    "ragged_batch": lambda d: ragged(d).ragged_batch(5),
    "batch_by": lambda d: d.batch_by(9, lambda x: x % 5, multiple_of=2),
    "batch_by of padded rows": lambda d: ragged(d).batch_by(7, len, max_rows=4),
    "batch_by known lengths": lambda d: with_lengths(d).batch_by(9, multiple_of=2),
    "balance of batches by size": lambda d: d.batch_by(9, lambda x: x % 5).balance(slices=2),
    "balance of batches by known lengths": lambda d: with_lengths(d).batch_by(9).balance(slices=2),
    "balance": lambda d: d.batch(5).balance(lambda x: x % 4, slices=2),
    "balance in windows": lambda d: ragged(d).padded_batch(3).balance(lambda x: (len(x), 1), slices=3, window=2),
    "unbatch": lambda d: d.batch(5).unbatch(),
    "unbatch ragged": lambda d: ragged(d).ragged_batch(3).unbatch(),
    "rebatch": lambda d: d.batch(5).rebatch(2),
    "rebatch in turns": lambda d: d.batch(5).rebatch([1, 3], drop_remainder=True),
    "window": lambda d: d.window(3, shift=2, stride=2),
    "window apart": lambda d: d.window(2, shift=5, drop_remainder=True),
    "window flattened": lambda d: d.window(3, 1).flat_map(lambda w: w.batch(3, drop_remainder=True)),
    "group_by_window": lambda d: d.group_by_window(lambda x: x % 3, lambda key, w: w.batch(2), window_size=3),
    "group_by_window of rare keys": lambda d: d.group_by_window(
        lambda x: x == 2, lambda key, w: w, window_size_func=lambda key: 4 if key else 3
    ),
    "group_by_window of windows with one element, and with more": lambda d: d.group_by_window(
        lambda x: x // 2, lambda key, w: w if key == 3 else w.take(1), window_size=2
    ),
    "group_by_reducer": lambda d: d.group_by_reducer(lambda x: 2 - x % 3, totals()),
    "assert_cardinality": lambda d: d.assert_cardinality(d.reduce(0, lambda count, _: count + 1)),
    "bucket_by_sequence_length": lambda d: ragged(d).bucket_by_sequence_length(len, [2, 3], [3, 2, 2]),
    "shuffle in a buffer": lambda d: d.shuffle(4, seed=3),
    "shuffle whole": lambda d: d.shuffle(100, seed=3),
    "shuffle exactly": lambda d: d.shuffle(9, seed=3),
    "shuffle unseeded": lambda d: d.shuffle(4),
    "shuffle frozen": lambda d: d.shuffle(4, seed=3, reshuffle_each_iteration=False),
    "shuffle repeated": lambda d: d.shuffle(5, seed=3).repeat(2),
    "repeat shuffled": lambda d: d.repeat(2).shuffle(5, seed=3),
    "shuffle of a shuffle": lambda d: d.shuffle(5, seed=3).shuffle(12, seed=4),
    "shuffle of a map": lambda d: d.map(lambda x: x + 1).shuffle(5, seed=3),
    "repeat": lambda d: d.repeat(3),
    "repeat without end": lambda d: d.repeat(),
    "take": lambda d: d.take(5),
    "take all": lambda d: d.take(-1),
    "skip": lambda d: d.skip(5),
    "skip all": lambda d: d.skip(-1),
    "skip_rows": lambda d: d.skip_rows(rows_of(d), steps=[0, 5]),
    "skip_rows and batch": lambda d: d.skip_rows(rows_of(d)).batch(2),
    "skip_rows masked": lambda d: d.skip_rows(rows_of(d), how="mask"),
    "shard": lambda d: d.shard(3, 1),
    "concatenate": lambda d: d.concatenate(numbers(3)),
    "concatenate streams": lambda d: d.concatenate(streamed(3)),
    "enumerate": lambda d: d.enumerate(10),
    "zip": lambda d: ps.Dataset.zip(d, numbers(9)),
    "zip of streams": lambda d: ps.Dataset.zip({"a": d, "b": (streamed(9), generated(15))}),
    "prefetch": lambda d: d.prefetch(3),
    "prefetch tuned": lambda d: d.map(lambda x: x).prefetch(ps.AUTOTUNE).batch(2),
    "prefetch of nothing": lambda d: d.prefetch(0),
    "cache": lambda d: d.shuffle(5, seed=1).map(mixed).cache(),
    "cache repeated": lambda d: ragged(d).cache().repeat(2),
    "cache in a directory": lambda d: d.map(mixed).cache(new_directory()),
    "cache shuffled": lambda d: d.cache().shuffle(12, seed=2),
    "choose_from_datasets": lambda d: ps.Dataset.choose_from_datasets([d, numbers(9)], numbers().map(lambda x: x % 2)),
    "choose_from_datasets to the end": lambda d: ps.Dataset.choose_from_datasets(
        [d, streamed(2)], streamed(40).map(lambda x: x % 2), stop_on_empty_dataset=False
    ),
    "sample_from_datasets": lambda d: ps.Dataset.sample_from_datasets([d, numbers(9)], [0.7, 0.3], seed=1),
    "sample_from_datasets to the first end": lambda d: ps.Dataset.sample_from_datasets(
        [d, numbers(9)], seed=1, stop_on_empty_dataset=True
    ),
    "mix": lambda d: mixture(d, numbers(9), [0.7, 0.3]),
    "mix to the end": lambda d: mixture(d, streamed(4), stop="all").batch(2),
    "mix repeated": lambda d: mixture(d.shuffle(5), numbers(3), stop="repeat", max_epochs={"other": 2}),
    "mix by tokens": lambda d: ps.Dataset.mix(
        {"own": with_lengths(d), "other": with_lengths(numbers(4))}, [1, 2], unit="tokens", stop="all"
    ),
    "mix in stages": lambda d: mixture(d, numbers(9), [(0, [1, 0]), (4, [0.5, 0.5])], stop="all"),
    "apply": lambda d: d.apply(lambda inner: inner.skip(2).batch(3)),
    "with_options": lambda d: d.shuffle(4).with_options(ps.Options(seed=9)),
    "a whole pipeline": lambda d: (
        d.shuffle(6, seed=1)
        .map(lambda x: {"x": x, "y": np.full(int(x) % 3, x)}, num_parallel_calls=2)
        .repeat(2)
        .padded_batch(5)
        .enumerate()
        .prefetch(2)
    ),
    "a whole stream": lambda d: (
        d.flat_map(lambda x: ps.Dataset.range(int(x) % 3 + 1))
        .map(noisy, num_parallel_calls=2, seed=8)
        .shuffle(7)
        .batch(3)
        .prefetch(2)
        .unbatch()
        .skip(2)
    ),
}

SOURCES = {
    "range": lambda: ps.Dataset.range(3, 20, 4),
    "range backwards": lambda: ps.Dataset.range(9, -3, -4),
    "from_tensors": lambda: ps.Dataset.from_tensors(([1.0], "one", b"\x00", None, True)),
    "from_tensor_slices": lambda: ps.Dataset.from_tensor_slices({"x": np.eye(5), "y": list("abcde")}),
    "from_arrow": lambda: ps.Dataset.from_arrow(pa.table({"x": [1, None, 3], "y": ["a", "b", None]}), mask_nulls=True),
    "from_image_folder": lambda: ps.Dataset.from_image_folder(folder(), (4, 4)),
    "from_text_folder": lambda: ps.Dataset.from_text_folder(folder()),
    "timeseries_windows": lambda: ps.Dataset.timeseries_windows(np.arange(20), np.arange(20), 3, 2),
    "from_source, by row": lambda: ps.Dataset.from_source([mixed(x) for x in range(9)]),
    "from_source, by slices": lambda: ps.Dataset.from_source(OnDisk(np.arange(40).reshape(20, 2))),
    "from_list": lambda: ps.Dataset.from_list([{"x": [1, 2], "y": "a"}, {"x": [3], "y": "bc"}]),
    "from_sampler": lambda: ps.Dataset.from_sampler(EveryThird(), ps.Dataset.range(20).map(mixed)),
    "from_generator": generated,
    "from_arrow_stream": lambda: ps.Dataset.from_arrow_stream(
        lambda: pa.table({"x": range(12), "word": list("abcdefghijkl")}).to_reader(max_chunksize=5)
    ),
    "select": lambda: ps.Dataset.range(20).map(noisy, seed=1).select([4, 19, 0, 4, 4, 7]),
    "pack by index": lambda: ps.Dataset.range(20).map(document).with_lengths().pack(7, window=5),
    "pack by index, with carried leaves": lambda: (
        ps.Dataset.range(12).map(pictured).with_lengths("tokens").pack(4, "first_fit", 5, "split", carry=["image"])
    ),
    "pack by index, by cuts": lambda: ps.Dataset.range(20).map(document).with_lengths().pack(3, "concat_split", 4),
    "with_lengths": lambda: ps.Dataset.range(20).map(noisy, seed=1).with_lengths(range(20)).shuffle(seed=3),
    "select of a shuffle": lambda: ps.Dataset.range(20).shuffle(seed=2).select(slice(15, 2, -3)),
    "sample": lambda: ps.Dataset.range(20).map(noisy, seed=1).sample(np.arange(20), num=14, seed=3),
    "sample without replacement": lambda: ps.Dataset.range(20).sample(np.arange(20), replacement=False),
    "split": lambda: ps.Dataset.range(20).map(mixed).split([0.3, 0.7], seed=2)[1],
    "split by a key": lambda: ps.Dataset.range(20).map(mixed).split([0.3, 0.7], key="name")[1],
    "split of a stream by a key": lambda: streamed(20).split([0.3, 0.7], key=lambda x: x)[1],
    "shuffle in clumps": lambda: ps.FilesDataset(named("*.txt"), "text").shuffle(clump=2, seed=1),
    "list_files": lambda: named("*"),
    "list_files shuffled": lambda: named("*", shuffle=True),
    "TextLineDataset": lambda: ps.TextLineDataset(files() / "c.txt"),
    "TextLineDataset of several": lambda: ps.TextLineDataset(named("*.txt")),
    "TextLineDataset of shuffled names": lambda: ps.TextLineDataset(named("*.txt", shuffle=True)),
    "TextLineDataset of a stream of names": lambda: ps.TextLineDataset(named("*.txt").filter(bool).repeat(2)),
    "TextLineDataset compressed": lambda: ps.TextLineDataset(sorted(files().glob("*.gz")), "GZIP"),
    "TFRecordDataset": lambda: ps.TFRecordDataset(named("*.tfrecord")),
    "TFRecordDataset compressed": lambda: ps.TFRecordDataset(named("*GZIP", shuffle=True, seed=1), "GZIP"),
    "TFRecordDataset compressed otherwise": lambda: ps.TFRecordDataset(named("*ZLIB"), "ZLIB").prefetch(2),
    "TFRecordDataset of ranges": lambda: ps.TFRecordDataset(
        ps.Dataset.zip(named("*.tfrecord"), ps.Dataset.counter(), ps.Dataset.counter(4, -1)).repeat(2)
    ),
    "TFRecordDataset in flat_map": lambda: named("*.tfrecord").flat_map(ps.TFRecordDataset),
    "TextLineDataset in interleave": lambda: named("*.txt", shuffle=True).interleave(ps.TextLineDataset, 2, 2),
    "TFRecordDataset in interleave in threads": lambda: (
        named("*.tfrecord").interleave(ps.TFRecordDataset, 3, 1, 3).shuffle(4).batch(2)
    ),
    "counter": lambda: ps.Dataset.counter(5, -2),
    "random": lambda: ps.Dataset.random(seed=3),
    "random unseeded": lambda: ps.Dataset.random(),
}


def seeded(dataset: ps.Dataset) -> ps.Dataset:
    """What has no seed of its own must be made alike too."""
    return dataset.with_options(ps.Options(seed=77))


BELOW = {"index": numbers, "stream": streamed, "generator": generated}


# Operators of which nine elements become more than 24, or take long: the end of what seven become is reached.
LONGER = (
    "a whole pipeline",
    "a whole stream",
    "choose_from_datasets to the end",
    "flat_map with shuffle",
    "interleave",
    "interleave in threads",
    "repeat",
    "sample_from_datasets",
)


def alternating(names, options):
    """Each operator with one of the options, in turn; with the others in the extended tests."""
    found = []
    for number, name in enumerate(names):
        for place, option in enumerate(options):
            files = name == "cache in a directory"  # each of its many datasets writes some
            marks = [pytest.mark.extended] if (number + place) % len(options) or files else []
            found.append(pytest.param(name, option, id=f"{name}-{option}", marks=marks))
    return found


@pytest.mark.parametrize(
    ("name", "below"), [*((name, "index") for name in OPERATORS), *alternating(OPERATORS, ["stream", "generator"])]
)
def test_operator_conforms(name, below):
    count = 7 if name in LONGER else 9
    elements = check_conformance(lambda: seeded(OPERATORS[name](BELOW[below](count))), limit=25)
    assert len(elements) >= (0 if name == "skip all" else 1)


@pytest.mark.parametrize(("name", "below"), alternating(OPERATORS, list(BELOW)))
def test_operator_conforms_over_nothing(name, below):
    check_conformance(lambda: seeded(OPERATORS[name](BELOW[below](0))), limit=25)


def raising(source, place):
    """The numbers up to 12, at one of which the user's function raises."""

    def function(x):
        if x == place:
            raise ZeroDivisionError(f"no {x}")
        return x

    return source(12).map(function)


def refusing(source, place):
    """The numbers up to 12 out of batches, one of which cannot be made of its rows."""
    rows = source(36).map(lambda x: np.full(3 if x == 3 * place + 1 else 2, x))
    return rows.batch(3).map(lambda rows: rows[0, 0] // 3)


# What an element becomes depends on its number, or on what it stands beside.
BY_PLACE = (
    "shuffle",
    "random",
    "resample",
    "zip",
    "whole",
    "cache",
    "with_options",
    "large rows",
    "skip_rows",
    "mix",
    "known",
)
FAILING = {"raised": raising, "refused": refusing}
SKIPPING = sorted(OPERATORS.keys() - {"assert_cardinality", "repeat without end"})


def skipping(name, failing, place):
    source = (numbers, streamed, generated)[(place + len(name)) % 3]
    return seeded(OPERATORS[name](FAILING[failing](source, place))).with_options(ps.Options(on_error="skip"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "failing"), alternating(SKIPPING, list(FAILING)))
def test_operator_conforms_over_an_element_that_fails(name, failing):
    check_conformance(lambda: skipping(name, failing, len(name) % 8), limit=9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "failing"),
    alternating([name for name in SKIPPING if not any(word in name for word in BY_PLACE)], list(FAILING)),
)
def test_one_element_that_fails_costs_itself_alone_at_every_place(name, failing):
    for place in range(12):
        others = seeded(OPERATORS[name](streamed(12).filter(lambda x, place=place: x != place)))
        with (
            iter(skipping(name, failing, place)) as found,
            iter(others.with_options(ps.Options(on_error="skip"))) as expected,
        ):
            both = ([_frozen(element) for element in elements] for elements in (found, expected))
            assert_same_elements(*both, f"without element {place}")
            assert found.errors.count - expected.errors.count <= (3 if "repeat" in name else 1)


@pytest.mark.parametrize("name", SOURCES)
def test_source_conforms(name):
    assert check_conformance(lambda: seeded(SOURCES[name]()), limit=12)


@pytest.mark.parametrize("name", OPERATORS)
def test_streams_give_what_indices_give(name):
    over_index, over_stream = (
        itertools.islice(seeded(OPERATORS[name](source())), 40) for source in (numbers, streamed)
    )
    if "window" not in name:
        assert_same_elements(over_stream, over_index)


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_can_be_closed_after_the_first_element(name):
    before = set(threading.enumerate())
    iterator = iter(OPERATORS[name](streamed()))
    next(iterator, None)
    iterator.close()
    assert set(threading.enumerate()) <= before
    with pytest.raises(ps.errors.ClosedError, match="was closed"):
        next(iterator)


def test_a_dataset_in_place_of_a_function_that_makes_it_is_refused():
    with pytest.raises(ps.InvalidTypeError, match="takes a function that makes the dataset, got .*: write lambda: ..."):
        check_conformance(ps.Dataset.range(3))


def test_every_public_operator_is_listed():
    methods = {name for name in dir(ps.Dataset) if not name.startswith("_") and callable(getattr(ps.Dataset, name))}
    not_operators = {"save", "load", "snapshot", "reduce", "cardinality", "options", "explain"}
    not_operators |= {"as_numpy_iterator", "at", "fingerprint", "get_single_element", "show"}
    listed = " ".join([*OPERATORS, *SOURCES])
    assert [name for name in sorted(methods - not_operators) if name not in listed] == []
