"""Saving a dataset in shards: in several threads where its rows are read by index, and resumed where it was killed.

A snapshot is a dataset that is saved once, and loaded from there as long as its pipeline stays the same.

    <path>.unfinished/part-00000…      files of complete shards
    <path>.unfinished/_save/plan.json  the dataset, and its division into shards
    <path>.unfinished/_save/00000.json the description of a complete shard
    <path>.unfinished/_save/try-…/     the files of a shard that is being written

A shard's files are moved to their place when they are complete, and its description is written after that. So a shard
with a description is complete, whenever the process was killed, and all others are written again.
"""

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any, Final

from penstock.data.block import Block
from penstock.data.fingerprint import fingerprint_of
from penstock.data.iterator import DatasetIterator, Iterations, blocks_of, next_block
from penstock.data.iterator_states import drawn_in
from penstock.data.made_by import MadeBy
from penstock.data.node import Node
from penstock.data.operators.element import Map
from penstock.data.operators.order import Skip, Take
from penstock.data.operators.prefetch_and_cache import Cache, Prefetch
from penstock.data.plan import PlannedDataset, make_plan
from penstock.errors import InvalidArgumentError, InvalidTypeError, StorageError
from penstock.formats.plain_data import spec_of_data, spec_to_data
from penstock.formats.writing.format_names import shard_format
from penstock.formats.writing.manifest import describe_no_rows, write_manifest
from penstock.formats.writing.shard_format import Description
from penstock.formats.writing.work_directory import WorkDirectory, writing_at, written_once
from penstock.options import Options, check_integer
from penstock.paths import has_protocol, local_path
from penstock.runtime.progress import Progress
from penstock.structure import flatten

NOTES: Final = "_save"
_PLAN: Final = "plan.json"


@dataclass(frozen=True)
class SavePlan:
    """The dataset to be saved and its division into shards, as plain data.

    Attributes:
        format: the name of the format.
        asked: the arguments that decide how rows are divided.
        fingerprint: of the dataset; "" if it has none, so that no later call can continue.
        state: of an iterator before the first element.
        bounds: the first row of each shard, and the number of all; None if a shard ends by its size.
        parallel: whether shards can be written in any order.
        specs: the specification of each leaf, as far as the format needs it.
    """

    format: str
    asked: list[Any]
    fingerprint: str
    state: dict[str, Any]
    bounds: list[int] | None
    parallel: bool
    specs: list[Any]


class ShardNotes:
    """The notes about a save in its directory."""

    def __init__(self, work: WorkDirectory) -> None:
        self.directory = work.path
        self._work = work
        self._place = work.path / NOTES

    def plan(self) -> SavePlan | None:
        """Return the plan of the save; None if there is no valid one."""
        try:
            return SavePlan(**json.loads((self._place / _PLAN).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def begin(self, plan: SavePlan) -> None:
        """Remove everything, and write the plan."""
        self._work.clear()
        self._place.mkdir()
        _write(self._place / _PLAN, asdict(plan))

    def complete(self) -> dict[int, Description]:
        """Return the descriptions of complete shards by their numbers, and remove remains of others."""
        for left in self._place.glob("try-*"):
            shutil.rmtree(left, ignore_errors=True)  # a data worker may still write there
        found = (path for path in self._place.glob("*.json") if path.name != _PLAN)
        return {int(path.stem): json.loads(path.read_text()) for path in sorted(found)}

    def add(self, number: int, description: Description) -> None:
        """Note that a shard is complete."""
        _write(self._place / f"{number:05d}.json", description)


@dataclass(frozen=True)
class ShardTask:
    """Writes any shard of a dataset that is divided by rows, in any process that has its directory."""

    node: Node
    options: Options
    plan: SavePlan
    directory: str

    def __call__(self, number: int, on_rows: Callable[[int, int], None] = lambda rows, nbytes: None) -> Description:
        """Write the files of a shard, and return its description."""
        assert self.plan.bounds is not None
        start, stop = self.plan.bounds[number : number + 2]
        with iter_between(self.node, self.options, self.plan.state, start, stop) as iterator:
            return write_shard(self.plan, Path(self.directory), number, blocks_of(iterator), on_rows)


def iterator_at(node: Node, options: Options, state: dict[str, Any]) -> DatasetIterator[Any]:
    """Return an iterator that continues from a state."""
    iterator: DatasetIterator[Any] = DatasetIterator(
        PlannedDataset(node, options), Iterations(options.seed), lambda: None
    )
    iterator.load_state_dict(state)
    return iterator


def iter_between(node: Node, options: Options, state: dict[str, Any], start: int, stop: int) -> DatasetIterator[Any]:
    """Return an iterator over some elements of the epoch of a state; it reads no further ahead than the last."""
    drawn = drawn_in(state, node)
    for own, seed in zip(node.drawn_seeds, drawn or [], strict=False):
        own.seed = seed
    iterations = Iterations(options.seed)
    iterations.resume(state["epoch"] - 1, state["seed"], seeded=drawn is None)
    return DatasetIterator(PlannedDataset(Skip(Take(node, stop), start), options), iterations, lambda: None)


def write_shard(
    plan: SavePlan, directory: Path, number: int, blocks: Iterable[Block], on_rows: Callable[[int, int], None]
) -> Description:
    """Write the files of a shard, and return its description.

    Args:
        plan: of the save.
        directory: the place of the files.
        number: of the shard.
        blocks: its rows.
        on_rows: called with the rows and bytes written, block by block; it may raise an exception to end the writing.
    """
    path = Path(tempfile.mkdtemp(prefix="try-", dir=directory / NOTES))
    try:
        writer = shard_format("save", plan.format)(path, number, [spec_of_data(spec) for spec in plan.specs])
        try:
            for block in blocks:
                with writing_at(directory):
                    writer.write(block.columns, block.structure, len(block))
                on_rows(len(block), block.nbytes)
            with writing_at(directory):
                description: Description = json.loads(json.dumps(writer.finish()))
        finally:
            with suppress(OSError):  # on a full disk it has something left to write
                writer.close()
        with writing_at(directory):
            for name in (*description["files"], *description.get("files_beside", ())):
                (directory / name).parent.mkdir(exist_ok=True)
                _sync(path / name)
                os.replace(path / name, directory / name)
        return description
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _write(path: Path, data: Any) -> None:
    work = path.with_suffix(".new")
    work.write_text(json.dumps(data))
    _sync(work)
    os.replace(work, path)


def _sync(path: Path) -> None:
    """Write a file to the disk before a name or a note refers to it."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


_logger = logging.getLogger(__name__)

SHARD_BYTES: Final = 128 << 20
"""The approximate size of a shard if the number of shards is not given."""
_MOST_SHARDS: Final = 100_000

WriteMissing = Callable[["Save", list[int]], None]
"""Writes shards of a dataset whose shards can be written in any order."""


@dataclass(frozen=True)
class SaveRequest:
    """The arguments of a save.

    Attributes:
        call: the name of the method, for errors.
        path: the directory of the saved dataset.
        format: the name of the format.
        shards: the number of shards; None for one that follows from their size.
        rows_per_shard: the rows of each shard but the last; None for any number.
        made_by: the note of the pipeline that is written beside the rows; None for no note.
    """

    call: str
    path: Path
    format: str
    shards: int | None
    rows_per_shard: int | None
    made_by: MadeBy | None = None

    @staticmethod
    def checked_path(call: str, path: str | os.PathLike[str]) -> Path:
        """Return the path that the user gave.

        Raises:
            InvalidArgumentError: it has a protocol.
        """
        given = local_path(path)
        if has_protocol(given):
            raise InvalidArgumentError(
                f"{call} takes a local path, got {given!r}: write here, then copy the directory there"
            )
        return Path(given)

    def checked(self, node: Node) -> "SaveRequest":
        """Return the same request, with integers of Python.

        Raises:
            InvalidArgumentError, InvalidTypeError: arguments that do not go together, or with the dataset.
            MissingExtraError: the format needs a package that is not installed.
        """
        shard_format(self.call, self.format)
        shards, rows_per_shard = self._count("shards"), self._count("rows_per_shard")
        if self.shards is not None and self.rows_per_shard is not None:
            raise InvalidArgumentError(f"{self.call} takes shards or rows_per_shard, got both")
        if self.shards is not None and self.shards > _MOST_SHARDS:
            raise InvalidArgumentError(f"{self.call}(shards=...) takes at most {_MOST_SHARDS:,}, got {self.shards:,}")
        if self.shards is not None and node.cardinality < 0:
            raise InvalidArgumentError(
                f"{self.call}(shards={self.shards}) needs a dataset of known length, and that of {node.where()} is "
                f"unknown: give rows_per_shard=..., or put .assert_cardinality(count) before {self.call}"
            )
        return replace(self, shards=shards, rows_per_shard=rows_per_shard)

    def _count(self, name: str) -> int | None:
        value = getattr(self, name)
        return None if value is None else check_integer(self.call, name, value, minimum=1)


class Save:
    """One call that saves a dataset, or continues after the complete shards of an earlier call.

    Args:
        request: the arguments of the call.
        node: of the dataset.
        options: of the dataset.
        element_spec: `Dataset.element_spec`.
        spec_if_told: the same; None if it is unknown without reading elements, or if there is none.
    """

    def __init__(
        self,
        request: SaveRequest,
        node: Node,
        options: Options,
        element_spec: Callable[[], Any],
        spec_if_told: Callable[[], Any],
    ) -> None:
        self.request = request
        self.node = node
        self.options = options
        self._element_spec = element_spec
        self._spec_if_told = spec_if_told
        self._stopping = Event()

    def run(self, begin: Callable[[], DatasetIterator[Any]], write_missing: WriteMissing | None) -> None:
        """Save it.

        Args:
            begin: makes a new iterator; the save begins at its state.
            write_missing: writes the shards of a dataset that can be written in any order; None for threads.

        Raises:
            StorageError: the path exists, another process is writing it, or it cannot be written.
        """
        with writing_at(self.request.path):
            work = WorkDirectory(self.request.path)
        self.notes = ShardNotes(work)
        try:
            done = self._write(begin, write_missing)
            ordered = [done[number] for number in sorted(done)]
            with writing_at(self.request.path):
                if ordered:
                    write_manifest(work.path, self.request.format, ordered)
                else:
                    describe_no_rows(work.path, self._spec_if_told())
                if self.request.made_by is not None:
                    self.request.made_by.write(work.path)
                work.publish(without=NOTES)
        except BaseException:
            self._give_up(work)
            raise

    def _give_up(self, work: WorkDirectory) -> None:
        """Keep complete shards if a later call can continue after them; otherwise remove everything."""
        plan = self.notes.plan()
        done = self.notes.complete() if plan is not None and plan.fingerprint else {}
        if not done:
            work.discard()
            return
        rows = sum(shard["rows"] for shard in done.values())
        _logger.warning("%s rows stay in %s: the same call continues after them", f"{rows:,}", work.path)
        work.leave()

    def _write(
        self, begin: Callable[[], DatasetIterator[Any]], write_missing: WriteMissing | None
    ) -> dict[int, Description]:
        fingerprint = ""
        with suppress(InvalidTypeError):  # it uses something that exists in this process only
            fingerprint = fingerprint_of(self.node, self.options)
        left = self.notes.plan()
        asked = [self.request.format, self.request.shards, self.request.rows_per_shard]
        first: Iterator[Block] = iter(())
        iterator = None
        if left is not None and fingerprint and (left.fingerprint, left.asked) == (fingerprint, asked):
            self.plan = left
        else:
            if left is not None:
                _logger.warning(
                    "%s begins again: the unfinished save there is of another dataset, or was divided differently",
                    self.request.path,
                )
            iterator = begin()
            self.plan, first = self._planned(iterator, fingerprint, asked, by_others=write_missing is not None)
            self.notes.begin(self.plan)
        self.done = self.notes.complete()
        rows = sum(shard["rows"] for shard in self.done.values())
        total = self.node.cardinality
        if rows:
            _logger.info("saving %s: continues after %s rows that an earlier call has written", self.request.path, rows)
        self._progress = Progress(f"saving {self.request.path}", total if total >= 0 else None, rows)
        try:
            if self.plan.parallel and self.plan.bounds is not None:
                if iterator is not None:
                    iterator.close()
                missing = [number for number in range(len(self.plan.bounds) - 1) if number not in self.done]
                (write_missing or Save.in_threads)(self, missing)
            else:
                reached = self.done[max(self.done)]["state"] if self.done else self.plan.state
                self._in_order(first, iterator or iterator_at(self.node, self.options, reached))
        finally:
            self._progress.end()
        return self.done

    def _planned(
        self, iterator: DatasetIterator[Any], fingerprint: str, asked: list[Any], *, by_others: bool
    ) -> tuple[SavePlan, Iterator[Block]]:
        """Return the division of the dataset, and its first row."""
        state = iterator.state_dict()
        format = shard_format(self.request.call, self.request.format)
        first = next_block(iterator, 1)
        specs: list[Any] = []
        if first is not None:
            found = flatten(self._element_spec())[0] if format.needs_spec else []
            format.check(first.structure, found, first.columns)
            specs = list(map(spec_to_data, found))
        by_index = in_any_order(self.node, self.options)
        size = first.nbytes if first is not None else 0
        bounds = self._bounds(size if by_index else None)
        parallel = by_index and (by_others or _runs_in_threads(self.node))
        plan = SavePlan(self.request.format, asked, fingerprint, state, bounds, parallel, specs)
        return plan, iter([first] if first is not None else [])

    def _bounds(self, row_bytes: int | None) -> list[int] | None:
        """Return the rows at which shards begin; None if that depends on their size."""
        rows, shards = self.node.cardinality, self.request.shards
        if rows < 0:
            return None
        if self.request.rows_per_shard is not None:
            return [*range(0, rows, self.request.rows_per_shard), rows]
        if shards is None:
            if row_bytes is None:
                return None
            shards = min(_MOST_SHARDS, max(1, -(-rows * row_bytes // SHARD_BYTES)))
        shards = min(shards, rows)
        return [number * rows // shards for number in range(shards)] + [rows] if rows else [0]

    def in_threads(self, missing: list[int]) -> None:
        """Write shards, several at a time."""
        task = ShardTask(self.node, self.options, self.plan, str(self.notes.directory))

        def write(number: int) -> None:
            self.add(number, task(number, self._on_rows))

        pool = ThreadPoolExecutor(max(1, min(os.cpu_count() or 1, len(missing))), "penstock-save")
        try:
            for done in as_completed([pool.submit(write, number) for number in missing]):
                done.result()
        finally:
            self._stopping.set()
            pool.shutdown(cancel_futures=True)

    def _on_rows(self, rows: int, nbytes: int) -> None:
        if self._stopping.is_set():
            raise _Stopped
        self._progress.add(rows, nbytes)

    def add(self, number: int, description: Description) -> None:
        """Note a complete shard."""
        self.notes.add(number, description)
        self.done[number] = description

    def count(self, rows: int) -> None:
        """Count rows that another process has written."""
        self._progress.add(rows)

    def _in_order(self, first: Iterator[Block], iterator: DatasetIterator[Any]) -> None:
        """Write shards one after the other, of one iteration."""
        with iterator:
            while (block := next(first, None) or next_block(iterator, self._limit(0))) is not None:
                number = len(self.done)
                blocks = self._of_one_shard(block, iterator)
                description = write_shard(self.plan, self.notes.directory, number, blocks, self._on_rows)
                self.add(number, {**description, "state": iterator.state_dict()})

    def _of_one_shard(self, block: Block | None, iterator: DatasetIterator[Any]) -> Iterator[Block]:
        rows = size = 0
        while block is not None:
            yield block
            rows += len(block)
            size += block.nbytes
            limit = self._limit(rows)
            if limit == 0 or (size >= SHARD_BYTES and self.plan.bounds is None and self.request.rows_per_shard is None):
                return
            block = next_block(iterator, limit)

    def _limit(self, rows: int) -> int:
        """Return the number of rows that the current shard can still take."""
        per_shard = self.request.rows_per_shard
        number = len(self.done)
        if self.plan.bounds is not None and number + 1 < len(self.plan.bounds):
            return max(0, self.plan.bounds[number + 1] - self.plan.bounds[number] - rows)
        return 1 << 40 if per_shard is None else max(0, per_shard - rows)


class _Stopped(Exception):
    """Another thread has failed."""


def in_any_order(node: Node, options: Options) -> bool:
    """Return whether shards of a dataset can be written in any order, because its rows are read by index."""
    below = make_plan(node).root
    while isinstance(below, Prefetch):
        below = below.input
    # A cache in a directory is filled by one iteration, from the first row to the last.
    cached = any(isinstance(each, Cache) and each.filename for each in node.walk_all())
    by_index = below.indexable and below.cardinality >= 0
    return by_index and not cached and options.on_error != "skip"


def _runs_in_threads(node: Node) -> bool:
    """Return whether rows may be made in several threads: functions without `num_parallel_calls` may not allow it."""
    return not any(isinstance(each, Map) and each.num_parallel_calls is None for each in node.walk_all())


def make_snapshot(path: Path, node: Node, options: Options, save: Callable[[MadeBy], None]) -> None:
    """Make a snapshot of a pipeline, unless it exists; `save` writes it, with the note that it gets.

    Several processes may call it at the same time: one writes, the others wait, and one continues if it dies.

    Raises:
        StorageError: the path is a snapshot of another pipeline, or no snapshot.
    """
    made_by = MadeBy(node, options)
    written_once(path, lambda: save(made_by))
    if not made_by.is_of(path):
        raise StorageError(f"'{path}' exists, and is no snapshot: take another path")
