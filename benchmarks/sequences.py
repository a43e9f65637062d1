"""Sequences: packing, mixing, balancing, sampling and tokenizing, by processor time, each beside a limit or a peer."""

import os
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

import penstock as ps
from benchmarks.timing import Figure, processor_ratio, processor_seconds

_LENGTH, _FAR = 2048, 10**12
_random = np.random.default_rng(0)
_LENGTHS = np.clip(_random.lognormal(5.8, 1.0, 1_000_000).astype(np.int64), 1, _LENGTH)
_MANY = 8192


def measure() -> list[Figure]:
    """The figures of this file."""
    return [*packed(), *planned(), *restored(), *mixed(), sampled(), *balanced(), *tokenized()]


def exhaust(items: Iterable[object]) -> None:
    """Visit every element."""
    for _ in items:
        pass


def documents() -> ps.Dataset[Any]:
    """Documents in memory, of lengths as texts have them: 500 tokens on average."""
    lengths = _LENGTHS[:_MANY]
    tokens = _random.integers(0, 30_000, int(lengths.sum())).astype(np.uint16)
    return ps.Dataset.from_list(np.split(tokens, np.cumsum(lengths)[:-1])).with_lengths()


def _median(work: Callable[[], object], rounds: int = 5) -> tuple[float, tuple[float, float]]:
    """The median of the processor time of a call, and the least and the largest."""
    work()
    times = sorted(processor_seconds(work) for _ in range(rounds))
    return times[rounds // 2], (times[0], times[-1])


def packed() -> Iterator[Figure]:
    """Rows of 2,048 tokens in batches of 32, from documents in memory."""
    source, tokens = documents(), int(_LENGTHS[:_MANY].sum()) / 1e6
    for how in ("best_fit", "first_fit", "concat_split"):
        rows = source.pack(_LENGTH, how).batch(32)
        median, (least, largest) = _median(lambda rows=rows: exhaust(rows))  # type: ignore[misc]  # a default binds it
        spread = (tokens / largest, tokens / least)
        yield Figure(f"pack(2048, {how!r}).batch(32)", tokens / median, 5, True, "M tokens/s", spread)


def planned() -> Iterator[Figure]:
    """The plan of a million documents, whose lengths are known, which the call of `pack` makes."""
    source = ps.Dataset.range(len(_LENGTHS)).map(lambda n: np.zeros(_LENGTHS[n], np.uint16)).with_lengths(_LENGTHS)
    for how in ("best_fit", "first_fit"):
        median, spread = _median(lambda how=how: len(source.pack(_LENGTH, how)), 3)  # type: ignore[misc]
        yield Figure(f"pack(2048, {how!r}) of a million known lengths", median, 1, False, "s", spread)


def restored() -> Iterator[Figure]:
    """A state at token 10**12, and the first row of a mixture at position 10**12."""
    batches = documents().pack(_LENGTH).repeat().batch(32)
    with iter(batches) as iterator:
        state = iterator.state_dict()
    steps = _FAR // (_LENGTH * 32)
    state["position"] = [steps, 0, steps]

    def restore() -> None:
        with iter(batches) as resumed:
            resumed.load_state_dict(state)
            next(resumed)

    median, spread = _median(lambda: [restore() for _ in range(10)])
    scaled = (spread[0] * 100, spread[1] * 100)
    yield Figure("pack: restore at token 10**12, and the next batch", median * 100, 10, False, "ms", scaled)
    mixture = ps.Dataset.mix({str(n): ps.Dataset.range(10**6) for n in range(8)}, range(1, 9), stop="repeat")
    mixture.at(0)
    positions = iter(range(_FAR, _FAR + 10**9, 10**5))
    median, spread = _median(lambda: [mixture.at(next(positions)) for _ in range(100)])
    scaled = (spread[0] * 10, spread[1] * 10)
    yield Figure("mix of 8: the element at another position of 10**12", median * 10, 1, False, "ms", scaled)


def mixed() -> Iterator[Figure]:
    """Eight sources mixed, against one of them."""

    def sources(make: Callable[[], ps.Dataset[Any]], rows: int, size: int) -> tuple[ps.Dataset[Any], ps.Dataset[Any]]:
        several = ps.Dataset.mix({str(n): make() for n in range(8)}, range(1, 9), stop="repeat", seed=1)
        return several.take(rows).batch(size), make().repeat().take(rows).batch(size)

    for name, make, rows, size in (
        ("Python function", lambda: ps.Dataset.range(10**5).map(lambda n: np.full(16, n)), 20_000, 256),
        ("packed documents, shuffled", lambda: documents().pack(_LENGTH).shuffle(seed=1), 2_000, 32),
        ("rows of 1 kB in memory, shuffled", lambda: _arrays().shuffle(seed=1), 100_000, 256),
    ):
        several, one = sources(make, rows, size)
        question = f"mix of 8, {name} / one of them"
        yield processor_ratio(question, lambda d=several: exhaust(d), lambda d=one: exhaust(d), 0.7, 3)  # type: ignore[misc]


def _arrays() -> ps.Dataset[Any]:
    return ps.Dataset.from_tensor_slices(np.zeros((10**5, 256), np.float32))


def sampled() -> Figure:
    """The first row of a sample of ten million weights, in which all is prepared."""
    weights, rows = _random.random(10**7), ps.Dataset.range(10**7)
    median, spread = _median(lambda: next(iter(rows.sample(weights, seed=1))), 3)
    return Figure("sample(10**7 weights): the first row", median, 1, False, "s", spread)


def balanced() -> Iterator[Figure]:
    """Time that balancing adds to a batch of 1,024 rows; a function is called for each row."""
    rows, size = 40, 1024
    costs = _LENGTHS[: rows * size]
    plain = ps.Dataset.from_tensor_slices(costs)
    theirs, _ = _median(lambda: exhaust(plain.batch(size)))
    for name, goal, batches in (
        ("known lengths", 1, plain.with_lengths(costs).batch(size).balance(slices=8)),
        ("a function of a row", 5, plain.batch(size).balance(lambda cost: cost, slices=8)),
    ):
        ours, spread = _median(lambda d=batches: exhaust(d))  # type: ignore[misc]
        median, least, largest = (1e3 * (seconds - theirs) / rows for seconds in (ours, *spread))
        yield Figure(f"batch(1024).balance, {name}: beyond the batch", median, goal, False, "ms", (least, largest))


def tokenized() -> Iterator[Figure]:
    """Texts to tokens, against the batches of the tokenizer itself; its own threads are off in both."""
    if find_spec("tokenizers") is None:
        return
    tokenizers = import_module("tokenizers")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    words = ["".join(chr(97 + n) for n in _random.integers(0, 26, 6)) for _ in range(2_000)]
    texts = [" ".join(words[n] for n in _random.integers(0, len(words), 200)) for _ in range(4_000)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=4_000, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    dataset = ps.Dataset.from_list(texts).map(ps.text.tokenizer(tokenizer))

    def by_hand() -> None:
        for start in range(0, len(texts), 256):
            for one in tokenizer.encode_batch_fast(texts[start : start + 256]):
                np.array(one.ids, np.int32)

    yield processor_ratio("tokenizer, 200 words a text / encode_batch_fast", lambda: exhaust(dataset), by_hand, 0.9, 5)


if __name__ == "__main__":
    for figure in measure():
        print(figure)
