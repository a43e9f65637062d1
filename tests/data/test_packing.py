"""pack: documents of tokens in rows of one length."""

import json
import pickle

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.data.operators import pack
from penstock.data.packing_plans import Packing, cut, fitted

FITS = ["best_fit", "first_fit"]
HOW = [*FITS, "concat_split"]
LENGTHS = [3, 2, 1, 2, 4, 5, 1, 1, 6, 2, 3]


def documents(lengths=LENGTHS):
    """Documents whose tokens say which document they are of, and where in it."""
    return ps.Dataset.from_list([100 * (n + 1) + np.arange(size) for n, size in enumerate(lengths)])


def both(lengths=LENGTHS):
    return [documents(lengths), documents(lengths).with_lengths()]


def rows_of(packed):
    return [row["tokens"].tolist() for row in packed]


def frozen(rows):
    return [{name: np.asarray(leaf).tolist() for name, leaf in row.items()} for row in rows]


def test_rows_of_each_kind_are_those_of_a_plan_by_hand():
    for dataset in both([3, 2, 1, 2]):
        assert rows_of(dataset.pack(4)) == [[100, 101, 102, 300], [200, 201, 400, 401]]
        assert rows_of(dataset.pack(5, "first_fit")) == [[100, 101, 102, 200, 201], [300, 400, 401, 0, 0]]
        assert rows_of(dataset.pack(5, "concat_split")) == [[100, 101, 102, 200, 201], [300, 400, 401, 0, 0]]
        assert rows_of(dataset.pack(3, "concat_split")) == [[100, 101, 102], [200, 201, 300], [400, 401, 0]]
        assert rows_of(dataset.pack(4, window=2)) == [[100, 101, 102, 0], [200, 201, 0, 0], [300, 400, 401, 0]]


def test_leaves_of_a_row_say_where_its_documents_are():
    for dataset in both([3, 2]):
        (row,) = dataset.pack(8, align=4, mask_borders=True, cu_seqlens=True, max_segments=3, padding_values=-1)
        assert row["tokens"].tolist() == [100, 101, 102, -1, 200, 201, -1, -1]
        assert row["segment_ids"].tolist() == [1, 1, 1, 0, 2, 2, 0, 0]
        assert row["positions"].tolist() == [0, 1, 2, 0, 0, 1, 0, 0]
        assert row["loss_mask"].tolist() == [True, True, False, False, True, False, False, False]
        assert row["cu_seqlens"].tolist() == [0, 4, 8, 8, 8]
        kinds = {name: leaf.dtype for name, leaf in row.items()}
        assert kinds == {"tokens": int, "segment_ids": "i4", "positions": "i4", "loss_mask": bool, "cu_seqlens": "i4"}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("settings", [{}, {"window": 4}, {"max_segments": 2}, {"align": 3}, {"window": 1}])
def test_a_stream_and_an_index_give_the_same_rows(how, settings):
    if how == "concat_split" and "max_segments" in settings:
        settings = {"max_segments": 4}
    stream, index = (dataset.pack(6, how, cu_seqlens=True, **settings) for dataset in both())
    assert not stream.node.indexable and index.node.indexable
    expected = frozen(stream)
    assert frozen(index) == expected and len(index) == len(expected)
    assert frozen(index[n] for n in reversed(range(len(index)))) == expected[::-1]
    assert index.element_spec == stream.element_spec
    found = sorted(token for row in expected for token in row["tokens"] if token)
    assert found == sorted(100 * (n + 1) + k for n, size in enumerate(LENGTHS) for k in range(size))


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=60),
    st.sampled_from(FITS),
    st.sampled_from(["split", "truncate", "drop"]),
    st.sampled_from([1, 4]),
    st.sampled_from([None, 1, 3]),
)
def test_no_plan_loses_or_repeats_a_token(lengths, how, too_long, align, most):
    packing = Packing(12, how, too_long=too_long, align=align, max_segments=most)
    parts = fitted(packing, np.array(lengths))
    places = [(d, t) for d, a, b in zip(parts.documents, parts.starts, parts.stops, strict=True) for t in range(a, b)]
    kept = {"split": lambda n: n, "truncate": lambda n: min(n, 12), "drop": lambda n: n if n <= 12 else 0}[too_long]
    assert sorted(places) == [(d, t) for d, n in enumerate(lengths) for t in range(kept(n))]
    taken = np.bincount(parts.rows, packing.sizes(parts.stops - parts.starts))
    assert (taken <= 12).all() and (taken > 0).all()
    assert np.bincount(parts.rows, minlength=1).max() <= (most or 99)
    assert (np.diff(parts.rows) >= 0).all()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.sampled_from([1, 4]), st.data())
def test_rows_by_cuts_follow_each_other(lengths, align, data):
    packing = Packing(12, "concat_split", align=align)
    lengths = np.array(lengths)
    rows = -(-int(packing.sizes(lengths).sum()) // 12)
    at = data.draw(st.integers(0, rows))
    several = [cut(packing, lengths, 0, *bounds) for bounds in ((0, at), (at, rows)) if bounds[0] < bounds[1]]
    found = [
        (int(d), t)
        for parts in several
        for d, a, b in zip(parts.documents, parts.starts, parts.stops, strict=True)
        for t in range(a, b)
    ]
    assert found == [(d, t) for d, n in enumerate(lengths) for t in range(n)]


@pytest.mark.parametrize("how", FITS)
def test_little_is_padding_with_lengths_as_texts_have_them(how):
    lengths = np.clip(np.random.default_rng(1).lognormal(5.8, 1.0, 4096).astype(np.int64), 1, 2048)
    rows = fitted(Packing(2048, how), lengths).count
    least = -(-int(lengths.sum()) // 2048)
    assert least <= rows <= least * 1.02
    assert 1 - lengths.sum() / (rows * 2048) <= 0.02


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dataset", both(), ids=["stream", "index"])
def test_a_state_of_any_row_continues_with_the_next(how, dataset):
    batches = dataset.pack(6, how, window=4).repeat(2).batch(2)
    expected = frozen(batches)
    for steps in range(len(expected) + 1):
        with iter(batches) as epoch:
            for _ in range(steps):
                next(epoch)
            state = json.dumps(epoch.state_dict())
        assert len(state) < 1024
        with iter(batches) as resumed:
            resumed.load_state_dict(json.loads(state))
            assert frozen(resumed) == expected[steps:]


def test_a_row_far_away_is_found_by_its_number():
    packed = documents().with_lengths().pack(6).repeat()
    steps = 10**12 // 24
    with iter(packed.batch(4)) as epoch:
        state = epoch.state_dict()
    state["position"] = [steps, 0, steps]
    with iter(packed.batch(4)) as resumed:
        resumed.load_state_dict(state)
        assert next(resumed)["tokens"].tolist() == rows_of(packed.skip(4 * steps).take(4))


def test_a_state_of_another_window_is_refused():
    with iter(documents().pack(6, window=4)) as epoch:
        next(epoch)
        state = epoch.state_dict()
    with iter(documents().pack(6, window=5)) as other, pytest.raises(ps.StateMismatchError, match="pack"):
        other.load_state_dict(state)
    with iter(documents().with_lengths().pack(6)) as epoch:
        state = epoch.state_dict()
    with iter(documents([6] * 11).with_lengths().pack(6)) as other, pytest.raises(ps.StateMismatchError, match="pack"):
        other.load_state_dict(state)


def test_rows_by_number_are_shuffled_sharded_and_sent():
    packed = documents().with_lengths().pack(6, window=4)
    assert "index" in packed.shuffle(seed=1).batch(2).explain().splitlines()[0]
    expected = rows_of(packed)
    assert sorted(rows_of(packed.shuffle(seed=1))) == sorted(expected)
    assert rows_of(packed.shard(2, 1)) == expected[1::2]
    assert rows_of(pickle.loads(cloudpickle.dumps(packed))) == expected


def test_the_documents_of_a_row_can_be_told():
    packed = documents().with_lengths().pack(6, window=4).shuffle(seed=1).batch(2)
    for step, batch in enumerate(packed):
        tokens = [row[row > 0] // 100 - 1 for row in batch["tokens"]]
        assert [row.row for row in packed.rows(step)] == [d for row in tokens for d in dict.fromkeys(row.tolist())]


def test_an_order_that_is_the_same_in_all_epochs_is_packed_by_number():
    shuffled = documents().with_lengths().shuffle(seed=3, reshuffle_each_iteration=False).pack(6)
    assert shuffled.node.indexable and max(map(max, rows_of(shuffled))) == 1102
    for varying in (documents().with_lengths().shuffle(seed=3), documents().with_lengths().repeat()):
        assert not varying.pack(6).node.indexable
    first, second = rows_of(documents().with_lengths().shuffle(seed=3).repeat(2).pack(50, window=11))
    assert sorted(first) == sorted(second) and first != second


def test_several_leaves_are_packed_together_and_others_carried():
    def row(n):
        size = int(n) % 3 + 1
        return {
            "tokens": np.full(size, n, np.uint16),
            "weights": np.full((size, 2), n / 2, np.float32),
            "image": np.full((1, int(n) % 2 + 1), n),
            "url": f"u{n}",
            "score": np.float32(n),
        }

    for dataset in (ps.Dataset.range(5).map(row), ps.Dataset.range(5).map(row).with_lengths("tokens")):
        packed = dataset.pack(4, "first_fit", carry=["image"], padding_values={"tokens": 9})
        first, second, third = packed
        assert first["tokens"].tolist() == [0, 1, 1, 3] and first["tokens"].dtype == np.uint16
        assert third["tokens"].tolist() == [4, 4, 9, 9]
        assert first["weights"].tolist() == [[0, 0], [0.5, 0.5], [0.5, 0.5], [1.5, 1.5]]
        assert third["weights"][2:].tolist() == [[0, 0], [0, 0]]
        assert [image.tolist() for image in first["image"]] == [[[0]], [[1, 1]], [[3, 3]]]
        assert list(first["url"]) == ["u0", "u1", "u3"] and second["score"].tolist() == [2.0]
        fixed = next(iter(dataset.pack(4, "first_fit", carry=["image"], max_segments=4)))
        assert list(fixed["url"]) == ["u0", "u1", "u3", ""] and fixed["score"].tolist() == [0, 1, 3, 0]


@pytest.mark.parametrize("how", FITS)
def test_long_documents_are_treated_as_asked(how):
    for dataset in both([7, 2]):
        assert rows_of(dataset.pack(3, how, too_long="truncate")) == [[100, 101, 102], [200, 201, 0]]
        assert rows_of(dataset.pack(3, how, too_long="drop")) == [[200, 201, 0]]
        split = list(dataset.pack(3, how, too_long="split"))
        assert rows_of(split) == [[100, 101, 102], [103, 104, 105], [106, 200, 201]]
        assert split[2]["positions"].tolist() == [0, 0, 1]


def fails(message, kind=ps.ElementError):
    return pytest.raises(kind, match=message)


def test_a_document_that_is_too_long_is_refused_at_the_call():
    message = r"pack\(4\) at .*test_packing.py:\d+: document 5: it has 5 tokens, and a row 4: .*'split', 'truncate' or"
    with fails(message):
        documents().with_lengths().pack(4)
    with fails(r"document 0 \(row 1 of from_list.*\): it is empty: leave it out"):
        documents([2, 0, 1]).with_lengths().select([1, 0, 2]).pack(4)


def test_in_a_stream_a_bad_document_fails_alone():
    packed = documents([2, 9, 1, 0, 3]).pack(4)
    with iter(packed) as rows:
        with fails("document 1: it has 9 tokens, and a row 4"):
            next(rows)
        state = rows.state_dict()
        with fails("document 3: it is empty"):
            next(rows)
        rest = [row["tokens"].tolist() for row in rows]
    assert rest == [[100, 101, 0, 0], [300, 500, 501, 502]]
    with iter(packed) as resumed:
        resumed.load_state_dict(json.loads(json.dumps(state)))
        with fails("document 3: it is empty"):
            next(resumed)
        assert [row["tokens"].tolist() for row in resumed] == rest
    skipping = packed.with_options(ps.Options(on_error="skip"))
    with iter(skipping) as rows:
        assert [row["tokens"].tolist() for row in rows] == rest
        assert rows.errors.count == 2


def test_lengths_that_are_not_what_comes_are_named():
    wrong = documents([2, 3, 1]).with_lengths([2, 2, 1]).pack(4)
    with fails("document 1.*: it has 3 tokens, and its length is known as 2: have with_lengths find"):
        list(wrong)


def test_what_cannot_be_packed_says_why():
    pairs = ps.Dataset.range(3).map(lambda n: {"a": np.arange(2), "b": np.arange(n + 1)})
    with fails(r"document 0: its leaves that are packed have several lengths.*carry=\["):
        list(pairs.pack(4))
    assert len(list(pairs.pack(4, carry=["b"]))) == 2
    with fails("needs a leaf with an axis of tokens"):
        ps.Dataset.range(3).pack(4)
    with fails(r"carry=.* names 'c', and the leaves are \['a', 'b'\]"):
        list(pairs.pack(4, carry=["c"]))
    with fails("adds a leaf 'positions', and there is one"):
        list(ps.Dataset.range(3).map(lambda n: {"positions": [1]}).pack(4))
    with fails("dictionaries of them, got"):
        list(ps.Dataset.range(3).map(lambda n: ([1], [2])).pack(4))
    for many in both([3, 1, 1, 1, 2, 1]):
        with iter(many.pack(3, "concat_split", max_segments=2)) as rows:
            next(rows)
            with fails(r"a row holds parts of 3 documents, above max_segments=2: allow more, or use how='best_fit'"):
                next(rows)
            assert next(rows)["tokens"].tolist() == [500, 501, 600]


@pytest.mark.parametrize(
    "arguments",
    [{"length": 0}, {"how": "worst"}, {"too_long": "cut"}, {"align": 4}, {"window": 0}, {"max_segments": 0}],
)
def test_arguments_that_do_not_work_are_refused(arguments):
    with fails(r"pack\(", ps.InvalidArgumentError):
        documents().pack(**{"length": 6, **arguments})
    with fails(r"pack\(carry=...\) takes names of leaves in a list", ps.InvalidTypeError):
        documents().pack(6, carry="image")


@pytest.mark.parametrize("how", HOW)
def test_a_plan_is_kept_for_later_processes_and_a_stale_one_is_refused(how, monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setattr(pack, "_KEPT_FROM", 2)
    fits = []
    monkeypatch.setattr(pack, "fitted", lambda packing, lengths: fits.append(1) or fitted(packing, lengths))

    def packed(lengths):
        documents = ps.Dataset.range(len(lengths)).map(lambda n: np.full(lengths[n], n))
        return documents.with_lengths(np.array(lengths)).pack(8, how, window=4)

    lengths = [1 + n % 5 for n in range(40)]
    expected, planned = frozen(packed(lengths)), len(fits)
    again = packed(lengths)
    assert len(again) == len(expected) and len(fits) == planned
    assert frozen(again) == expected
    monkeypatch.setattr(pack, "fingerprint_of", lambda *_: "the same")
    assert len(packed(lengths)) == len(expected)
    with pytest.raises(ps.ElementError, match="planned before with other lengths.* delete the kept plans in .*offsets"):
        list(packed([8] * 40))
