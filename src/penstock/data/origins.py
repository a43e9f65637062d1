"""Rows of sources of which elements are made: worked out from positions, without reading any of them."""

from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.data.node import Node, Run


class Row(NamedTuple):
    """A row of a source, as `rows` of datasets and iterators gives it.

    Attributes:
        source: the source, or the stream beyond which no row can be told, and the line of code that made it.
        file: the file that holds the row; None where it is of no file.
        row: the number of the row in that file, or else in the source or stream.
    """

    source: str
    file: str | None
    row: int


def rows_made_of(node: Node, run: Run, epoch: int, position: int) -> list[Row]:
    """Return the rows of which an element is made, in their order."""
    found = [
        (tuple(key), Row(source.where(), file, int(number)))
        for source, keys, rows in sources_of(node, run, epoch, np.array([position]))
        for key, file, number in zip(keys.tolist(), *source.rows_at(rows), strict=True)
    ]
    return [row for _, row in sorted(found, key=itemgetter(0))]


def source_row(node: Node, run: Run, epoch: int, position: int) -> str:
    """Return the first row of which an element is made, for errors; "" if its number is the same, or for a stream."""
    found = sources_of(node, run, epoch, np.array([position]))
    _, source, row = min(((keys[0].tolist(), source, int(rows[0])) for source, keys, rows in found), key=itemgetter(0))
    told = row == position and not source.row_files
    return source.row_name(row) if source.indexable and not told else ""


def sources_of(
    node: Node, run: Run, epoch: int, positions: npt.NDArray[np.int64]
) -> Iterator[tuple[Node, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield each source of elements with its rows, and keys that give the order of the rows of all sources.

    A key begins with the place of the row's element among `positions`.
    """
    left = [(node, epoch, np.arange(len(positions))[:, None], positions)]
    for source, own_epoch, keys, rows in left:  # which grow
        below = list(source.origins(run, own_epoch, rows)) if source.indexable or source.keeps_numbers else []
        for input, input_epoch, places, input_rows in below:
            parts = keys[places]
            if len(places) > len(rows):  # several rows make one element: they follow each other
                parts = np.column_stack([parts, np.arange(len(places)) - np.searchsorted(places, places)])
            left.append((input, input_epoch, parts, input_rows))
        if not below and len(rows):
            yield source, keys, rows
