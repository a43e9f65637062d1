"""map(deterministic=False): any order, every element once, also over a restore."""

import json
import threading
import time
from itertools import chain, islice

import pytest
from past_errors import read_past_errors

import penstock as ps


def over(kind, count):
    if kind == "generator":
        return ps.Dataset.from_generator(lambda: iter(range(count)))
    dataset = ps.Dataset.range(count)
    return dataset.filter(lambda x: True) if kind == "stream" else dataset


KINDS = ["index", "stream", "generator"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_element_does_not_hold_up_the_others(kind):
    released = threading.Event()

    def function(x):
        if x == 0:
            assert released.wait(60)
        return x

    iterator = iter(over(kind, 10).map(function, num_parallel_calls=2, deterministic=False))
    first = [int(next(iterator)) for _ in range(5)]
    released.set()
    assert 0 not in first
    assert sorted(first + [int(x) for x in iterator]) == list(range(10))


@pytest.mark.parametrize("kind", KINDS)
def test_slow_elements_held_up_others_whose_short_calls_the_reader_makes(kind):
    released = threading.Event()

    def function(x):
        if x < 2:
            assert released.wait(10)
        return x

    iterator = iter(over(kind, 500).map(function, num_parallel_calls=4, deterministic=False))
    first = [int(next(iterator)) for _ in range(498)]
    released.set()
    assert sorted(first) == list(range(2, 500))
    assert sorted(map(int, iterator)) == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_taken_anywhere_gives_exactly_the_rest(kind):
    def make():
        return over(kind, 20).map(lambda x: x * 10, num_parallel_calls=3, deterministic=False).prefetch(2)

    for given in range(21):
        with iter(make()) as iterator:
            first = [int(next(iterator)) for _ in range(given)]
            state = iterator.state_dict()
        with iter(make()) as resumed:
            resumed.load_state_dict(state)
            assert sorted(first + [int(x) for x in resumed]) == list(range(0, 200, 10)), given


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_results_in_any_order_resume_exactly(kind):
    def make():
        mapped = over(kind, 40).map(lambda x: x * 10, num_parallel_calls=3, deterministic=False)
        return mapped.filter(lambda x: x % 20 == 0).batch(3).prefetch(1)

    for given in range(8):
        with iter(make()) as iterator:
            first = [next(iterator).tolist() for _ in range(given)]
            state = iterator.state_dict()
        with iter(make()) as resumed:
            resumed.load_state_dict(state)
            assert sorted(chain(*first, *(b.tolist() for b in resumed))) == list(range(0, 400, 20)), given


@pytest.mark.parametrize("kind", KINDS)
def test_below_a_step_that_reads_rows_again_the_order_is_kept(kind):
    mapped = over(kind, 40).map(lambda x: x, num_parallel_calls=3, deterministic=False)
    shuffled = mapped.batch(4).unbatch()
    assert [int(x) for x in shuffled] == list(range(40))
    assert "keeps its order: unbatch() above it" in shuffled.explain()
    if kind == "index":
        assert mapped.shuffle(40, seed=1).explain().startswith("shuffle(buffer_size=40, seed=1)")


def test_errors_cost_their_own_element():
    def function(x):
        if x in (3, 7):
            raise ZeroDivisionError(f"no {x}")
        return x

    dataset = ps.Dataset.range(10).map(function, num_parallel_calls=2, deterministic=False)
    found, raised = read_past_errors(dataset, ZeroDivisionError)
    errors = [error.__notes__[0][-len("element 3") :] for error in raised]
    assert sorted(found) == [0, 1, 2, 4, 5, 6, 8, 9]
    assert sorted(errors) == ["element 3", "element 7"]


@pytest.mark.slow
def test_random_numbers_belong_to_the_element_in_any_order():
    def noisy(x, rng):
        return (x, rng.integers(1 << 40))

    ordered = ps.Dataset.range(30).map(noisy, seed=1, num_parallel_calls=2)
    relaxed = ordered.with_options(ps.Options(deterministic=False))
    assert "2 at once in any order" in relaxed.explain()
    assert sorted((int(x), int(r)) for x, r in relaxed) == [(int(x), int(r)) for x, r in ordered]


@pytest.mark.parametrize("deterministic", [True, False])
def test_random_numbers_after_a_row_that_failed_are_those_of_a_serial_map(deterministic):
    rows = ps.Dataset.range(6).filter(lambda x: True).map(lambda x: x if x != 2 else int("two"))

    def drawn(calls):
        noise = rows.map(
            lambda x, rng: rng.integers(1 << 40), seed=1, num_parallel_calls=calls, deterministic=deterministic
        )
        return sorted(read_past_errors(noise, ValueError)[0])

    assert len(drawn(None)) == 5
    assert drawn(2) == drawn(ps.AUTOTUNE) == drawn(None)


def test_a_map_that_asks_for_order_keeps_it_under_relaxed_options():
    dataset = ps.Dataset.range(30).map(lambda x: x, num_parallel_calls=4, deterministic=True)
    assert [int(x) for x in dataset.with_options(ps.Options(deterministic=False))] == list(range(30))


ABOVE = {
    "prefetch": lambda dataset: dataset.prefetch(2),
    "filter": lambda dataset: dataset.filter(lambda x: True),
    "map": lambda dataset: dataset.map(lambda x: x + 0),
    "take": lambda dataset: dataset.take(40),
    "batches": lambda dataset: dataset.batch(2).prefetch(2).unbatch(),
}


@pytest.mark.slow
@pytest.mark.parametrize("above", ABOVE)
def test_a_state_of_what_stands_above_a_relaxed_map_lost_elements_and_gave_others_twice(above):
    """It said how many rows of a block to pass over, and after the restore the block was another one."""

    def slowly(x):
        time.sleep(0.0005 * (int(x) % 3))
        return x

    dataset = ABOVE[above](ps.Dataset.range(40).map(slowly, num_parallel_calls=4, deterministic=False))
    for cut in range(1, 15):
        with iter(dataset) as iterator:
            given = [int(next(iterator)) for _ in range(cut)]
            state = json.loads(json.dumps(iterator.state_dict()))
        with iter(dataset) as restored:
            restored.load_state_dict(state)
            assert sorted([*given, *map(int, restored)]) == list(range(40))


def without_a_failing_row(failing):
    """40 elements, one of which is left out, and an event that the calls for the first two wait for."""
    released = threading.Event()

    def function(x):
        if x == failing:
            raise ValueError("bad row")
        return x

    def wait(x):
        if x < 2:
            assert released.wait(60)
        return x

    rows = ps.Dataset.range(40).map(function).ignore_errors(log=False)
    return rows.map(wait, num_parallel_calls=4, deterministic=False), released


def others_first(iterator, released, *, given=()):
    """All elements in order, with those given before; those that wait are released after the 37 others came."""
    elements = [*given]
    try:
        for element in iterator:
            elements.append(int(element))
            if len(elements) == 37:
                released.set()
    finally:
        released.set()
    return sorted(elements)


def test_the_end_behind_a_row_that_was_left_out_came_before_calls_that_still_ran():
    dataset, released = without_a_failing_row(39)
    assert others_first(iter(dataset), released) == list(range(39))


def test_what_was_left_out_before_the_end_of_what_a_state_names_lost_elements():
    wanted = [*range(38), 39]
    for cut in (1, 7, 20):
        dataset, released = without_a_failing_row(38)
        with iter(dataset) as iterator:
            given = [int(next(iterator)) for _ in range(cut)]
            state = json.loads(json.dumps(iterator.state_dict()))
            assert others_first(iterator, released, given=given) == wanted
        dataset, released = without_a_failing_row(38)
        with iter(dataset) as restored:
            restored.load_state_dict(state)
            assert others_first(restored, released, given=given) == wanted
            assert restored.errors.count == 1


def test_rows_left_out_before_a_slow_element_were_not_counted():
    released = threading.Event()

    def function(x):
        if x % 4 == 0:
            raise ValueError("bad row")
        return x

    def wait(x):
        if x == 1:
            assert released.wait(60)
        return x

    rows = ps.Dataset.range(40).map(function).ignore_errors(log=False)
    iterator = iter(rows.map(wait, num_parallel_calls=4, deterministic=False))
    assert 1 not in [int(next(iterator)) for _ in range(29)]
    released.set()
    assert [int(x) for x in iterator] == [1]
    assert [row.position for row in iterator.errors.rows] == list(range(0, 40, 4))


@pytest.mark.parametrize("more", [1, 2, 3])
def test_rows_left_out_before_elements_in_flight_were_not_counted_after_two_restores(more):
    def function(x):
        if x % 4 == 2:
            raise ValueError("bad row")
        return x

    def make(calls):
        rows = ps.Dataset.range(12).map(function).ignore_errors(log=False)
        return rows.map(lambda x: x, num_parallel_calls=calls, deterministic=False)

    found, state = [], None
    for calls, count in [(2, 1), (1, more), (2, 12)]:
        with iter(make(calls)) as iterator:
            if state is not None:
                iterator.load_state_dict(state)
            found += map(int, islice(iterator, count))
            state = json.loads(json.dumps(iterator.state_dict()))
    assert sorted(found) == [x for x in range(12) if x % 4 != 2]
    assert [row.position for row in iterator.errors.rows] == [2, 6, 10]


def test_a_failure_below_results_in_any_order_was_forgotten_by_a_state_from_before_it():
    def function(x):
        if x % 10 == 5:
            raise ValueError(f"bad row {x}")
        return x

    dataset = ps.Dataset.range(40).map(function).map(lambda x: x, num_parallel_calls=4, deterministic=False)
    for cut in (0, 3, 12, 26):
        iterator = iter(dataset)
        given, raised = [], []
        for _ in range(cut):
            try:
                given.append(int(next(iterator)))
            except ValueError as error:
                raised.append(str(error))
        state = json.loads(json.dumps(iterator.state_dict()))
        iterator.close()
        restored = iter(dataset)
        restored.load_state_dict(state)
        rest, errors = read_past_errors(restored, ValueError)
        assert sorted([*given, *rest]) == [x for x in range(40) if x % 10 != 5]
        assert sorted([*raised, *map(str, errors)]) == [f"bad row {x}" for x in (15, 25, 35, 5)]


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_restore_that_reads_ahead_raised_the_failure_of_a_row_before_the_state(deterministic):
    def function(x):
        if x % 10 == 5:
            raise ValueError("bad row")
        return x

    mapped = ps.Dataset.range(64).map(function, num_parallel_calls=ps.AUTOTUNE, deterministic=deterministic)
    ahead = mapped.prefetch(2).map(lambda x: x, num_parallel_calls=2)
    wanted = [x for x in range(64) if x % 10 != 5]
    for dataset in (mapped, ahead):
        for cut in range(10, 60, 7):
            given, raised = [], 0
            with iter(dataset) as iterator:
                while len(given) + raised < cut:
                    try:
                        given.append(int(next(iterator)))
                    except ValueError:
                        raised += 1
                state = iterator.state_dict()
            with iter(ahead) as restored:
                restored.load_state_dict(state)
                rest, errors = read_past_errors(restored, ValueError)
            assert sorted([*given, *rest]) == wanted and raised + len(errors) == 6
