"""Selection of the checkpoints that are kept, and of the best one."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.errors import InvalidArgumentError
from penstock.options import check_integer
from penstock.training.checkpoint.index import index_at
from penstock.training.checkpoint.numbered import checkpoints_at


@dataclass(frozen=True)
class Keep:
    """Rule of which checkpoints of a prefix are kept when a new one is complete; see `Checkpoint` for the options.

    Raises:
        InvalidArgumentError: options that cannot work.
    """

    max_to_keep: int | None
    keep_every_n: int | None
    best: str | None

    def __post_init__(self) -> None:
        for name in ("max_to_keep", "keep_every_n"):
            if getattr(self, name) is not None:
                check_integer("Checkpoint", name, getattr(self, name), minimum=1)
        if self.best is not None:
            _check_mode("ps.Checkpoint(best=...)", self.best)
        if self.max_to_keep is None and (self.keep_every_n is not None or self.best is not None):
            raise InvalidArgumentError(
                "ps.Checkpoint(keep_every_n=..., best=...) say what to keep beside the newest: give max_to_keep too, "
                "without which all checkpoints are kept"
            )

    def of(self, names: Mapping[int, str], metric: Callable[[str], float | None]) -> set[int]:
        """The numbers of the checkpoints to keep.

        Args:
            names: of all complete ones, by their numbers.
            metric: gives the metric of a checkpoint by its name; None if it has none.
        """
        if self.max_to_keep is None:
            return set(names)
        order = sorted(names)
        every = {number for number in order if self.keep_every_n is not None and number % self.keep_every_n == 0}
        if self.best is None:
            return every | set(order[-self.max_to_keep :])
        scores = {number: _score(metric(names[number]), self.best) for number in order}
        # Of two with the same metric the newer one; and the newest, from which training resumes.
        ranked = sorted(order, key=lambda number: (scores[number], number))
        return every | set(ranked[-self.max_to_keep :]) | set(order[-1:])


def best_checkpoint(directory: str | os.PathLike[str], mode: str) -> str | None:
    """The path of the checkpoint with the best `metric` of those that were saved with one; None where there is none.

    Of two with the same metric it is the newer one.

    Args:
        directory: a directory or a prefix in one, as for `ps.latest_checkpoint`.
        mode: "max" where a large metric is good, "min" where a small one is.

    Raises:
        InvalidArgumentError: another mode.
        StorageError: the directory or a checkpoint cannot be read.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     for loss in (0.5, 0.2, 0.3):
        ...         path = ps.Checkpoint(weight=0.0).save(f"{directory}/ckpt", weight=loss, metric=loss)
        ...     ps.training.best_checkpoint(directory, "min") == f"{directory}/ckpt-2"
        True
    """
    _check_mode("ps.training.best_checkpoint(directory, mode)", mode)
    folder, found = checkpoints_at("ps.training.best_checkpoint(directory, mode)", directory)
    scored = [(_score(index_at(folder, one.name).metric, mode), folder.written(one.name), one.name) for one in found]
    known = [one for one in scored if one[0] > -math.inf]
    return folder.path_of(max(known)[-1]) if known else None


def _check_mode(call: str, mode: str) -> None:
    if str(mode).lower() not in ("max", "min"):
        raise InvalidArgumentError(f'{call} takes "max" or "min", got {mode!r}')


def _score(metric: float | None, mode: str) -> float:
    """The metric, negated for "min", so that higher is better."""
    if metric is None or math.isnan(metric):
        return -math.inf
    return metric if mode.lower() == "max" else -metric
