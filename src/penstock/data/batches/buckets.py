"""bucket_by_sequence_length: batches of elements of similar length."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import reduce
from typing import Any, Final

from penstock.data.axes import UnknownAxes
from penstock.data.batches.batching import Batch, Batching
from penstock.data.batches.padded import PaddedBatch, bounded_shapes
from penstock.data.block import Block
from penstock.data.element_kinds import of_one_kind
from penstock.data.functions.answers import integer
from penstock.data.node import Run, describe
from penstock.data.operators.grouping import OpenWindow, WindowsByKey, WindowsStream
from penstock.data.streams.stream import State
from penstock.errors import ElementError
from penstock.spec import merged, with_open_axes
from penstock.structure import Structure, flatten, map_structure

_LENGTH_FUNCTION: Final = "bucket_by_sequence_length(element_length_func)"


class Bucket(WindowsByKey, name="bucket_by_sequence_length"):
    """Batches of elements of similar length: the key of an element is the number of its bucket.

    With `bounded`, rows are padded to the bucket's boundary, and an element that is too long for the last is an error.
    """

    boundaries: tuple[int, ...]
    drop_remainder: bool
    padded_shapes: Any
    padding_values: Any
    no_padding: bool
    bounded: bool

    def arguments(self) -> list[str]:
        numbers: Any = (self.boundaries, self.window_size)
        return [describe(self.key_function), *(str(list(each)) for each in numbers)]

    def spec_over(self, *inputs: Any) -> Any:
        leaves, structure = flatten(inputs[0])
        unknown = [[length is None for length in leaf.shape] for leaf in leaves]
        if self.bounded and self.input.spec is None:  # only the elements show which axes are unknown
            leaves = [with_open_axes(leaf, range(len(leaf.shape))) for leaf in leaves]
            unknown = [[False] * len(leaf.shape) for leaf in leaves]
        buckets = [
            self.batching(bucket, structure, unknown).spec_over(structure.unflatten(leaves))
            for bucket in range(len(self.boundaries) + (not self.bounded))
        ]
        return reduce(lambda first, second: map_structure(merged, first, second), buckets)

    def batching(self, bucket: int, structure: Structure, unknown: list[list[bool]]) -> Batching:
        """Return a node over this one that makes the batches of a bucket. Its number of rows is unknown too.

        Args:
            unknown: for each leaf, whether each of its axes is unknown.
        """
        size, shapes = self.size_of(bucket), self.padded_shapes
        if self.no_padding:
            return Batch(self, size, self.drop_remainder, site=self.site)
        if self.bounded:
            shapes = bounded_shapes(structure, unknown, shapes, self.boundaries[bucket] - 1)
        return PaddedBatch(self, size, self.drop_remainder, shapes, self.padding_values, site=self.site)


class BucketStream(WindowsStream[Bucket], of=Bucket):
    """The state is that of the windows, and the observed lengths of unknown axes."""

    def __init__(self, node: Bucket, run: Run, epoch: int) -> None:
        super().__init__(node, run, epoch)
        self._axes = UnknownAxes(node.input.spec if node.bounded else None)

    def _key(self, value: Any, leaves: Sequence[Any]) -> int:
        length = value if type(value) is int else integer(_LENGTH_FUNCTION, value)
        bucket = bisect_right(self._node.boundaries, length)
        if self._node.bounded:
            if bucket == len(self._node.boundaries):
                longest = self._node.boundaries[-1] - 1
                raise ElementError(
                    f"{self._node.where()}: an element of length {length} is longer than {longest}, which "
                    "pad_to_bucket_boundary=True allows: add a boundary"
                )
            self._axes.meet(leaves, length)
        return bucket

    def _element_of(self, window: OpenWindow) -> Block | None:
        rows = self._rows_of(window)
        if self._node.drop_remainder and window.missing:
            return None
        batching = self._node.batching(window.key, rows.structure, self._axes.unknown())
        batch = batching.numbered(rows, len(rows), 0)
        return of_one_kind(self._run, self._node, batch, self._before, batching)

    def state(self) -> State:
        return [super().state(), self._axes.state()]

    def restore(self, state: State) -> None:
        windows, axes = state
        self._axes.restore(axes)
        super().restore(windows)
