"""Taking from one dataset or the other by choice: rows that are looked up together are those of choices one by one."""

import json
from itertools import islice

import numpy as np
import pytest

import penstock as ps

LENGTHS = (5, 0, 300, 40, 7)


def members(lengths=LENGTHS):
    return [ps.Dataset.range(1000 * number, 1000 * number + length) for number, length in enumerate(lengths)]


def by_hand(choices, lengths, stop):
    """The elements, going from choice to choice."""
    given, found = [0] * len(lengths), []
    for number in choices:
        if given[number] == lengths[number]:
            if stop:
                break
            continue
        found.append(1000 * number + given[number])
        given[number] += 1
    return found


def drawn(seed, count=400):
    return np.random.default_rng(seed).integers(0, len(LENGTHS), count)


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_choices_are_followed_one_by_one(stop, seed):
    choices = drawn(seed)
    lengths = LENGTHS if not stop else tuple(length + 20 for length in LENGTHS)
    chosen = ps.Dataset.choose_from_datasets(
        members(lengths), ps.Dataset.from_tensor_slices(choices), stop_on_empty_dataset=stop
    )
    assert [int(x) for x in chosen] == by_hand(choices, lengths, stop)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [True, False])
def test_states_hold_at_every_element_and_whether_or_not_a_member_is_mapped(stop):
    """Rows that are looked up together, and one member after the other: the states of both are the same."""
    lengths = tuple(length + 10 for length in LENGTHS)
    choice = ps.Dataset.from_tensor_slices(drawn(1, 120))
    plain = members(lengths)
    mapped = [plain[0].map(lambda x: x), *plain[1:]]
    quick, slow = (
        ps.Dataset.choose_from_datasets(parts, choice, stop_on_empty_dataset=stop) for parts in (plain, mapped)
    )
    whole = [int(x) for x in slow]
    assert [int(x) for x in quick] == whole
    for cut in range(len(whole) + 1):
        for first, second in ((quick, slow), (slow, quick), (quick, quick)):
            with iter(first) as iterator:
                given = [int(x) for x in islice(iterator, cut)]
                state = json.loads(json.dumps(iterator.state_dict()))
            with iter(second) as iterator:
                iterator.load_state_dict(state)
                assert given + [int(x) for x in iterator] == whole


def test_a_wrong_choice_comes_after_the_elements_before_it():
    choice = ps.Dataset.from_tensor_slices(np.array([0, 2, 0, 9, 2, 2]))
    iterator = iter(ps.Dataset.choose_from_datasets(members(), choice))
    assert [int(next(iterator)) for _ in range(3)] == [0, 2000, 1]
    with pytest.raises(ps.errors.ElementError, match="the choice must be from 0 to 4, got 9"):
        next(iterator)
    assert [int(x) for x in iterator] == [2001, 2002]


def test_hundreds_of_members_each_give_their_elements_in_order():
    parts = [ps.Dataset.range(1000 * number, 1000 * number + 20) for number in range(300)]
    sampled = ps.Dataset.sample_from_datasets(parts, seed=3, stop_on_empty_dataset=False)
    rows = np.array([int(x) for x in sampled])
    assert sorted(rows.tolist()) == [1000 * number + row for number in range(300) for row in range(20)]
    assert all(np.all(np.diff(rows[rows // 1000 == number]) == 1) for number in range(300))
    weighted = ps.Dataset.sample_from_datasets(
        [ps.Dataset.range(0, 1000).repeat(), ps.Dataset.range(1000, 2000).repeat()], [0.9, 0.1], seed=3
    ).take(2000)
    assert 1750 <= sum(int(x) < 1000 for x in weighted) <= 1850


def test_members_of_another_shape_are_still_merged():
    parts = [ps.Dataset.from_tensor_slices(np.ones((4, width))) for width in (2, 3)]
    sampled = ps.Dataset.sample_from_datasets(parts, seed=1, stop_on_empty_dataset=False)
    assert sorted(x.shape for x in sampled) == [(2,)] * 4 + [(3,)] * 4
