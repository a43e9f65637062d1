"""One shard of a dataset that is saved: its rows, its files, and the note that it is complete.

    <path>.unfinished/part-00000…      files of complete shards
    <path>.unfinished/_save/plan.json  the dataset, and its division into shards
    <path>.unfinished/_save/00000.json the description of a complete shard
    <path>.unfinished/_save/try-…/     the files of a shard that is being written

A shard's files are moved to their place when they are complete, and its description is written after that. So a shard
with a description is complete, whenever the process was killed, and all others are written again.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from penstock.data.block import Block
from penstock.data.iterator import DatasetIterator, Iterations, blocks_of
from penstock.data.iterator_states import drawn_in
from penstock.data.node import Node
from penstock.data.operators.order import Skip, Take
from penstock.data.plan import PlannedDataset
from penstock.formats.plain_data import spec_of_data
from penstock.formats.writing.format_names import shard_format
from penstock.formats.writing.shard_format import Description
from penstock.formats.writing.work_directory import WorkDirectory, writing_at
from penstock.options import Options

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
        writer = shard_format("save", plan.format).writer(path, number, [spec_of_data(spec) for spec in plan.specs])
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
