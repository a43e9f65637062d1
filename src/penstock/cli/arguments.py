"""Parts shared by the commands: their descriptions, arguments and their names in errors, and messages to the user."""

import argparse
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from penstock.errors import InvalidArgumentError, StorageError

INTERRUPTED: Final = 130
"""What shells expect of a command that Ctrl-C ended: 128 + SIGINT."""


CLEAR: Final = "\x1b[H\x1b[2J"
"""It clears a terminal."""
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

_OPTIONS: Final = {
    "service": "HOST:PORT",
    "dispatcher_address": "--dispatcher",
    "worker_addresses": "--worker-address",
    "insecure=True": "--insecure",
}
_CALL: Final = re.compile(r"^\w+(?:\((\w+)=(\S*)\)|: )")
_NAME: Final = re.compile(r"\b(?:token_file|tls_cert|tls_key|tls_client_ca|insecure=True)(?!\w)")


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], epilog: str | None = None
) -> argparse.ArgumentParser:
    """Add a command, which the docstring of the function that runs it describes to the user; gives its parser."""
    description = inspect.getdoc(run) or ""  # none under `python -OO`
    summary = description.partition("\n")[0].rstrip(".")
    short = summary[:1].lower() + summary[1:]
    parser = commands.add_parser(name, help=short, description=description, epilog=epilog)
    parser.set_defaults(command=run)
    return parser


def count(text: str, least: int = 0) -> int:
    """A whole number, at least 0."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, got {number}")
    return number


def positive(text: str) -> int:
    """A whole number, at least 1."""
    return count(text, 1)


def seconds(text: str) -> float:
    """A number of seconds."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, at least 0, got {text}")
    return number


def say(line: str) -> None:
    """A line for the user, at once also where the output is a file.

    Raises:
        StorageError: the disk that the output is written to is full, or fails.
    """
    try:
        print(line, flush=True)
    except UnicodeEncodeError as error:  # a name or a text that this terminal cannot show
        print(line.encode(error.encoding, "backslashreplace").decode(error.encoding), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(f"the output cannot be written: {error}") from error


def failed(message: str, status: int = 1) -> int:
    """Print the failure; return the exit status."""
    print(f"penstock: {message}", file=sys.stderr)
    return status


@contextmanager
def named_as_options() -> Iterator[None]:
    """Within this context, errors about the arguments of a call name the options that they came from."""
    try:
        yield
    except InvalidArgumentError as error:
        message = _CALL.sub(_as_option, str(error), count=1)
        raise InvalidArgumentError(_NAME.sub(lambda name: _option(name[0]), message)) from error


def _as_option(call: re.Match[str]) -> str:
    """`Call(port=...)` as `--port`, `Call(host='0.0.0.0')` as `--host 0.0.0.0`; `Call: ` as nothing."""
    name, value = call.groups()
    if name is None:
        return ""
    return _option(name) if value == "..." else _option(name) + " " + value.strip("'")


def _option(name: str) -> str:
    return _OPTIONS.get(name, "--" + name.replace("_", "-"))
