"""with_lengths: lengths of elements that are known without reading them."""

import numpy as np
import pytest

import penstock as ps
from penstock.data.node import Run
from penstock.runtime.threads import Threads

LENGTHS = [3, 0, 2, 5, 1]


def lengths_of(dataset, indices=None):
    """The lengths that operators above would see, without a read of an element."""
    assert dataset.node.has_lengths
    run = Run(dataset.node, 7, Threads())
    return dataset.node.lengths_at(run, 0, range(len(dataset)) if indices is None else np.array(indices)).tolist()


def documents():
    return ps.Dataset.range(5).map(lambda n: {"tokens": np.arange(LENGTHS[n]), "count": LENGTHS[n]})


@pytest.mark.parametrize(
    "given",
    ["tokens", "count", lambda row: len(row["tokens"]), LENGTHS, np.array(LENGTHS, np.uint16)],
    ids=["axis", "integer", "function", "list", "array"],
)
def test_lengths_are_those_that_were_given(given):
    assert lengths_of(documents().with_lengths(given)) == LENGTHS
    chosen = ps.Dataset.from_tensor_slices(LENGTHS) if given is LENGTHS else given
    assert lengths_of(documents().with_lengths(chosen), [3, 0, 3]) == [5, 3, 5]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.shuffle(seed=3),
        lambda d: d.shuffle(3, seed=3).repeat(3).skip(2),
        lambda d: d.select([4, 4, 0]).shard(2, 0),
        lambda d: d.take(2).concatenate(d.skip(1)),
        lambda d: d.cache().enumerate(),
        lambda d: d.shuffle(seed=1, reshuffle_each_iteration=False).repeat(),
    ],
)
def test_operators_that_keep_elements_keep_their_lengths(change):
    changed = change(documents().with_lengths("tokens"))
    assert changed.node.has_lengths
    found = [element[1] if isinstance(element, tuple) else element for element in changed.take(15)]
    expected = [len(element["tokens"]) for element in found]
    run = Run(changed.node, iter(changed).state_dict()["seed"], Threads())
    assert changed.node.lengths_at(run, 0, range(len(expected))).tolist() == expected


def test_a_map_forgets_lengths():
    assert not documents().with_lengths("tokens").map(lambda row: row["tokens"][1:]).node.has_lengths


def test_kept_lengths_are_read_without_the_elements(tmp_path):
    (tmp_path / "text").write_text("a b c")

    def documents():
        return ps.Dataset.range(2).map(lambda n: (tmp_path / "text").read_text().split()[int(n) :])

    assert lengths_of(documents().with_lengths(None, tmp_path / "kept")) == [3, 2]
    (tmp_path / "text").unlink()
    again = documents().with_lengths(None, tmp_path / "kept")
    assert lengths_of(again) == [3, 2]
    assert again.node.of.spec == ps.TensorSpec((), np.uint32)


def test_lengths_of_another_dataset_are_refused(tmp_path):
    documents().with_lengths("tokens", tmp_path / "kept")
    with pytest.raises(ps.StorageError, match=r"kept' holds rows of another dataset: .*delete the directory"):
        documents().skip(1).with_lengths("tokens", tmp_path / "kept")


def test_bad_rows_below_are_no_reason_to_shift_lengths():
    skipping = documents().with_options(ps.Options(on_error="skip")).with_lengths("tokens")
    assert [len(row["tokens"]) for row in skipping] == LENGTHS


def test_texts_that_fail_have_lengths_only_from_an_array():
    def tokens(number):
        return np.full(2, 6 // (int(number) - 3))  # which fails for 3

    failing = ps.Dataset.range(6).map(tokens).with_options(ps.Options(on_error="skip"))
    with pytest.raises(ZeroDivisionError) as raised:
        failing.with_lengths()
    assert "element 3" in "".join(raised.value.__notes__)
    for documents in (failing.with_lengths([2] * 6), failing):
        rows = iter(documents.pack(4))
        assert [row["tokens"][::2].tolist() for row in rows] == [[-2, -3], [-6, 6], [3, 0]]
        assert rows.errors.count == 1


def refused(message, kind=ps.InvalidArgumentError):
    return pytest.raises(kind, match=message)


def test_wrong_lengths_are_refused_at_the_call():
    with refused(r"a length for each of the 5 elements of map\(.*, got 4"):
        documents().with_lengths([1, 2, 3, 4])
    with refused("integers along one axis, got TensorSpec.*float64", ps.InvalidTypeError):
        documents().with_lengths([0.5] * 5)
    with refused(r"the name of a leaf, and there are the leaves \['count', 'tokens'\]", ps.ElementError):
        documents().with_lengths()
    with refused(r"an integer from 0 to 4,294,967,295, got np.int64\(-1\)", ps.ElementError):
        documents().with_lengths(lambda row: -1)
    with refused("has no elements by number: put it before that step"):
        documents().filter(lambda row: True).with_lengths("tokens")
