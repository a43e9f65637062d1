"""Texts of others in logs, errors and tables: nothing in them moves a terminal's cursor or feigns a separate line."""

from typing import Final

_LONGEST: Final = 500
_LONGEST_ERROR: Final = 10_000
"""Errors go to all workers, and into their logs."""


def one_line(text: str, longest: int = _LONGEST) -> str:
    r"""A text without characters that cannot be seen, which are written as Python does, and no longer than that.

    Example:
        >>> one_line("job\n\x1b[2J")
        'job\\n\\x1b[2J'
    """
    shown = shortened(text, longest)
    return shown if shown.isprintable() else "".join(map(_escaped, shown))


def many_lines(text: str) -> str:
    r"""The same for a text that may have lines and tabs, as a traceback has.

    Example:
        >>> many_lines("Traceback:\n\tfirst\x07")
        'Traceback:\n\tfirst\\x07'
    """
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(character if character in "\n\t" else _escaped(character) for character in text)


def text_of_error(error: BaseException) -> str:
    """An exception's class and message, cut to some thousand characters; also of a class that fails to give its own.

    Example:
        >>> text_of_error(ValueError("no such word"))
        'ValueError: no such word'
    """
    try:
        text = str(error)
    except Exception as failed:
        text = f"its message cannot be shown, because its class raises {type(failed).__name__}"
    return shortened(f"{type(error).__name__}: {text}".removesuffix(": "), _LONGEST_ERROR)


def shortened(text: str, longest: int) -> str:
    """A text that is no longer than that, apart from a note of how long it was."""
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"


def in_bytes(count: int) -> str:
    """A number of bytes in the largest unit that leaves at least one.

    Example:
        >>> in_bytes(8000)
        '8 kB'
    """
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.0f} GB"


def _escaped(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]
