"""Real ranks, connected by gloo: which rows each gets, that all end together, and what becomes of failures."""

import json
import os
import signal
import time
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh
from torch_ranks import ends_of_ranks, on_ranks

import penstock as ps

DROP = ps.InputOptions(partial_batch="drop")
PAD = ps.InputOptions(partial_batch="pad")
ROWS = ps.Dataset.range(22).shuffle(22, seed=7)


def taken(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


def kept(dataset: ps.Dataset) -> list[Any]:
    with ps.torch.loader(dataset, input_options=DROP) as loader:
        return taken(loader)


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def collect(steps: list[Any], loader: Any) -> None:
    for step in loader:
        steps.append(step)  # noqa: PERF402  # what came before an error counts


def test_ranks_take_slices_of_one_batch_and_end_together(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("".join(f"{number}\n" for number in range(12)))
    (tmp_path / "short.txt").write_text("".join(f"{number}\n" for number in range(100, 103)))

    def scenario(rank: int, folder: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with ps.torch.loader(ROWS.batch(8)) as loader:
            found["data"], found["len"] = [taken(loader), taken(loader)], len(loader)
        messages = loader._control.sent  # type: ignore[union-attr]
        found["messages"] = messages - 2  # what the workers read, and that this one has left
        few = ps.Dataset.range(9).batch(8)
        found["refused"] = error_of(lambda: ps.torch.loader(few))
        found["drop"] = kept(few)
        with ps.torch.loader(few, input_options=PAD) as loader:
            found["pad"] = [(rows.tolist(), mask.tolist()) for rows, mask in loader]
        some = ps.Dataset.range(40).filter(lambda number: number % 3 == 0)
        found["refused filter"] = error_of(lambda: ps.torch.loader(some.batch(8)))
        found["filter"] = kept(some.batch(8))
        files = ps.TextLineDataset([str(folder / "long.txt"), str(folder / "short.txt")]).map(int).batch(4)
        files = files.with_options(ps.Options(auto_shard_policy="FILE"))
        with ps.torch.loader(files, input_options=PAD) as loader:
            found["files"] = [rows[mask].tolist() for rows, mask in loader]
        found["buckets"] = kept(files.unbatch().bucket_by_sequence_length(lambda number: number % 7, [3], [4, 2]))
        with ps.torch.loader(ps.Dataset.range(8).shuffle(8).batch(4)) as loader:  # a seed that all agree on
            found["unseeded"] = taken(loader)
        return found

    first, second = on_ranks(scenario, 2, tmp_path)

    def joined(case: str) -> list[Any]:
        return [one + other for one, other in zip(first[case], second[case], strict=True)]

    epochs = [chain.from_iterable(found["data"]) for found in (first, second)]
    # Each epoch of a dataset is shuffled anew, so the two of `whole` are those of one dataset that is iterated twice.
    dataset = ROWS.batch(8)
    whole = [batch.tolist() for _ in range(2) for batch in dataset]
    assert [one + other for one, other in zip(*epochs, strict=True)] == whole
    assert [first["len"], first["messages"]] == [3, 6]  # three messages an epoch: two of what was measured
    for found in (first, second):
        assert "may leave some of 2 ranks without rows" in found["refused"]
        assert "may leave some of 2 ranks without rows" in found["refused filter"]
    assert joined("drop") == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert [first["pad"][1], second["pad"][1]] == [
        ([8, 0, 0, 0], [True, False, False, False]),
        ([0, 0, 0, 0], [False, False, False, False]),
    ]
    assert joined("filter") == [[0, 3, 6, 9, 12, 15, 18, 21]]
    assert sorted(chain.from_iterable(joined("files"))) == [*range(12), 100, 101, 102]
    assert [len(batch) for batch in first["buckets"]] == [len(batch) for batch in second["buckets"]]
    assert sorted(chain.from_iterable(joined("unseeded"))) == list(range(8))


def test_ranks_that_disagree_are_told_so_on_every_rank() -> None:
    def scenario(rank: int) -> list[str]:
        found = [
            error_of(lambda: ps.torch.loader(ps.Dataset.range(8 + rank).batch(4))),
            error_of(lambda: ps.torch.loader(ROWS.batch(4).with_options(ps.Options(seed=rank)), input_options=DROP)),
        ]
        with ps.torch.loader(ROWS.batch(8)) as loader:
            loader.load_state_dict(loader.state_dict())
            position = json.loads(loader.state_dict()["penstock"]) | {"epoch": rank}
            found.append(error_of(lambda: loader.load_state_dict({"penstock": json.dumps(position)})))
        return found

    for datasets, seeds, states in on_ranks(scenario, 2):
        assert "WorkerError: ps.torch.loader: the ranks distribute different datasets: range(" in datasets
        assert "different datasets: Options(seed=0) on rank 0 is Options(seed=1) on rank 1" in seeds
        assert "load_state_dict got another state on rank 1 than on rank 0" in states


def test_a_loader_that_one_rank_cannot_make_fails_on_every_rank() -> None:
    def scenario(rank: int) -> list[str]:
        times = np.zeros(8, "datetime64[s]" if rank else "float32")
        found = [
            error_of(lambda: ps.torch.loader(ps.Dataset.from_tensor_slices(times).batch(4))),
            error_of(lambda: ps.torch.loader(ROWS.batch(8), pin_memory=rank == 0 and not torch.cuda.is_available())),
        ]
        with ps.torch.loader(ROWS.batch(8)) as loader:  # the ranks still make the same loaders in the same order
            assert len(list(loader)) == 3
        return found

    (dtype_0, pinned_0), (dtype_1, pinned_1) = on_ranks(scenario, 2)
    assert "ElementError: torch has no dtype" in dtype_1
    assert "WorkerError: call 1 of ps.torch.loader failed on rank 1 of 2: ElementError: torch has no dtype" in dtype_0
    if not torch.cuda.is_available():
        assert "needs CUDA" in pinned_0
        assert "WorkerError: call 2 of ps.torch.loader failed on rank 0 of 2: InvalidArgumentError" in pinned_1


def test_a_rank_that_never_makes_the_loader_fails_all_within_the_timeout() -> None:
    def scenario(rank: int) -> tuple[str, float]:
        if rank == 1:  # until the others have given up, of which nothing but the store tells
            store = torch.distributed.PrefixStore(
                "penstock/loader/0", torch.distributed.distributed_c10d._get_default_store()
            )
            store.wait(["outcome"])
        begin = time.monotonic()
        message = error_of(lambda: ps.torch.loader(ROWS.batch(8), failure_timeout_seconds=0.5))
        return message, time.monotonic() - begin

    for message, seconds in on_ranks(scenario, 3):
        assert message.startswith(
            "WorkerError: rank 1 of 3 did not come to call 1 of ps.torch.loader within 0.5 seconds: every rank must "
            "make the same calls in the same order; where one has more to do before it, give all of them a larger fail"
        )
        assert seconds < 60  # instead of the 300 seconds without a timeout


def test_without_a_group_ranks_wait_no_longer_for_each_other() -> None:
    def scenario(rank: int) -> str:
        if rank == 1:
            return ""
        return error_of(lambda: ps.torch.loader(ROWS.batch(8), failure_timeout_seconds=0.5))

    alone, _ = on_ranks(scenario, 2, group=False, seconds=30)
    assert "WorkerError: a rank did not come to ps.torch.loader within 0.5 seconds" in alone


def test_a_state_that_one_rank_alone_loads_fails_all_within_the_timeout() -> None:
    def scenario(rank: int) -> str:
        loader = ps.torch.loader(ps.Dataset.range(8).batch(8).repeat(), failure_timeout_seconds=3)
        if rank == 0:
            return error_of(lambda: loader.load_state_dict(loader.state_dict()))
        return error_of(lambda: [None for _ in loader])

    # Each waits for the other at its own call: whose limit ends first is open, and both then know who did not come.
    one, other = on_ranks(scenario, 2, seconds=30)
    loading = "rank 1 of 2 did not come to call 1 of state_dict or load_state_dict of ps.torch.loader(...) within 3 "
    iterating = "rank 0 of 2 did not come to ps.torch.loader, begin 0 of an iteration within 3 "
    assert one.startswith((f"WorkerError: {loading}", f"WorkerError: rank 1 of 2 has given up: {iterating}"))
    assert other.startswith((f"WorkerError: {iterating}", f"WorkerError: rank 0 of 2 has given up: {loading}"))


def test_ranks_that_are_not_alike_are_told_so_at_once_on_every_rank() -> None:
    """The limit is far longer than the test may take."""

    def scenario(rank: int) -> list[str]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        batches, first = ROWS.batch(8), rank == 1
        sizes = ROWS.batch(7 if first else 8)
        calls = [
            lambda: ps.torch.loader(batches, mesh, dp="data" if first else "dp"),
            lambda: ps.torch.loader(batches, mesh, dp="tp" if first else "dp"),
            lambda: ps.torch.loader(batches, mesh, dp="dp", context_parallel="tp" if first else None),
            lambda: ps.torch.loader(batches, mesh["dp"], input_options=DROP if first else PAD),
            lambda: ps.torch.loader(sizes, mesh, dp="dp", input_options=DROP),
        ]
        found = [error_of(call) for call in calls]
        with ps.torch.loader(batches, mesh, dp="dp", input_options=DROP) as loader:
            state = loader.state_dict()
            found.append(error_of(lambda: loader.load_state_dict({"penstock": "{"} if first else state)))
        return found

    refused = (
        "WorkerError: call 1 of ps.torch.loader failed on rank 1 of 4: InvalidArgumentError: ps.torch.loader(dp=.."
    )
    seen = on_ranks(scenario, 4)
    assert [errors[0].startswith(refused) for errors in seen] == [True, False, True, True]
    for dimension, dp, sequence, partial, size, state in seen:
        assert "names 'data', which is no dimension of the mesh: it has 'dp', 'tp'" in dimension
        assert "dp=['dp'] of sizes [2], context_parallel=None of size 1 on rank 0 is dp=['tp'] of sizes [2]" in dp
        assert "context_parallel=None of size 1 on rank 0 is dp=['dp'] of sizes [2], context_parallel='tp'" in sequence
        assert "partial_batch pad on rank 0 is partial_batch drop on rank 1" in partial
        assert 'InvalidArgumentError: InputOptions(partial_batch="drop") would skip every step' in size
        assert "load_state_dict got another state on rank 1 than on rank 0" in state


def test_ranks_of_a_mesh_share_rows_and_sequences() -> None:
    def scenario(rank: int) -> dict[str, Any]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        found: dict[str, Any] = {}
        with ps.torch.loader(ROWS.batch(8, drop_remainder=True), mesh, dp="dp") as loader:
            found["tensor"] = taken(loader)
        with ps.torch.loader(ROWS.batch(8, drop_remainder=True), mesh, dp=("dp", "tp")) as loader:
            found["both"] = taken(loader)
        with ps.torch.loader(ps.Dataset.range(8).shuffle(8).batch(4), mesh["dp"]) as loader:
            found["slice of a mesh"] = taken(loader)
        texts = ps.Dataset.from_tensor_slices((np.arange(16).reshape(4, 4), np.arange(4)))
        with ps.torch.loader(texts.batch(4), mesh, dp="dp", context_parallel="tp") as loader:
            found["context"] = [(text.tolist(), label.tolist()) for text, label in loader]
        ragged = ps.Dataset.range(8).map(lambda n: np.arange(n + 1)).ragged_batch(4)
        found["ragged"] = error_of(lambda: taken(ps.torch.loader(ragged, mesh, dp="dp", context_parallel="tp")))
        batches = ps.Dataset.range(8).batch(4)
        found["refused"] = [
            error_of(lambda: ps.torch.loader(batches, mesh)),
            error_of(lambda: ps.torch.loader(batches, mesh, dp="data")),
            error_of(lambda: ps.torch.loader(batches, mesh, dp=("dp", "dp"))),
            error_of(lambda: ps.torch.loader(batches, mesh, dp="dp", context_parallel="dp")),
        ]
        return found

    seen = on_ranks(scenario, 4)
    whole = [batch.tolist() for batch in ROWS.batch(8, drop_remainder=True)]
    assert seen[0]["tensor"] == seen[1]["tensor"] == [batch[:4] for batch in whole]
    assert seen[2]["tensor"] == seen[3]["tensor"] == [batch[4:] for batch in whole]
    assert [list(chain(*parts)) for parts in zip(*(one["both"] for one in seen), strict=True)] == whole
    assert seen[0]["slice of a mesh"] == seen[1]["slice of a mesh"]
    assert sorted(chain(*seen[0]["slice of a mesh"], *seen[2]["slice of a mesh"])) == list(range(8))
    assert seen[1]["context"] == [([[2, 3], [6, 7]], [0, 1])]
    assert seen[2]["context"] == [([[8, 9], [12, 13]], [2, 3])]
    for one in seen:
        assert "context_parallel cuts the second axis into 2 parts of one length, which rows of diff" in one["ragged"]
        for error, words in zip(
            one["refused"],
            [
                "has 2 dimensions: name those of data",
                "no dimension of the mesh: it has 'dp', 'tp'",
                "twice",
                "either the",
            ],
            strict=True,
        ):
            assert error.startswith("InvalidArgumentError"), error
            assert words in error


def test_a_rank_whose_input_fails_ends_all_after_the_same_step(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n" * 8)
    (tmp_path / "b.txt").write_text("1\n" * 5 + "one\n" * 3)

    def scenario(rank: int, folder: Path) -> tuple[int, str]:
        lines = ps.TextLineDataset([str(folder / "a.txt"), str(folder / "b.txt")]).map(int).batch(2)
        lines = lines.with_options(ps.Options(auto_shard_policy="FILE"))
        steps: list[Any] = []
        with ps.torch.loader(lines, input_options=DROP) as loader:
            message = error_of(lambda: collect(steps, loader))
        return len(steps), message

    (steps, message), (others, other_message) = on_ranks(scenario, 2, tmp_path)
    assert steps == others == 4
    assert "WorkerError: rank 1 of 2 failed at step 4 of its input with ValueError: invalid literal" in message
    assert "ValueError: invalid literal for int() with base 10: 'one'" in other_message


class UnshownError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_without_a_text_or_with_a_huge_one_never_reached_the_others() -> None:
    def scenario(rank: int) -> list[str]:
        def failing(error: Exception) -> ps.Dataset:
            def fails_on_rank_1(x: Any) -> Any:
                if rank == 1 and x == 6:
                    raise error
                return x

            return ps.Dataset.range(40).map(fails_on_rank_1).filter(lambda x: True).batch(4)

        def ended(error: Exception) -> str:
            with ps.torch.loader(failing(error), input_options=DROP) as loader:
                try:
                    return str(taken(loader))
                except UnshownError:
                    return "itself"
                except Exception as other:
                    return str(other)

        return [ended(UnshownError()), ended(ValueError("y" * 30_000))]

    (unshown, huge), (own, own_huge) = on_ranks(scenario, 2)
    told = "rank 1 of 2 failed at step 1 of its input with"
    assert unshown == f"{told} UnshownError: its message cannot be shown, because its class raises RuntimeError"
    assert (own, own_huge) == ("itself", "y" * 30_000)
    assert huge.startswith(f"{told} ValueError: yyy") and huge.endswith("yyy... (30,012 characters)")


def test_a_killed_rank_ends_the_others_within_the_timeout() -> None:
    def scenario(rank: int) -> str:
        loader = ps.torch.loader(ps.Dataset.range(100).batch(2), failure_timeout_seconds=2)
        for number, _ in enumerate(loader):
            if rank == 1 and number == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            # Stands for a collective on the GPU, which a lost rank blocks for ever.
            if number == 5:
                signal.pause()
        return "ended"

    survivor, killed = ends_of_ranks(scenario, 2, seconds=30)
    assert killed.status == -signal.SIGKILL
    assert survivor.value is None
    assert survivor.status == 1


def test_a_signal_to_one_rank_stops_all_at_one_step() -> None:
    def scenario(rank: int) -> Any:
        dataset = ps.Dataset.range(100).filter(lambda row: row != 5).batch(4, drop_remainder=True)
        seen = []
        with ps.preemption() as preempted, ps.torch.loader(dataset) as loader:
            for number, batch in enumerate(loader):
                seen.append(batch.tolist())
                if rank == 1 and number == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
                if preempted.requested:
                    break
            loader.load_state_dict(loader.state_dict())
            return len(seen), seen + [batch.tolist() for batch in loader]

    (steps, first), (same, second) = on_ranks(scenario, 2)
    assert steps == same < 24
    assert [row for step in zip(first, second, strict=True) for part in step for row in part] == [
        row for row in range(97) if row != 5
    ]


def test_torchruns_variables_suffice_and_a_later_group_shares_the_store() -> None:
    def scenario(rank: int) -> tuple[list[Any], int]:
        with ps.torch.loader(ps.Dataset.range(8).shuffle(8).batch(4)) as loader:
            rows = taken(loader)
        torch.distributed.init_process_group("gloo")
        total = torch.ones(())
        torch.distributed.all_reduce(total)
        torch.distributed.destroy_process_group()
        return rows, int(total)

    (one, total), (other, _) = on_ranks(scenario, 2, group=False)
    assert sorted(chain(*one, *other)) == list(range(8))
    assert total == 2


@pytest.mark.parametrize("first", [[True, True], [True, False]])
def test_ranks_restarted_by_torchrun_find_each_other_not_the_lost_ones(first: list[bool]) -> None:
    """Its agents keep their store, with the values of the ranks that were there before, or of one of them."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port

    def scenario(rank: int, again: bool, seconds: float) -> list[Any]:
        os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        if again or first[rank]:
            with ps.torch.loader(ps.Dataset.range(8).batch(4), failure_timeout_seconds=seconds) as loader:
                return taken(loader)
        return []

    before = ends_of_ranks(scenario, 2, False, 1.0, group=False)
    if not all(first):
        assert "rank 1 of 2 did not come to call 1 of ps.torch.loader within 1 seconds" in str(before[0].error)
    for _ in range(2):
        one, other = on_ranks(scenario, 2, True, 20.0, group=False)
        assert sorted(chain(*one, *other)) == list(range(8))
    del store


def test_a_loader_made_before_the_group_is_refused_in_it() -> None:
    def scenario(rank: int) -> str:
        variables = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE")}
        loader = ps.torch.loader(ps.Dataset.range(8).batch(4))
        os.environ.update(variables)
        torch.distributed.init_process_group("gloo")
        message = error_of(lambda: iter(loader))
        torch.distributed.destroy_process_group()
        return message

    for message in on_ranks(scenario, 2, group=False):
        assert "this loader was made for one process, but this is rank" in message


def test_ranks_with_files_of_their_own_go_on_as_another_number_of_ranks(tmp_path: Path) -> None:
    for number, rows in enumerate((9, 4, 6, 5)):
        (tmp_path / f"{number}.txt").write_text("".join(f"{number * 10 + row}\n" for row in range(rows)))
    pattern = str(tmp_path / "?.txt")

    def scenario(rank: int, steps: int, state: dict[str, str] | None) -> dict[str, Any]:
        lines = ps.TextLineDataset(ps.Dataset.list_files(pattern, shuffle=False)).map(int).batch(4)
        lines = lines.with_options(ps.Options(auto_shard_policy="FILE"))
        found: dict[str, Any] = {"before": []}
        with ps.torch.loader(lines, input_options=PAD) as loader:
            if state is not None:
                loader.load_state_dict(state)
            epoch = iter(loader)
            found["before"] = [rows[mask].tolist() for _, (rows, mask) in zip(range(steps), epoch, strict=False)]
            found["state"] = loader.state_dict()
            found["rest"] = [rows[mask].tolist() for rows, mask in epoch]
            found["next"] = [rows[mask].tolist() for rows, mask in loader]
        return found

    def together(ranks: list[dict[str, Any]], part: str) -> list[list[int]]:
        return [list(chain(*parts)) for parts in zip(*(one[part] for one in ranks), strict=True)]

    two = on_ranks(scenario, 2, 3, None)
    assert two[0]["state"] == two[1]["state"]
    every = sorted(int(line) for path in tmp_path.glob("*.txt") for line in path.read_text().split())
    assert sorted(chain(*together(two, "before"), *together(two, "rest"))) == every
    four = on_ranks(scenario, 4, 1, two[0]["state"])
    assert together(four, "before") + together(four, "rest") == together(two, "rest")
    assert sorted(chain(*together(four, "next"))) == every
    (alone,) = on_ranks(scenario, 1, 1, four[0]["state"])
    assert alone["before"] + alone["rest"] == together(four, "rest")
    again = on_ranks(scenario, 2, 0, alone["state"])
    assert together(again, "rest") == alone["rest"]


def test_steps_that_were_dropped_stay_dropped_on_another_number_of_ranks(tmp_path: Path) -> None:
    for number, rows in enumerate((9, 4, 6, 5)):
        (tmp_path / f"{number}.txt").write_text("".join(f"{number * 10 + row}\n" for row in range(rows)))
    pattern = str(tmp_path / "?.txt")

    def scenario(rank: int, state: dict[str, str] | None, stop: int | None) -> tuple[list[Any], dict[str, str]]:
        lines = ps.TextLineDataset(ps.Dataset.list_files(pattern, shuffle=False)).map(int).batch(4)
        lines = lines.with_options(ps.Options(auto_shard_policy="FILE"))
        with ps.torch.loader(lines, input_options=DROP) as loader:
            if state is not None:
                loader.load_state_dict(state)
            return taken(islice(loader, stop)), loader.state_dict()

    def together(ranks: list[Any]) -> list[list[int]]:
        return [list(chain(*parts)) for parts in zip(*(steps for steps, _ in ranks), strict=True)]

    # Two rows of each rank's files in each step; the ninth row of the first file and the rows beside it are dropped.
    whole = [[0, 1, 10, 11], [2, 3, 12, 13], [4, 5, 30, 31], [6, 7, 32, 33]]
    two = on_ranks(scenario, 2, None, 2)
    assert together(two) == whole[:2]
    for ranks in (4, 1, 2):
        assert together(on_ranks(scenario, ranks, two[0][1], None)) == whole[2:]


def test_ranks_change_a_mixture_together() -> None:
    def mixed(*weights: float) -> ps.Dataset:
        parts = {"web": ps.Dataset.range(100), "code": ps.Dataset.range(1000, 1100)}
        return ps.Dataset.mix(parts, weights, stop="repeat").batch(4)

    def scenario(rank: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with ps.torch.loader(mixed(1, 0)) as loader:
            steps = iter(loader)
            found["before"] = [next(steps).tolist() for _ in range(2)]
            loader.remix({"web": 0, "code": 1}, at=3)
            found["after"] = [next(steps).tolist() for _ in range(2)]
            state = loader.state_dict()
        with ps.torch.loader(mixed(1, 1)) as loader:
            loader.load_state_dict(state, remix=True)
            found["resumed"] = [next(iter(loader)).tolist()]
            found["refused"] = error_of(lambda: loader.remix([rank, 1]))
        return found

    first, second = on_ranks(scenario, 2)
    assert (first["before"], second["before"]) == ([[0, 1], [4, 5]], [[2, 3], [6, 7]])
    assert (first["after"], second["after"]) == ([[8, 9], [1000, 1001]], [[10, 11], [1002, 1003]])
    assert sorted(first["resumed"][0] + second["resumed"][0]) == [12, 13, 1004, 1005]
    assert "WorkerError: remix was called after different steps, or with other weights" in first["refused"]
