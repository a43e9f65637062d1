"""Reports that callbacks of training frameworks write, whatever the framework."""

import logging
import os
from typing import Final, Protocol

from penstock.errors import InvalidArgumentError
from penstock.paths import local_path
from penstock.report.report import Report

_logger = logging.getLogger(__name__)
_EXAMPLE: Final = "('run.html', 'run.json', metrics=True)"


class Reporting(Protocol):
    """An input of a training, which tells of itself."""

    def report(self) -> Report: ...
    def metrics(self) -> dict[str, float]: ...


class ReportWriter:
    """The part of a callback that writes reports, and gives the numbers that go into the logs of a framework.

    Args:
        paths: the files, as `Report.save` writes them.
        metrics: whether there are numbers for the logs.

    Raises:
        InvalidArgumentError: neither is given.
    """

    def __init__(self, *paths: str | os.PathLike[str], metrics: bool = False) -> None:
        super().__init__()
        if not paths and not metrics:
            own = type(self).__name__
            raise InvalidArgumentError(f"{own}() has nothing to write: {own}{_EXAMPLE} names files, and asks for logs")
        self._paths = [local_path(path) for path in paths]
        self._metrics = metrics

    def _write(self, source: Reporting) -> dict[str, float]:
        """Write the report, and return the numbers for the logs; a fault of that must not stop the training."""
        try:
            report = source.report()
            for path in self._paths:
                report.save(path)
            return source.metrics() if self._metrics else {}
        except Exception as error:
            _logger.error("%s has written nothing: %s", type(self).__name__, error)
            return {}
