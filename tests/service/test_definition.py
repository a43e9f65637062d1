"""Datasets as bytes: what survives, what is refused, and what the refusal says."""

import importlib
import sys
import threading

import msgspec
import numpy as np
import pytest

import penstock as ps
from penstock.service.wire import definitions as definition
from penstock.service.wire.definitions import from_bytes, to_bytes


def sent(dataset):
    """The dataset, as a worker loads it."""
    return ps.Dataset(*from_bytes(to_bytes(dataset.node, dataset.options())))


def values(dataset):
    return [np.asarray(x).tolist() for x in dataset]


class Tokenizer:
    def __init__(self):
        self.table = {"a": 1}
        self._lock = threading.Lock()

    def __call__(self, x):
        return x


LOCK = threading.Lock()


def uses_a_global_lock(x):
    with LOCK:
        return x


uses_a_global_lock.__module__ = "__main__"  # as in a user's script: it travels as code


def generator_function():
    yield 1


def pipelines(tmp_path):
    factor = 3
    tail = ps.Dataset.range(2)
    yield ps.Dataset.range(5).map(lambda x: x * factor)
    yield ps.Dataset.range(4).shuffle(4, 1, reshuffle_each_iteration=False).batch(2).with_options(ps.Options(seed=4))
    yield ps.Dataset.range(3).flat_map(lambda x: tail.map(lambda y: x + y))  # a dataset in a closure
    yield ps.Dataset.from_generator(lambda: iter([1, 2]), output_signature=ps.TensorSpec((), np.int64))
    yield ps.Dataset.from_tensor_slices((np.arange(6).reshape(3, 2), ["x", "yy", "z"])).map(lambda a, b: a.sum())
    yield ps.Dataset.range(6).cache()
    ps.Dataset.range(7).save(str(tmp_path / "saved"))
    yield ps.Dataset.load(str(tmp_path / "saved"))
    (tmp_path / "lines").write_text("1\n2\n")
    yield ps.TextLineDataset(str(tmp_path / "lines")).map(int)
    yield ps.Dataset.range(9).group_by_window(lambda x: x % 2, lambda key, w: w.batch(3), window_size=3).unbatch()
    yield ps.Dataset.range(6).window(2, drop_remainder=True).flat_map(lambda w: w)
    yield ps.Dataset.from_tensor_slices(["a", "b", "c"]).map(ps.preprocessing.StringLookup(vocabulary=["b", "a"]))


@pytest.mark.slow
def test_datasets_are_the_same_on_the_other_side(tmp_path):
    for dataset in pipelines(tmp_path):
        list(dataset)  # what was read before does not matter
        other = sent(dataset)
        assert values(other) == values(dataset)
        assert other.options() == dataset.options()


def test_arrays_are_not_copied_when_they_are_read():
    data = to_bytes(ps.Dataset.from_tensor_slices(np.arange(1000.0)).node, ps.Options())
    node, _ = from_bytes(data)
    assert np.shares_memory(node.columns[0], np.frombuffer(data, np.uint8))
    assert node.columns[0].ctypes.data % 16 == 0
    assert len(data) < 8000 + 2000


@pytest.mark.parametrize("source", [ps.Dataset.from_source, ps.Dataset.from_tensor_slices])
def test_a_mapped_file_travels_as_its_name(source, tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(20_000))
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
    sent = to_bytes(source(rows).map(lambda x: x + rows[0]).node, ps.Options())
    assert len(sent) < 8_000
    node, options = from_bytes(sent)
    assert [int(x) for x in ps.Dataset(node, options).take(3)] == [0, 1, 2]
    (tmp_path / "rows.npy").unlink()
    with pytest.raises(
        ps.errors.ServiceError, match=r"cannot load the dataset: StorageError: a memory map of .*rows\.npy cannot"
    ):
        from_bytes(sent)


def test_equal_datasets_are_equal_bytes():
    def make():
        return ps.Dataset.from_tensor_slices({"x": np.arange(3)}).map(str).batch(2)

    first, second = (make() for _ in range(2))
    list(first)
    assert to_bytes(first.node, first.options()) == to_bytes(second.node, second.options())
    other = first.with_options(ps.Options(seed=1))
    assert to_bytes(first.node, first.options()) != to_bytes(other.node, other.options())


def culprits():
    lock, tokenizer = threading.Lock(), Tokenizer()
    running = generator_function()
    nested = {"tools": [tokenizer]}
    source = ps.Dataset.range(3)
    yield source.map(lambda x: lock and x), r"map\(.*\) at .*\(variable lock\) holds a _thread.lock"
    yield source.map(tokenizer), r"function .*Tokenizer \(attribute _lock\) holds a _thread.lock"
    yield (
        source.filter(lambda x: nested["tools"][0](x)),
        r"filter\(.*\(variable nested, entry 'tools', entry 0, attribute _lock\)",
    )
    yield source.map(tokenizer.__call__), r"the object of __call__, attribute _lock"
    yield source.map(lambda x, number=running: x).batch(2), r"\(default 0\) holds a generator"
    yield source.map(uses_a_global_lock), r"\(global LOCK\) holds a _thread.lock"
    yield ps.Dataset.from_generator(lambda: running), r"from_generator\(.*\(variable running\) holds a generator"


@pytest.mark.parametrize("number", range(7))
def test_what_cannot_be_sent_is_named_with_where_it_hangs(number):
    dataset, message = list(culprits())[number]
    with pytest.raises(ps.InvalidTypeError, match=f"the data workers cannot be given this dataset: .*{message}"):
        to_bytes(dataset.node, dataset.options())


def test_an_open_file_is_named(tmp_path):
    with open(tmp_path / "log", "w") as log:
        dataset = ps.Dataset.range(3).map(lambda x: log.write(str(x)))
        with pytest.raises(ps.InvalidTypeError, match=r"\(variable log\) holds a _io.TextIOWrapper"):
            to_bytes(dataset.node, dataset.options())


def test_other_versions_are_refused_with_both(monkeypatch):
    dataset = ps.Dataset.range(3)
    monkeypatch.setattr(definition, "versions", lambda: {"Python": "3.1", "NumPy": "1.0", "penstock": "9"})
    data = to_bytes(dataset.node, dataset.options())
    monkeypatch.undo()
    ours = definition.versions()
    expected = (
        f"a trainer with Python 3.1, NumPy 1.0, penstock 9, this data worker has Python {ours['Python']}, "
        f"NumPy {ours['NumPy']}, penstock {ours['penstock']}: install the same on both, and start an "
        "upgraded dispatcher with an empty work_dir"
    )
    with pytest.raises(ps.errors.ServiceError, match=expected.replace(".", r"\.")):
        from_bytes(data)


def test_bytes_of_something_else_are_refused():
    with pytest.raises(ps.errors.ServiceError, match="register it again"):
        from_bytes(msgspec.msgpack.encode({"a": 1}))


def test_a_module_that_the_worker_lacks_is_named(tmp_path, monkeypatch):
    (tmp_path / "only_in_the_trainer.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("only_in_the_trainer")
    dataset = ps.Dataset.range(3).map(module.double)
    data = to_bytes(dataset.node, dataset.options())
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "only_in_the_trainer")
    with pytest.raises(
        ps.errors.ServiceError, match=r"No module named 'only_in_the_trainer'.*install it on the workers"
    ):
        from_bytes(data)


def test_a_large_dataset_is_said_to_be_copied(monkeypatch, caplog):
    monkeypatch.setattr(definition, "LARGE_BYTES", 1000)
    to_bytes(ps.Dataset.range(3).node, ps.Options())
    assert caplog.text == ""
    to_bytes(ps.Dataset.from_tensor_slices(np.zeros(1000)).node, ps.Options())
    assert "a copy of which goes to every data worker" in caplog.text
