"""Saving a dataset by the workers of a service: each shard is an element that a worker makes by writing files."""

import json
import os
from dataclasses import dataclass

from penstock.data.dataset import Dataset, as_dataset, save_dataset
from penstock.data.saving.save import Save, SavePlan, SaveRequest, ShardTask, in_any_order
from penstock.options import Options
from penstock.service.distribute import distribute
from penstock.service.security.resolving import Service
from penstock.service.wire.definitions import from_bytes, to_bytes


@dataclass(frozen=True)
class WriteShard:
    """Writes the shard of a number in a data worker; gives the number and its description, as JSON.

    The files depend on the number alone. So a shard may be begun several times, by several workers: each attempt
    writes the same files, and moves them into place only when they are complete.
    """

    definition: bytes
    plan: SavePlan
    directory: str

    def __call__(self, number: int) -> str:
        node, options = from_bytes(self.definition)
        return json.dumps([int(number), ShardTask(node, options, self.plan, self.directory)(int(number))])


def distributed_save(
    dataset: Dataset,
    path: str | os.PathLike[str],
    service: Service,
    format: str = "penstock",
    shards: int | None = None,
    *,
    rows_per_shard: int | None = None,
) -> None:
    """Save a dataset as `Dataset.save` does, by the workers of a service: each writes whole shards.

    Every element is saved once, even if workers die: another worker writes a shard that was not completed. If this
    process is killed, the same call resumes after the complete shards. It returns when everything is written.

    A dataset that must be read in order is made by the workers as far as they can, and written by this process.

    Args:
        dataset: with functions that can be sent to workers.
        path: a directory in a file system that this process and all workers share, under the same name.
        service: the dispatcher, as for `distribute`.
        format: as for `save`.
        shards: as for `save`; at least as many as there are workers keep all of them busy.
        rows_per_shard: as for `save`.

    Raises:
        InvalidArgumentError, InvalidTypeError, ElementError, StorageError: as `save` and `distribute`.
        ServiceError: the dispatcher cannot be reached.
        WorkerError: what a worker has raised, for instance because it does not have the directory.

    Example:
        >>> import pathlib, tempfile
        >>> import penstock as ps
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "squares"
        >>> with ps.service.DispatchServer() as dispatcher:
        ...     address = dispatcher.target.split("://")[1]
        ...     with ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=address)):
        ...         squares = ps.Dataset.range(6).map(lambda x: x * x)
        ...         ps.service.distributed_save(squares, path, dispatcher.target, shards=3)
        >>> [int(x) for x in ps.Dataset.load(path)]
        [0, 1, 4, 9, 16, 25]
    """
    given = as_dataset("distributed_save", dataset)
    distributed = distribute("distributed_epoch", service)
    checked_path = SaveRequest.checked_path("distributed_save", path).absolute()
    request = SaveRequest("distributed_save", checked_path, format, shards, rows_per_shard)
    if not in_any_order(given.node, given.options()):
        save_dataset(given.apply(distributed), request)
        return
    to_bytes(given.node, given.options())  # refused here, rather than by a worker

    def by_workers(save: Save, missing: list[int]) -> None:
        definition = to_bytes(save.node, save.options)
        task = WriteShard(definition, save.plan, str(save.notes.directory))
        # In any order, so that a slow shard does not delay noting those that are complete.
        numbers = Dataset.from_tensor_slices(missing).map(task).with_options(Options(deterministic=False))
        with iter(numbers.apply(distributed)) as descriptions:
            for description in descriptions:
                number, found = json.loads(description)
                save.add(number, found)
                save.count(found["rows"])

    save_dataset(given, request, by_workers)
