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


@pytest.mark.extended
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
        for first, second in ((quick, slow), (slow, quick), (quick, quick))[cut % 3 :][:1]:
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


def test_weights_of_a_dataset_are_those_of_each_draw():
    parts = [ps.Dataset.from_tensors(number).repeat() for number in range(2)]
    weights = ps.Dataset.from_list([[1.0, 0.0]] * 5 + [[0.0, 3.0]] * 5 + [[0.5, 0.5]] * 40)
    sampled = ps.Dataset.sample_from_datasets(parts, weights, seed=1)
    rows = [int(x) for x in sampled]
    assert rows[:10] == [0] * 5 + [1] * 5
    assert len(rows) == 50
    assert 8 < sum(rows[10:]) < 32
    assert rows == [int(x) for x in ps.Dataset.sample_from_datasets(parts, weights, seed=1)]
    iterator = iter(sampled)
    taken = [int(next(iterator)) for _ in range(20)]
    resumed = iter(sampled)
    resumed.load_state_dict(iterator.state_dict())
    assert [*map(int, resumed)] == [*map(int, iterator)]
    assert len(taken) == 20
    with pytest.raises(ps.InvalidArgumentError, match=r"takes a seed, from which every epoch draws anew: add seed=..."):
        ps.Dataset.sample_from_datasets(parts, weights)
    wrong = ps.Dataset.sample_from_datasets(parts, ps.Dataset.from_list([[0.0, 0.0]]), seed=1)
    with pytest.raises(ps.ElementError, match="must be numbers, none below 0, not all 0, got"):
        list(wrong)


def test_members_of_another_shape_are_still_merged():
    parts = [ps.Dataset.from_tensor_slices(np.ones((4, width))) for width in (2, 3)]
    sampled = ps.Dataset.sample_from_datasets(parts, seed=1, stop_on_empty_dataset=False)
    assert sorted(x.shape for x in sampled) == [(2,)] * 4 + [(3,)] * 4


@pytest.mark.parametrize("stop", [True, False])
def test_members_with_one_leaf_of_varying_shape_are_chosen_from(stop):
    rows = ps.Dataset.from_list([{"number": x, "list": [x] * (x % 3 + 1)} for x in range(6)])
    chosen = ps.Dataset.choose_from_datasets(
        [rows.take(3), rows.skip(3)], ps.Dataset.range(2).repeat(3), stop_on_empty_dataset=stop
    )
    assert [element["list"].tolist() for element in chosen] == [[x] * (x % 3 + 1) for x in (0, 3, 1, 4, 2, 5)]


def test_a_member_that_fails_beside_others_costs_its_element_alone():
    def function(x):
        if x == 2:
            raise ZeroDivisionError
        return x

    mapped = ps.Dataset.range(8).map(function, output_signature=ps.TensorSpec((), np.int64))
    chosen = ps.Dataset.choose_from_datasets([mapped, ps.Dataset.range(10, 18)], ps.Dataset.range(2).repeat())
    for dataset in (chosen, chosen.shuffle(1, seed=1)):
        found, iterator = [], iter(dataset)
        while len(found) < 9:
            try:
                found.append(int(next(iterator)))
            except ZeroDivisionError:
                found.append("failed")
        assert found == [0, 10, 1, 11, "failed", 3, 12, 4, 13]


@pytest.mark.parametrize("stream", [False, True], ids=["index", "stream"])
@pytest.mark.parametrize(
    "choices", [[0.0, 1.0], [[0], [1]], [[0.0], [1.0]], ["0", "1"], [True, False], [(0, 0)], {"a": [0, 1]}, ([0], [1])]
)
def test_a_choice_that_is_no_integer_is_refused(choices, stream):
    choice = ps.Dataset.from_tensor_slices(choices)
    with pytest.raises((ps.ElementError, ps.InvalidTypeError), match="integer"):
        list(ps.Dataset.choose_from_datasets(members((3, 3)), choice.filter(lambda *x: True) if stream else choice))
