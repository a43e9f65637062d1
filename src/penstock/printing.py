"""Texts of others in logs, errors and tables: nothing in them moves a terminal's cursor or feigns a separate line."""

from typing import Final

_LONGEST: Final = 500


def one_line(text: str, longest: int = _LONGEST) -> str:
    r"""A text without characters that cannot be seen, which are written as Python does, and no longer than that.

    Example:
        >>> one_line("job\n\x1b[2J")
        'job\\n\\x1b[2J'
    """
    shown = text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"
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
