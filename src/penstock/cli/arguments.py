"""What the commands share: arguments that are numbers, and how a command says something."""

import argparse
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.errors import InvalidArgumentError

INTERRUPTED: Final = 130
"""What shells expect of a command that Ctrl-C ended: 128 + SIGINT."""

_OPTIONS: Final = {
    "service": "HOST:PORT",
    "dispatcher_address": "--dispatcher",
    "worker_addresses": "--worker-address",
    "insecure=True": "--insecure",
}
_CALL: Final = re.compile(r"^\w+(?:\((\w+)=(\S*)\)|: )")
_NAME: Final = re.compile(r"\b(?:token_file|tls_cert|tls_key|tls_client_ca|insecure=True)(?!\w)")


def positive(text: str) -> int:
    """A whole number, at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def seconds(text: str) -> float:
    """A number of seconds."""
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, at least 0, got {text}")
    return number


@contextmanager
def named_as_options() -> Iterator[None]:
    """Let errors about the arguments of a call speak of the options that gave them."""
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


def say(line: str) -> None:
    """A line for the user, at once also where the output is a file."""
    print(line, flush=True)


def failed(message: str, status: int = 1) -> int:
    """Say what has failed; gives the status to exit with."""
    print(f"penstock: {message}", file=sys.stderr)
    return status
