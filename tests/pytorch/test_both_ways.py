"""Datasets inside PyTorch's DataLoader, and PyTorch's data sets as sources."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch_ranks import on_ranks

import penstock as ps


def loaded(dataset: Any, **options: Any) -> list[Any]:
    loader = DataLoader(ps.torch.as_iterable_dataset(dataset), **options)
    return [batch.tolist() for batch in loader]


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_each_row_comes_once_whatever_the_number_of_workers() -> None:
    rows = ps.Dataset.range(10).map(lambda n: n * 2)
    assert loaded(rows, batch_size=None, num_workers=2) == loaded(rows, batch_size=None) == list(range(0, 20, 2))
    shuffled = ps.torch.as_iterable_dataset(ps.Dataset.range(10).shuffle(10))
    for persistent in (False, True):
        loader = DataLoader(shuffled, batch_size=2, num_workers=2, persistent_workers=persistent)
        epochs = [[batch.tolist() for batch in loader] for _ in range(2)]
        assert [sorted(chain.from_iterable(epoch)) for epoch in epochs] == [list(range(10))] * 2
        assert epochs[0] != epochs[1]
    assert len(loader) == 5


def test_elements_are_tensors_that_the_dataset_does_not_own() -> None:
    rows = {"x": np.ones((4, 2), np.float32), "name": ["a", "b", "c", "d"]}
    elements = ps.torch.as_iterable_dataset(ps.Dataset.from_tensor_slices(rows))
    (first, _) = DataLoader(elements, batch_size=2)
    assert first["x"].dtype is torch.float32
    assert first["name"] == ["a", "b"]
    first["x"].zero_()
    assert rows["x"].sum() == 8
    with pytest.raises(ps.InvalidTypeError, match="as_iterable_dataset.* takes a ps.Dataset, got list"):
        ps.torch.as_iterable_dataset([1])


def test_ranks_are_not_all_given_everything() -> None:
    def scenario(rank: int) -> str:
        elements = ps.torch.as_iterable_dataset(ps.Dataset.range(4))
        try:
            next(iter(elements))
        except ps.InvalidArgumentError as error:
            return str(error)
        return "no error"

    for message in on_ranks(scenario, 2):
        assert "every one of 2 ranks would get all elements" in message


def test_a_loader_is_no_data_set_of_a_data_loader() -> None:
    with (
        ps.torch.loader(ps.Dataset.range(4).batch(2)) as loader,
        pytest.raises(ps.InvalidTypeError, match="put it into no DataLoader, for which there is ps.torch.as_iterable_"),
    ):
        next(iter(DataLoader(loader)))


def test_a_stateful_data_loader_resumes_a_later_epoch_where_it_was() -> None:
    """Without a state it went on with the first epoch's order, so that some rows came twice and others never."""

    def elements() -> Any:
        return ps.torch.as_iterable_dataset(ps.Dataset.range(10).shuffle(seed=3).batch(2))

    shuffled = elements()
    first = [batch.tolist() for batch in shuffled]
    second = iter(shuffled)
    given = [next(second).tolist() for _ in range(2)]
    state = second.state_dict()
    assert isinstance(second, Stateful)
    rest = [batch.tolist() for batch in second]
    assert first != given + rest
    resumed = elements()
    epoch = iter(resumed)
    epoch.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert [batch.tolist() for batch in epoch] == rest
    assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in shuffled]
    assert list(map(torch.Tensor.tolist, second)) == []
    second.load_state_dict(state)
    assert [batch.tolist() for batch in second] == rest


SPAWNING = """
import numpy as np
import penstock as ps
from torch.utils.data import DataLoader

def doubled(x):
    return x * 2

if __name__ == "__main__":
    rows = ps.Dataset.range(6).map(doubled, num_parallel_calls=2, processes=True)
    zeros = ps.Dataset.from_tensor_slices(np.zeros((6, 40_000)))
    rows = ps.Dataset.zip(rows, zeros).map(lambda x, zero: x + int(zero.sum()))
    elements = ps.torch.as_iterable_dataset(rows)
    for start in ("fork", "spawn"):
        loader = DataLoader(elements, batch_size=None, num_workers=2, multiprocessing_context=start)
        print([row.item() for row in loader])
"""


def test_data_loader_workers_run_functions_of_the_main_program(tmp_path: Path) -> None:
    """Spawned workers said that no module is named '__mp_main__', and were not made where a function has no name."""
    (tmp_path / "program.py").write_text(SPAWNING)
    ran = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=120)
    assert ran.stdout.splitlines() == [str([0, 2, 4, 6, 8, 10])] * 2, ran.stderr


def test_map_style_data_sets_are_sources() -> None:
    data = TensorDataset(torch.arange(6).float()[:, None], torch.arange(6))
    with ps.torch.loader(ps.Dataset.from_source(data).shuffle(6, seed=1).batch(4)) as loader:
        rows = [(x.squeeze(1).tolist(), y.tolist()) for x, y in loader]
    assert sorted(chain.from_iterable(y for _, y in rows)) == list(range(6))
    assert all(x == y for x, y in rows)


def test_a_collate_function_makes_the_batches() -> None:
    data = [torch.arange(n) for n in (1, 3, 2)]

    def collate(rows: Any) -> Any:
        return {"x": torch.nn.utils.rnn.pad_sequence([data[row] for row in rows], batch_first=True), "names": ["a"]}

    with ps.torch.loader(ps.Dataset.range(len(data)).batch(2), collate=collate) as loader:
        assert [batch["x"].tolist() for batch in loader] == [[[0, 0, 0], [0, 1, 2]], [[0, 1]]]


def test_a_collate_function_may_give_tensors_and_objects_of_any_kind() -> None:
    marker = object()
    batches = ps.Dataset.range(8).map(lambda x: np.datetime64(int(x), "D")).batch(4)  # a dtype that torch lacks
    called: list[int] = []

    def collate(days: Any) -> Any:
        called.append(len(days))
        return torch.from_numpy(days.astype(np.int64)).bfloat16(), marker, "text", len(days), days.astype(np.int32)

    with ps.torch.loader(batches, rank=1, num_ranks=2, collate=collate) as loader:
        days, *others, numbers = next(iter(loader))
    assert days.dtype is torch.bfloat16 and days.tolist() == numbers.tolist() == [2, 3] and called[0] == 2
    assert [others[0], others[1], int(others[2])] == [marker, "text", 2]


def test_iterable_data_sets_are_generators() -> None:
    class Lines(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from torch.arange(5)

    with ps.torch.loader(ps.Dataset.from_generator(lambda: map(np.asarray, Lines())).batch(3)) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4]]
