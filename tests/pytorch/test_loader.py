"""`ps.torch.loader` in one process: elements, states, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock as ps

NUMBERS = ps.Dataset.range(10).shuffle(10, seed=3)


def taken(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def test_losses_of_ranks_sum_to_the_mean_over_the_tokens_of_the_step() -> None:
    documents = ps.Dataset.from_list([[3.0] * length for length in (9, 1, 2, 8, 5, 4, 4, 7)])
    steps = (
        documents.padded_batch(4)
        .balance(len)
        .map(lambda x: {"x": x, "tokens_of_step": np.full(len(x), np.count_nonzero(x))})
    )
    losses, drop = np.zeros(2), ps.InputOptions(partial_batch="drop")
    for rank in range(2):
        with ps.torch.loader(steps, rank=rank, num_ranks=2, input_options=drop) as loader:
            losses += [float(step["x"].sum() / step["tokens_of_step"][0]) for step in loader]
    assert losses.tolist() == pytest.approx([3.0, 3.0])


def test_elements_are_tensors_in_the_structure_of_the_dataset() -> None:
    rows = {"x": np.ones((3, 2), np.float32), "pair": (np.arange(3), np.arange(3.0))}
    with ps.torch.loader(ps.Dataset.from_tensor_slices(rows).batch(2)) as loader:
        first, last = loader
    assert len(loader) == 2
    assert first["x"].dtype is torch.float32
    assert first["x"].shape == (2, 2)
    assert [leaf.tolist() for leaf in last["pair"]] == [[2], [2.0]]


def test_epochs_differ_and_are_those_of_the_seed() -> None:
    with ps.torch.loader(NUMBERS.batch(5)) as loader:
        epochs = [taken(loader), taken(loader)]
    dataset = NUMBERS.batch(5)
    assert epochs == [taken(dataset), taken(dataset)]
    assert epochs[0] != epochs[1]


def test_loaders_of_one_dataset_count_their_epochs_by_themselves() -> None:
    dataset = NUMBERS.batch(5)
    with ps.torch.loader(dataset) as one, ps.torch.loader(dataset) as other:
        assert taken(one) == taken(other)


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_state_gives_the_rest_of_the_epoch_and_the_next_one(steps: int) -> None:
    with ps.torch.loader(NUMBERS.batch(3)) as loader:
        epoch = iter(loader)
        for _ in range(steps):
            next(epoch)
        state = loader.state_dict()
        expected = [taken(epoch), taken(loader)]
    with ps.torch.loader(NUMBERS.batch(3)) as resumed:
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert [taken(resumed), taken(resumed)] == expected


def test_a_state_after_the_end_gives_the_next_epoch() -> None:
    with ps.torch.loader(NUMBERS.batch(3)) as loader:
        taken(loader)
        state = loader.state_dict()
        expected = taken(loader)
    with ps.torch.loader(NUMBERS.batch(3)) as resumed:
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert taken(resumed) == expected


def test_a_state_is_small_and_is_that_of_the_datasets_own_iterator() -> None:
    with ps.torch.loader(NUMBERS.batch(3)) as loader:
        next(iter(loader))
        state = loader.state_dict()
        iterator = iter(NUMBERS.batch(3))
        iterator.load_state_dict(json.loads(state["penstock"]))
        rest = [batch.tolist() for batch in iterator]
    with ps.torch.loader(NUMBERS.batch(3)) as resumed:
        resumed.load_state_dict(state)
        assert taken(resumed) == rest
    assert len(state["penstock"]) < 1000


def test_states_of_others_are_refused_and_the_loader_goes_on() -> None:
    with ps.torch.loader(NUMBERS.batch(3)) as loader, ps.torch.loader(ps.Dataset.range(4).batch(2)) as other:
        with pytest.raises(ps.StateMismatchError, match=r"takes a loader's state, {'penstock': ...}, got {'epoch'"):
            loader.load_state_dict({"epoch": 3})
        with pytest.raises(ps.StateMismatchError, match="range"):
            loader.load_state_dict(other.state_dict())
        assert len(taken(loader)) == 4


def test_a_new_epoch_ends_the_one_before_and_close_ends_all() -> None:
    loader = ps.torch.loader(NUMBERS.batch(3))
    first, second = iter(loader), iter(loader)
    next(second)
    with pytest.raises(ps.errors.ClosedError):
        next(first)
    loader.close()
    loader.close()
    with pytest.raises(ps.errors.ClosedError, match="make a new one by ps.torch.loader"):
        iter(loader)


def test_an_epoch_of_which_no_step_was_taken_begins_again() -> None:
    """Lightning calls `iter` once to see whether that works."""
    dataset = ps.Dataset.range(6).shuffle(seed=1).batch(3)
    with ps.torch.loader(dataset) as loader:
        tried, epoch = iter(loader), iter(loader)
        assert [batch.tolist() for batch in epoch] == [batch.tolist() for batch in dataset]
        with pytest.raises(ps.errors.ClosedError, match="another loop over this loader has begun"):
            next(tried)
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in dataset]


def test_padding_gives_a_mask() -> None:
    with ps.torch.loader(ps.Dataset.range(3).batch(2), input_options=ps.InputOptions(partial_batch="pad")) as loader:
        _, (rows, mask) = loader
    assert (rows.tolist(), mask.tolist()) == ([2, 0], [True, False])


def test_padding_of_ragged_rows_is_empty_rows_also_where_a_rank_has_none() -> None:
    rows = ps.Dataset.range(5).map(lambda n: {"text": np.arange(n + 1), "name": f"row {n}"}).ragged_batch(4)
    pad = ps.InputOptions(partial_batch="pad")
    for rank, real in ((0, [[0, 1, 2, 3, 4], []]), (1, [[], []])):
        with ps.torch.loader(rows, rank=rank, num_ranks=2, input_options=pad) as loader:
            _, (batch, mask) = loader
        assert [row.tolist() for row in batch["text"]] == real
        assert {row.dtype for row in batch["text"]} == {torch.int64}
        assert batch["name"] == ["row 4" if own else "" for own in mask]
        assert torch.nested.nested_tensor(batch["text"], layout=torch.jagged).shape[0] == 2


def test_bad_calls_are_refused() -> None:
    batches = ps.Dataset.range(4).batch(2)
    for options, error, match in [
        ({"dp": "dp"}, ps.InvalidArgumentError, "name dimensions of a DeviceMesh: give it mesh"),
        ({"mesh": 3}, ps.InvalidTypeError, "takes a DeviceMesh"),
        ({"mesh": 3, "rank": 1}, ps.InvalidArgumentError, "got both"),
        ({"rank": 1}, ps.InvalidArgumentError, "together, got no num_ranks"),
        ({"rank": 2, "num_ranks": 2}, ps.InvalidArgumentError, "must be below num_ranks=2, got 2"),
        ({"device": 2.5}, ps.InvalidTypeError, "takes a device of torch, got 2.5"),
        ({"device": "nothing"}, ps.InvalidArgumentError, "torch cannot use this device here"),
        ({"input_options": {}}, ps.InvalidTypeError, "takes ps.InputOptions, got {}"),
        ({"pin_memory": "yes"}, ps.InvalidTypeError, "True, False or None, got 'yes'"),
    ]:
        with pytest.raises(error, match=match):
            ps.torch.loader(batches, **options)
    with pytest.raises(ps.InvalidTypeError, match="of a map-style data set by ps.Dataset.from_source"):
        ps.torch.loader(torch.utils.data.TensorDataset(torch.zeros(2)))
    with pytest.raises(ps.ElementError, match="batch"):
        ps.torch.loader(ps.Dataset.range(4))
    with ps.torch.loader(batches.repeat()) as endless, pytest.raises(TypeError, match="it never ends"):
        len(endless)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_pinned_memory_needs_cuda() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="needs CUDA, which torch does not find here: leave it out"):
        ps.torch.loader(ps.Dataset.range(4).batch(2), pin_memory=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA")
def test_steps_are_on_the_device_when_they_are_handed_out() -> None:
    with ps.torch.loader(NUMBERS.batch(3), device="cuda") as loader:
        assert [(batch.device.type, batch.tolist()) for batch in loader] == [
            ("cuda", one) for one in taken(NUMBERS.batch(3))
        ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA")
def test_the_device_is_the_current_one_of_who_makes_the_loader() -> None:
    """The thread that reads ahead has a current device of its own, which is the first."""
    with (
        torch.cuda.device(torch.cuda.device_count() - 1),
        ps.torch.loader(NUMBERS.batch(3), device="cuda") as loader,
    ):
        assert {batch.device.index for batch in loader} == {torch.cuda.device_count() - 1}


def test_given_ranks_take_their_slices() -> None:
    batches = NUMBERS.batch(4, drop_remainder=True)

    def of(rank: int, dataset: Any = batches) -> list[list[int]]:
        with ps.torch.loader(dataset, rank=rank, num_ranks=2) as loader:
            return taken(loader)

    whole = taken(batches)
    assert [first + second for first, second in zip(of(0), of(1), strict=True)] == whole
    with pytest.raises(ps.InvalidArgumentError, match="has no seed"):
        of(0, ps.Dataset.range(8).shuffle(8).batch(4))


def test_a_profile_of_torch_has_spans_of_operators_and_of_waits(tmp_path: Path) -> None:
    batches = ps.Dataset.range(8).map(lambda x: x * 2.0).batch(4)
    with ps.torch.loader(batches) as loader:
        assert loader.report().lines() == ["nothing was read yet: take some steps first"]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
            assert len(list(loader)) == 2
            assert len(list(batches)) == 2
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [event["name"].partition("(")[0] for event in events if event.get("cat") == "user_annotation"]
    assert {"range", "map", "batch"} <= set(names)
    assert names.count("next: waits for a step") == 3


def test_copies_to_a_device_are_spans_of_a_trace(tmp_path: Path) -> None:
    with ps.torch.loader(ps.Dataset.range(8).batch(4), device="meta") as loader, ps.trace(tmp_path / "steps.json"):
        assert [batch.device.type for batch in loader] == ["meta", "meta"]
    events = json.loads((tmp_path / "steps.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"].count("copy to the device") == 2
