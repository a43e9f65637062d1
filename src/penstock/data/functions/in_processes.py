"""Calls of a user's function in separate processes.

Messages are pickled: a process belongs to the program that has started it, and no other has its pipes.
"""

import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary

import cloudpickle
import numpy as np

from penstock.data.block import Block
from penstock.data.functions.apply import call_rows
from penstock.data.functions.at_once import describe_function
from penstock.data.functions.in_threads import owned
from penstock.errors import InvalidArgumentError, InvalidTypeError, WorkerError
from penstock.printing import text_of_error
from penstock.row_generators import RowGenerators
from penstock.runtime.mailbox import Part
from penstock.runtime.processes import LostProcess, Processes
from penstock.runtime.sending import dumps
from penstock.runtime.threads import Threads
from penstock.structure import Structure, flatten

IN_PROCESSES_TASK_SECONDS: Final = 0.016
"""The time of a task in a process: sending it and its results takes each side up to half a millisecond."""
_LARGE_BYTES: Final = 4096
"""Arrays from this size on are sent beside the pickle, without a copy into it."""
_MODULE: Final = "penstock.data.functions.called_process"

_kept: WeakKeyDictionary[Any, Processes] = WeakKeyDictionary()
_kept_lock = Lock()


@dataclass(frozen=True)
class Question:
    """Rows for which to call the function.

    Attributes:
        rows: the rows.
        generators: their random generators, if `map` has a seed.
    """

    rows: Block
    generators: RowGenerators | None


@dataclass(frozen=True)
class RowColumns:
    """Results that are alike, as one array for each leaf: pickling the arrays of each row is slow.

    Attributes:
        structure: the structure of each result.
        columns: for each leaf an array of all rows, or the list of their values.
    """

    structure: Structure
    columns: list[Any]

    def rows(self) -> Iterable[Any]:
        """Yield the results; their arrays are views of the columns."""
        if self.structure.kind == "leaf":
            return self.columns[0]  # type: ignore[no-any-return]  # an array or a list
        leaves = zip(*self.columns, strict=True)
        return leaves if self.structure.is_flat_tuple else map(self.structure.unflatten, leaves)


@dataclass(frozen=True)
class RowResults:
    """Results of the function, up to the first row at which it raised.

    Attributes:
        results: one for each row, or all of them as columns.
        error: the exception that it raised.
    """

    results: list[Any] | RowColumns
    error: BaseException | None = None


def to_message(value: Any) -> list[Part]:
    """Return a value as the parts of a message: its pickle, and its large arrays."""
    arrays: list[Part] = []

    def within(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _LARGE_BYTES:
            return True
        arrays.append(raw)
        return False

    return [cloudpickle.dumps(value, protocol=5, buffer_callback=within), *arrays]


def from_message(parts: list[memoryview]) -> Any:
    """Return the value of a message; its large arrays are views of the message's parts."""
    return pickle.loads(parts[0], buffers=parts[1:])


def check_processes(function: Callable[..., Any], num_parallel_calls: int | None) -> None:
    """Check the arguments of a map with processes.

    Raises:
        InvalidArgumentError: the number of processes is missing.
        InvalidTypeError: the function cannot be pickled.
    """
    if num_parallel_calls is None:
        raise InvalidArgumentError(
            "map(processes=True) takes num_parallel_calls=..., the number of processes: ps.AUTOTUNE for one per core"
        )
    _function_message(function)


def _function_message(function: Callable[..., Any]) -> list[Part]:
    try:
        return [dumps(function)]  # with its arrays, which must be writable there
    except Exception as error:
        raise InvalidTypeError(
            f"map(processes=True) cannot send {describe_function(function)} to other processes "
            f"({type(error).__name__}: {error}): create objects such as locks, open files and connections inside the "
            "function, or remove processes=True"
        ) from error


class CalledProcesses:
    """The processes that call one function, for one iteration.

    They are kept for the next iteration as long as the function exists and has not changed: starting one takes a third
    of a second, and the time of all imports of the function's module.
    """

    def __init__(self, threads: Threads, function: Callable[..., Any]) -> None:
        self._caller = _processes_for(function).caller(threads)

    def results(self, rows: Block, generators: RowGenerators | None) -> Iterator[Any]:
        """Yield the function's result for each row, and raise the exception that it raises.

        Raises:
            WorkerError: the process was lost.
        """
        try:
            answer = from_message(self._caller.answer_to(to_message(Question(rows, generators))))
        except LostProcess as error:
            status = error.status
            ended = f"ended with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"
            raise WorkerError(
                f"a process of map(processes=True) {ended} while it called the function for "
                f"{len(rows)} rows, of which this is the first: it was killed, perhaps because the machine has no "
                "memory left, or the function ended it"
            ) from None
        yield from answer.results.rows() if isinstance(answer.results, RowColumns) else answer.results
        if answer.error is not None:
            raise answer.error


def _processes_for(function: Callable[..., Any]) -> Processes:
    first = _function_message(function)
    try:
        with _kept_lock:
            kept = _kept.get(function)
            if kept is None or kept.first != first:
                kept = _kept[function] = Processes(_MODULE, first)
            return kept
    except TypeError:  # a function that takes no weak reference
        return Processes(_MODULE, first)


def _forget_kept() -> None:
    """Forget the processes in a forked process: they belong to the one that has started them."""
    global _kept, _kept_lock
    _kept, _kept_lock = WeakKeyDictionary(), Lock()


os.register_at_fork(after_in_child=_forget_kept)


def answer_of(function: Callable[..., Any], question: Question) -> list[Part]:
    """Return the message with a function's results; runs in the called process."""
    rows, generators, results = question.rows, question.generators, list[Any]()
    error: BaseException | None = None
    try:
        results.extend(map(owned, call_rows(function, rows, generators)))  # keeps the results before an exception
    except BaseException as raised:
        error = _sendable(raised)
    try:
        return to_message(RowResults(as_columns(results) or results, error))
    except Exception:
        return to_message(_up_to_unsendable(function, results))


def as_columns(results: Sequence[Any]) -> RowColumns | None:
    """Return the results as columns; None where they are not alike."""
    if not results:
        return None
    _, structure = flatten(results[0])
    if structure.leaf_count == 0:
        return None
    leaves = list(map(structure.quick_leaves, results))
    if None in leaves:
        return None
    return RowColumns(structure, [_column_of(values) for values in zip(*leaves, strict=True)])


def _column_of(values: tuple[Any, ...]) -> Any:
    """Return an array whose entries equal these values, or a list if there is no such array."""
    kind, first = type(values[0]), values[0]
    array = kind is np.ndarray and first.ndim > 0
    if not array and not issubclass(kind, np.number | np.bool_):
        return list(values)
    dtype, shape = first.dtype, first.shape
    if dtype.kind not in "biufc" or any(
        type(value) is not kind or value.dtype is not dtype or value.shape != shape for value in values
    ):
        return list(values)
    return np.stack(values, dtype=dtype) if array else np.array(values, dtype)


def _up_to_unsendable(function: Callable[..., Any], results: list[Any]) -> RowResults:
    for row, value in enumerate(results):
        try:
            to_message(value)
        except Exception as error:
            refused = InvalidTypeError(
                f"{describe_function(function)} returned a {type(value).__name__} in a process of map(processes=True), "
                f"which cannot be sent back ({text_of_error(error)}): return arrays, numbers or strings"
            )
            return RowResults(results[:row], refused)
    raise AssertionError("results that can be sent one by one can be sent together")


def _sendable(error: BaseException) -> BaseException:
    """Return an exception with the traceback of this process as a note; a RuntimeError if it cannot be pickled."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    try:
        sent: BaseException = pickle.loads(cloudpickle.dumps(error))  # the function may raise the object itself again
        if type(sent) is not type(error):
            raise TypeError
    except Exception:
        sent = RuntimeError(text_of_error(error))
        for note in getattr(error, "__notes__", ()):
            sent.add_note(note)
    sent.add_note(f"penstock: raised in a process of map(processes=True):\n{trace}")
    return sent
