"""Options of commands that may stand in the environment: `--log-level` as PENSTOCK_LOG_LEVEL."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

EXPLAINED: Final = "Each option may stand in the environment too, such as --log-level as PENSTOCK_LOG_LEVEL. "
_BEGIN_OF_KUBERNETES: Final = "tcp://"
"""For a Service that is called penstock, Kubernetes sets PENSTOCK_PORT, to its address."""


class CommandParser(argparse.ArgumentParser):
    """A parser that takes options from the environment if they are not given, by the default `environment_unless`.

    That names an option with which nothing is taken from there, such as of a program that says all by itself.
    """

    _found: Sequence[str] = ()

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        action = super().add_argument(*names, **settings)
        self.__dict__.setdefault("_options", []).append(action)
        return action

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        if self.get_default("environment_unless") not in (None, *given):
            self._found = [*self._from_environment(given)]
        return super().parse_known_args([*self._found, *given], namespace)

    def _from_environment(self, given: Sequence[str]) -> Iterator[str]:
        said = {argument.partition("=")[0] for argument in given}
        for action in self.__dict__["_options"]:
            value = os.environ.get(f"PENSTOCK_{action.dest.upper()}", "")
            if not value or value.startswith(_BEGIN_OF_KUBERNETES) or said.intersection(action.option_strings):
                continue
            option = action.option_strings[-1]
            if action.nargs != 0:
                several = isinstance(action.default, list)
                yield from (f"{option}={one}" for one in (value.split() if several else [value]))
            elif value != "0" and action.dest != "help":
                yield option

    def error(self, message: str) -> NoReturn:
        super().error(message + (f" (the environment says {' '.join(self._found)})" if self._found else ""))
