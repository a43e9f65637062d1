"""A state is for every dataset with the same elements in the same order, however it is made, and for no other one."""

import functools
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

import penstock as ps


def numbers(count=40):
    return ps.Dataset.range(count)


def streamed(count=40):
    return ps.Dataset.from_generator(lambda: iter(range(count)))


def values(iterator):
    return [np.asarray(element).tolist() for element in iterator]


def state_after(dataset, count):
    with iter(dataset) as iterator:
        given = [np.asarray(next(iterator)).tolist() for _ in range(count)]
        return given, json.loads(json.dumps(iterator.state_dict()))


def odd(x):
    return x % 2 == 1


def renamed(number):
    return number % 2 == 1


def twice(x):
    return x * 2


def slowly(x):
    time.sleep(0.002 * (int(x) % 3))
    return x


# Pairs of which each restores the states of the other, and goes on as if it had been iterated itself.
TUNINGS = {
    "num_parallel_calls": (lambda d: d.map(twice, num_parallel_calls=8).prefetch(2), lambda d: d.map(twice)),
    "num_parallel_calls below others": (
        lambda d: d.map(abs, num_parallel_calls=3).filter(odd).shuffle(5, seed=1).batch(2),
        lambda d: d.map(abs).filter(odd).shuffle(5, seed=1).batch(2),
    ),
    "prefetch between": (lambda d: d.prefetch(3).filter(odd).prefetch().batch(3), lambda d: d.filter(odd).batch(3)),
    "the size of a prefetch": (lambda d: d.filter(odd).prefetch(7), lambda d: d.filter(odd).prefetch(1)),
    "the name of a mapped function": (lambda d: d.map(twice), lambda d: d.map(lambda x: x * 2)),
    "the body of a map": (lambda d: d.map(lambda x: x + 5).batch(2), lambda d: d.map(lambda x: x * x).batch(2)),
    "a map on top": (lambda d: d.shuffle(6, seed=2), lambda d: d.shuffle(6, seed=2).map(twice).prefetch(2)),
    "a map between": (lambda d: d.filter(odd).batch(3), lambda d: d.map(abs).filter(odd).map(twice).batch(3)),
    "the name of a predicate": (lambda d: d.filter(odd).unique(), lambda d: d.filter(renamed).unique()),
    "parallel interleave": (
        lambda d: d.interleave(lambda x: numbers(3), 2, 1),
        lambda d: d.interleave(lambda y: numbers(3), 2, 1, num_parallel_calls=2),
    ),
    "a cache in memory": (lambda d: d.map(twice).cache().batch(3), lambda d: d.map(twice).batch(3)),
    "a cache over a shuffle": (
        lambda d: d.shuffle(4, seed=3, reshuffle_each_iteration=False).cache().filter(odd),
        lambda d: d.shuffle(4, seed=3, reshuffle_each_iteration=False).filter(odd),
    ),
    "a prefetch between two takes": (lambda d: d.take(30).prefetch(2).take(20), lambda d: d.take(30).take(20)),
    "other settings between three takes": (
        lambda d: d.take(20).prefetch(0).take(9).map(twice).cache().take(12),
        lambda d: d.take(20).map(twice).cache().take(9).take(12),
    ),
    "a prefetch between two concatenates": (
        lambda d: d.concatenate(streamed(3)).prefetch(2).concatenate(numbers(4)).filter(odd),
        lambda d: d.concatenate(streamed(3)).concatenate(numbers(4)).filter(odd),
    ),
    "other settings between three concatenates": (
        lambda d: d.concatenate(d).map(twice).cache().concatenate(d).concatenate(streamed(3)),
        lambda d: d.concatenate(d).concatenate(d).map(twice).prefetch().concatenate(streamed(3)),
    ),
    "a prefetch in one of two chains of the same datasets": (
        lambda d: ps.Dataset.zip(d.concatenate(streamed(3)).prefetch(1).concatenate(d), d.concatenate(streamed(3))),
        lambda d: ps.Dataset.zip(d.concatenate(streamed(3)).concatenate(d), d.concatenate(streamed(3)).prefetch(1)),
    ),
    "a random map": (lambda d: d.filter(odd), lambda d: d.map(lambda x, rng: x, seed=4).filter(odd)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "source"),
    [
        pytest.param(name, source, marks=pytest.mark.extended if (number + place) % 2 else ())  # the other one in turn
        for number, name in enumerate(TUNINGS)
        for place, source in enumerate((numbers, streamed))
    ],
)
def test_a_state_was_unusable_after_a_change_that_changes_no_order(name, source):
    for saved, restored in (TUNINGS[name], TUNINGS[name][::-1]):
        expected = values(restored(source()))
        assert len(expected) == len(values(saved(source())))
        for count in (0, 1, len(expected) // 2, len(expected)):
            _, state = state_after(saved(source()), count)
            with iter(restored(source())) as resumed:
                resumed.load_state_dict(state)
                second = resumed.state_dict()
                assert values(resumed) == expected[count:], (name, count)
            with iter(restored(source())) as again:
                again.load_state_dict(second)
                assert values(again) == expected[count:], (name, count)


def test_a_shuffle_shared_by_a_zip_was_two_shuffles_under_a_map():
    shuffled = streamed(8).map(lambda x: x).shuffle(8)
    pairs = values(ps.Dataset.zip(shuffled, shuffled.skip(1)))
    assert [pair[1] for pair in pairs[:-1]] == [pair[0] for pair in pairs[1:]]


# What decides elements


def above(limit):
    return lambda x: x > limit


def copies(count):
    return lambda x: ps.Dataset.from_tensors(x).repeat(count)


def always(dataset):
    return lambda x: dataset


class Above:
    def __init__(self, limit):
        self.limit = limit
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x > self.limit


LIMIT = 3


def above_global(x):
    return x > LIMIT


def first_by(function):
    return ps.Dataset.choose_from_datasets([numbers(9), numbers(9)], numbers(9).map(function))


CHANGES = {
    "the length of a range": (lambda: numbers(40).batch(2), lambda: numbers(41).batch(2)),
    "the length of arrays": (
        lambda: ps.Dataset.from_tensor_slices(np.ones(9)),
        lambda: ps.Dataset.from_tensor_slices(np.ones(8)),
    ),
    "a batch size": (lambda: numbers().batch(2), lambda: numbers().batch(3)),
    "a buffer": (lambda: numbers().shuffle(5, seed=1), lambda: numbers().shuffle(6, seed=1)),
    "a seed": (lambda: numbers().shuffle(5, seed=1), lambda: numbers().shuffle(5, seed=2)),
    "the code of a predicate": (lambda: numbers().filter(odd), lambda: numbers().filter(lambda x: x % 3 == 1)),
    "a constant of a predicate": (lambda: numbers().filter(above(3)), lambda: numbers().filter(above(4))),
    "an argument of a predicate": (
        lambda: numbers().filter(functools.partial(np.greater, 9)),
        lambda: numbers().filter(functools.partial(np.greater, 8)),
    ),
    "an attribute of a predicate": (lambda: numbers().filter(Above(3)), lambda: numbers().filter(Above(4))),
    "a function that a predicate calls": (
        lambda: numbers().filter(functools.partial(lambda f, x: f(x), above(3))),
        lambda: numbers().filter(functools.partial(lambda f, x: f(x), above(4))),
    ),
    "flat_map": (lambda: numbers().flat_map(copies(2)), lambda: numbers().flat_map(copies(3))),
    "a dataset that flat_map uses": (
        lambda: numbers().flat_map(always(numbers(3))),
        lambda: numbers().flat_map(always(numbers(4))),
    ),
    "a key": (
        lambda: numbers().group_by_window(lambda x: x % 2, lambda key, window: window, 3),
        lambda: numbers().group_by_window(lambda x: x % 3, lambda key, window: window, 3),
    ),
    "a class": (
        lambda: numbers().rejection_resample(lambda x: x % 2, [0.5, 0.5], seed=1),
        lambda: numbers().rejection_resample(lambda x: x % 2 * 1, [0.5, 0.5], seed=1),
    ),
    "what is carried": (
        lambda: numbers().scan(0, lambda total, x: (total + x, total)),
        lambda: numbers().scan(0, lambda total, x: (total * x, total)),
    ),
    "a generator": (
        lambda: ps.Dataset.from_generator(lambda: iter(range(9))),
        lambda: ps.Dataset.from_generator(lambda: iter(range(8))),
    ),
    "a choice": (lambda: first_by(lambda x: x % 2), lambda: first_by(lambda x: 1 - x % 2)),
    "an operator": (lambda: numbers().take(20), lambda: numbers().take(20).skip(1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_changes_elements_is_refused_with_the_line(name):
    for saved, other in (CHANGES[name], CHANGES[name][::-1]):
        _, state = state_after(saved(), 2)
        with iter(saved()) as same:
            same.load_state_dict(state)
        with iter(other()) as resumed:
            with pytest.raises(ps.StateMismatchError, match=r"another dataset: node \d was .*here") as raised:
                resumed.load_state_dict(state)
            assert __file__ in str(raised.value) or "here it is nothing" in str(raised.value)
            assert len(values(next(resumed) for _ in range(1))) == 1  # it goes on as it was


def test_the_first_node_that_differs_is_named():
    _, state = state_after(numbers().filter(above(3)).batch(2), 2)
    expected = r"node 1 was filter\(predicate=above.<lambda>\) with other code or constants than here filter\("
    with pytest.raises(ps.StateMismatchError, match=expected):
        iter(numbers().filter(above(4)).batch(3)).load_state_dict(state)


def test_a_node_that_differs_beyond_its_label_was_named_as_equal():
    def halves(first, second):
        return ps.Dataset.from_tensor_slices(np.arange(8)).scan(first, lambda total, x: (total + x, second))

    _, state = state_after(halves(0, 1), 2)
    expected = (
        r"node 1 was scan\(function=.*\) with other data or arguments than here scan\(.*\) at .*; "
        "restore it in a dataset of the same steps, or start the epoch again"
    )
    with pytest.raises(ps.StateMismatchError, match=expected):
        iter(halves(5, 1)).load_state_dict(state)


def test_a_changed_global_counts_and_what_a_function_notes_does_not(monkeypatch):
    seen = []

    def noting(x):
        seen.append(x)
        return x > 3

    predicates = [noting, Above(3)]
    for predicate in predicates:
        dataset = numbers().filter(predicate)
        _, state = state_after(dataset, 5)
        iter(numbers().filter(predicate)).load_state_dict(state)
    _, state = state_after(numbers().filter(above_global), 3)
    monkeypatch.setitem(above_global.__globals__, "LIMIT", 4)
    with pytest.raises(ps.StateMismatchError, match="other code or constants"):
        iter(numbers().filter(above_global)).load_state_dict(state)


def test_code_of_another_version_of_python_is_not_compared():
    _, state = state_after(numbers().filter(above(3)), 2)
    state["nodes"][1][2] = "2.7 " + state["nodes"][1][2].partition(" ")[2][::-1]
    with iter(numbers().filter(above(3))) as resumed:
        resumed.load_state_dict(state)
        assert next(resumed) == 6


def lines_of(directory, names, first=0):
    """Files of four lines each, of as many bytes."""
    for number, name in enumerate(names):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{row}\n" for row in range(10 + first + 4 * number, 14 + first + 4 * number)))
    return [str(directory / name) for name in names]


def by_number(names):
    return ps.FilesDataset(names, "text")


READERS = [by_number, ps.TextLineDataset, lambda names: ps.TextLineDataset(ps.Dataset.from_tensor_slices(names))]


@pytest.mark.parametrize("read", READERS[:2])
def test_a_state_went_on_over_files_in_another_order_and_rows_were_lost(tmp_path, read):
    names = lines_of(tmp_path, ["a", "b", "c"])
    _, state = state_after(read(names).batch(2), 2)
    for other in (names[::-1], [names[0], *lines_of(tmp_path, ["d"]), names[2]]):
        with pytest.raises(ps.StateMismatchError, match="was files.* with other data or arguments than here files"):
            iter(read(other).batch(2)).load_state_dict(state)


def test_a_state_went_on_over_a_file_that_was_replaced(tmp_path):
    names = lines_of(tmp_path, ["a", "b", "c"])
    _, state = state_after(by_number(names), 2)
    (tmp_path / "b").write_text("100\n101\n102\n103\n")
    with pytest.raises(ps.StateMismatchError, match="FilesDataset.* with other data or arguments"):
        iter(by_number(names)).load_state_dict(state)


def test_a_state_went_on_over_other_rows_of_the_same_files(tmp_path):
    (name,) = lines_of(tmp_path, ["a"])

    def part(start):
        return by_number(ps.Dataset.from_tensor_slices(([name], [start], [start + 2])))

    _, state = state_after(part(0), 1)
    with pytest.raises(ps.StateMismatchError, match="with other data or arguments"):
        iter(part(2)).load_state_dict(state)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("names", [["a", "b"], ["x/a", "y/a"]])
def test_a_state_fits_the_same_files_in_another_directory(tmp_path, read, names):
    _, state = state_after(read(lines_of(tmp_path / "before", names)).batch(3), 1)
    with iter(read(lines_of(tmp_path / "mnt" / "after", names)).batch(3)) as resumed:
        resumed.load_state_dict(state)
        assert [int(x) for batch in values(resumed) for x in batch] == list(range(13, 18))


SCRIPT = """
import json, penstock as ps
def {name}(x):
    return str(x) in {{"and", "or", "the", "3", "7"}}
class Keep:
    def __call__(self, x):
        return {name}(x)
dataset = ps.Dataset.range(9).filter({name}).filter(Keep()).prefetch({ahead})
print(json.dumps(iter(dataset).state_dict()["nodes"]))
"""


@pytest.mark.extended
def test_another_process_knows_a_dataset_again():
    found = []
    for name, ahead in (("short", 1), ("chosen", 2)):
        done = subprocess.run(
            [sys.executable, "-c", "\n" * ahead + SCRIPT.format(name=name, ahead=ahead)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": str(ahead)},
        )
        found.append([entry[1:] for entry in json.loads(done.stdout)])
    assert found[0] == found[1]


def test_a_state_of_the_version_before_is_refused_with_what_to_do():
    _, state = state_after(numbers(), 2)
    with pytest.raises(
        ps.StateMismatchError, match="version 1, this penstock reads version 2: finish the epoch with the penstock"
    ):
        iter(numbers()).load_state_dict({**state, "version": 1})
