"""Patterns of names in object stores, where "/" parts names and nothing else is a folder."""

import re
from collections.abc import Callable

_SIGNS = re.compile(r"[*?\[]")


def fixed_folder(pattern: str) -> tuple[str, bool]:
    """The folder that all matching names are in, and whether some may be in folders below it.

    Example:
        >>> fixed_folder("data/train-*.txt"), fixed_folder("data/*/train.txt"), fixed_folder("data/**")
        (('data', False), ('data', True), ('data', True))
    """
    sign = _SIGNS.search(pattern)
    fixed = pattern if sign is None else pattern[: sign.start()]
    folder = fixed.rpartition("/")[0]
    rest = pattern[len(folder) :].lstrip("/")
    return folder, "/" in rest or "**" in rest


def pattern_filter(pattern: str) -> Callable[[str], bool]:
    """Whether a name matches a pattern: `**` stands for any folders, `*` and `?` not for "/".

    Example:
        >>> keeps = pattern_filter("a/**/[xy]*.txt")
        >>> [keeps(name) for name in ("a/x1.txt", "a/b/c/y.txt", "a/z.txt", "a/x/b.txt")]
        [True, True, False, False]
    """
    tokens = re.split(r"(\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\])", pattern)
    whole = re.compile("".join(map(_expression, tokens)), re.DOTALL)
    return lambda name: whole.fullmatch(name) is not None


def _expression(token: str) -> str:
    """A part of a pattern as a regular expression."""
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if token in known:
        return known[token]
    if token.startswith("[") and token.endswith("]") and len(token) > 2:
        inner = token[1:-1].replace("\\", "\\\\")
        return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
    return re.escape(token)
