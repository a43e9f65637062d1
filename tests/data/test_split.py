"""split: datasets that share the rows of one."""

import json

import numpy as np
import pytest

import penstock as ps

USERS = ["ann", "bob", "cid", "dee", "eve", "fay", "gil", "hal"]
VISITS = ps.Dataset.from_tensor_slices({"user": [USERS[n * n % 8] for n in range(40)], "page": np.arange(40)})


def values(dataset):
    return [int(x) for x in dataset]


def pages(dataset):
    return [int(row["page"]) for row in dataset]


def test_parts_are_of_consecutive_rows():
    parts = ps.Dataset.range(10).map(lambda x: x * x).split([0.5, 0.3, 0.2])
    assert [values(part) for part in parts] == [[0, 1, 4, 9, 16], [25, 36, 49], [64, 81]]
    assert [len(part) for part in ps.Dataset.range(7).split([1 / 3, 1 / 3, 1 / 3])] == [2, 3, 2]
    assert [values(part) for part in ps.Dataset.range(0).split([0.5, 0.5])] == [[], []]


def test_a_number_is_the_share_of_the_first_of_two_parts():
    assert [pages(part) for part in VISITS.split(0.3, key="user")] == [
        pages(part) for part in VISITS.split([0.3, 0.7], key="user")
    ]
    with pytest.raises(ps.InvalidArgumentError, match="shares that sum to 1"):
        VISITS.split(1.5)


def test_a_seed_draws_rows_that_stay_the_same_in_every_epoch():
    first, second = ps.Dataset.range(1000).split([0.7, 0.3], seed=3)
    assert len(first) == 700 and sorted(values(first) + values(second)) == list(range(1000))
    assert values(first) == values(first) == sorted(values(first)) != list(range(700))
    again, other = (ps.Dataset.range(1000).split([0.7, 0.3], seed=seed)[0] for seed in (3, 4))
    assert values(again) == values(first) != values(other)
    assert first.node.rows.dtype == np.uint16


def test_all_rows_of_a_key_are_in_one_part():
    parts = VISITS.split([0.4, 0.3, 0.3], key="user")
    users = [{row["user"] for row in part} for part in parts]
    assert sum(map(len, users)) == len(set.union(*users)) and sorted(x for part in parts for x in pages(part)) == list(
        range(40)
    )


def test_the_part_of_a_key_never_changes():
    numbers = ps.Dataset.range(20)
    first, second = numbers.split([0.5, 0.5], key=lambda x: x)
    assert values(first) == [2, 4, 6, 12, 14, 16, 17, 18]
    assert values(numbers.map(str).split([0.5, 0.5], key=lambda x: x)[1]) == values(second)
    assert values(numbers.map(lambda x: str(x).encode()).split([0.5, 0.5], key=lambda x: x)[1]) == values(second)
    assert values(numbers.split([0.5, 0.5], key=lambda x: x, seed=1)[0])[:6] == [0, 1, 2, 3, 5, 9]


def test_a_key_decides_whatever_the_order():
    expected = [2, 4, 6, 12, 14, 16, 17, 18]
    for shuffled in (ps.Dataset.range(20).shuffle(), ps.Dataset.range(20).shuffle(5).cache()):
        part, other = shuffled.split([0.5, 0.5], key=lambda x: x)
        assert sorted(values(part)) == sorted(values(part)) == expected
        assert sorted(values(other)) == sorted(set(range(20)) - set(expected))


def test_rows_that_are_added_move_no_other():
    few, many = (ps.Dataset.range(count).split([0.8, 0.2], key=lambda x: f"row {x}")[1] for count in (500, 1000))
    assert [x for x in values(many) if x < 500] == values(few)
    assert 150 < len(many) < 250


def test_a_stream_is_split_by_the_same_keys():
    parts = [VISITS.split([0.4, 0.6], key="user"), VISITS.filter(lambda row: True).split([0.4, 0.6], key="user")]
    assert [pages(part) for part in parts[1]] == [pages(part) for part in parts[0]]
    endless = ps.Dataset.counter().split([0.5, 0.5], key=lambda x: x)[0]
    assert values(endless.take(5)) == [2, 4, 6, 12, 14]


def test_a_key_that_no_leaf_has_names_the_leaves_that_there_are():
    with pytest.raises(ps.errors.ElementError, match=r"split\(key='usr'\) .*there are the leaves \['page', 'user'\]"):
        VISITS.split([0.5, 0.5], key="usr")
    with pytest.raises(ps.errors.ElementError, match=r"split\(key='user'\) .*there are no named leaves"):
        ps.Dataset.range(4).split([0.5, 0.5], key="user")


def test_a_row_that_fails_is_skipped_and_a_key_that_fails_is_an_error():
    def inverse(x):
        return 12 // int(x - 3)

    numbers = ps.Dataset.range(6).map(inverse)
    with pytest.raises(ZeroDivisionError):
        numbers.split([0.5, 0.5], key=lambda x: x)
    parts = numbers.with_options(ps.Options(on_error="skip")).split([0.5, 0.5], key=lambda x: x)
    assert sorted(x for part in parts for x in values(part)) == [-12, -6, -4, 6, 12]
    with pytest.raises(ZeroDivisionError):
        ps.Dataset.range(6).with_options(ps.Options(on_error="skip")).split([0.5, 0.5], key=inverse)


def test_a_state_of_one_part_is_refused_by_another():
    parts = ps.Dataset.range(20).split([0.5, 0.5], seed=1)
    iterator = iter(parts[0])
    given = [int(next(iterator)) for _ in range(4)]
    state = json.loads(json.dumps(iterator.state_dict()))
    resumed = iter(ps.Dataset.range(20).split([0.5, 0.5], seed=1)[0])
    resumed.load_state_dict(state)
    assert given + values(resumed) == values(parts[0])
    with pytest.raises(ps.StateMismatchError, match=r"select\(10 of 20\) with other data"):
        iter(parts[1]).load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda d: d.split([0.5, 0.4]), ps.InvalidArgumentError, r"split\(fractions=...\) takes shares that sum to 1"),
        (lambda d: d.split([1.5, -0.5]), ps.InvalidArgumentError, r"takes shares that sum to 1, got \[1.5, -0.5\]"),
        (lambda d: d.split([]), ps.InvalidArgumentError, "takes shares that sum to 1"),
        (lambda d: d.shuffle(seed=1).split([0.5, 0.5]), ps.InvalidArgumentError, r"shuffle\(.* gives others in every"),
        (lambda d: d.shuffle().cache().split([0.5, 0.5]), ps.InvalidArgumentError, "epoch or run: split before the st"),
        (lambda d: d.filter(bool).split([0.5, 0.5]), ps.InvalidArgumentError, r"filter\(.* is a stream: .* by a key"),
        (lambda d: ps.Dataset.counter().split([0.5, 0.5]), ps.InvalidArgumentError, "never ends"),
        (lambda d: d.split([0.5, 0.5], key=lambda x: x * 0.5), ps.InvalidTypeError, "strings, bytes or integers, got"),
        (lambda d: d.split([0.5, 0.5], key=7), ps.InvalidTypeError, r"split\(key=...\) takes a function, got 7"),
    ],
)
def test_what_cannot_be_split_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make(ps.Dataset.range(10))


def test_a_shuffle_that_stays_the_same_may_be_split():
    fixed = ps.Dataset.range(9).shuffle(seed=1, reshuffle_each_iteration=False)
    assert [x for part in fixed.split([0.5, 0.5]) for x in values(part)] == values(fixed)
