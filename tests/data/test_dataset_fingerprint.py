"""dataset.fingerprint(): another one for everything that may change an element. TensorFlow 2.21 was run beside it."""

import importlib.util
import sys
from pathlib import Path
from threading import Lock

import numpy as np
import pytest

import penstock as ps
from penstock.data.fingerprint import fingerprint


def mapped(constant: int) -> ps.Dataset:
    return ps.Dataset.range(9).map(lambda x: x + constant)


def test_datasets_made_alike_have_one_fingerprint():
    found = mapped(1).fingerprint()
    assert mapped(1).fingerprint() == found
    assert len(found) == 32

    def elsewhere(value: int) -> ps.Dataset:
        return ps.Dataset.range(9).map(lambda number: number + value)

    assert elsewhere(1).cache().fingerprint() == elsewhere(1).cache().fingerprint()


def test_equal_texts_have_one_fingerprint_as_one_object_or_two():
    name, key = "a.parquet", b"key"
    again, key_again = "".join(["a", ".parquet"]), bytes(bytearray(key))
    assert fingerprint([name, name, key, key]) == fingerprint([name, again, key, key_again])
    assert fingerprint([name, key]) != fingerprint([name, "key"])


def test_reading_a_dataset_does_not_change_its_fingerprint():
    dataset = mapped(1).shuffle(9).cache()
    before = dataset.fingerprint()
    list(dataset)
    assert dataset.fingerprint() == before


def test_what_may_change_an_element_changes_the_fingerprint():
    different = [
        ps.Dataset.range(9),
        ps.Dataset.range(10),
        mapped(1),
        mapped(2),
        mapped(1).batch(2),
        mapped(1).batch(3),
        mapped(1).shuffle(3, seed=1),
        mapped(1).shuffle(3, seed=2),
        mapped(1).shuffle(3),
        mapped(1).with_options(ps.Options(seed=3)),
        ps.Dataset.from_tensor_slices(np.arange(3)),
        ps.Dataset.from_tensor_slices(np.arange(3) * 2),
    ]
    assert len({dataset.fingerprint() for dataset in different}) == len(different)


def test_an_array_that_a_function_uses_counts_by_its_values():
    def adding(values: list[int]) -> ps.Dataset:
        table = np.array(values)
        return ps.Dataset.range(2).map(lambda x: table[x])

    assert adding([1, 2]).fingerprint() == adding([1, 2]).fingerprint()
    assert adding([1, 2]).fingerprint() != adding([1, 3]).fingerprint()


def test_a_function_of_a_module_counts_by_what_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def of_module(version: str, body: str) -> str:
        path = tmp_path / version / "users_module.py"
        path.parent.mkdir()
        path.write_text(f"def work(x):\n    return {body}\n")
        spec = importlib.util.spec_from_file_location("users_module", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "users_module", module)  # as `import` does: it is sent by name
        spec.loader.exec_module(module)
        return ps.Dataset.range(3).map(module.work).fingerprint()

    assert of_module("first", "x + 1") == of_module("copied", "x + 1")
    assert of_module("again", "x + 1") != of_module("changed", "x + 2")


def test_what_exists_in_one_process_only_is_refused():
    lock = Lock()
    with pytest.raises(ps.InvalidTypeError, match="fingerprint: map.* in this process only"):
        ps.Dataset.range(3).map(lambda x: lock and x).fingerprint()


def test_large_arrays_of_strings_have_one_fingerprint_for_equal_strings():
    def rows(words):
        return fingerprint(np.array(words, object))

    words = [f"w{number}" for number in range(2000)]
    assert rows(words) == rows(list(words))
    others = [
        [*words[:-1], "x"],
        [word.encode() for word in words],
        [*words[:-2], "w1998\0w1999", ""],
        [*words[:-1], None],
    ]
    assert len({rows(words), *map(rows, others)}) == 5


@pytest.mark.slow
def test_of_a_large_mapped_file_some_rows_are_looked_at(tmp_path):
    rows = np.memmap(tmp_path / "rows", np.uint8, "w+", shape=(1 << 20, 1 << 20))  # a terabyte of nothing
    first = ps.Dataset.from_source(rows).fingerprint()
    assert ps.Dataset.from_source(rows).fingerprint() == first
    rows[0, 0] = 1
    assert ps.Dataset.from_source(rows).fingerprint() != first
