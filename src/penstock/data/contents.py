"""Facts that processes compare before they divide a dataset: the nodes that count for a state, and samples of data.

Sources in memory, and those that give any row at once, are sampled at a few rows that are far apart.
"""

import hashlib
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from penstock.data.functions.code import SCALARS, scalars_of
from penstock.data.identity import identities_of
from penstock.data.node import KnownLength, Node
from penstock.data.operators.collection import ArrayRows, Source
from penstock.data.operators.sources import FileNames
from penstock.formats.opening import size_of
from penstock.paths import names_in_directory
from penstock.runtime.threads import failures

_MANY_ROWS: Final = 64
_FEW_ROWS: Final = 8
"""The number of sampled rows if each may take a request, or the reading of a chunk."""
_NUMBERS: Final = 1024
"""About how many numbers of a row are compared."""


@dataclass(frozen=True)
class NodeFacts:
    """Facts about a node in one process.

    Attributes:
        where: the node, and the line that added it.
        digest: of its identity for states, and of those below.
        code: a digest of the code of its functions, after the version of Python.
        holds: its data, or the values that its functions use, in short; "" if nothing is known.
        contents: a digest of a sample of its data; "" if nothing is known.
    """

    where: str
    digest: str
    code: str
    holds: str
    contents: str

    def is_as(self, other: object) -> bool:
        """Return whether the node of another process is the same, as far as both know."""
        if not isinstance(other, NodeFacts):
            return False
        pythons = {one.code.partition(" ")[0] for one in (self, other)}
        codes = {one.code for one in (self, other)} if len(pythons) == 1 else {""}
        contents = {one.contents for one in (self, other)} - {""}
        return self.digest == other.digest and len(codes) == 1 and len(contents) < 2

    def __str__(self) -> str:
        return f"{self.where} with {self.holds}" if self.holds else self.where


def facts_of(node: Node) -> list[NodeFacts]:
    """Return the facts about the nodes of a dataset that count for a state, inputs first."""
    return [
        NodeFacts(found.node.where(), found.digest, found.code, *_held(found.node)) for found in identities_of(node)
    ]


def _held(node: Node) -> tuple[str, str]:
    """Describe a node's data, or the values that its functions use; and return a digest of a sample of the data."""
    if isinstance(node, FileNames):
        names = node.columns[0].tolist()
        sizes = [size_of(names[row]) for row in _rows(len(names), _MANY_ROWS)]
        return f"files {reprlib.repr(names_in_directory(names))}", _digest([repr(sizes).encode()])
    if isinstance(node, Source):
        rows = _some_rows(node.source, node.rows)
    elif isinstance(node, KnownLength):
        arrays = [value for value in node.arguments_by_name.values() if isinstance(value, tuple)]
        columns = [column for several in arrays for column in several if isinstance(column, np.ndarray)]
        rows = [column[row] for column in columns for row in _rows(len(column), _MANY_ROWS)]
    else:
        functions = filter(callable, (node.identity or {}).values())
        used = dict(pair for function in functions for pair in scalars_of(function).items())
        return ", ".join(f"{name}={reprlib.repr(value)}" for name, value in sorted(used.items())), ""
    if not rows:
        return "", ""
    return f"first row {reprlib.repr(rows[0])}", _digest(map(_bytes_of, rows))


def _rows(count: int, most: int) -> list[int]:
    """Numbers of rows that lie far apart, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64)).tolist() if count else []


def _some_rows(source: Any, reads: Any) -> list[Any]:
    """Return some rows of a collection that gives the same ones each time; none of any other."""
    if isinstance(source, (list, tuple, range, np.ndarray)):
        return [source[row] for row in _rows(len(source), _MANY_ROWS)]
    try:
        if hasattr(source, "with_format") and hasattr(source, "column_names"):  # of Hugging Face: nothing is decoded
            table = source.with_format("arrow")
            return [repr(table[row].to_pylist()) for row in _rows(len(source), _FEW_ROWS)]
        if isinstance(reads, ArrayRows):
            return [np.asarray(source[row]) for row in _rows(int(source.shape[0]), _FEW_ROWS)]
        if hasattr(source, "indices") and hasattr(source, "dataset"):  # torch's Subset
            return [f"row {source.indices[row]}" for row in _rows(len(source.indices), _MANY_ROWS)]
        tensors = getattr(source, "tensors", ())  # of torch's TensorDataset
        return [np.asarray(one[row]) for one in tensors for row in _rows(len(one), _FEW_ROWS)]
    except failures():  # reading that row raises the error
        return []


def _bytes_of(row: Any) -> bytes:
    """Return bytes that depend on a sample of a row's values."""
    array = np.asarray(row) if isinstance(row, (np.ndarray, np.generic)) else None
    if array is not None and not array.dtype.hasobject:
        flat = array.reshape(-1)
        return f"{array.dtype}{array.shape}".encode() + flat[:: max(1, flat.size // _NUMBERS)].tobytes()
    if isinstance(row, (*SCALARS, np.generic)):
        return repr(row).encode()
    if isinstance(row, (list, tuple)):
        return b"(" + b",".join(map(_bytes_of, row[:_NUMBERS])) + b")"
    if isinstance(row, dict):
        return b"{" + b",".join(_bytes_of(pair) for pair in row.items()) + b"}"
    return type(row).__qualname__.encode()


def _digest(parts: Iterable[bytes]) -> str:
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).hexdigest()
