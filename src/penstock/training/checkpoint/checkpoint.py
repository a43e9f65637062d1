"""`Checkpoint`: saves a model, its optimizer, metrics, values and the position in the data in one atomic step."""

import logging
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self

import jax

from penstock.distribute.contexts import refuse_in_replica
from penstock.distribute.jax.devices import moving_explicitly
from penstock.errors import ClosedError, InvalidArgumentError, InvalidTypeError, StateMismatchError, StorageError
from penstock.paths import local_path
from penstock.runtime.announcements import announce
from penstock.runtime.at_exit import finish_before_pools_close, forget
from penstock.training.checkpoint.folders import LocalFolder
from penstock.training.checkpoint.index import Index, Item, check_names, index_at, read_index
from penstock.training.checkpoint.keep import Keep
from penstock.training.checkpoint.keras import SaveableKeras
from penstock.training.checkpoint.numbered import Numbered, is_replaced, version_at
from penstock.training.checkpoint.objects import NamedObject, index_of, load_states, states_of
from penstock.training.checkpoint.options import check_no_options, metric_of, step_of, writes_in_background
from penstock.training.checkpoint.store import read_arrays, write
from penstock.training.checkpoint.workers import checkpoint_workers

_logger = logging.getLogger(__name__)


class Checkpoint:
    """Saves and restores named objects together: either all of them appear on disk, or none.

    An object is one of these, or a structure of them (tuples, lists, dictionaries, whatever JAX knows as a tree):

    - a Keras model, layer, optimizer, metric, variable or seed generator: restored in place, each variable on its
      devices. A compiled model includes its optimizer and its metrics. `restore` builds missing parts;
    - a Flax NNX module, optimizer or metric: restored in place;
    - anything with `state_dict()` and `load_state_dict()`, such as the iterator of a dataset, or PyTorch's modules and
      optimizers: restored in place;
    - arrays, numbers and strings. These are values: give a template here, with their shapes, dtypes and devices; `save`
      takes their present values, and `restore` returns them.

    With several workers, create it inside `strategy.scope()`, and make every call on all workers.

    Args:
        max_to_keep: how many checkpoints of a prefix to keep: those with the highest numbers, and the one that was
            just saved. `save` deletes the others.
        keep_every_n: do not delete those whose numbers are multiples of this.
        best: "max" or "min": keep the `max_to_keep` checkpoints with the largest or smallest `metric`, and the newest
            one.
        asynchronous: let `save` return when the values are copied, and write them in the background. If writing fails,
            the next call raises the error. The program does not end before everything is written. On Python 3.12.0 to
            3.12.2, which could not ensure that, `save` waits.
        objects: what to save, by name.

    Raises:
        InvalidTypeError: an object that is none of these.
        InvalidArgumentError: no objects; a number or a string whose name looks like an option's; options that cannot
            work; several workers outside of a scope.

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

    def __init__(
        self,
        /,
        *,
        max_to_keep: int | None = None,
        keep_every_n: int | None = None,
        best: str | None = None,
        asynchronous: bool = False,
        **objects: Any,
    ) -> None:
        self._keep = Keep(max_to_keep, keep_every_n, best)
        self._asynchronous = writes_in_background(asynchronous)
        if not objects:
            raise InvalidArgumentError("ps.Checkpoint takes what to save by name, as in ps.Checkpoint(model=model)")
        check_no_options(objects)
        keras: list[SaveableKeras] = []
        self._objects = {name: NamedObject(name, value, keras) for name, value in objects.items()}
        self._workers = checkpoint_workers([control for one in self._objects.values() for control in one.controls()])
        if self._workers.count > 1:
            for one in self._objects.values():
                one.check_alike_everywhere()
        self._writer = _Writer()
        self._under_way = False
        self._closed = False

    @moving_explicitly
    def save(self, prefix: str | os.PathLike[str], /, *, step: Any = None, metric: Any = None, **values: Any) -> str:
        """Write a checkpoint, and return its path: the prefix and a number.

        It holds the values at the time of this call, even if the objects change while it is being written.

        Args:
            prefix: a directory, which is created if need be, and the beginning of a name in it: "run/ckpt". A prefix
                with a protocol, such as "gs://bucket/run/ckpt", goes through fsspec.
            step: the number. An existing checkpoint of this number is replaced; a kill at any moment leaves the old one
                or the new one. None means one more than the highest number. If a value of the checkpoint is called
                `step`, it is saved too.
            metric: how good the checkpoint is, for `best` and `ps.training.best_checkpoint`. If a value of the
                checkpoint is called `metric`, it is saved too.
            values: the present value of every object that is made of arrays, numbers and strings, by its name.

        Raises:
            InvalidArgumentError: values that are missing, too many, or do not fit their templates; a Keras object that
                is not built yet; an array that was donated.
            InvalidTypeError: a step that is no whole number, or a metric that is no number.
            StorageError: the directory or the checkpoint cannot be written, or something else has its name.
            ClosedError: the checkpoint was closed.
        """
        refuse_in_replica("checkpoint.save")
        self._ready()
        started = time.perf_counter()
        values |= {
            name: value
            for name, value in (("step", step), ("metric", metric))
            if value is not None and name in self._objects and not self._objects[name].in_place
        }
        number, score = step_of(step, "step" in values), metric_of(metric, "metric" in values)
        if self._keep.best is not None and score is None:
            raise InvalidArgumentError(
                "ps.Checkpoint(best=...) needs checkpoint.save(prefix, metric=...): which is best?"
            )
        own, answers = self._workers.call("checkpoint.save", lambda: self._snapshot(prefix, number, values))
        items, arrays, files = own
        path, target, token = map(str, answers[0][:3])
        index = index_of(items, [states for *_, states in answers], score)
        together = None
        if _is_shared(arrays):
            together = write(Path(target), arrays, index, self._workers.barrier(f"{path} ({token})"))
        self._write(files, path, together, arrays, index, started)
        self._under_way = True
        if not self._asynchronous:
            self.wait()
        return path

    def _snapshot(
        self, prefix: str | os.PathLike[str], number: int | None, values: dict[str, Any]
    ) -> tuple[tuple[dict[str, list[Item]], dict[str, Any], Numbered | None], Any]:
        """This worker's items and arrays, and, on worker 0, where they are written.

        Shared with all workers: the path of the checkpoint, the path to which they write it together, a name that no
        other save has, and states.
        """
        self._check_values(values)
        items: dict[str, list[Item]] = {}
        arrays: dict[str, Any] = {}
        for name, one in self._objects.items():
            items[name], own = one.snapshot(values.get(name))
            arrays |= own
        if self._workers.index != 0:
            return (items, arrays, None), ["", "", "", states_of(items)]
        files = Numbered(prefix)
        name, target = files.next(number), ""
        if _is_shared(arrays):
            if not isinstance(files.folder, LocalFolder):
                raise InvalidArgumentError(
                    f"checkpoint.save({os.fspath(prefix)!r}): arrays of which several workers hold different parts are "
                    "written to a directory that is mounted by all of them, not to a remote one"
                )
            files.clear()  # the other workers begin to write at once
            target = str(files.folder.target(name))
        return (items, arrays, files), [files.folder.path_of(name), target, secrets.token_hex(8), states_of(items)]

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

    def _write(
        self,
        files: Numbered | None,
        path: str,
        together: Callable[[], None] | None,
        arrays: dict[str, Any],
        index: Index,
        started: float,
    ) -> None:
        """Write in the background: on worker 0 alone, unless all workers have begun to write together."""
        saved = os.path.basename(path)

        def finish() -> None:
            if together is not None:
                together()
                if files is not None and isinstance(files.folder, LocalFolder):
                    files.folder.put_in_place(saved)
            elif files is not None:
                files.clear()
                with files.folder.writing(saved) as local:
                    write(local, arrays, index)()
            if files is not None:
                folder = files.folder
                files.keep(saved, lambda names: self._keep.of(names, lambda name: index_at(folder, name).metric))
                size, seconds = sum(array.nbytes for array in arrays.values()), time.perf_counter() - started
                announce(path)
                _logger.info("saved %s: %d bytes of arrays in %.3f seconds", path, size, seconds)

        if together is not None or files is not None:
            self._writer.start(finish)

    def wait(self) -> None:
        """Wait until the last checkpoint is complete, on all workers.

        Raises:
            StorageError: it could not be written.
            WorkerError: worker 0 could not write it.
        """
        if not self._under_way:
            return
        try:
            self._workers.call("checkpoint.wait", self._wait_for_write)
        except Exception:
            self._under_way = False
            raise
        self._under_way = False  # not after Ctrl-C, which does not end the writing

    def _wait_for_write(self) -> tuple[None, None]:
        self._writer.wait()
        return None, None

    @moving_explicitly
    def restore(self, path: str | os.PathLike[str] | None, /, *, partial: bool = False) -> dict[str, Any]:
        """Put a checkpoint's values into the objects, and return all objects by name, with new values.

        Everything is checked before anything is changed; only objects that are not built yet are built first.

        Args:
            path: what `save` or `ps.latest_checkpoint` gave.
            partial: ignore everything else in the checkpoint, without reading it: other objects, other leaves of a
                tree, the optimizer and the metrics of a compiled model.

        Raises:
            StorageError: there is no checkpoint, or it is damaged.
            StateMismatchError: it is of other objects, another model, another dataset, or of another version.
            InvalidArgumentError: a Keras object that is not built yet, and that the checkpoint cannot build.
            ClosedError: this checkpoint was closed.
        """
        refuse_in_replica("checkpoint.restore")
        self._ready()
        if not isinstance(path, (str, os.PathLike)):
            raise InvalidTypeError(
                f"checkpoint.restore(path) takes the path of a checkpoint, got {path!r}: "
                "ps.latest_checkpoint(directory) gives None where there is none yet"
            )
        location = os.fspath(path) if "://" in os.fspath(path) else os.path.abspath(local_path(path))
        (index, arrays), _ = self._workers.call("checkpoint.restore", lambda: (self._checked(location, partial), None))
        worker, stored = self._workers.index, index.objects
        pairs = [pair for name, one in self._objects.items() for pair in one.with_states(stored[name], arrays, worker)]
        load_states(location, pairs, self._workers)
        return {name: one.restored(stored[name], arrays) for name, one in self._objects.items()}

    def _checked(self, path: str, partial: bool) -> tuple[Index, dict[str, Any]]:
        version, index = version_at(path), read_index(path)
        check_names(path, index, self._objects, partial=partial)
        for name, one in self._objects.items():
            one.prepare(index.objects[name])
        found = {name: one.difference(index.objects[name], partial=partial) for name, one in self._objects.items()}
        others = [f"another {name!r}: {differs}" for name, differs in found.items() if differs is not None]
        if others:
            raise StateMismatchError(f"the checkpoint {path} has {', and '.join(others)}")
        needed = [entry for name, one in self._objects.items() for entry in one.needed(index.objects[name])]
        shardings = {name: where for one in self._objects.values() for name, where in one.shardings().items()}
        try:
            return index, read_arrays(path, index, needed, shardings)
        except StorageError:
            if is_replaced(path, version):
                return self._checked(path, partial)
            raise

    def _ready(self) -> None:
        if self._closed:
            raise ClosedError("this ps.Checkpoint was closed: make a new one")
        self.wait()

    def close(self) -> None:
        """Wait until the last checkpoint is complete. Afterwards nothing can be saved or restored."""
        self._closed = True
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_shared(arrays: dict[str, Any]) -> bool:
    """Return whether several workers have parts of the same arrays, which therefore stay JAX arrays."""
    return any(isinstance(array, jax.Array) for array in arrays.values())


class _Writer:
    """Writes in a background thread, one checkpoint at a time; an error is raised by the caller's next call.

    The interpreter does not end before it has finished.
    """

    def __init__(self) -> None:
        self._task: Future[None] | None = None

    def start(self, task: Callable[[], None]) -> None:
        """Begin a task. The one before must have been waited for."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-checkpoint")
        self._task = thread.submit(task)
        # Orbax writes with its own pools of threads, which must still take work.
        finish_before_pools_close(self._task, partial(_finish, self._task))
        thread.shutdown(wait=False)

    def wait(self) -> None:
        """Wait for the task, and raise the error that ended it, once."""
        if self._task is None:
            return
        error = self._task.exception()  # Ctrl-C leaves the task, to be waited for again
        forget(self._task)
        self._task = None
        if error is not None:
            raise error


def _finish(task: Future[None]) -> None:
    error = task.exception()
    if error is not None:  # there is no later call that could raise it
        _logger.error("at the end of the program: %s", error)
