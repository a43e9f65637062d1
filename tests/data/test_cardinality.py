"""A cardinality that is told is the number of elements that come."""

import itertools
import random

import pytest

import penstock as ps

SOME = 40
"""As many elements are counted of what has more."""


def numbers(count):
    return ps.Dataset.range(count)


def unknown(count):
    return numbers(count).filter(lambda x: x % 2 == 0)


def none():
    return numbers(3).filter(lambda x: x > 9)


SOURCES = [
    none,
    *(lambda count=count: numbers(count) for count in (0, 1, 2, 5)),
    *(lambda count=count: unknown(count) for count in (0, 1, 3)),
    *(lambda source=source: source.repeat() for source in (numbers(0), numbers(2), none(), unknown(3))),
    ps.Dataset.counter,
]
# Each takes a dataset, another one and one of choices from 0 to 1, and a number and a truth value of any kind.
STEPS = [
    lambda d, other, choice, count, flag: d.repeat(None if flag else count),
    lambda d, other, choice, count, flag: d.take(-1 if flag else count),
    lambda d, other, choice, count, flag: d.skip(-1 if flag else count),
    lambda d, other, choice, count, flag: d.shard(2, int(flag)),
    lambda d, other, choice, count, flag: d.batch(count + 1, drop_remainder=flag).map(lambda batch: batch.sum()),
    lambda d, other, choice, count, flag: d.batch(count + 1, drop_remainder=flag).unbatch(),
    lambda d, other, choice, count, flag: d.batch(2).rebatch(3, drop_remainder=flag).map(lambda batch: batch.sum()),
    lambda d, other, choice, count, flag: d.concatenate(other),
    lambda d, other, choice, count, flag: ps.Dataset.zip(d, other).map(lambda a, b: a + b),
    lambda d, other, choice, count, flag: ps.Dataset.choose_from_datasets(
        [d, other], choice, stop_on_empty_dataset=flag
    ),
    lambda d, other, choice, count, flag: ps.Dataset.sample_from_datasets(
        [d, other], None, 1, stop_on_empty_dataset=flag
    ),
    lambda d, other, choice, count, flag: d.window(2, count + 1, 1, drop_remainder=flag).map(lambda window: 0),
    lambda d, other, choice, count, flag: d.filter(lambda x: x >= 0) if flag else d.enumerate().map(lambda i, x: x),
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_cardinality_is_what_counting_finds(seed):
    draw = random.Random(seed)
    checked = 0
    for _ in range(250):
        dataset = draw.choice(SOURCES)()
        for _ in range(draw.randint(1, 3)):
            choice = draw.choice(SOURCES[:8])().map(lambda x: x % 2)
            step, other = draw.choice(STEPS), draw.choice(SOURCES)()
            dataset = step(dataset, other, choice, draw.randint(0, 2), draw.random() < 0.5)
        said = dataset.cardinality()
        if said == ps.UNKNOWN_CARDINALITY or (said == ps.INFINITE_CARDINALITY and dataset.node.may_end):
            continue
        with iter(dataset) as iterator:
            found = sum(1 for _ in itertools.islice(iterator, SOME))
        assert found == (SOME if said == ps.INFINITE_CARDINALITY else min(said, SOME)), dataset.explain()
        checked += 1
    assert checked > 100


FINITE = (numbers(3), numbers(5))
ENDLESS = (ps.Dataset.counter(), numbers(2).repeat())


def chosen(choice, members=FINITE, *, stop=False):
    return ps.Dataset.choose_from_datasets(list(members), choice, stop_on_empty_dataset=stop)


@pytest.mark.parametrize(
    ("dataset", "cardinality"),
    [
        (chosen(numbers(0).repeat()), 0),
        (chosen(numbers(0)).repeat(), 0),
        (chosen(numbers(0), stop=True).repeat(), 0),
        (chosen(none().repeat()), ps.UNKNOWN_CARDINALITY),
        (chosen(none().repeat(), ENDLESS), ps.UNKNOWN_CARDINALITY),
        (chosen(numbers(2).repeat(), ENDLESS), ps.INFINITE_CARDINALITY),
        (chosen(numbers(7), ENDLESS), 7),
        (chosen(numbers(1).repeat()), ps.UNKNOWN_CARDINALITY),  # the second dataset is never chosen
        (chosen(numbers(2).repeat(), (numbers(0), numbers(0))), 0),
        (ps.Dataset.sample_from_datasets([numbers(3), numbers(5)]), 8),
        (ps.Dataset.sample_from_datasets([numbers(3), none().repeat()]), ps.UNKNOWN_CARDINALITY),
        (unknown(3).repeat(), ps.INFINITE_CARDINALITY),
        (none().repeat().take(5), ps.UNKNOWN_CARDINALITY),
        (numbers(2).repeat().take(-1), ps.INFINITE_CARDINALITY),
    ],
)
def test_endless_repetitions_of_what_may_be_empty_were_misreported(dataset, cardinality):
    assert dataset.cardinality() == cardinality
