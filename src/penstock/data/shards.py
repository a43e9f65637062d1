"""One of n parts of a dataset, as rewrites of its nodes: by its files, or where the user said.

Each is a pure function of the dataset, the number of parts and the part, so that every process can make all of them.
None is applied in part: an error is about the dataset as a whole.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from penstock.data.dataset import Dataset
from penstock.data.iterator import blocks_of
from penstock.data.node import DependsOn, Node, OneInput
from penstock.data.operators.expand import Interleave
from penstock.data.operators.order import Repeat, Shard, ShardHint
from penstock.data.operators.prefetch_and_cache import Cache, Prefetch
from penstock.data.operators.shuffle import Shuffle
from penstock.data.plan import with_inputs
from penstock.errors import InvalidArgumentError
from penstock.options import INFINITE_CARDINALITY
from penstock.spec import TensorSpec

_ONLY_ORDER: Final = (Shuffle, Repeat, Prefetch)
"""Nodes that only change the order of their input's elements, or repeat them."""


class NotByFile(Exception):
    """The reason why a dataset cannot be divided by file.

    Args:
        reason: why.
        instead: the remedy, as the end of a sentence.
    """

    def __init__(self, reason: str, instead: str = "") -> None:
        super().__init__(reason)
        self.instead = instead


@dataclass(frozen=True)
class EveryNth:
    """One of `count` shards: every `count`-th element, beginning with element `index`."""

    count: int
    index: int

    def of(self, node: Node) -> Node:
        """The shard of a node."""
        return Shard(node, self.count, self.index, part=self.index)


def hints_of(node: Node) -> list[ShardHint]:
    """The places at which the user wants the dataset divided."""
    return [below for below in node.walk() if isinstance(below, ShardHint)]


def divided_at_hints(node: Node, one: EveryNth, policy: str) -> Node:
    """Return the dataset with one shard at each hint; errors name the `policy`.

    Raises:
        InvalidArgumentError: there is no hint, or one is above another.
    """
    hints = hints_of(node)
    if not hints:
        raise InvalidArgumentError(
            f"{policy} needs a place to shard at: put .shard(ps.SHARD_HINT, ps.SHARD_HINT) into the dataset"
        )
    for hint in hints:
        if hints_of(hint.input):
            raise InvalidArgumentError(
                f"{hint.where()} comes after another shard(SHARD_HINT, SHARD_HINT), so each worker would get only a "
                "part of its part: keep one of them"
            )
    return rewritten(node, lambda hint: one.of(hint.input) if isinstance(hint, ShardHint) else None)


def without_hints(node: Node) -> Node:
    """Return the dataset without hints."""
    return rewritten(node, lambda below: without_hints(below.input) if isinstance(below, ShardHint) else None)


def divided_by_file(node: Node, shard: Callable[[OneInput], Node]) -> Node:
    """Return the dataset with each node that reads files replaced by its `shard`.

    Raises:
        NotByFile: a source reads no files, or an operator needs the data of all parts together.
    """
    readers = []

    def checked(below: Node) -> Node | None:
        if _reads_files(below):
            readers.append(below)
            return below
        if not below.inputs:
            mark = ", or mark the function that reads the files it names with ps.files.reads_file"
            raise NotByFile(f"{below.where()} reads no files", mark if _may_name_files(below) else "")
        if below.depends_on is DependsOn.ALL:
            raise NotByFile(f"{below.where()} is about the data of all workers together")
        return None

    rewritten(node, checked)  # before any shard is made
    shards = {id(reader): shard(reader) for reader in readers}
    return rewritten(node, lambda below: shards.get(id(below)))


def shard_of_files(reader: OneInput, one: EveryNth, instead: str) -> Node:
    """A node that reads files, with every n-th of them.

    Raises:
        InvalidArgumentError: there are fewer files than shards; the message advises `instead`.
    """
    names = names_of(reader)
    if names is not None and len(names) < one.count:
        raise InvalidArgumentError(
            f"{reader.where()} reads {len(names)} {'file' if len(names) == 1 else 'files'}, fewer than the "
            f"{one.count} workers: use {instead}, or more and smaller files"
        )
    return with_inputs(reader, [below_order(reader.input, one.of)])


def readers_of(node: Node) -> list[OneInput]:
    """Return the nodes that read files by the names of their input: readers, and those that make a reader of each."""
    found: list[OneInput] = []

    def note(below: Node) -> Node | None:
        if _reads_files(below):
            found.append(below)
            return below
        return None

    rewritten(node, note)
    return found


def names_of(reader: OneInput) -> list[Any] | None:
    """Return the names that a reader gets in an epoch, in order and without repetition; None if they never end."""
    source = reader.input
    while isinstance(source, _ONLY_ORDER):
        (source,) = source.inputs
    if source.cardinality == INFINITE_CARDINALITY:
        return None
    with iter(Dataset(source)) as names:
        return list(names)


def _reads_files(node: Node) -> TypeGuard[OneInput]:
    return node.reads_files or (isinstance(node, Interleave) and _makes_readers(node))


def _may_name_files(node: Node) -> bool:
    spec = node.spec
    return isinstance(spec, TensorSpec) and spec.shape == () and spec.dtype.kind in "OU"


def _makes_readers(node: Interleave) -> bool:
    """Return whether the first dataset that this node makes of its input's elements reads files."""
    names = node.input.inputs[0] if node.input.leaves_out_failures else node.input
    if not names.indexable or names.cardinality == 0:
        return False
    made = first_dataset(node)
    return made is not None and bool(readers_of(made))


def first_dataset(node: Interleave) -> Node | None:
    """Return the dataset that a node makes of the first element of its input; None if there is none."""
    with iter(Dataset(node.input)) as elements:
        for block in blocks_of(elements):
            return node.dataset_of_element(block.slice(0, 1), 0)
    return None


def below_order(names: Node, change: Callable[[Node], Node]) -> Node:
    """Apply `change` below nodes that only order or repeat names, so that a shard has the same files in every epoch."""
    if isinstance(names, _ONLY_ORDER):
        return with_inputs(names, [below_order(below, change) for below in names.inputs])
    return change(names)


def rewritten(node: Node, change: Callable[[Node], Node | None]) -> Node:
    """Replace nodes by the results of `change`, from the top; where it returns None, visit the inputs."""
    changed: dict[int, Node | None] = {}

    def visited(below: Node) -> tuple[Node, ...]:
        changed[id(below)] = change(below)
        return below.inputs if changed[id(below)] is None else ()

    made: dict[int, Node] = {}
    for below in node.walk(visited):
        new = changed[id(below)]
        if new is None:
            new = with_inputs(below, [made[id(part)] for part in below.inputs])
            if new is not below and isinstance(new, Cache):  # its rows differ from those of the user's iterations
                new = new.forgetful()
        made[id(below)] = new
    return made[id(node)]
