"""What the commands share: arguments that are numbers, and messages to the user."""

import argparse
import sys
from typing import Final

INTERRUPTED: Final = 130
"""What shells expect of a command that Ctrl-C ended: 128 + SIGINT."""


def positive(text: str) -> int:
    """A whole number, at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def count(text: str) -> int:
    """A whole number, at least 0."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {number}")
    return number


def seconds(text: str) -> float:
    """A number of seconds."""
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, at least 0, got {text}")
    return number


def say(line: str) -> None:
    """A line for the user, at once also where the output is a file."""
    print(line, flush=True)


def failed(message: str, status: int = 1) -> int:
    """Say what has failed; gives the status to exit with."""
    print(f"penstock: {message}", file=sys.stderr)
    return status
