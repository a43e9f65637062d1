"""Notes beside stored rows of what made them, by which the rows of another dataset are refused."""

import hashlib
import sys
from contextlib import suppress
from typing import Any, Final

from penstock.data.fingerprint import fingerprint_of
from penstock.data.functions.code import Describing
from penstock.data.identity import identities_of
from penstock.data.node import Node
from penstock.errors import InvalidTypeError
from penstock.options import Options

_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"


def note_of(node: Node, options: Options, *, strict: bool = True) -> dict[str, Any]:
    """What is stored of the pipeline that made some rows, as plain data.

    Args:
        node: the last of the pipeline.
        options: of the pipeline.
        strict: whether something that exists in this process only is an error. Otherwise functions are known by their
            code and constants alone.

    Raises:
        InvalidTypeError: there is such a thing, and that is an error.
    """
    fingerprint = ""
    with suppress(*([] if strict else [InvalidTypeError])):
        fingerprint = fingerprint_of(node, options)
    describing = Describing(lambda value: None)
    arguments = [value for below in node.walk_all() for value in below.arguments_by_name.values()]
    code = [describing.function(value) for value in arguments if callable(value)]
    nodes = [identity.entry() for identity in identities_of(node)]
    digest = hashlib.blake2b(repr(code).encode(), digest_size=6).hexdigest()
    return {"python": _PYTHON, "fingerprint": fingerprint, "code": digest, "nodes": nodes}


def difference(note: dict[str, Any], found: dict[str, Any], node: Node) -> str:
    """How what made stored rows differs from a pipeline, in words; "" where it does not.

    Args:
        note: of the pipeline.
        found: the note beside the rows.
        node: the last of the pipeline.

    Raises:
        KeyError, TypeError, ValueError: `found` is no such note.
    """
    own = identities_of(node)
    for number, (identity, entry) in enumerate(zip(own, found["nodes"])):
        if (words := identity.difference(entry)) is not None:
            return f"node {number} {words}"
    if len(own) != len(found["nodes"]):
        return f"one of {len(found['nodes'])} steps that count, and here are {len(own)}"
    if found["python"] != note["python"]:
        return ""
    if found["code"] != note["code"]:
        return "its steps are the same, but not the code of a function"
    if found["fingerprint"] and note["fingerprint"] and found["fingerprint"] != note["fingerprint"]:
        return (
            "its steps are the same, but not an array, an argument or an option of them, or what a function uses, or "
            "another version of penstock made it"
        )
    return ""
