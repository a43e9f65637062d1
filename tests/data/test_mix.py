"""Mixtures of named sources: shares, ends, stages, epochs, and the errors of their arguments."""

import logging
from collections import Counter
from itertools import islice

import numpy as np
import pytest

import penstock as ps
from penstock.data.plan import make_plan

WEIGHTS = {"web": 6.0, "code": 3.0, "books": 1.0}
NUMBERS = {"web": 0, "code": 1, "books": 2}


def source(name, length=1000):
    """Numbers that tell their source and their position in it."""
    return ps.Dataset.range(10_000 * NUMBERS[name], 10_000 * NUMBERS[name] + length)


def sources(web=1000, code=1000, books=1000):
    return {"web": source("web", web), "code": source("code", code), "books": source("books", books)}


def streams(**lengths):
    return {name: one.filter(lambda x: True) for name, one in sources(**lengths).items()}


def values(dataset, count=None):
    return [int(x) for x in islice(dataset, count)]


def by_source(found):
    """The elements of each source, as positions in it."""
    return {name: [x % 10_000 for x in found if x // 10_000 == number] for name, number in NUMBERS.items()}


@pytest.mark.parametrize("weights", [[1, 1], [6, 3, 1], [1] * 8, [1000, 1, 1, 0.01], np.exp(np.arange(40) / 4)])
def test_every_prefix_is_within_two_elements_of_each_share(weights):
    count = 4000
    parts = {f"source {number}": ps.Dataset.from_tensors(number).repeat() for number in range(len(weights))}
    given = np.array(values(ps.Dataset.mix(parts, weights, seed=5), count))
    shares = np.asarray(weights) / sum(weights)
    for number, share in enumerate(shares):
        had = np.cumsum(given == number)
        assert np.abs(had - share * np.arange(1, count + 1)).max() <= 2


def test_a_rare_source_is_not_lost():
    mixed = ps.Dataset.mix({"web": source("web"), "books": source("books")}, [1_000_000, 1], stop="repeat")
    counts = [mixed.node.order.counts(position)[1] for position in (0, 10**7, 10**12)]
    assert counts == pytest.approx([0, 10, 10**6], abs=2)


def test_each_source_comes_in_its_own_order():
    found = by_source(values(ps.Dataset.mix(sources(), WEIGHTS, stop="repeat"), 2000))
    assert found["web"] == [x % 1000 for x in range(len(found["web"]))]
    assert found["books"] == list(range(len(found["books"])))


def test_the_seed_decides_the_order_and_nothing_else():
    first, again, other = (values(ps.Dataset.mix(sources(), WEIGHTS, seed=seed), 200) for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(Counter(x // 10_000 for x in first).items()) == [(0, 120), (1, 60), (2, 20)]


def test_any_position_is_read_without_those_before_it():
    mixed = ps.Dataset.mix(sources(), WEIGHTS, stop="repeat", seed=3)
    whole = values(mixed, 20_000)
    scattered = np.random.default_rng(0).permutation(20_000)[:500]
    assert values(mixed.select(scattered)) == [whole[row] for row in scattered]
    wide = np.array([7, 10**9, 10**12, 19_999] * 10)
    assert values(mixed.select(wide)) == [int(mixed.at(int(row))) for row in wide]
    assert [int(mixed.at(row)) for row in (0, 1, 16_383, 16_384)] == [whole[row] for row in (0, 1, 16_383, 16_384)]


@pytest.mark.parametrize("make", [sources, streams])
def test_it_ends_with_the_first_source_that_has_none_for_its_turn(make):
    mixed = ps.Dataset.mix(make(books=10), WEIGHTS)
    found = by_source(values(mixed))
    assert len(found["books"]) == 10 and abs(len(found["web"]) - 60) <= 6
    assert mixed.cardinality() in (sum(map(len, found.values())), ps.UNKNOWN_CARDINALITY)


@pytest.mark.parametrize("make", [sources, streams])
def test_the_others_go_on_until_all_have_ended(make):
    lengths = {"web": 70, "code": 5, "books": 40}
    mixed = ps.Dataset.mix(make(**lengths), WEIGHTS, stop="all")
    found = values(mixed)
    assert by_source(found) == {name: list(range(length)) for name, length in lengths.items()}
    assert mixed.cardinality() in (115, ps.UNKNOWN_CARDINALITY)


def test_after_an_end_the_others_keep_their_proportion():
    found = values(ps.Dataset.mix(sources(web=3), WEIGHTS, stop="all"), 403)[3:]
    had = Counter(x // 10_000 for x in found)
    assert had[0] <= 3 and abs(had[1] - 3 * had[2]) <= 8


@pytest.mark.parametrize("make", [sources, streams])
def test_a_source_ends_after_its_epochs(make):
    mixed = ps.Dataset.mix(make(web=20, code=3, books=30), WEIGHTS, stop="repeat", max_epochs={"code": 2})
    found = by_source(values(mixed, 200))
    assert found["code"] == [0, 1, 2, 0, 1, 2]
    assert abs(len(found["web"]) - 6 * len(found["books"])) <= 14


def test_all_sources_with_epochs_end_the_mixture():
    mixed = ps.Dataset.mix(sources(web=4, code=3, books=2), max_epochs=dict.fromkeys(WEIGHTS, 3), stop="repeat")
    assert mixed.cardinality() == 27 and Counter(values(mixed)) == Counter(values(mixed.skip(0)))
    assert max(Counter(values(mixed)).values()) == 3


@pytest.mark.parametrize("make", [sources, streams])
def test_stages_change_the_weights_at_a_position(make):
    stages = [(0, {"web": 1, "code": 0, "books": 0}), (100, [0, 1, 1]), (150, WEIGHTS)]
    found = values(ps.Dataset.mix(make(), stages), 250)
    first, second, third = (
        Counter(x // 10_000 for x in found[start:stop]) for start, stop in [(0, 100), (100, 150), (150, 250)]
    )
    assert first == {0: 100} and second == {1: 25, 2: 25} and third == {0: 60, 1: 30, 2: 10}
    assert by_source(found)["web"] == list(range(160))


def test_a_stage_whose_sources_have_ended_gives_way_to_the_next():
    found = values(ps.Dataset.mix(sources(web=5, books=4, code=1), [(0, [1, 0, 0]), (100, [0, 0, 1])], stop="all"))
    assert found == [*range(5), *range(20_000, 20_004)]


@pytest.mark.parametrize("make", [sources, streams])
def test_a_source_without_weight_does_not_keep_the_others_from_ending(make):
    assert values(ps.Dataset.mix(make(web=4, code=3), [1, 1, 0], stop="all")) == values(
        ps.Dataset.mix({name: one for name, one in make(web=4, code=3).items() if name != "books"}, stop="all")
    )


def test_each_batch_is_of_one_source():
    batches = {name: one.batch(4) for name, one in sources().items()}
    found = list(islice(ps.Dataset.mix(batches, WEIGHTS, unit="batches"), 50))
    assert all(len(set(batch // 10_000)) == 1 and len(batch) == 4 for batch in found)
    assert Counter(int(batch[0]) // 10_000 for batch in found) == {0: 30, 1: 15, 2: 5}


def documents(name, lengths):
    """Documents of a source, whose tokens are its number."""
    rows = [np.full(length, NUMBERS[name]) for length in lengths]
    return ps.Dataset.from_list(rows).with_lengths()


LONG_AND_SHORT = {"web": [2] * 300, "code": [50, 30] * 30, "books": [1, 7] * 50}


def tokens_of(found):
    return Counter(int(x) for document in found for x in document)


@pytest.mark.parametrize("cut", [0, 1, 17, 60])
def test_tokens_are_divided_by_the_weights_and_states_are_exact(cut):
    parts = {
        name: documents(name, lengths).shuffle(9, 2, reshuffle_each_iteration=False)
        for name, lengths in LONG_AND_SHORT.items()
    }
    mixed = ps.Dataset.mix(parts, WEIGHTS, unit="tokens", stop="repeat")
    with iter(mixed) as iterator:
        found = list(islice(iterator, cut))
        state = iterator.state_dict()
    with iter(mixed) as resumed:
        resumed.load_state_dict(state)
        found += list(islice(resumed, 400 - cut))
    assert [x.tolist() for x in found] == [x.tolist() for x in islice(mixed, 400)]
    had = tokens_of(found)
    assert all(abs(had[number] - had.total() * share / 10) <= 100 for number, share in enumerate([6, 3, 1]))


@pytest.mark.parametrize("stop", ["first", "all"])
def test_documents_counted_by_tokens_end(stop):
    parts = {name: documents(name, lengths) for name, lengths in LONG_AND_SHORT.items()}
    found = Counter(int(x[0]) for x in ps.Dataset.mix(parts, [1, 1, 8], unit="tokens", stop=stop))
    assert found[2] == 100 and (found == {0: 300, 1: 60, 2: 100}) is (stop == "all")


def test_stages_of_tokens_begin_after_so_many():
    parts = {name: documents(name, lengths) for name, lengths in LONG_AND_SHORT.items()}
    stages = [(0, [1, 0, 0]), (100, [0, 1, 0]), (500, [0, 0, 1])]
    found = [int(x[0]) for x in ps.Dataset.mix(parts, stages, unit="tokens")]
    assert found == [0] * 50 + [1] * 10 + [2] * 100


def test_a_mixture_of_known_lengths_has_known_lengths():
    parts = {name: documents(name, lengths) for name, lengths in LONG_AND_SHORT.items()}
    packed = ps.Dataset.mix(parts, WEIGHTS, stop="all").pack(64)
    assert packed.node.indexable and packed.cardinality() == len(list(packed))


def test_shuffled_sources_have_another_order_in_each_epoch():
    mixed = ps.Dataset.mix({"web": source("web", 30).shuffle(seed=1)}, stop="repeat")
    found = values(mixed, 60)
    assert sorted(found[:30]) == sorted(found[30:]) == list(range(30)) and found[:30] != found[30:]


@pytest.mark.parametrize("make", [sources, streams])
def test_a_source_that_is_read_a_fifth_time_is_named(make, caplog):
    mixed = ps.Dataset.mix(make(books=3), stop="repeat")
    with caplog.at_level(logging.WARNING, "penstock"):
        values(mixed.take(30))
        assert not caplog.messages
        values(mixed.take(60))
    assert ["'books'" in text and "max_epochs={'books': 4}" in text for text in caplog.messages] == [True]


@pytest.mark.parametrize("make", [sources, streams])
def test_the_source_that_ends_a_mixture_is_named_once(make, caplog):
    mixed = ps.Dataset.mix(make(books=10), WEIGHTS)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert len(values(mixed)) == len(values(mixed))
    assert ["because 'books' has ended" in text and "stop='all'" in text for text in caplog.messages] == [True]


def test_explain_says_which_source_ends_it():
    assert "ends because 'books' has ended" in ps.Dataset.mix(sources(books=10), WEIGHTS).explain()


def test_a_failing_row_comes_after_the_rows_before_it():
    def fails_at_3(x):
        if x == 3:
            raise ArithmeticError("three")
        return x

    mixed = ps.Dataset.mix(sources() | {"web": source("web").map(fails_at_3)}, WEIGHTS)
    whole = values(ps.Dataset.mix(sources(), WEIGHTS), 60)
    iterator = iter(mixed)
    before = whole.index(3)
    assert values(iterator, before) == whole[:before]
    with pytest.raises(ArithmeticError):
        next(iterator)
    assert values(iterator, 20) == whole[before + 1 : before + 21]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ps.Dataset.mix({}), ValueError, "at least one dataset"),
        (lambda: ps.Dataset.mix([source("web")]), TypeError, "dictionary of datasets by name"),
        (lambda: ps.Dataset.mix({"web": 3}), TypeError, "takes a ps.Dataset"),
        (lambda: ps.Dataset.mix(sources(code=0)), ValueError, "source 'code' is empty: leave it out"),
        (lambda: ps.Dataset.mix(sources(), {"web": 1, "maths": 1}), ValueError, "no source 'maths'"),
        (lambda: ps.Dataset.mix(sources(), {"web": 1, "code": 1}), ValueError, "no weight for the source 'books'"),
        (lambda: ps.Dataset.mix(sources(), [1, 2]), ValueError, "takes 3 weights"),
        (lambda: ps.Dataset.mix(sources(), [1, -1, 1]), ValueError, "that of 'code' must be a number from 0 on"),
        (lambda: ps.Dataset.mix(sources(), [1, 1, float("nan")]), ValueError, "that of 'books'"),
        (lambda: ps.Dataset.mix(sources(), [float("inf"), 1, 1]), ValueError, "that of 'web'"),
        (lambda: ps.Dataset.mix(sources(), [0, 0, 0]), ValueError, "are all 0"),
        (lambda: ps.Dataset.mix(sources(), ["a", 1, 1]), TypeError, "takes numbers"),
        (lambda: ps.Dataset.mix(sources(), [(5, [1, 1, 1])]), ValueError, "first stage must begin at 0"),
        (lambda: ps.Dataset.mix(sources(), [(0, [1, 1, 1]), (0, [1, 1, 1])]), ValueError, "position of a stage"),
        (lambda: ps.Dataset.mix(sources(), unit="rows"), ValueError, "'elements', 'tokens', 'batches'"),
        (lambda: ps.Dataset.mix(sources(), unit="tokens"), ValueError, "those of 'web' are unknown: call with_lengths"),
        (lambda: ps.Dataset.mix(sources(), unit="batches"), ValueError, "'web' gives single rows: call batch"),
        (lambda: ps.Dataset.mix(sources(), stop="last"), ValueError, "'first', 'all', 'repeat'"),
        (lambda: ps.Dataset.mix(sources(), max_epochs={"maths": 1}), ValueError, "no source 'maths'"),
        (lambda: ps.Dataset.mix(sources(), max_epochs={"web": 0}), ValueError, "max_epochs"),
        (lambda: ps.Dataset.mix(sources(), max_epochs=3), TypeError, "dictionary of numbers by source"),
        (lambda: ps.Dataset.mix(sources(), seed=-1), ValueError, "seed"),
        (lambda: ps.Dataset.mix(sources() | {"web": source("web").map(float)}), TypeError, "elements of one kind"),
    ],
)
def test_wrong_arguments_name_the_source_and_the_remedy(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("stop", ["first", "all", "repeat"])
def test_a_stream_that_turns_out_to_be_empty_is_named(stop):
    mixed = ps.Dataset.mix(sources() | {"code": source("code").filter(lambda x: False)}, WEIGHTS, stop=stop)
    with pytest.raises(ValueError, match="the source 'code' is empty: leave it out"):
        list(islice(mixed, 100))


def test_an_order_without_the_seed_of_its_sources_keeps_their_orders():
    """A shuffle without a seed draws by the name of its source, not by its place among all."""
    three = ps.Dataset.mix({name: one.shuffle() for name, one in sources().items()}).with_options(ps.Options(seed=4))
    two = ps.Dataset.mix({name: source(name).shuffle() for name in ("books", "web")}).with_options(ps.Options(seed=4))
    found, fewer = by_source(values(three, 600)), by_source(values(two, 600))
    assert found["web"][:100] == fewer["web"][:100] and found["books"][:50] == fewer["books"][:50]
    assert found["web"] != found["code"]


def test_evaluation_parts_by_keys_are_never_mixed_in_and_stay_the_same() -> None:
    sources = {name: ps.Dataset.from_list([f"{name}/{row}" for row in range(200)]) for name in ("web", "code")}
    parts = {name: source.split([0.95, 0.05], key=str) for name, source in sources.items()}
    mixed = ps.Dataset.mix({name: train for name, (train, _) in parts.items()}, {"web": 3, "code": 1}, stop="all")
    held_out = {name: list(evaluation) for name, (_, evaluation) in parts.items()}
    assert [int(row[5:]) for row in held_out["code"]] == [39, 60, 61, 88, 107, 109, 149, 163, 168]
    assert set(mixed) == {row for source in sources.values() for row in source} - set().union(*held_out.values())
    more = ps.Dataset.from_list([f"code/{row}" for row in range(400)]).split([0.95, 0.05], key=str)[1]
    assert [row for row in more if int(row[5:]) < 200] == held_out["code"]


def test_a_block_of_a_mixture_may_take_as_long_as_one_of_each_source():
    mixed = ps.Dataset.mix({str(number): source("web") for number in range(12)}).batch(12)
    assert make_plan(mixed.node).readings == 12 and make_plan(source("web").batch(12).node).readings == 1
