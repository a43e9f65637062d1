"""The datasets that are read while things break. Every element is a number that is not given twice in an epoch."""

import asyncio
import os
import sys
import time

import numpy as np

import penstock as ps

PAUSE_SECONDS = 0.004
_CHILD_SECONDS = 5.0
_PIPE_BYTES = 1 << 16
"""As many as the pipe of a process's output holds while nobody reads it."""


class PanicException(BaseException):
    """Raised by extensions in Rust, of whose class no module can be imported."""

    __module__ = "pyo3_runtime"


def pause(number: np.ndarray) -> np.ndarray:
    time.sleep(PAUSE_SECONDS)
    return number


def pair(number: np.ndarray) -> ps.Dataset:
    return ps.Dataset.from_tensor_slices(np.array([2 * number, 2 * number + 1]))


def document(number: np.ndarray) -> np.ndarray:
    """Six numbers are two documents: one of one number, and one of five."""
    first = number // 2 * 6
    return np.array([first]) if number % 2 == 0 else np.arange(first + 1, first + 6)


def tokens(row: dict[str, np.ndarray]) -> np.ndarray:
    """Those of a row without its padding."""
    return row["tokens"][row["segment_ids"] > 0]


def fork(number: np.ndarray) -> np.ndarray:
    """Leave a child process that holds whatever this one has open."""
    if says_no(number) and os.fork() == 0:
        time.sleep(_CHILD_SECONDS)
        os._exit(0)
    return number


def says_no(number: np.ndarray) -> bool:
    """Tell every 41st number, and a row of tokens that has one."""
    return bool(np.any(number % 41 == 3))


def refuse(number: np.ndarray) -> np.ndarray:
    """Fail for some numbers with what is no `Exception`."""
    if says_no(number):
        first = int(np.ravel(number)[0])
        raise (asyncio.CancelledError if first % 2 else PanicException)(first)
    return pause(number)


def say_much(number: np.ndarray) -> np.ndarray:
    """Print more than a pipe holds, now and then, on both outputs."""
    if says_no(number):
        for output in (sys.stdout, sys.stderr):
            output.write(f"{number} " * (_PIPE_BYTES // 2))
            output.flush()
    return pause(number)


_MANNERS = {"forks": fork, "refuses": refuse, "prints": say_much}
"""The function of a dataset by what it does besides."""


def pipeline(
    shape: str, elements: int, *, manner: str = "", quick: bool = False, part: tuple[int, int] = (1, 0)
) -> ps.Dataset:
    """A dataset of the numbers 0 to elements - 1.

    Args:
        shape: which kinds of passes it has, and how they are cut.
        manner: what its function does besides: "forks" leaves processes behind, "refuses" fails for rows that are to
            be skipped, and "prints" prints much.
        quick: without the pauses that make it worth sharing.
        part: only what is made of every n-th row from a first one on.
    """
    numbers = ps.Dataset.range(elements).shard(*part)
    if shape == "shuffled":
        numbers = numbers.shuffle(50, seed=5)
    elif shape == "groups":  # two elements of every second row
        numbers = numbers.filter(lambda x: x % 2 == 0).map(lambda x: x // 2).flat_map(pair)
    elif shape == "sequence":
        numbers = ps.Dataset.from_generator(lambda: iter(range(elements)), output_signature=ps.TensorSpec((), np.int64))
    elif shape == "mixed":
        half = len(numbers) // 2
        sources = {"first": numbers.take(half).shuffle(seed=3), "second": numbers.skip(half)}
        numbers = ps.Dataset.mix(sources, {"first": 0.7, "second": 0.3}, seed=4, stop="all")
        numbers = numbers.select(np.random.default_rng(6).permutation(len(numbers)))
    elif shape == "packed":
        documents = ps.Dataset.range(elements // 3).shard(*part).map(document).with_lengths()
        numbers = documents.pack(7, window=16).shuffle(seed=7).map(tokens)
    if not quick:
        numbers = numbers.map(_MANNERS.get(manner, pause))
    if manner == "refuses":
        numbers = numbers.filter(lambda number: not says_no(number)) if quick else numbers.ignore_errors()
    return numbers.batch(7) if shape == "batches" else numbers
