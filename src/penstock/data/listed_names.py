"""The names of files that a dataset has listed, which other processes read instead of those they have listed."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from penstock.data.block import object_column
from penstock.data.node import Node
from penstock.data.operators.indexed_files import IndexedFiles
from penstock.data.operators.prefetch_and_cache import Cache
from penstock.data.operators.shuffle import Shuffle
from penstock.data.operators.sources import Listing
from penstock.data.plan import rebuilt
from penstock.paths import names_in_directory


def listings_of(node: Node) -> list[Listing]:
    """The nodes of a dataset that give names of files which were listed."""
    return [below for below in node.walk() if isinstance(below, Listing)]


def names_of_listings(node: Node) -> list[list[str]]:
    """The names that each of them gives."""
    return [list(listing.columns[0]) for listing in listings_of(node)]


def digest_of_names(names: list[str]) -> str:
    """Return a digest of names that does not depend on their directory."""
    return hashlib.blake2b(
        "\0".join(names_in_directory(names)).encode(errors="surrogateescape"), digest_size=16
    ).hexdigest()


def with_listings(node: Node, names: Sequence[Sequence[str]]) -> Node:
    """Return the dataset with these names listed instead. Readers by row number count the rows of new files.

    Raises:
        StorageError: one of these cannot be read.
    """
    given = {id(listing): list(own) for listing, own in zip(listings_of(node), names, strict=True)}

    def changed(below: Node, new: Node) -> Node:
        if id(below) in given:
            return _with_names(below, given[id(below)])
        if new is below:
            return below
        if isinstance(new, IndexedFiles):
            return new.counted()
        if isinstance(new, Shuffle) and isinstance(below, Shuffle) and below.buffer_size == below.input.cardinality:
            return replace(new, buffer_size=new.input.cardinality)  # of all rows, however many there are
        return new.forgetful() if isinstance(new, Cache) else new

    return rebuilt(node, changed)


def _with_names(listing: Node, names: list[str]) -> Node:
    assert isinstance(listing, Listing)
    if list(listing.columns[0]) == names:
        return listing
    return replace(listing, columns=(object_column(names),), length=len(names))
