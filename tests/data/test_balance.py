"""balance: which slice gets which row, so that the slices of a step, or the steps of a window, cost alike."""

import numpy as np
import pytest

import penstock as ps
from penstock.data.operators.balance import alike
from penstock.sharding import slice_bounds

COSTS = np.random.default_rng(1).lognormal(6, 1.2, 512).astype(np.int64)


def rows(seed: int = 3) -> ps.Dataset:
    return ps.Dataset.from_tensor_slices(COSTS).shuffle(seed=seed)


def spread(sums: np.ndarray) -> float:
    """The largest of several sums, relative to their mean."""
    return float(sums.max() / sums.mean())


def test_slices_cost_alike_and_the_rows_of_a_step_stay() -> None:
    plain, balanced = rows().batch(128), rows().batch(128).balance(lambda x: x, slices=4)
    for before, after in zip(plain.take(4), balanced.take(4), strict=True):
        assert sorted(before) == sorted(after)
        assert spread(after.reshape(4, -1).sum(axis=1)) < 1.01 < 1.1 < spread(before.reshape(4, -1).sum(axis=1))
    assert balanced.with_options(ps.Options(seed=0)).batch(4).at(0).shape == (4, 128)


def test_ranks_cost_alike_also_when_their_micro_batches_are_the_slices() -> None:
    data = ps.Dataset.from_list([9, 1, 6, 4, 5, 5])
    (batch,) = data.batch(6).balance(float, slices=6)
    assert [int(rank.sum()) for rank in batch.reshape(2, 3)] == [15, 15]  # two ranks with three micro-batches


def test_the_costs_are_those_of_rows_before_they_are_padded() -> None:
    texts = ps.Dataset.from_list([[1, 2, 3, 4], [1], [1, 2], [1, 2, 3]])
    padded = texts.padded_batch(4).balance(len, slices=2)
    assert next(iter(padded)).tolist() == [[1, 2, 3, 4], [1, 0, 0, 0], [1, 2, 0, 0], [1, 2, 3, 0]]


def test_several_costs_of_a_row_are_all_balanced() -> None:
    costs = np.column_stack([COSTS, np.roll(COSTS, 100)]).astype(np.float64)
    order = alike(costs, [64] * 8)
    for kind in range(2):
        before, after = (spread(found[:, kind].reshape(8, -1).sum(axis=1)) for found in (costs, costs[order]))
        assert after < 1.21 and after < before


@pytest.mark.parametrize("slices", [1, 4])
def test_a_window_divides_rows_among_steps_by_costs_alone(slices: int) -> None:
    steps = list(rows().batch(32).balance(lambda x: x, slices=slices, window=8))
    once = list(rows().batch(32).balance(lambda x: x, window=8))
    assert [sorted(step) for step in steps] == [sorted(step) for step in once]
    plain = np.array(list(rows().batch(32)))
    for window in range(2):
        part = slice(8 * window, 8 * window + 8)
        assert sorted(np.concatenate(steps[part])) == sorted(plain[part].ravel())
        assert spread(np.array(steps[part]).sum(axis=1)) < 1.02 < spread(plain[part].sum(axis=1))


def test_lengths_that_are_known_balance_without_reading_other_rows() -> None:
    read = []
    texts = ps.Dataset.range(40).with_lengths(COSTS[:40]).shuffle(seed=1).map(lambda x: read.append(int(x)) or x)
    batches = ps.Dataset.range(40).with_lengths(COSTS[:40]).shuffle(seed=1).batch(8).balance(slices=2)
    by_cost = ps.Dataset.range(40).shuffle(seed=1).batch(8).balance(lambda x: COSTS[x], slices=2)
    assert np.array_equal(list(batches), list(by_cost))
    with pytest.raises(ps.InvalidArgumentError, match=r"balance\(\) has no lengths of the rows of map"):
        texts.batch(8).balance()


@pytest.mark.parametrize("known", [True, False])
def test_ranks_get_slices_that_cost_alike_of_the_same_step(known: bool) -> None:
    source = ps.Dataset.from_tensor_slices(COSTS)
    source = source.with_lengths(COSTS).shuffle(seed=3) if known else source.shuffle(seed=3)
    dataset = source.batch(64).balance(None if known else lambda x: x)
    assert np.array_equal(next(iter(dataset)), next(iter(rows().batch(64))))  # one replica: nothing to balance
    steps = []
    for worker in range(2):
        strategy = ps.HostStrategy(replicas_per_worker=2, num_workers=2, worker_index=worker)
        with iter(strategy.distribute_dataset(dataset)) as iterator:
            steps.append([step.values for step in iterator])
    for plain, first, second in zip(rows().batch(64), *steps, strict=True):
        slices = [*first, *second]
        assert sorted(np.concatenate(slices)) == sorted(plain)
        loads = np.array([part.sum() for part in slices])
        assert spread(loads) < 1.3  # one row costs as much as many others
    alone = iter(ps.HostStrategy(replicas_per_worker=4).distribute_dataset(dataset))
    assert all(np.array_equal(*both) for both in zip(next(alone).values, [*steps[0][0], *steps[1][0]], strict=True))


def test_a_state_holds_for_another_number_of_replicas() -> None:
    dataset = rows().batch(64).balance(lambda x: x, window=2)
    with iter(ps.HostStrategy(replicas_per_worker=2).distribute_dataset(dataset)) as iterator:
        next(iterator)
        state = iterator.state_dict()
        second = np.concatenate(next(iterator).values)
    resumed = iter(ps.HostStrategy(replicas_per_worker=4).distribute_dataset(dataset))
    resumed.load_state_dict(state)
    parts = next(resumed).values
    assert sorted(np.concatenate(parts)) == sorted(second)
    assert spread(np.array([part.sum() for part in parts])) < 1.1


@pytest.mark.parametrize("wrong", [float("nan"), -1, float("inf"), None, "many"])
def test_a_cost_that_is_none_names_the_row_and_comes_after_the_rows_before(wrong: object) -> None:
    source = ps.Dataset.range(12).shuffle(seed=1)
    place = list(ps.Dataset.range(12).shuffle(seed=1)).index(7)
    dataset = source.batch(3).balance(lambda x: wrong if x == 7 else int(x), slices=3)
    iterator, plain = iter(dataset), list(source.batch(3))
    for step in range(4):
        if step == place // 3:
            with pytest.raises(ps.ElementError, match="finite number of at least 0.*got") as caught:
                next(iterator)
            assert any("row 7 of range" in note for note in caught.value.__notes__)
        else:
            assert len(next(iterator)) == len(plain[step])


def test_batches_are_all_that_can_be_balanced_and_slices_have_rows() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="balance follows batch, padded_batch, ragged_batch or batch_by"):
        ps.Dataset.range(4).balance(lambda x: x)
    with pytest.raises(ps.InvalidArgumentError, match="slices=8. of batches of 4 rows leaves slices without a row"):
        ps.Dataset.range(8).batch(4).balance(lambda x: x, slices=8)


def test_rows_of_a_balanced_step_are_in_the_order_of_its_slices() -> None:
    dataset = ps.Dataset.range(30).shuffle(seed=1).batch(10).balance(lambda x: x, slices=2, window=2)
    assert [[row.row for row in dataset.rows(step)] for step in range(3)] == [step.tolist() for step in dataset]


def test_every_rank_knows_the_tokens_of_the_whole_step() -> None:
    lengths = COSTS[:50] % 9 + 1
    documents = ps.Dataset.from_list([[7] * int(length) for length in lengths])
    steps = (
        documents.padded_batch(8)
        .balance(len)
        .map(lambda tokens: {"tokens": tokens, "tokens_of_step": np.full(len(tokens), np.count_nonzero(tokens))})
    )
    ranks = []
    for worker in range(2):
        with iter(ps.HostStrategy(1, 2, worker).distribute_dataset(steps)) as iterator:
            ranks.append(
                [(np.count_nonzero(one["tokens"].values[0]), one["tokens_of_step"].values[0]) for one in iterator]
            )
    for number, (first, second) in enumerate(zip(*ranks, strict=True)):
        whole = lengths[8 * number : 8 * number + 8].sum()
        assert first[0] + second[0] == whole == first[1][0] == second[1][0]


def test_batches_by_size_fill_the_budget_of_a_step() -> None:
    sizes = COSTS[:300] % 50 + 1
    dataset = ps.Dataset.from_tensor_slices(sizes).batch_by(200, lambda x: x, max_rows=12, multiple_of=4)
    batches = [batch.tolist() for batch in dataset]
    assert [x for batch in batches for x in batch] == sizes.tolist()
    for number, batch in enumerate(batches[:-1]):
        assert sum(batch) <= 200 and len(batch) in (4, 8, 12)
        assert len(batch) == 12 or sum(batch) + sum(batches[number + 1][:4]) > 200
    for arguments in ({"cost": lambda x: x}, {"window": 2}):
        with pytest.raises(ps.InvalidArgumentError, match="takes its sizes as costs, a batch at a time: leave cost"):
            dataset.balance(**arguments)
    with pytest.raises(ps.InvalidArgumentError, match="balance follows batch.* and here follows map"):
        dataset.map(abs).balance()


def test_a_row_above_the_budget_is_named_after_the_rows_before_it() -> None:
    rows = ps.Dataset.from_list([3, 9, 1, 2]).shuffle(seed=1)
    order = [int(x) for x in ps.Dataset.from_list([3, 9, 1, 2]).shuffle(seed=1)]
    found, iterator = [], iter(rows.batch_by(8, lambda x: x))
    while len(found) < order.index(9):
        found += next(iterator).tolist()
    with pytest.raises(ps.ElementError, match="a row of size 9 is more than the budget of 8: raise") as caught:
        next(iterator)
    assert caught.value.__notes__[0].endswith(f"element {order.index(9)}")
    assert found == order[: order.index(9)]
    assert [x for batch in iterator for x in batch.tolist()] == order[order.index(9) + 1 :]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((0, len), "must be a number above 0, got 0"),
        ((9, len, 6, 4), "max_rows=6. must be a multiple of multiple_of=4"),
    ],
)
def test_budgets_and_numbers_of_rows_are_checked(arguments: tuple, told: str) -> None:
    with pytest.raises(ps.InvalidArgumentError, match=told):
        ps.Dataset.range(3).batch_by(*arguments)


def test_ranks_take_slices_of_batches_by_size_and_end_together() -> None:
    dataset = ps.Dataset.from_tensor_slices(COSTS[:50] % 20 + 1).batch_by(60, lambda x: x, multiple_of=2)
    steps = []
    for worker in range(2):
        with iter(ps.HostStrategy(1, 2, worker).distribute_dataset(dataset)) as iterator:
            steps.append([step.values[0].tolist() for step in iterator])
    assert [a + b for a, b in zip(*steps, strict=True)] == [batch.tolist() for batch in dataset]


def test_sizes_and_costs_are_columns_by_name():
    rows = ps.Dataset.from_list([{"n": n, "text": "x" * n} for n in (5, 1, 3, 4, 2, 6)])

    def sizes(batches):
        return [batch["n"].tolist() for batch in batches]

    assert sizes(rows.batch_by(7, "n")) == sizes(rows.batch_by(7, "text")) == [[5, 1], [3, 4], [2], [6]]
    by_name = rows.batch(6).balance("n", slices=2)
    assert sizes(by_name) == sizes(rows.batch(6).balance("text", slices=2)) == [[3, 2, 6, 5, 1, 4]]
    with pytest.raises(
        ps.ElementError, match=r"balance\(cost='m'\) takes the name of a leaf, and there are the leaves"
    ):
        list(rows.batch(6).balance("m", slices=2))


def test_a_batch_by_without_a_number_of_rows_shows_none():
    rows = ps.Dataset.range(9)
    assert rows.batch_by(7, int).explain().startswith("batch_by(budget=7) ")
    assert (
        rows.batch_by(7, int, max_rows=4, multiple_of=2)
        .explain()
        .startswith("batch_by(budget=7, multiple_of=2, max_rows=4) ")
    )


def known_and_not(lengths=COSTS[:200] % 9 + 1):
    """Rows of unequal length, with lengths that are known without reading them, and without."""
    rows = ps.Dataset.from_tensor_slices(lengths).map(lambda n: np.full(int(n), n))
    return rows.with_lengths(lengths), rows


@pytest.mark.parametrize("arguments", [{}, {"max_rows": 3}, {"multiple_of": 4}, {"max_rows": 4, "multiple_of": 2}])
def test_batches_by_known_lengths_are_read_by_number(arguments):
    known, rows = known_and_not()
    batches = known.batch_by(40, **arguments)
    expected = [batch.tolist() for batch in rows.batch_by(40, len, **arguments)]
    assert len(batches) == len(expected)
    assert [batches[number].tolist() for number in range(len(batches))] == expected
    assert [batch.tolist() for batch in batches] == expected
    assert [[row.row for row in batches.rows(number)] for number in (0, 1)] == [
        list(range(len(expected[0]))),
        list(range(len(expected[0]), len(expected[0]) + len(expected[1]))),
    ]
    shuffled = [batch.tolist() for batch in batches.shuffle(seed=1)]
    assert sorted(shuffled) == sorted(expected) and shuffled != expected


def test_batches_by_known_lengths_are_planned_piece_by_piece(monkeypatch):
    monkeypatch.setattr("penstock.data.batches.by_size._PIECE", 7)
    known, rows = known_and_not()
    for arguments in ({}, {"multiple_of": 4}):
        expected = [batch.tolist() for batch in rows.batch_by(60, len, **arguments)]
        assert [batch.tolist() for batch in known.batch_by(60, **arguments)] == expected


def test_a_row_above_the_budget_is_an_error_of_the_call_where_lengths_are_known():
    with pytest.raises(
        ps.ElementError, match="2 rows, which are .* of size 12 is more than the budget of 10"
    ) as caught:
        known_and_not([2, 3, 7, 5])[0].batch_by(10, multiple_of=2)
    assert caught.value.__notes__[0].endswith("element 2")
    assert len(known_and_not([2, 3, 7, 5])[0].batch_by(12, multiple_of=2)) == 2  # the budget raised
    with pytest.raises(ps.InvalidArgumentError, match=r"batch_by\(\) has no lengths of the rows of map.*with_lengths"):
        known_and_not()[1].batch_by(40)


def test_batches_of_an_order_that_varies_are_a_stream_of_known_sizes():
    known, rows = known_and_not()
    batches = known.shuffle(seed=2).batch_by(40)
    assert not batches.node.indexable
    assert [b.tolist() for b in batches] == [b.tolist() for b in rows.shuffle(seed=2).batch_by(40, len)]


def test_a_state_of_batches_by_other_lengths_is_refused():
    rows = known_and_not()[1]
    lengths = [int(n) for n in COSTS[:200] % 9 + 1]
    with iter(rows.with_lengths(lengths).batch_by(40)) as iterator:
        next(iterator)
        state = iterator.state_dict()
    with iter(rows.with_lengths(lengths[::-1]).batch_by(40)) as other, pytest.raises(ps.StateMismatchError):
        other.load_state_dict(state)


def test_a_mixture_is_not_remixed_below_batches_by_size():
    rows = ps.Dataset.range(9).with_lengths([1] * 9)
    for size in (None, lambda x: 1):
        mixed = ps.Dataset.mix({"a": rows, "b": rows}, [1, 1], seed=1).batch_by(3, size)
        with iter(mixed) as iterator:
            next(iterator)
            with pytest.raises(ps.InvalidArgumentError, match="here batch_by.* comes first"):
                iterator.remix([2, 1])


@pytest.mark.parametrize("known", [True, False])
def test_slices_of_batches_by_size_cost_alike(known):
    lengths = COSTS[:200] % 9 + 1
    rows = ps.Dataset.from_tensor_slices(lengths)
    batches = rows.with_lengths(lengths).batch_by(60) if known else rows.batch_by(60, lambda x: x)
    balanced = batches.balance(slices=2)
    assert balanced.node.indexable == known
    for number, (found, plain) in enumerate(zip(balanced, batches, strict=True)):
        assert sorted(found.tolist()) == sorted(plain.tolist())
        sums = [found[start:stop].sum() for start, stop in slice_bounds(len(found), 2)]
        assert max(sums) - min(sums) <= 9
        if known:
            assert balanced[number].tolist() == found.tolist()
            assert [lengths[row.row] for row in balanced.rows(number)] == found.tolist()
    steps = []
    for worker in range(2):
        with iter(ps.HostStrategy(1, 2, worker).distribute_dataset(batches.balance())) as iterator:
            steps.append([step.values[0].tolist() for step in iterator])
    assert [a + b for a, b in zip(*steps, strict=True)] == [batch.tolist() for batch in balanced]


def test_a_skipped_row_costs_itself_alone_where_lengths_are_known():
    def odd(x):
        if x == 4:
            raise ValueError("four")
        return x

    rows = ps.Dataset.range(9).map(odd).with_lengths([2] * 9).with_options(ps.Options(on_error="skip"))
    assert [batch.tolist() for batch in rows.batch_by(6)] == [[0, 1, 2], [3, 5, 6], [7, 8]]
    assert [batch.tolist() for batch in rows.batch(4).balance(slices=1)] == [[0, 1, 2, 3], [5, 6, 7, 8]]


def test_ranks_read_the_rows_of_their_slices_of_batches_by_known_lengths():
    read = []
    number = ps.TensorSpec((), np.int64)  # so that no row is padded
    rows = ps.Dataset.range(12).map(lambda x: read.append(int(x)) or x, output_signature=number)
    dataset = rows.with_lengths([2, 1, 2] * 4).batch_by(8)
    steps = []
    for worker in range(2):
        read.clear()
        with iter(ps.HostStrategy(1, 2, worker).distribute_dataset(dataset)) as iterator:
            steps.append([step.values[0].tolist() for step in iterator])
        assert len(read) == sum(map(len, steps[-1]))
    assert [a + b for a, b in zip(*steps, strict=True)] == [batch.tolist() for batch in dataset]


def test_a_state_within_a_window_of_other_lengths_is_refused():
    rows, lengths = ps.Dataset.range(12), [x % 5 for x in range(12)]
    with iter(rows.with_lengths(lengths).batch(3).balance(slices=1, window=4)) as iterator:
        next(iterator)
        state = iterator.state_dict()
    with (
        iter(rows.with_lengths(lengths[::-1]).batch(3).balance(slices=1, window=4)) as other,
        pytest.raises(ps.StateMismatchError, match="balance"),
    ):
        other.load_state_dict(state)
    with iter(rows.with_lengths(lengths).batch(3).balance(slices=1, window=4)) as same:
        same.load_state_dict(state)
        assert len(list(same)) == 3


def test_a_state_within_a_window_of_other_costs_is_refused():
    batches = ps.Dataset.range(12).batch(3)
    with iter(batches.balance(lambda x: x % 5, slices=1, window=4)) as iterator:
        next(iterator)
        state = iterator.state_dict()
    with (
        iter(batches.balance(lambda x: x % 3, slices=1, window=4)) as other,
        pytest.raises(ps.StateMismatchError, match="balance.* with other code or constants"),
    ):
        other.load_state_dict(state)
