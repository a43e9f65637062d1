"""FILE, FILE_RANGE, OFF and HINT over real workers: each reads data of its own, and all take equally many steps."""

import json
from collections import Counter
from typing import Any

import pytest

import penstock as ps

pytestmark = pytest.mark.slow

NOTHING = [[]]


@pytest.fixture(scope="module")
def seen(scenario) -> Any:
    """Two workers with one replica each."""
    return scenario("files", devices=1)


@pytest.fixture(scope="module")
def four(scenario) -> Any:
    """Two workers with two replicas each."""
    return scenario("files", devices=2)


def each(*rows: list[Any]) -> list[list[Any]]:
    """The steps of a worker with one replica."""
    return [[step] for step in rows]


GUIDE = [each([0, 1], [2, 3], [4], [5]), each([6, 7], [8, 9], [10], [11])]
LONG = each([0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11])


@pytest.mark.parametrize("case", ["two_equal_files", "records", "range_of_one_file"])
def test_two_halves_as_in_the_guide(seen, case: str) -> None:
    assert seen.of(case) == GUIDE


def test_two_halves_over_two_replicas_each(four) -> None:
    assert four.of("two_equal_files") == [
        [[[0], [1]], [[2], [3]], [[4], [5]]],
        [[[6], [7]], [[8], [9]], [[10], [11]]],
    ]


def test_the_short_worker_takes_part_until_the_long_one_is_done(seen, four) -> None:
    assert seen.of("two_unequal_files") == [LONG, each([100, 101], [102], [], [], [], [])]
    assert four.of("two_unequal_files") == [
        [[[row], [row + 1]] for row in range(0, 12, 2)],
        [[[100], [101]], [[102], []], *[[[], []]] * 4],
    ]


def test_a_worker_whose_file_is_empty_takes_part(seen) -> None:
    empty, full = seen.of("an_empty_file")
    assert (empty["steps"], full["steps"]) == (each([], [], [], []), GUIDE[0])
    assert empty["dtypes"] == full["dtypes"]
    assert seen.of("an_empty_file_of_lines") == [each(["0", "1"], ["2", "3"], ["4"], ["5"]), each([], [], [], [])]


def test_empty_files_alone_give_no_steps(seen) -> None:
    assert seen.of("only_empty_files") == [[], []]


def test_more_files_than_workers_are_dealt_out(seen) -> None:
    assert seen.of("four_files") == [LONG, each([100, 101], [102, 200], [], [], [], [])]


def test_an_epoch_ends_for_each_worker_where_its_files_end(seen) -> None:
    assert seen.of("repeated") == [
        each([0, 1], [2, 3], [4, 5], [0, 1], [2, 3], [4, 5]),
        each([100, 101], [102, 100], [101], [102], [], []),
    ]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            "too_few_files",
            "reads 1 file, fewer than the 2 workers: use AutoShardPolicy.DATA, AutoShardPolicy.FILE_RANGE",
        ),
        ("no_files", "AutoShardPolicy.FILE does not fit: range(start=0, stop=4, step=1) at"),
        ("no_hint", "AutoShardPolicy.HINT needs a place to shard at"),
        ("a_hint_under_another_policy", "works under AutoShardPolicy.HINT only"),
    ],
)
def test_what_does_not_fit_is_refused_alike_and_all_go_on(seen, case: str, message: str) -> None:
    first, second = ([told] if isinstance(told, dict) else told for told in seen.of(case))
    assert len(first) == (2 if case == "too_few_files" else 1)
    for one, other in zip(first, second, strict=True):
        assert one["error"] == other["error"]
        kind, text = one["error"]
        assert kind == "InvalidArgumentError"
        assert message in text
        assert "scenarios/files.py" in text or case == "no_hint"
        assert (one["afterwards"], other["afterwards"]) == (each([0, 1]), each([2, 3]))


def test_what_counts_the_rows_of_all_workers_falls_to_data(seen) -> None:
    pairs = [[[row, row + 1]] * 2 for row in range(0, 12, 2)]
    assert seen.joined("zipped_with_a_range") == [pairs[step : step + 2] for step in (0, 2, 4)]
    assert seen.joined("the_first_nine") == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], []]]
    assert seen.joined("data_of_files") == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]


def test_interleaved_readers_are_divided_by_file(seen) -> None:
    for worker, told in enumerate(seen.of("interleaved")):
        assert told["steps"] == GUIDE[worker]
        assert "FILE: every source reads files" in told["explanation"]


def test_shuffled_names_are_disjoint_and_complete_in_every_epoch(seen) -> None:
    rows = Counter([*range(12), *range(100, 103), 200])
    epochs = list(zip(*seen.of("shuffled_names"), strict=True))
    assert len(epochs) == 2
    for workers in epochs:
        assert len({len(steps) for steps in workers}) == 1
        assert Counter(row for steps in workers for step in steps for share in step for row in share) == rows


def test_shuffled_rows_stay_with_the_worker_of_their_file(seen) -> None:
    for worker, rows in enumerate(([*range(12)], [100, 101, 102])):
        epochs = seen.of("shuffled_rows")[worker]
        assert [sorted(row for step in steps for row in step[0]) for steps in epochs] == [rows, rows]


def test_ranges_of_records_even_out(seen) -> None:
    first, second = seen.of("ranges_of_unequal_files")
    assert first["steps"] == each([0, 1], [2, 3], [4, 5], [6])
    assert second["steps"] == each([7, 8], [9, 10], [11, 100], [101, 102])
    assert first["explanation"] == second["explanation"]
    for line in ("FILE_RANGE: every source", "long.txt: records 7 to 11\n", "short.txt: records 0 to 2"):
        assert line in first["explanation"]


def test_off_gives_everything_to_all(seen) -> None:
    assert seen.of("everything") == [LONG, LONG]
    assert seen.of("everything_of_unknown_length") == [each([0, 1], [2, 3], [5])] * 2


def test_a_step_for_which_nobody_has_rows_is_none(seen) -> None:
    assert seen.of("everything_of_five_rows") == [{"steps": each([0, 1], [2, 3], [4]), "length": 3}] * 2


def test_a_hint_says_where(seen) -> None:
    assert seen.of("hinted") == [
        {"steps": each([0, 2], [4, 6], [8], [10]), "length": 4},
        {"steps": each([1, 3], [5, 7], [9], []), "length": 4},
    ]


# Partial batches.


def spec(rows: int | None, dtype: str = "int64") -> str:
    return repr(ps.PerReplica([ps.TensorSpec((rows,), dtype)]))


def padded(*rows: list[int]) -> list[list[Any]]:
    return [[[[*step, 0, 0][:2], [number < len(step) for number in range(2)]]] for step in rows]


@pytest.mark.parametrize(
    ("case", "ragged", "lengths"),
    [
        (
            "partial",
            [[[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]], [[100, 101], [102], [], [], [], []]],
            (ps.UNKNOWN_CARDINALITY, ps.UNKNOWN_CARDINALITY),
        ),
        ("partial_of_known_length", [[[0, 2], [4, 6], [8], [10]], [[1, 3], [5, 7], [9], []]], (4, 2)),
    ],
)
def test_partial_steps_are_kept_or_filled_up_or_dropped(seen, case: str, ragged: Any, lengths: Any) -> None:
    length, full_length = lengths
    full = [
        number for number, shares in enumerate(zip(*ragged, strict=True)) if all(len(share) == 2 for share in shares)
    ]
    for told, steps in zip(seen.of(case), ragged, strict=True):
        assert told["ragged"] == {"steps": each(*steps), "cardinality": length, "spec": spec(None)}
        assert told["pad"] == {
            "steps": padded(*steps),
            "cardinality": length,
            "spec": f"({spec(2)}, {spec(2, 'bool')})",
        }
        kept = each(*(steps[number] for number in full))
        assert told["drop"] == {"steps": kept, "cardinality": full_length, "spec": spec(2)}


def test_a_worker_without_lines_has_shares_of_every_leaf(seen) -> None:
    ragged, pad = seen.of("a_worker_without_lines")[1]
    assert ragged == each([[], []], [[], []], [[], []], [[], []])
    zeros = [[0.0, 0.0], [0.0, 0.0]]
    assert [[leaves[1], mask] for ((leaves, mask),) in pad] == [[zeros, [False, False]]] * 4


def test_strings_are_filled_up_alike_on_all_workers(seen) -> None:
    for _, pad in seen.of("a_worker_without_lines"):
        for (((lines, _), mask),) in pad:
            assert [line for line, real in zip(lines, mask, strict=True) if not real] == [""] * mask.count(False)


# Positions.


@pytest.mark.parametrize(
    ("case", "steps"),
    [("resumed_files", 6), ("resumed_shuffled_files", 8), ("resumed_with_an_empty_file", 4), ("resumed_hint", 4)],
)
def test_a_state_resumes_on_the_same_workers_at_every_boundary(seen, case: str, steps: int) -> None:
    for worker in seen.of(case):
        assert worker["same"] == [True] * (steps + 1)


def test_a_state_in_the_middle_of_a_batch_says_so(seen) -> None:
    states = [json.loads(state) for state in seen.of("resumed_files")[0]["states"]]
    assert [(state["step"], state["steps_of_batch"]) for state in states] == [
        (0, 0),
        (1, 1),
        (2, 0),
        (3, 1),
        (4, 0),
        (5, 1),
        (6, 0),
    ]


@pytest.mark.parametrize(
    ("case", "words"),
    [("state_of_the_other_worker", ["1 of 2", "0 of 2"]), ("state_of_more_workers", ["0 of 3", "1 of 3"])],
)
def test_a_state_of_another_worker_is_refused_and_the_iteration_goes_on(seen, case: str, words: list[str]) -> None:
    first, second = seen.of(case)
    for worker, told in enumerate((first, second)):
        assert f"the state is of worker {words[worker]}, which reads data of its own" in told["error"]
    assert (first["next"], second["next"]) == ([[2, 3]], [[102]])


def test_a_state_of_files_is_refused_by_another_number_of_workers(seen, tmp_path) -> None:
    for name, rows in (("long.txt", 12), ("short.txt", 3)):
        (tmp_path / name).write_text("0\n" * rows)
    dataset = ps.TextLineDataset([str(tmp_path / "long.txt"), str(tmp_path / "short.txt")]).map(int).batch(4)
    for state in (seen.of("resumed_files")[0]["states"][2], seen.of("resumed_files")[1]["states"][2]):
        steps = iter(ps.HostStrategy().distribute_dataset(dataset))
        with steps, pytest.raises(ps.StateMismatchError, match="of 2, which reads data of its own"):
            steps.load_state_dict(json.loads(state))
