"""`LightningReport`: the report of a Lightning trainer, written at the end of each epoch."""

import importlib
import sys
from typing import Any

from penstock.errors import InvalidArgumentError
from penstock.report.report import ReportWriter
from penstock.torch.loader import Loader

# Lightning has two packages with the same classes; a program uses one of them.
_lightning = importlib.import_module("pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch")


class LightningReport(ReportWriter, _lightning.Callback):  # type: ignore[misc, name-defined]  # found when the program runs
    """Callback of Lightning's `Trainer` that writes a report of what the ranks wait for, at the end of each epoch.

    A report is about all epochs so far, and about all ranks; rank 0 writes. A file that cannot be written is an error
    in the log, and training continues. Import Lightning first.

    Args:
        paths: the files: a page for a name that ends in .html, otherwise JSON, as `Report.save` writes them.
        metrics: whether the numbers of `Loader.metrics` go to the trainer's loggers.

    Raises:
        InvalidArgumentError: it has nothing to write; when training begins, the trainer has something else than a
            `ps.torch.loader`.

    Example:
        >>> import penstock as ps
        >>> callback = ps.torch.LightningReport("run.html", metrics=True)  # doctest: +SKIP
        >>> trainer = lightning.Trainer(callbacks=[callback])  # doctest: +SKIP
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        if not isinstance(trainer.train_dataloader, Loader):
            raise InvalidArgumentError(
                "LightningReport tells of what ps.torch.loader(...) gives: return one from train_dataloader, which "
                f"gave {type(trainer.train_dataloader).__name__}"
            )

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        if trainer.is_global_zero:
            self.log_dict(self._write(trainer.train_dataloader), rank_zero_only=True)
