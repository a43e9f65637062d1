"""Steps of packed documents of three generated corpora, of which one has rare documents longer than many rows."""

from typing import Any

import numpy as np

import penstock as ps

VOCABULARY, LENGTH, ROWS = 64, 32, 8
STEPS, CHANGED_AT, SAVED_EVERY = 10, 5, 2
BEFORE = {"web": 0.5, "code": 0.3, "books": 0.2}
AFTER = {"web": 0.1, "code": 0.6, "books": 0.3}
_MEANS = {"web": 10, "code": 16, "books": 8}


def documents(name: str) -> list[np.ndarray]:
    """Documents that count upwards from where they begin, and end with token 0; every corpus in steps of its own."""
    number = [*_MEANS].index(name)
    random = np.random.default_rng(number)
    sizes = np.clip(random.lognormal(np.log(_MEANS[name]), 0.6, 60).astype(int), 2, LENGTH)
    if name == "books":
        sizes[::20] = 9 * LENGTH
    firsts = random.integers(0, VOCABULARY, len(sizes))
    return [
        np.append((first + (number + 1) * np.arange(size - 1)) % (VOCABULARY - 1) + 1, 0).astype(np.int32)
        for first, size in zip(firsts, sizes, strict=True)
    ]


def rows(name: str) -> ps.Dataset:
    """Packed rows of a corpus: which documents share a row is the same in all epochs, their order is not."""
    shuffled = ps.Dataset.from_list(documents(name)).with_lengths().shuffle(seed=1, reshuffle_each_iteration=False)
    return shuffled.pack(LENGTH, too_long="split", mask_borders=True).shuffle(seed=2)


def tokens_of(row: dict[str, Any]) -> int:
    """What a row costs: the pairs of tokens of which one attends to the other."""
    return int((np.bincount(row["segment_ids"])[1:] ** 2).sum())


def with_tokens_of_step(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "tokens_of_step": np.full(len(batch["tokens"]), batch["loss_mask"].sum(), np.float32)}


def steps() -> ps.Dataset:
    """Global batches, whose rows are in the same order on one, two and four ranks."""
    mixed = ps.Dataset.mix({name: rows(name) for name in BEFORE}, BEFORE, stop="repeat", seed=3)
    return mixed.batch(ROWS).balance(tokens_of, slices=4).map(with_tokens_of_step)


def whole_steps() -> list[dict[str, np.ndarray]]:
    """The batches of a training that nothing disturbs, read in this process."""
    with iter(steps()) as iterator:
        before = [next(iterator) for _ in range(CHANGED_AT)]
        iterator.remix(AFTER)
        return before + [next(iterator) for _ in range(STEPS - CHANGED_AT)]
