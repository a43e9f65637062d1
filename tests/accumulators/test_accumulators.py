"""Accumulators give the same however their rows are cut into blocks, and in whichever order the blocks are merged."""

import itertools
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.accumulators import quantiles, runs
from penstock.accumulators.accumulator import TEXT
from penstock.accumulators.counts import WeightCounts
from penstock.accumulators.covariance import Covariance
from penstock.accumulators.encoding import from_bytes, to_bytes
from penstock.accumulators.extrema import Extrema
from penstock.accumulators.keyed import KeyedMoments, KeyedQuantiles
from penstock.accumulators.moments import Moments
from penstock.accumulators.quantiles import Quantiles
from penstock.accumulators.sums import Sum
from penstock.errors import InvalidArgumentError


def merged(new, columns, order, cuts):
    """One accumulator per part of the rows, sent as bytes and merged in this order."""
    edges = [0, *sorted(cut % (len(columns[0]) + 1) for cut in cuts), len(columns[0])]
    parts = []
    for start, stop in itertools.pairwise(edges):
        part = new()
        part.add(*(column[start:stop] for column in columns))
        sent = new()
        sent.load(from_bytes(to_bytes(part.state())))
        parts.append(sent)
    whole = new()
    for number in sorted(range(len(parts)), key=lambda number: (order * 7919 * (number + 1)) % 104729):
        whole.merge(parts[number])
    return whole


@pytest.mark.extended
@given(
    rows=st.lists(st.tuples(st.floats(-1e6, 1e6), st.sampled_from("abcd")), min_size=1, max_size=60),
    order=st.integers(0, 1000),
    cuts=st.lists(st.integers(0, 60), max_size=5),
)
def test_any_split_merged_in_any_order_gives_the_same(rows, order, cuts):
    values = np.array([row[0] for row in rows])
    words = pa.array([row[1].encode() for row in rows], TEXT)
    scale = np.abs(values).max() + 1e-300
    moments = merged(lambda: Moments(False), [values], order, cuts)
    assert moments.count == len(rows)
    assert abs(moments.mean - values.mean()) <= 1e-12 * scale
    assert abs(moments.variance - values.var()) <= 1e-12 * scale**2
    total = merged(lambda: Sum(False), [values], order, cuts).result()
    assert abs(float(total) - float(sum(map(Fraction, values.tolist())))) <= 1e-12 * np.abs(values).sum()
    least, most = merged(lambda: Extrema(False), [values], order, cuts).result()
    assert (least, most) == (values.min(), values.max())
    assert merged(Quantiles, [values], order, cuts).result(5).tolist() == _one(values).result(5).tolist()
    (table,) = merged(WeightCounts, [words], order, cuts).by_frequency()
    expected = sorted({(words.to_pylist().count(word), word) for word in words.to_pylist()}, reverse=True)
    assert list(zip(table["count"].to_pylist(), table["token"].to_pylist())) == expected
    keys, results = merged(KeyedMoments, [values, words], order, cuts).result()
    for place, key in enumerate(keys.to_pylist()):
        mine = values[[row[1].encode() == key for row in rows]]
        assert results["count"][place] == len(mine)
        assert abs(results["mean"][place] - mine.mean()) <= 1e-12 * scale
        assert abs(results["variance"][place] - mine.var()) <= 1e-12 * scale**2
        assert (results["least"][place], results["most"][place]) == (mine.min(), mine.max())
        assert merged(KeyedQuantiles, [values, words], order, cuts).result()[key].result(3).tolist() == (
            _one(mine).result(3).tolist()
        )
    pairs = np.stack([values, values**2 / scale], axis=1)
    covariance = merged(Covariance, [pairs], order, cuts).result()
    assert np.abs(covariance - np.cov(pairs.T, bias=True)).max() <= 1e-12 * scale**2


def _one(values):
    quantiles = Quantiles()
    quantiles.add(values)
    return quantiles


def test_integers_are_summed_exactly_past_the_precision_of_floats():
    sums = Sum(elementwise=True)
    sums.add(np.array([[2**62, 1], [2**62, 2], [-(2**62), 3]]))
    sums.add(np.array([[1, 2**53 + 1]]))
    assert sums.result().tolist() == [2**62 + 1, 2**53 + 7]


def test_a_sum_that_no_integer_of_numpy_can_hold_is_refused():
    sums = Sum(elementwise=False)
    sums.add(np.full(4, 2**62))
    with pytest.raises(InvalidArgumentError, match="cast to float64"):
        sums.result()


def test_a_sum_of_floats_does_not_lose_what_is_small():
    sums = Sum(elementwise=False)
    for value in (1e16, 1.0, 1.0, -1e16):
        sums.add(np.array([value]))
    assert sums.result() == 2.0


def test_positions_of_elements_have_results_of_their_own():
    values = np.arange(24.0).reshape(4, 2, 3)
    moments, extrema = Moments(elementwise=True), Extrema(elementwise=True)
    for part in (values[:1], values[1:]):
        moments.add(part)
        extrema.add(part)
    np.testing.assert_allclose(moments.mean, values.mean(axis=0), rtol=1e-15)
    np.testing.assert_allclose(moments.variance, values.var(axis=0), rtol=1e-15)
    np.testing.assert_array_equal(extrema.result()[1], values.max(axis=0))


@pytest.mark.extended
def test_quantiles_of_many_values_are_within_the_stated_error():
    generator = np.random.default_rng(1)
    values = generator.normal(size=5_000_000)
    half = [Quantiles(), Quantiles()]
    for number, start in enumerate(range(0, len(values), 250_000)):
        half[number % 2].add(values[start : start + 250_000])
    half[0].merge(half[1])
    assert not half[0].exact
    found = half[0].result(1000)[1:-1]
    ranks = np.searchsorted(np.sort(values), found) / len(values)
    assert np.abs(ranks - np.arange(1, 1000) / 1000).max() < 0.0005


@pytest.mark.parametrize(
    "draw",
    [
        lambda generator: generator.pareto(0.5, 60_000),
        lambda generator: generator.lognormal(0, 9, 60_000).astype(np.float32),
        lambda generator: generator.normal(0, 30, 60_000).astype(np.float16),
        lambda generator: 2**62 + generator.integers(0, 50_000, 60_000),
        lambda generator: generator.integers(0, 2**64, 60_000, np.uint64),
        lambda generator: np.where(generator.random(60_000) < 0.9, 7.0, generator.normal(size=60_000)),
        lambda generator: np.where(generator.random(60_000) < 0.1, np.inf, generator.normal(size=60_000)),
        lambda generator: generator.choice([-1e308, 0.0, 1e308], 60_000) * generator.random(60_000),
        lambda generator: np.arange(60_000.0),
    ],
)
def test_quantiles_of_any_distribution_are_within_the_stated_error(monkeypatch, draw):
    monkeypatch.setattr(quantiles, "EXACT_VALUES", 4096)
    monkeypatch.setattr(quantiles, "KEPT_VALUES", 1024)
    values = draw(np.random.default_rng(5))
    parts = [_one(part) for part in np.split(values, 20)]
    for part in parts[1:]:
        parts[0].merge(part)
    found = parts[0].result(100)
    assert not parts[0].exact or len(np.unique(values)) <= 4096
    assert (found[0], found[-1]) == (values.min(), values.max()) and found.dtype == values.dtype
    ordered, wanted = np.sort(values), np.arange(101) / 100
    below, above = (np.searchsorted(ordered, found, side=side) / len(values) for side in ("left", "right"))
    assert np.maximum(np.maximum(below - wanted, wanted - above), 0).max() <= 5 / 1024 / 2


def test_a_heavy_value_is_as_many_light_ones():
    heavy, light = Quantiles(), Quantiles()
    heavy.add(np.array([1.0, 2.0, 3.0, 9.0]), np.array([3.0, 1.0, 2.0, 0.0]))
    light.add(np.array([1.0, 1.0, 1.0, 2.0, 3.0, 3.0]))
    assert heavy.result(4).tolist() == light.result(4).tolist() == [1.0, 1.0, 2.0, 3.0, 3.0]


def test_nan_has_no_quantile():
    assert _one(np.array([np.nan, 2.0, np.nan, 1.0])).result(1).tolist() == [1.0, 2.0]
    assert _one(np.array([np.nan])).result(1) is None


def test_l_moments_are_those_of_the_sample():
    values = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0])
    ordered = np.sort(values)
    expected = _l_moments_by_definition(ordered)
    np.testing.assert_allclose(_one(values).l_moments(), (8, *expected), rtol=1e-12)


def _l_moments_by_definition(ordered):
    """From the expectations of ordered samples of two, three and four."""
    mean = ordered.mean()
    second = np.mean([b - a for a, b in itertools.combinations(ordered, 2)]) / 2
    third = np.mean([c - 2 * b + a for a, b, c in itertools.combinations(ordered, 3)]) / 3
    fourth = np.mean([d - 3 * c + 3 * b - a for a, b, c, d in itertools.combinations(ordered, 4)]) / 4
    return mean, second, third, fourth


@pytest.mark.slow
def test_more_tokens_than_memory_should_hold_are_counted_on_disk(monkeypatch):
    monkeypatch.setattr(runs, "ROWS", 16)
    generator = np.random.default_rng(2)
    words = [f"w{int(number)}".encode() for number in generator.zipf(1.3, size=2000) % 500]
    small, large, other = WeightCounts(most=50), WeightCounts(), WeightCounts(most=40)
    for start in range(0, 2000, 100):
        part = pa.array(words[start : start + 100], TEXT)
        (small if start < 1000 else other).add(part, np.full(100, 0.5))
        large.add(part, np.full(100, 0.5))
    small.merge(other)
    assert small._runs
    for weighted in (False, True):
        (expected,) = large.by_frequency(weighted)
        found = pa.concat_tables(small.by_frequency(weighted))
        assert found.to_pylist() == expected.to_pylist()
    again = WeightCounts(most=50)
    again.load(from_bytes(to_bytes(small.state())))
    assert pa.concat_tables(again.by_frequency()).to_pylist() == pa.concat_tables(large.by_frequency()).to_pylist()


def test_more_integers_than_memory_should_hold_are_counted_on_disk():
    numbers = np.arange(300) % 97
    small, large = WeightCounts(most=20, kind=pa.int64()), WeightCounts(kind=pa.int64())
    for part in np.split(numbers, 10):
        small.add(pa.array(part))
        large.add(pa.array(part))
    assert small._runs
    again = WeightCounts(kind=pa.int64())
    again.load(from_bytes(to_bytes(small.state())))
    (expected,) = large.by_frequency()
    for counts in (small, again):
        assert pa.concat_tables(counts.by_frequency()).to_pylist() == expected.to_pylist()


def test_above_its_size_a_summary_is_compressed(monkeypatch):
    monkeypatch.setattr(quantiles, "EXACT_VALUES", 64)
    monkeypatch.setattr(quantiles, "KEPT_VALUES", 32)
    whole = Quantiles()
    whole.add(np.arange(2000.0))
    assert not whole.exact
    assert np.abs(whole.result(4) - [0, 500, 1000, 1500, 1999]).max() <= 2000 * 5 / 32 / 2
    sent = Quantiles()
    sent.load(from_bytes(to_bytes(whole.state())))
    assert sent.result(10).tolist() == whole.result(10).tolist()
