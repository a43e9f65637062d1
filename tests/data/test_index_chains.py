"""Random chains of operators by index give what plain Python makes of the same rows, from any state, on any rank."""

import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.data.splits import part_of_key

EXPANDED = ps.TensorSpec((3,), np.int64)


def reordered(operator):
    """A step that gives its rows in the order in which the operator gives their numbers."""
    return operator, lambda rows: [rows[number] for number in map(int, operator(ps.Dataset.range(len(rows))))]


def weights(dataset):
    return [1 + n % 3 for n in range(len(dataset))]


def document(x):
    return [x] * length(x)


def length(x):
    return int(x) % 3 + 1


def by_size(rows, budget=6):
    batches = []
    for x in rows:
        if batches and sum(map(length, batches[-1])) + length(x) <= budget:
            batches[-1].append(x)
        else:
            batches.append([x])
    return [sum(batch) for batch in batches]


def fitted_first(rows, size=4, window=3):
    """The sums of the tokens of packed rows."""
    packed = []
    for start in range(0, len(rows), window):
        opened = []
        for x in rows[start : start + window]:
            fitting = [row for row in opened if sum(map(length, row)) + length(x) <= size]
            if fitting:
                fitting[0].append(x)
            else:
                opened.append([x])
        packed += [sum(x * length(x) for x in row) for row in opened]
    return packed


def cut_where_rows_end(rows, size=3):
    tokens = [x for x in rows for _ in range(length(x))]
    return [sum(tokens[start : start + size]) for start in range(0, len(tokens), size)]


def packed(how, window):
    return lambda d: (
        d.map(document)
        .with_lengths()
        .pack(4 if how == "first_fit" else 3, how, window)
        .map(lambda r: r["tokens"].sum())
    )


def balanced(rows, size=4, slices=2, window=2):
    """Rows, the costliest first, each to the part that costs least and is not full: of a window, then of a batch."""

    def divided(rows, sizes):
        parts = [[] for _ in sizes]
        for place in sorted(range(len(rows)), key=lambda place: -length(rows[place])):
            costs = [
                (sum(length(rows[one]) for one in part), number)
                for number, part in enumerate(parts)
                if len(part) < sizes[number]
            ]
            parts[min(costs)[1]].append(place)
        return [[rows[place] for place in sorted(part)] for part in parts]

    found = []
    for start in range(0, len(rows), size * window):
        group = rows[start : start + size * window]
        sizes = [min(size, len(group) - begin) for begin in range(0, len(group), size)]
        for batch in divided(group, sizes) if len(sizes) > 1 else [group]:
            each = -(-len(batch) // slices)
            own = [max(0, min(each, len(batch) - begin * each)) for begin in range(slices)]
            found += [x for part in divided(batch, own) for x in part]
    return found


def mixture(d):
    return ps.Dataset.mix({"own": d, "other": ps.Dataset.range(100, 105)}, [2, 1], seed=3, stop="all")


def mixed(rows):
    numbers = mixture(ps.Dataset.range(len(rows)))
    return [rows[x] if x < 100 else x for x in map(int, numbers)]


# Each makes rows by number of rows by number, and does the same to a list.
STEPS = {
    "map": (lambda d: d.map(lambda x: x + 1), lambda rows: [x + 1 for x in rows]),
    "take": (lambda d: d.take(14), lambda rows: rows[:14]),
    "skip": (lambda d: d.skip(2), lambda rows: rows[2:]),
    "shard": (lambda d: d.shard(2, 1), lambda rows: rows[1::2]),
    "repeat": (lambda d: d.take(9).repeat(2), lambda rows: rows[:9] * 2),
    "concatenate": (lambda d: d.concatenate(ps.Dataset.range(3)), lambda rows: [*rows, 0, 1, 2]),
    "zip": (lambda d: ps.Dataset.zip(d, d.skip(1)).map(max), lambda rows: list(map(max, rows, rows[1:]))),
    "select": (
        lambda d: d.select([len(d) - 1, 0, 0, len(d) // 2]),
        lambda rows: [rows[i] for i in (-1, 0, 0, len(rows) // 2)],
    ),
    "select a slice": (lambda d: d.select(slice(None, None, -2)), lambda rows: rows[::-2]),
    "split": (lambda d: d.split([0.7, 0.3])[0], lambda rows: rows[: round(0.7 * len(rows))]),
    "split at random": reordered(lambda d: d.split([0.3, 0.7], seed=2)[1]),
    "split by key": (
        lambda d: d.split([0.3, 0.7], key=lambda x: int(x))[1],
        lambda rows: [x for x in rows if part_of_key([0.3, 0.7], int, None)(x) == 1],
    ),
    "shuffle": reordered(lambda d: d.shuffle(seed=1, reshuffle_each_iteration=False)),
    "shuffle in windows": reordered(lambda d: d.shuffle(5, seed=1, reshuffle_each_iteration=False)),
    "sample": reordered(lambda d: d.sample(weights(d), num=7, seed=4).cache()),
    "sample without replacement": reordered(lambda d: d.sample(weights(d), replacement=False, seed=4).cache()),
    "mix": (mixture, mixed),
    "pack": (packed("first_fit", 3), fitted_first),
    "pack by cuts": (packed("concat_split", 4), cut_where_rows_end),
    "batch_by": (lambda d: d.with_lengths(length).batch_by(6).map(lambda rows: rows.sum()), by_size),
    "balance": (lambda d: d.batch(4).balance(length, slices=2, window=2).unbatch(), balanced),
    "balance known lengths": (
        lambda d: d.with_lengths(length).batch(4).balance(slices=2, window=2).unbatch(),
        balanced,
    ),
    "skip_rows masked": (
        lambda d: d.skip_rows(steps=[1, 4], how="mask").map(lambda x, keep: x if keep else -1),
        lambda rows: [-1 if number in (1, 4) else x for number, x in enumerate(rows)],
    ),
    "unbatch": (lambda d: d.batch(4).unbatch(), lambda rows: rows),
    "unbatch in parts": (
        lambda d: d.map(lambda x: np.arange(x, x + 3), output_signature=EXPANDED).unbatch(),
        lambda rows: [x + more for x in rows for more in range(3)],
    ),
}


class EveryThird:
    """A sampler with a state."""

    def __init__(self, length):
        self.at, self.length = 0, length

    def __iter__(self):
        while self.at < self.length:
            self.at += 3
            yield self.at - 3

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


# Each makes a stream.
ENDS = {
    "nothing": (lambda d: d, lambda rows: rows),
    "batch_by": (lambda d: d.batch_by(6, length).map(lambda rows: rows.sum()), by_size),
    "skip_rows": (lambda d: d.skip_rows(steps=[0, 3]), lambda rows: [x for n, x in enumerate(rows) if n not in (0, 3)]),
    "from_sampler": (lambda d: ps.Dataset.from_sampler(EveryThird(len(d)), d), lambda rows: rows[::3]),
    "filter": (lambda d: d.filter(lambda x: x % 4 != 1), lambda rows: [x for x in rows if x % 4 != 1]),
}

chains = st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4)


def chain(steps, end="nothing", count=13):
    """A chain over numbers, and what plain Python makes of them; a step over too many or too few rows is left out."""
    dataset, rows = ps.Dataset.range(count), list(range(count))
    for name in steps:
        step, by_hand = STEPS[name]
        if 5 <= len(rows) <= 30:
            dataset, rows = step(dataset), list(map(int, by_hand(rows)))
            assert dataset.node.indexable
            assert len(dataset) == len(rows)
    step, by_hand = ENDS[end]
    return step(dataset), list(map(int, by_hand(rows)))


@pytest.mark.slow
@given(steps=chains, end=st.sampled_from(sorted(ENDS)))
def test_any_chain_gives_what_plain_python_does_from_any_state(steps, end):
    dataset, rows = chain(steps, end)
    states, found = [], []
    with iter(dataset) as iterator:
        for x in iterator:
            found.append(int(x))
            states.append(json.loads(json.dumps(iterator.state_dict())))
    assert found == rows
    for given_rows, state in enumerate(states, 1):
        with iter(dataset) as resumed:
            resumed.load_state_dict(state)
            assert list(map(int, islice(resumed, 4))) == rows[given_rows : given_rows + 4]
    with iter(chain(steps, end)[0]) as resumed:
        resumed.load_state_dict(states[len(states) // 2])
        assert list(map(int, resumed)) == rows[len(states) // 2 + 1 :]


@pytest.mark.slow
@given(steps=chains, numbers=st.lists(st.integers(0, 10**6), min_size=1, max_size=9))
def test_rows_of_any_chain_are_read_in_any_order(steps, numbers):
    dataset, rows = chain(steps)
    picked = [number % max(1, len(rows)) for number in numbers] if rows else []
    assert list(map(int, dataset.select(picked))) == [rows[number] for number in picked]
    assert [int(dataset.at(number)) for number in picked] == [rows[number] for number in picked]


@pytest.mark.slow
@given(steps=chains, ranks=st.lists(st.integers(1, 3), min_size=2, max_size=3), each=st.integers(1, 3))
def test_any_chain_goes_on_with_other_numbers_of_ranks(steps, ranks, each):
    dataset, rows = chain(steps)
    batches = dataset.batch(6).with_options(ps.Options(auto_shard_policy=ps.AutoShardPolicy.DATA))
    state, found = None, []
    for turn, workers in enumerate(ranks):
        steps_of = []
        for index in range(workers):
            strategy = ps.HostStrategy(num_workers=workers, worker_index=index)
            with iter(strategy.distribute_dataset(batches)) as iterator:
                if state is not None:
                    iterator.load_state_dict(state)
                wanted = islice(iterator, None if turn == len(ranks) - 1 else each)
                steps_of.append([np.asarray(getattr(rows, "values", [rows])[0]).tolist() for rows in wanted])
                after = iterator.state_dict()
        state = after
        found += [x for parts in zip(*steps_of, strict=True) for part in parts for x in part]
    assert found == rows
