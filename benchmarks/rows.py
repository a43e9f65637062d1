"""Cost of operators for each row, against the loop that one would write by hand, by processor time and in turn."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from benchmarks.timing import Figure, processor_ratio, processor_seconds


def measure() -> list[Figure]:
    """The figures of this file."""
    return [
        imported(),
        *maps(),
        *generators(),
        restored_generator(),
        *shuffles(),
        small_epochs(),
        *batched(),
        ragged_text(),
        rejected(),
        *asked_for_one_by_one(),
        *windows(),
        scanned(),
        *bucketed(),
    ]


def imported() -> Figure:
    """`import penstock` in a process of its own, in NumPy's import; both find their bytecode, as pip leaves it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times: list[list[float]] = [[], []]
    for _ in range(10):
        for module, found in zip(("numpy", "penstock"), times, strict=True):
            code = f"import time, {module}; print(time.process_time())"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment)
            found.append(float(done.stdout))
    ratios = sorted(b / a for a, b in list(zip(*times, strict=True))[1:])  # the first writes the bytecode
    return Figure("import penstock / import numpy, processes", ratios[4], 2, False, spread=(ratios[0], ratios[-1]))


def exhaust(items: Iterable[object]) -> None:
    """Visit every element."""
    for _ in items:
        pass


def batches(items: Iterable[Any], size: int) -> Iterator[np.ndarray[Any, Any]]:
    """Batches made by hand."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield stacked(batch)


def numbers() -> Iterator[int]:
    """Python integers."""
    yield from range(200_000)


def images() -> Iterator[np.ndarray[Any, Any]]:
    """Images that are made one by one, as cheaply as NumPy makes them."""
    for number in range(20_000):
        yield np.full((28, 28), number % 255, np.uint8)


def pairs() -> Iterator[tuple[int, int]]:
    """Tuples of two integers."""
    return ((number, number + 1) for number in range(100_000))


def mixed_pairs() -> Iterator[tuple[int, float]]:
    """Tuples of an integer and a float."""
    return ((number, number * 0.5) for number in range(100_000))


def named() -> Iterator[dict[str, int]]:
    """Dictionaries of two integers."""
    return ({"x": number, "y": number + 1} for number in range(100_000))


def labelled() -> Iterator[tuple[dict[str, int], int]]:
    """Features by name and a label, as Keras takes them."""
    return (({"x": number, "y": number + 1}, number) for number in range(100_000))


def labelled_images() -> Iterator[tuple[np.ndarray[Any, Any], int]]:
    """Images and labels."""
    return zip(images(), range(20_000), strict=True)


def stacked(rows: Sequence[Any]) -> Any:
    """A batch of elements, made by hand."""
    if isinstance(rows[0], tuple):
        return tuple(stacked(column) for column in zip(*rows, strict=True))
    if isinstance(rows[0], dict):
        return {name: stacked([row[name] for row in rows]) for name in rows[0]}
    return np.array(rows)


def maps() -> Iterator[Figure]:
    """Functions of one element that give one leaf, tuples and dictionaries, in batches, by this thread and by two.

    Two threads are compared with a pool of two, which makes a batch at a time.
    """
    count = np.arange(100_000)
    pictures, labels = np.zeros((32_000, 28, 28), np.uint8), np.arange(32_000)
    scale = np.float32(1 / 255)
    cases: list[tuple[str, tuple[np.ndarray[Any, Any], ...], Callable[..., Any]]] = [
        ("a number", (count,), lambda x: x + 1),
        ("a tuple of numbers", (count,), lambda x: (x, x + 1)),
        ("a dictionary of numbers", (count,), lambda x: {"x": x, "y": x + 1}),
        ("an image", (pictures,), lambda image: image * scale),
        ("a tuple of image and label", (pictures, labels), lambda image, label: (image * scale, label)),
        (
            "a dictionary of image and label",
            (pictures, labels),
            lambda image, label: {"image": image * scale, "label": label},
        ),
    ]
    for name, columns, function in cases:
        source = ps.Dataset.from_tensor_slices(columns if len(columns) > 1 else columns[0])

        def by_hand(columns: Any = columns, function: Callable[..., Any] = function) -> None:
            for start in range(0, len(columns[0]), 256):
                rows = zip(*(column[start : start + 256] for column in columns), strict=True)
                stacked([function(*row) for row in rows])

        def by_threads(columns: Any = columns, function: Callable[..., Any] = function) -> None:
            def made(start: int) -> Any:
                rows = zip(*(column[start : start + 256] for column in columns), strict=True)
                return stacked([function(*row) for row in rows])

            with ThreadPoolExecutor(2) as pool:
                exhaust(pool.map(made, range(0, len(columns[0]), 256)))

        for calls, word, theirs in ((None, "", by_hand), (2, " by two threads", by_threads)):
            dataset = source.map(function, num_parallel_calls=calls).batch(256)
            question = f"map to {name}{word}, batch(256) / loop{word}"
            yield processor_ratio(question, lambda dataset=dataset: exhaust(dataset), theirs, 0.7)  # type: ignore[misc]


def scalars() -> Iterator[Any]:
    """NumPy's scalars of `numbers`: elements are these, so whoever wants them by hand must make them."""
    return map(np.int64, numbers())


def generators() -> Iterator[Figure]:
    """Elements of a generator, one by one and in batches, with and without a signature."""
    number, image = ps.TensorSpec((), "int64"), ps.TensorSpec((28, 28), "uint8")
    for name, function, spec, elements in (
        ("integers", numbers, number, scalars),
        ("images", images, image, images),
    ):
        for signature, word in ((None, ""), (spec, ", output_signature")):
            dataset = ps.Dataset.from_generator(function, signature)
            yield processor_ratio(
                f"from_generator({name}{word}).batch(256) / loop",
                lambda dataset=dataset: exhaust(dataset.batch(256)),  # type: ignore[misc]  # a default binds it
                lambda function=function: exhaust(batches(function(), 256)),  # type: ignore[misc]
                0.7,
            )
            yield processor_ratio(
                f"from_generator({name}{word}) / loop over the same elements",
                lambda dataset=dataset: exhaust(dataset),  # type: ignore[misc]
                lambda elements=elements: exhaust(elements()),  # type: ignore[misc]
                0.5,
            )
    for name, rows in (
        ("pairs of integers", pairs),
        ("pairs of an integer and a float", mixed_pairs),
        ("dictionaries of integers", named),
        ("dictionaries of features, and labels", labelled),
        ("pairs of an image and a label", labelled_images),
    ):
        yield processor_ratio(
            f"from_generator({name}).batch(256) / loop",
            lambda rows=rows: exhaust(ps.Dataset.from_generator(rows).batch(256)),  # type: ignore[misc]
            lambda rows=rows: exhaust(batches(rows(), 256)),  # type: ignore[misc]
            0.7,
        )


def restored_generator() -> Figure:
    """A state at element 100,000, against running the generator to there."""
    dataset = ps.Dataset.from_generator(numbers)
    iterator = iter(dataset)
    exhaust(islice(iterator, 100_000))
    state = iterator.state_dict()

    def by_hand() -> None:
        generator = numbers()
        for _ in range(100_000):
            next(generator)

    question = "from_generator(integers): restore at 100,000 / next loop"
    return processor_ratio(question, lambda: iter(dataset).load_state_dict(state), by_hand, 0.7)


def shuffles() -> Iterator[Figure]:
    """Batches of numbers in random order, against a permutation by NumPy and gathering, of all rows at once."""
    for rows, buffer in ((200_000, 200_000), (1_000_000, 1_000_000), (1_000_000, 10_000)):
        array = np.arange(rows)
        dataset = ps.Dataset.from_tensor_slices(array).shuffle(buffer).batch(1024)

        def by_hand(array: np.ndarray[Any, Any] = array) -> None:
            order = np.random.permutation(len(array))
            for start in range(0, len(array), 1024):
                array[order[start : start + 1024]]

        question = f"{rows:,} numbers, shuffle({buffer:,}).batch(1024) / np.random.permutation"
        yield processor_ratio(question, lambda dataset=dataset: exhaust(dataset), by_hand, 0.5)  # type: ignore[misc]


def small_epochs() -> Figure:
    """Cost of an epoch of five numbers whose order a buffer of one row does not change."""
    dataset = ps.Dataset.range(5).shuffle(1).repeat(2_000)
    exhaust(dataset)
    times = sorted(processor_seconds(lambda: exhaust(dataset)) / 2_000 * 1e6 for _ in range(7))
    return Figure("range(5).shuffle(1).repeat()", times[3], 5, False, "µs an epoch", (times[0], times[-1]))


def batched() -> Iterator[Figure]:
    """Batches of numbers, and a function of each batch, against making the same arrays in a loop."""
    for size in (128, 1024):
        rows = 8_000 * size
        dataset = ps.Dataset.range(rows).batch(size)

        def made(size: int = size, rows: int = rows) -> Iterator[np.ndarray[Any, Any]]:
            for start in range(0, rows, size):
                yield np.arange(start, start + size)

        def doubled(made: Callable[[], Iterator[Any]] = made) -> None:
            for batch in made():
                batch * 2

        question = f"range.batch({size})"
        yield processor_ratio(f"{question} / np.arange", lambda d=dataset: exhaust(d), lambda m=made: exhaust(m()), 0.7)  # type: ignore[misc]
        mapped = dataset.map(lambda batch: batch * 2)
        yield processor_ratio(f"{question}.map / np.arange, times 2", lambda d=mapped: exhaust(d), doubled, 0.7)  # type: ignore[misc]


def rejected() -> Figure:
    """A filter that keeps one number of 10,000, against the loop."""
    rows = 200_000
    kept = ps.Dataset.range(rows).filter(lambda number: number % 10_000 == 0)

    def by_hand() -> None:
        for number in np.arange(rows):
            if number % 10_000 == 0:
                pass

    return processor_ratio("filter that keeps 1 of 10,000 / loop", lambda: exhaust(kept), by_hand, 0.5)


def asked_for_one_by_one() -> Iterator[Figure]:
    """Rows that are read by number below operators that do not know how many they need, against these rows alone."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.jsonl"
        path.write_text("".join(f'{{"x": {number}}}\n' for number in range(4_000)))
        rows = ps.JsonLinesDataset(path).shuffle(seed=1).map(lambda row: np.full(4, row["x"]))
        kept = rows.filter(lambda row: True)
        for name, goal, dataset in (
            ("unbatch()", 0.5, rows.unbatch()),
            ("prefetch(4)", 0.1, rows.prefetch(4)),
            ("filter, and two of these sampled", 0.2, ps.Dataset.sample_from_datasets([kept, kept], seed=1)),
        ):
            question = f"JSON lines, shuffled, map / with {name}"
            yield processor_ratio(question, lambda dataset=dataset: exhaust(dataset), lambda: exhaust(rows), goal)  # type: ignore[misc]  # a default binds it


def ragged_text() -> Figure:
    """Lines that are filtered, split into numbers and padded in batches, against a loop that fills each batch."""
    rng = np.random.default_rng(0)
    lines = [" ".join(map(str, rng.integers(0, 1000, rng.integers(1, 30)))) for _ in range(40_000)]

    def split(line: str) -> np.ndarray[Any, Any]:
        return np.array(line.split(), np.int64)

    dataset = ps.Dataset.from_tensor_slices(np.array(lines, object))
    dataset = dataset.filter(lambda line: len(line) >= 10).map(split).padded_batch(64)

    def by_hand() -> None:
        kept = (split(line) for line in lines if len(line) >= 10)
        while rows := list(islice(kept, 64)):
            batch = np.zeros((len(rows), max(map(len, rows))), np.int64)
            for number, row in enumerate(rows):
                batch[number, : len(row)] = row

    return processor_ratio(
        "ragged text: filter, split, padded_batch(64) / loop", lambda: exhaust(dataset), by_hand, 0.7
    )


def windows() -> Iterator[Figure]:
    """Windows that begin at every row, over an index and over a stream."""
    rows = 20_000
    for source, word in ((ps.Dataset.range(rows), "an index"), (ps.Dataset.range(rows).filter(bool), "a stream")):
        dataset = source.window(8, shift=1, drop_remainder=True)
        exhaust(dataset)
        times = sorted(processor_seconds(lambda dataset=dataset: exhaust(dataset)) / rows * 1e6 for _ in range(5))  # type: ignore[misc]
        yield Figure(f"window(8, shift=1) over {word}", times[2], 20, False, "µs a window", (times[0], times[-1]))


def scanned() -> Figure:
    """A running sum, against a loop."""
    dataset = ps.Dataset.range(100_000).scan(np.int64(0), lambda total, number: (total + number, total)).batch(256)

    def sums() -> Iterator[np.int64]:
        total = np.int64(0)
        for number in np.arange(100_000):
            yield total
            total = total + number

    return processor_ratio(
        "scan: running sum, batch(256) / loop", lambda: exhaust(dataset), lambda: exhaust(batches(sums(), 256)), 0.5
    )


def bucketed() -> Iterator[Figure]:
    """Rows of unequal length in batches of similar ones, from a generator, and numbers over an index."""
    rng, rows = np.random.default_rng(0), 20_000
    arrays = [np.arange(length) for length in rng.integers(1, 100, rows)]
    of_generator = ps.Dataset.from_generator(lambda: iter(arrays)).bucket_by_sequence_length(
        len, [20, 40, 60, 80], [64] * 5
    )
    of_index = ps.Dataset.range(rows).bucket_by_sequence_length(
        lambda number: int(number) % 100, [20, 40, 60, 80], [64] * 5
    )
    for dataset, word in ((of_generator, "arrays of a generator"), (of_index, "numbers over an index")):
        exhaust(dataset)
        times = sorted(processor_seconds(lambda dataset=dataset: exhaust(dataset)) / rows * 1e6 for _ in range(5))  # type: ignore[misc]
        question = f"bucket_by_sequence_length, {word}"
        yield Figure(question, times[2], 4, False, "µs a row", (times[0], times[-1]))


if __name__ == "__main__":
    for figure in measure():
        print(figure)
