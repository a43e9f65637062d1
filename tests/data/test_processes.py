"""`map(processes=True)`: the calls of the plain map, made in other processes that are really there."""

import os
import pickle
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import NamedTuple

import forked
import numpy as np
import pytest
from until import until

import penstock as ps
from penstock.data.functions.in_processes import as_columns
from penstock.structure import flatten
from penstock.testing import check_conformance


class Pair(NamedTuple):
    image: np.ndarray
    name: str


def pair_of(x):
    return Pair(np.full((3 + x % 2,), x), f"row {x}")


def jittered(x, generator):
    return x + generator.random(1500)  # large enough to cross beside the pickle


def fails_at_3(x):
    if x == 3:
        raise KeyError("no such label")
    return x


def ends_its_process_at_3(x):
    if x == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def in_processes(dataset, function, calls=2, **arguments):
    """The map, with a function that is gone with the test, and its processes with it."""
    return dataset.map(partial(function), num_parallel_calls=calls, processes=True, **arguments)


def running(process):
    """Also while only some of its threads have ended, of which the system says nothing to who waits for it."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" or len(list(Path(f"/proc/{process}/task").iterdir())) > 1
    except (FileNotFoundError, ProcessLookupError):  # the second where it ends while it is read
        return False


def elements_and_errors(dataset):
    found, iterator = [], iter(dataset)
    while True:
        try:
            found.append(int(next(iterator)))
        except StopIteration:
            return found
        except (KeyError, ps.errors.WorkerError) as error:
            found.append(error)


def test_calls_are_made_in_as_many_processes_as_were_asked_for():
    numbers = set(map(int, in_processes(ps.Dataset.range(40), lambda x: (x, os.getpid())[1])))
    assert os.getpid() not in numbers
    assert 1 <= len(numbers) <= 2


def test_elements_are_those_of_the_plain_map():
    source = ps.Dataset.range(12)
    for ours, plain in zip(in_processes(source, pair_of), source.map(pair_of), strict=True):
        assert type(ours) is Pair
        assert ours.image.tolist() == plain.image.tolist()
        assert ours.name == plain.name


@pytest.mark.parametrize(
    ("results", "columns"),
    [
        ([np.float32([1, 2]), np.float32([3, 4])], [np.ndarray]),
        ([(np.float32(1), 2), (np.float32(3), 4)], [np.ndarray, list]),
        ([{"a": np.zeros(2), "b": "x"}, {"b": "y", "a": np.ones(2)}], [np.ndarray, list]),
        ([Pair(np.zeros(2), "x"), Pair(np.ones(3), "y")], [list, list]),
        ([np.zeros(2, np.int32), np.zeros(2, np.int64)], [list]),
        ([np.array(1), np.array(2)], [list]),
        ([1, (2, 3)], [list]),
        ([(1, 2), (1, 2, 3)], None),
        ([(1, (2, 3)), (1, (2, 3))], [list, list, list]),
        ([(1, (2, 3)), (1, (2, 3, 4))], None),
        ([], None),
    ],
    ids=str,
)
def test_results_that_are_alike_cross_as_columns_and_arrive_as_they_were(results, columns):
    sent = as_columns(results)
    assert (columns is None) == (sent is None)
    if sent is not None:
        assert list(map(type, sent.columns)) == columns
        leaves, structures = zip(*map(flatten, sent.rows()), strict=True)
        before, given = zip(*map(flatten, results), strict=True)
        assert (pickle.dumps(leaves), structures) == (pickle.dumps(before), given)
        assert [list(map(type, flatten(row)[0])) for row in sent.rows()] == [
            list(map(type, flatten(row)[0])) for row in results
        ]


@pytest.mark.parametrize("source", [ps.Dataset.range(9), ps.Dataset.range(9).filter(lambda x: x != 4)])
def test_random_numbers_are_those_of_the_plain_map(source):
    ours, plain = in_processes(source, jittered, seed=3), source.map(jittered, seed=3)
    assert [x.tolist() for x in ours] == [x.tolist() for x in plain]


@pytest.mark.slow
def test_maps_in_processes_keep_the_contract_of_datasets():
    mapped = in_processes(ps.Dataset.range(7), lambda x: x * x)
    check_conformance(lambda: mapped)


@pytest.mark.parametrize(("before", "after"), [(None, 2), (2, None), (1, 3)])
def test_a_state_is_restored_with_and_without_processes(before, after):
    def made(calls):
        mapped = partial(in_processes, calls=calls) if calls else ps.Dataset.map
        return mapped(ps.Dataset.range(20).shuffle(20, seed=1), lambda x: 2 * x).batch(3)

    iterator = iter(made(before))
    given = [next(iterator).tolist() for _ in range(3)]
    restored = iter(made(after))
    restored.load_state_dict(iterator.state_dict())
    assert given + [batch.tolist() for batch in restored] == [batch.tolist() for batch in made(None)]


def test_a_functions_error_comes_after_the_rows_before_it_with_both_places():
    *before, error, four, five = elements_and_errors(in_processes(ps.Dataset.range(6), fails_at_3))
    assert (before, four, five) == ([0, 1, 2], 4, 5)
    assert type(error) is KeyError
    told = "\n".join(error.__notes__)
    assert "in fails_at_3" in told
    assert "raised in a process of map(processes=True)" in told
    assert "test_processes.py" in told
    assert "element 3" in told


KEPT = KeyError("no such label")


def raises_the_same_object(x):
    if x:
        raise KEPT
    return x


def test_an_error_that_a_function_raises_again_does_not_grow():
    *_, last = elements_and_errors(in_processes(ps.Dataset.range(8), raises_the_same_object))
    assert "\n".join(last.__notes__).count("raised in a process of map(processes=True)") == 1


@pytest.mark.extended
def test_an_error_of_a_class_that_does_not_travel_is_told_by_name():
    class Unsent(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    def fails(x):
        raise Unsent(1, 2)

    with pytest.raises(RuntimeError, match="Unsent: 1 and 2"):
        list(in_processes(ps.Dataset.range(2), fails, output_signature=ps.TensorSpec((), "int64")))


class UnshownError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def raises_what_cannot_be_sent_or_shown(x):
    if x == 1:
        raise UnshownError(threading.Lock())
    return x


def test_an_error_that_can_neither_be_sent_nor_shown_ended_the_process():
    with iter(in_processes(ps.Dataset.range(3), raises_what_cannot_be_sent_or_shown)) as iterator:
        assert next(iterator) == 0
        with pytest.raises(RuntimeError, match="^UnshownError: its message cannot be shown, because its class raises "):
            next(iterator)
        assert next(iterator) == 2


def test_a_killed_process_is_an_error_and_the_rows_after_it_come():
    *before, error, four, five = elements_and_errors(in_processes(ps.Dataset.range(6), ends_its_process_at_3))
    assert (before, four, five) == ([0, 1, 2], 4, 5)
    assert isinstance(error, ps.errors.WorkerError)
    assert "was ended by SIGKILL" in str(error)


def test_a_process_outlives_a_signal_that_a_scheduler_sends_to_all_of_a_job():
    def signalled_at_3(x):
        if x == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return x

    assert list(in_processes(ps.Dataset.range(6), signalled_at_3)) == list(range(6))


def test_functions_that_cannot_be_sent_are_refused_at_the_call():
    lock = threading.Lock()
    with pytest.raises(ps.errors.InvalidTypeError, match=r"cannot send .*lambda.* cannot pickle '_thread.lock'"):
        ps.Dataset.range(2).map(lambda x: (lock, x)[1], num_parallel_calls=2, processes=True)


@pytest.mark.slow
def test_a_mapped_file_that_a_function_uses_is_mapped_in_the_processes(tmp_path):
    np.zeros(1_000_000, np.uint8).tofile(tmp_path / "tokens.bin")
    tokens = np.memmap(tmp_path / "tokens.bin", np.uint8, "r+")
    dataset = ps.Dataset.range(4).map(lambda x: tokens[x], num_parallel_calls=1, processes=True)
    before = [int(x) for x in dataset]
    tokens[:] = 7  # the processes show the same memory
    assert (before, [int(x) for x in dataset]) == ([0] * 4, [7] * 4)


def test_processes_want_a_number():
    with pytest.raises(ps.errors.InvalidArgumentError, match=r"takes num_parallel_calls=\.\.\."):
        ps.Dataset.range(2).map(lambda x: x, processes=True)


def test_results_that_cannot_be_sent_are_an_error_at_their_row():
    signature = ps.TensorSpec((), "int64")
    rows = iter(in_processes(ps.Dataset.range(2), lambda x: (i for i in [x]) if x else x, output_signature=signature))
    assert next(rows) == 0
    with pytest.raises(ps.errors.InvalidTypeError, match="returned a generator in a process"):
        next(rows)


def test_a_result_that_the_function_writes_to_again_is_kept():
    def made():
        scratch = np.zeros(1000)

        def filled(x):
            scratch[:] = x
            return scratch

        return filled

    assert [x[0] for x in in_processes(ps.Dataset.range(50), made())] == list(range(50))


def test_processes_are_kept_for_the_next_iteration_of_the_same_function():
    mapped = in_processes(ps.Dataset.range(3), lambda x: (x, os.getpid())[1], calls=1)
    assert set(map(int, mapped)) == set(map(int, mapped))


@pytest.mark.slow
def test_a_kept_process_that_was_killed_meanwhile_costs_nothing(own_children):
    """With a process of its own: of one that was forked by another, that one says a moment later that it has ended."""
    dataset = in_processes(ps.Dataset.range(3), lambda x: (x, os.getpid())[1], calls=1)
    (first,) = set(map(int, dataset))
    os.kill(first, signal.SIGKILL)
    until(lambda: not running(first))
    assert first not in set(map(int, dataset))


def test_what_a_function_refers_to_is_that_of_each_iteration():
    factor = [1]
    mapped = in_processes(ps.Dataset.range(3), lambda x: x * factor[0])
    assert [int(x) for x in mapped] == [0, 1, 2]
    factor[0] = 5
    assert [int(x) for x in mapped] == [0, 5, 10]


@pytest.mark.extended
def test_closing_gives_up_calls_that_hang():
    signature = ps.TensorSpec((), "int64")

    def hangs_at_1(x):
        if x == 1:
            signal.pause()
        return x

    iterator = iter(in_processes(ps.Dataset.range(4), hangs_at_1, output_signature=signature))
    assert next(iterator) == 0
    iterator.close()


def test_closing_an_iterator_leaves_the_calls_of_another_alone():
    mapped = in_processes(ps.Dataset.range(200), lambda x: x)
    closed, other = iter(mapped), iter(mapped)
    assert next(closed) == next(other) == 0
    closed.close()
    assert [int(x) for x in other] == list(range(1, 200))


def test_idle_processes_end_and_others_take_their_place(monkeypatch):
    monkeypatch.setattr("penstock.runtime.processes._IDLE_SECONDS", 0.05)
    mapped = in_processes(ps.Dataset.range(3), lambda x: (x, os.getpid())[1], calls=1)
    *_, last = map(int, mapped)
    until(lambda: not running(last))
    assert last not in set(map(int, mapped))


@pytest.mark.parametrize("what", ["answers no more", "asks no more"])
def test_a_process_that_closed_its_pipes_is_ended_with_an_error(monkeypatch, what):
    monkeypatch.setattr("penstock.runtime.processes._END_SECONDS", 0.05)

    def closes(x):
        # What it reads questions from, and where it tells of answers.
        asked, answers = map(int, sys.argv[1:3])
        if what == "answers no more":
            os.close(answers)
            signal.pause()
        threading.Thread(target=signal.pause).start()  # without this it would have ended
        os.close(asked)
        return x

    signature = ps.TensorSpec((), "int64")
    rows = in_processes(ps.Dataset.range(2), closes, calls=1, output_signature=signature)
    *before, error = elements_and_errors(rows.take(1) if what == "answers no more" else rows)
    assert before == ([] if what == "answers no more" else [0])
    assert "was ended by SIGKILL" in str(error)


PROGRAM = """
import os, sys
import penstock as ps

called, goes_on = sys.argv[1:]

def waits(x):
    with open(called, "w") as told:
        told.write(str(os.getpid()))
    open(goes_on).close()
    return x

signature = ps.TensorSpec((), "int64")
print(*ps.Dataset.range(1).map(lambda x: os.getpid(), num_parallel_calls=1, processes=True, output_signature=signature))
if called:
    list(ps.Dataset.range(1).map(waits, num_parallel_calls=1, processes=True, output_signature=signature))
"""


@pytest.mark.slow
def test_processes_end_with_the_program_that_has_started_them():
    done = forked.run("-c", PROGRAM, "", "")
    assert (done.returncode, done.stderr) == (0, "")
    assert not running(int(done.stdout))


@pytest.mark.extended
def test_a_process_whose_program_was_killed_ends_in_its_call_without_a_word(tmp_path):
    """The call waits for what nobody writes: it did so for ever."""
    called, goes_on = tmp_path / "called", tmp_path / "goes on"
    os.mkfifo(called)
    os.mkfifo(goes_on)
    program = forked.Forked("-c", PROGRAM, str(called), str(goes_on), pipes=("stdout", "stderr"))
    process = int(called.read_text())
    program.kill()
    program.wait()
    assert program.communicate()[1] == ""  # which it has open until it ends
    until(lambda: not running(process))


def test_explain_names_the_processes():
    assert "2 at once in processes" in in_processes(ps.Dataset.range(3), lambda x: x).explain()


def fork_and_die(x: np.int64) -> np.int64:
    if x == 3:
        if os.fork() == 0:
            signal.alarm(30)  # it outlives its parent, and the test
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    return x


@pytest.mark.extended
@pytest.mark.usefixtures("own_children")
def test_a_killed_process_with_a_forked_child_was_waited_for() -> None:
    with pytest.raises(ps.errors.WorkerError, match="SIGKILL"):
        list(in_processes(ps.Dataset.range(8), fork_and_die))
