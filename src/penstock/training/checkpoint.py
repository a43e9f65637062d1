"""`Checkpoint`: a model, its optimizer, metrics, values and the place in the data, in one atomic step."""

import logging
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.distribute.contexts import refuse_in_replica
from penstock.errors import ClosedError, InvalidArgumentError, InvalidTypeError, StateMismatchError
from penstock.options import check_integer
from penstock.training.checkpoint_files import Numbered
from penstock.training.checkpoint_index import Index, check_names, difference
from penstock.training.checkpoint_objects import Object, load_states
from penstock.training.checkpoint_store import Array, read_arrays, read_index, write
from penstock.training.checkpoint_workers import workers_of
from penstock.training.checkpoint_writer import Writer

_logger = logging.getLogger(__name__)


class Checkpoint:
    """Saves and restores named objects together: all of them appear on disk in one step, or none.

    An object is one of these, or a structure of them (tuples, lists, dictionaries, whatever JAX knows as a tree):

    - a Keras model, layer, optimizer, metric or variable: restored in place, each variable where its value lies;
    - anything with `state_dict()` and `load_state_dict()`, such as the iterator of a dataset: restored in place;
    - arrays and numbers. These are values: what is given here is a template that says of which shapes and dtypes they
      are and where they lie. `save` takes their present values, and `restore` returns the restored ones.

    With several workers make it inside `strategy.scope()`, and make every call on all workers.

    Args:
        max_to_keep: after each `save`, delete all but so many of the newest checkpoints of its prefix.
        asynchronous: let `save` return when the values are copied, and write them in the background. An error is
            raised by the next call; the program does not end before all is written.
        objects: what to save, by name.

    Raises:
        InvalidTypeError: an object that is none of these.
        InvalidArgumentError: no objects, or several workers outside of a scope.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import penstock as ps
        >>> iterator = iter(ps.Dataset.range(5))
        >>> weights = np.zeros(2)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     checkpoint = ps.Checkpoint(iterator=iterator, weights=weights)
        ...     weights += next(iterator) + 1
        ...     path = checkpoint.save(f"{directory}/ckpt", weights=weights)
        ...     weights += next(iterator) + 1
        ...     restored = checkpoint.restore(path)
        >>> restored["weights"], next(iterator)
        (array([1., 1.]), np.int64(1))
    """

    def __init__(self, /, *, max_to_keep: int | None = None, asynchronous: bool = False, **objects: Any) -> None:
        if max_to_keep is not None:
            check_integer("Checkpoint", "max_to_keep", max_to_keep, minimum=1)
        if not objects:
            raise InvalidArgumentError("ps.Checkpoint takes what to save by name, as in ps.Checkpoint(model=model)")
        self._max_to_keep = max_to_keep
        self._asynchronous = asynchronous
        self._objects = {name: Object(name, value) for name, value in objects.items()}
        self._workers = workers_of([control for one in self._objects.values() for control in one.controls()])
        if self._workers.count > 1:
            for one in self._objects.values():
                one.check_alike_everywhere()
        self._writer = Writer()
        self._under_way = False
        self._closed = False

    def save(self, prefix: str | os.PathLike[str], /, **values: Any) -> str:
        """Write a checkpoint, and give its path: the prefix, and a number that follows the highest on disk.

        What is written are the values at this call, whatever becomes of the objects while it is written.

        Args:
            prefix: a directory, which is made, and the beginning of a name in it: "run/ckpt".
            values: the present value of every object that is made of arrays and numbers, by its name.

        Raises:
            InvalidArgumentError: values that are missing, too many, or do not fit their templates; a Keras object that
                is not built yet; an array that was donated.
            StorageError: the directory or the checkpoint cannot be written.
            ClosedError: the checkpoint was closed.
        """
        refuse_in_replica("checkpoint.save")
        self._ready()
        started = time.perf_counter()
        (arrays, files), told = self._workers.call("checkpoint.save", lambda: self._taken(prefix, values))
        path = Path(told[0][0])
        states = zip(*(states for _, states in told), strict=True)
        index = Index({name: one.items(own) for (name, one), own in zip(self._objects.items(), states, strict=True)})
        if files is not None:
            self._writer.start(lambda: self._write(files, path, arrays, index, started))
        self._under_way = True
        if not self._asynchronous:
            self.wait()
        return str(path)

    def _taken(
        self, prefix: str | os.PathLike[str], values: dict[str, Any]
    ) -> tuple[tuple[list[Array], Numbered | None], Any]:
        """This worker's arrays, and, on worker 0, where they belong; for all workers the path and the states."""
        self._check_values(values)
        arrays = [array for name, one in self._objects.items() for array in one.taken(values.get(name))]
        states = [one.states() for one in self._objects.values()]
        if self._workers.index != 0:
            return (arrays, None), ["", states]
        files = Numbered(prefix)
        return (arrays, files), [str(files.next()), states]

    def _check_values(self, values: dict[str, Any]) -> None:
        for name, one in self._objects.items():
            if name in values and one.in_place:
                raise InvalidArgumentError(
                    f"checkpoint.save({name}=...) got a value for an object that is saved as it is: leave it out"
                )
            if name not in values and not one.in_place:
                raise InvalidArgumentError(
                    f"checkpoint.save needs the present value of {name!r}, which is made of arrays: "
                    f"checkpoint.save(prefix, {name}={name})"
                )
        for name in values:
            if name not in self._objects:
                raise InvalidArgumentError(
                    f"checkpoint.save got {name!r}, expected only what ps.Checkpoint was made of: {list(self._objects)}"
                )

    def _write(self, files: Numbered, path: Path, arrays: list[Array], index: Index, started: float) -> None:
        files.clear()
        write(path, arrays, index)
        if self._max_to_keep is not None:
            files.keep(self._max_to_keep)
        size, seconds = sum(array.nbytes for array in arrays), time.perf_counter() - started
        _logger.info("saved %s: %d bytes of arrays in %.3f seconds", path, size, seconds)

    def wait(self) -> None:
        """Wait until the last checkpoint is complete, on all workers.

        Raises:
            StorageError: it could not be written.
            WorkerError: worker 0 could not write it.
        """
        if not self._under_way:
            return
        try:
            self._workers.call("checkpoint.wait", self._finished)
        except Exception:
            self._under_way = False
            raise
        self._under_way = False  # not after Ctrl-C, which the writing outlasts

    def _finished(self) -> tuple[None, None]:
        self._writer.wait()
        return None, None

    def restore(self, path: str | os.PathLike[str] | None, /, *, partial: bool = False) -> dict[str, Any]:
        """Put a checkpoint's values into the objects, and give all of them by name: the values among them are new.

        Everything is checked before anything is changed.

        Args:
            path: what `save` or `ps.latest_checkpoint` gave.
            partial: leave out what the checkpoint holds beside these objects.

        Raises:
            StorageError: there is no checkpoint, or it is damaged.
            StateMismatchError: it is of other objects, another model, or another dataset.
            InvalidArgumentError: a Keras object that is not built yet.
            ClosedError: this checkpoint was closed.
        """
        refuse_in_replica("checkpoint.restore")
        self._ready()
        if not isinstance(path, (str, os.PathLike)):
            raise InvalidTypeError(
                f"checkpoint.restore(path) takes the path of a checkpoint, got {path!r}: "
                "ps.latest_checkpoint(directory) gives None where there is none yet"
            )
        place = Path(os.path.abspath(path))
        (index, arrays), _ = self._workers.call("checkpoint.restore", lambda: (self._checked(place, partial), None))
        worker, stored = self._workers.index, index.objects
        pairs = [pair for name, one in self._objects.items() for pair in one.with_states(stored[name], worker)]
        load_states(place, pairs, self._workers)
        remaining = iter(arrays)
        of_each = {name: [[next(remaining) for _ in item.entries] for item in items] for name, items in stored.items()}
        return {name: one.restored(of_each[name]) for name, one in self._objects.items()}

    def _checked(self, path: Path, partial: bool) -> tuple[Index, list[Array]]:
        index = read_index(path)
        check_names(str(path), index, self._objects, partial=partial)
        differences = {name: difference(one.items(), index.objects[name]) for name, one in self._objects.items()}
        others = [f"another {name!r}: {differs}" for name, differs in differences.items() if differs is not None]
        if others:
            raise StateMismatchError(f"the checkpoint {path} has {', and '.join(others)}")
        return index, read_arrays(path, index)

    def _ready(self) -> None:
        if self._closed:
            raise ClosedError("this ps.Checkpoint was closed: make a new one")
        self.wait()

    def close(self) -> None:
        """Wait until the last checkpoint is complete; nothing can be saved or restored any more."""
        self._closed = True
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
