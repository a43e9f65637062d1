"""Traces of what every thread does and waits for, in Chrome's format, which https://ui.perfetto.dev opens."""

import gzip
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from time import perf_counter
from typing import Any, Final, TextIO, cast

from penstock.errors import InvalidArgumentError, StorageError
from penstock.options import check_integer
from penstock.paths import local_path

_MOST_SPANS: Final = 300_000
"""About 50 MB of text, of which gzip makes two."""
_logger = logging.getLogger(__name__)


class TraceRecorder:
    """The spans of one trace.

    Args:
        file: where they are written when all are there.
        steps: how many steps of the first consumer it holds; None for all.
    """

    def __init__(self, file: TextIO, steps: int | None) -> None:
        self._file, self._steps = file, steps
        self._first: tuple[object, int] | None = None
        self._spans: list[tuple[str, float, float, int, int, dict[str, Any]]] = []
        self._threads: dict[int, str] = {}
        self._processes = {os.getpid(): "this process"}
        self._lock = threading.Lock()
        self._full = False
        self._fills: list[tuple[str, float, int]] = []
        # The times and threads in which a block, and what is made of it, were at work.
        self._flows: list[list[tuple[float, int]]] = []
        self._made: dict[int, tuple[float, int]] = {}
        self._flow_here: dict[int, list[tuple[float, int]]] = {}
        self._sent: dict[int, tuple[list[tuple[float, int]], str]] = {}

    def add(self, name: str, begun: float, seconds: float, child: int = 0, **about: Any) -> None:
        """Note what this thread, or a child process for it, has done since `begun`, by `time.perf_counter`."""
        if self._full:
            return
        thread = threading.get_native_id()
        if child:
            self._processes[child] = "process of a map"
        else:
            self._threads[thread] = threading.current_thread().name
            self._made[thread] = begun + seconds * 0.999, thread  # within the span
        self._spans.append((name, begun, seconds, child or os.getpid(), child or thread, about))
        self._check_size()

    def _check_size(self) -> None:
        if len(self._spans) + len(self._fills) >= _MOST_SPANS:
            self._end_early()

    def put(self, item: object, fill: int | None = None) -> None:
        """Note that this thread gives others what it is making, or puts what it has made into a queue of so much."""
        thread, now = threading.get_native_id(), perf_counter()
        made = (now, thread) if fill is None else self._made.get(thread)
        if self._full or made is None:
            return
        name = f"queue of {threading.current_thread().name} {thread}"
        self._sent[id(item)] = self._flow_here.pop(thread, [made]), name
        self._note_fill(name, now, fill)

    def _note_fill(self, name: str, now: float, fill: int | None) -> None:
        if fill is not None:
            self._fills.append((name, now, fill))
            self._check_size()

    def take(self, item: object, fill: int | None = None) -> None:
        """Note that this thread takes what another one has given, or put into a queue, which then holds so much."""
        flow, name = self._sent.pop(id(item), (None, ""))
        if self._full or flow is None:
            return
        now, thread = perf_counter(), threading.get_native_id()
        flow.append((now, thread))
        if len(flow) == 2:
            self._flows.append(flow)
        self._flow_here[thread] = flow
        self._note_fill(name, now, fill)

    def use(self, begun: float) -> None:
        """Note that this thread's step, which has begun then, is that of what it has taken last."""
        thread = threading.get_native_id()
        flow = self._flow_here.pop(thread, None)
        if flow is not None and not self._full:
            flow.append((begun, thread))

    def step(self, consumer: object, number: int) -> None:
        """Note that a consumer has got as many elements."""
        first, before = self._first = self._first or (consumer, number - 1)
        if self._steps is not None and first is consumer and number - before >= self._steps:
            self._end_early()

    def _end_early(self) -> None:
        if not self._full:
            self._full = True
            with suppress(RuntimeError):  # the interpreter ends, and so does the context
                threading.Thread(target=self.finish, name="penstock-trace", daemon=True).start()

    def finish(self) -> None:
        """Write the file, unless that was done."""
        self._full = True
        with self._lock:
            if self._file.closed:
                return
            try:
                with self._file:
                    self._file.writelines(self._lines())
            except OSError as error:  # a trace is no reason to end a training run
                _logger.error("the trace could not be written: %s", error)

    def _lines(self) -> Iterator[str]:
        me = os.getpid()
        names = [("process_name", pid, pid, name) for pid, name in self._processes.items()]
        names += [("thread_name", me, thread, name) for thread, name in self._threads.items()]
        yield '{"displayTimeUnit": "ms", "traceEvents": ['
        for kind, pid, thread, name in names:  # the first is that of this process
            comma = "" if kind == "process_name" and pid == me else ",\n"
            yield comma + json.dumps({"ph": "M", "name": kind, "pid": pid, "tid": thread, "args": {"name": name}})
        for name, begun, seconds, pid, thread, about in self._spans:
            span = {"ph": "X", "name": name, "ts": begun * 1e6, "dur": seconds * 1e6, "pid": pid, "tid": thread}
            yield ",\n" + json.dumps(span | {"args": about})
        for name, at, fill in self._fills:
            counter = {"ph": "C", "name": name, "ts": at * 1e6, "pid": me, "tid": 0, "args": {"holds": fill}}
            yield ",\n" + json.dumps(counter)
        for number, flow in enumerate(self._flows):
            for kind, (at, thread) in zip(["s", *"t" * (len(flow) - 2), "f"], flow, strict=True):
                arrow = {"ph": kind, "name": "block", "cat": "block", "id": number, "ts": at * 1e6, "pid": me}
                yield ",\n" + json.dumps(arrow | {"tid": thread, "bp": "e"})
        yield "]}\n"


recorder: TraceRecorder | None = None
"""Of the trace that is made now."""
annotation: Callable[[str], AbstractContextManager[Any]] | None = None
"""Marks an operator in the trace of the user's framework, if that makes one."""


def annotation_now() -> Callable[[str], AbstractContextManager[Any]] | None:
    """Return what marks an operator in the trace of the user's framework; None where none can be made now.

    JAX's marks cost nothing without a trace, so they are always made. Torch's cost 10 microseconds.
    """
    profiler = sys.modules.get("torch.autograd.profiler")
    # Torch has no public name that says so in every thread; without this one there are no marks.
    if profiler is not None and getattr(profiler, "_is_profiler_enabled", False):
        return cast(Callable[[str], AbstractContextManager[Any]], profiler.record_function)
    return annotation


@contextmanager
def span(name: str) -> Iterator[None]:
    """Show what is done in this context as a span, in `ps.trace` and in the trace of the user's framework."""
    mark, begun = annotation_now(), perf_counter()
    with nullcontext() if mark is None else mark(name):
        yield
    if recorder is not None:
        recorder.add(name, begun, perf_counter() - begun)


@contextmanager
def trace(path: str | os.PathLike[str], *, steps: int | None = None) -> Iterator[None]:
    """Write what operators, threads and processes of `map` do and wait for in this context, for Perfetto or Chrome.

    Args:
        path: the file; with ".gz" at its end it is compressed. It is written when it has all steps, or the context
            ends. A disk that is full by then is an error in the log.
        steps: how many steps or elements of the first iterator it holds; by default all, up to about 50 MB of text.

    Raises:
        StorageError: the file cannot be written.
        InvalidArgumentError: another trace is being made in this process.

    Example:
        >>> import json, pathlib, tempfile
        >>> import penstock as ps
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "steps.json"
        >>> with ps.trace(path, steps=2):
        ...     rows = list(ps.Dataset.range(8).map(abs).batch(4))
        >>> spans = json.loads(path.read_text())["traceEvents"]
        >>> any(span["name"].startswith("batch(batch_size=4)") for span in spans)
        True
    """
    if steps is not None:
        check_integer("ps.trace", "steps", steps, minimum=1)
    global recorder
    if recorder is not None:
        raise InvalidArgumentError("ps.trace: a trace is being made in this process already: end its context first")
    place = local_path(path)
    try:
        file = gzip.open(place, "wt") if place.endswith(".gz") else open(place, "w")  # noqa: SIM115  # `finish` closes it
    except OSError as error:
        raise StorageError(f"ps.trace: {place!r} cannot be written: {error.strerror or error}") from error
    recorder = own = TraceRecorder(cast(TextIO, file), steps)
    try:
        yield
    finally:
        recorder = None
        own.finish()
