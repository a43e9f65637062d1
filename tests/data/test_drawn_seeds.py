"""What is random once and for all is the same in every dataset that is made of it."""

import json

import pytest

import penstock as ps


def values(dataset):
    return [int(x) for x in dataset]


def frozen(count=12, **options):
    return ps.Dataset.range(count).shuffle(count, reshuffle_each_iteration=False, **options)


def test_training_data_leaked_into_an_unseeded_validation_split():
    shuffled = frozen()
    validation, training = shuffled.take(4), shuffled.skip(4).shuffle(8)
    for _ in range(2):
        assert sorted(values(validation) + values(training)) == list(range(12))
        assert values(shuffled)[:4] == values(validation)
    streamed = ps.Dataset.from_generator(lambda: iter(range(12))).shuffle(5, reshuffle_each_iteration=False)
    assert sorted(values(streamed.take(4)) + values(streamed.skip(4))) == list(range(12))
    assert values(frozen(1000)) != values(frozen(1000))


def test_a_random_source_and_a_sample_that_do_not_change_agree_too():
    numbers = ps.Dataset.random(rerandomize_each_iteration=False)
    assert values(numbers.take(9)) == values(numbers.take(4)) + values(numbers.skip(4).take(5))
    words = [ps.Dataset.range(0, 100), ps.Dataset.range(100, 200)]
    sampled = ps.Dataset.sample_from_datasets(words, rerandomize_each_iteration=False)
    assert sorted(values(sampled.take(50)) + values(sampled.skip(50))) == list(range(200))


def test_a_state_carries_the_seed_to_a_process_whose_node_drew_another():
    def make():
        shuffled = frozen(40)
        return shuffled.take(10), shuffled.skip(10)

    validation, training = make()
    iterator = iter(training)
    expected = [int(next(iterator)) for _ in range(30)]
    iterator = iter(training)
    assert [int(next(iterator)) for _ in range(7)] == expected[:7]
    state = json.loads(json.dumps(iterator.state_dict()))
    validation_here, training_here = make()
    running = iter(validation_here)
    before = int(next(running))
    with iter(training_here) as resumed:
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert values(resumed) == expected[7:]
    # The other half of the division is the one that belongs to it; what runs already is not disturbed.
    assert values(validation_here) == values(validation)
    assert sorted(values(validation_here) + values(training_here)) == list(range(40))
    assert len({before, *values(running)}) == 10


def test_a_seed_of_the_dataset_is_taken_in_place_of_the_one_that_was_drawn():
    def seeded():
        return frozen().take(6).with_options(ps.Options(seed=7))

    assert values(seeded()) == values(seeded())
    iterator = iter(seeded())
    next(iterator)
    state = iterator.state_dict()
    assert "drawn" not in state
    other = iter(frozen().take(6))
    other.load_state_dict(state)
    assert values(other) == values(seeded())[1:]


def test_a_cache_above_gives_what_belongs_to_the_seed():
    shuffled = frozen(20).cache()
    _, state = values(shuffled), iter(frozen(20).cache()).state_dict()
    iterator = iter(shuffled)
    iterator.load_state_dict(state)
    assert values(iterator) == values(shuffled)


@pytest.mark.parametrize("drawn", [3, [], [1, 2], ["1"]])
def test_a_state_without_the_seeds_is_refused(drawn):
    state = iter(frozen()).state_dict() | {"drawn": drawn}
    with pytest.raises(ps.StateMismatchError, match="its drawn should be 1 integers"):
        iter(frozen()).load_state_dict(state)
