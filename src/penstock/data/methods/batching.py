"""Methods that put elements together and take them apart."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.data.block import Block
from penstock.data.methods.base import Element, Methods, check_function, check_parallel_calls, user_site
from penstock.data.methods.tensorflow import DATASET
from penstock.data.node import Node, describe
from penstock.data.operators.batching import Batch, PaddedBatch, RaggedBatch, bounded_shapes
from penstock.data.operators.grouping import Bucket, GroupByWindow
from penstock.data.operators.rebatching import Rebatch, Unbatch
from penstock.data.operators.reducing import GroupByReducer, Reducer
from penstock.data.operators.sequence import Window
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import INFINITE_CARDINALITY, check_flag, check_integer
from penstock.structure import Structure

if TYPE_CHECKING:
    from penstock.data.dataset import Dataset


@DATASET
class BatchMethods(Methods[Element]):
    """batch, padded_batch, ragged_batch, unbatch, rebatch, window, group_by_window, group_by_reducer and others."""

    def batch(
        self, batch_size: int, drop_remainder: bool = False, num_parallel_calls: int | None = None
    ) -> "Dataset[Any]":
        """`batch_size` consecutive elements stacked along a new leading axis; the last batch may be shorter.

        Args:
            batch_size: rows of a batch.
            drop_remainder: leave a shorter last batch out.
            num_parallel_calls: threads that copy the rows of a batch together, where rows are copied: below a shuffle,
                say, which hands them out from all over an array; `ps.AUTOTUNE` for one per core. It is for batches of
                many megabytes: less than one is copied by one thread.

        Raises:
            InvalidArgumentError: `batch_size` or `num_parallel_calls` below 1.
            ElementError: while iterating, rows of unequal shape; the message names both.

        Example:
            >>> import penstock as ps
            >>> [batch.tolist() for batch in ps.Dataset.range(5).batch(2)]
            [[0, 1], [2, 3], [4]]
        """
        size = check_integer("batch", "batch_size", batch_size, minimum=1)
        check_flag("batch", "drop_remainder", drop_remainder)
        check_parallel_calls("batch", num_parallel_calls)
        return self._then(Batch(self.node, size, drop_remainder, num_parallel_calls, site=user_site()))

    def padded_batch(
        self, batch_size: int, padded_shapes: Any = None, padding_values: Any = None, *, drop_remainder: bool = False
    ) -> "Dataset[Any]":
        """`batch_size` consecutive elements, each leaf padded at the end of its axes to one shape.

        Args:
            batch_size: rows of a batch.
            padded_shapes: the shape to pad to, for all leaves or in the structure of the elements; None on an axis, or
                for a leaf, means the longest row of the batch.
            padding_values: what to pad with, given likewise; 0, "" or b"" by default.
            drop_remainder: leave a shorter last batch out.

        Raises:
            InvalidArgumentError: `batch_size` below 1.
            ElementError: while iterating, a row longer than its padded shape.

        Example:
            >>> import penstock as ps
            >>> dataset = ps.Dataset.range(1, 4).map(lambda x: [x] * int(x))
            >>> [batch.tolist() for batch in dataset.padded_batch(2)]
            [[[1, 0], [2, 2]], [[3, 3, 3]]]
        """
        size = check_integer("padded_batch", "batch_size", batch_size, minimum=1)
        check_flag("padded_batch", "drop_remainder", drop_remainder)
        return self._then(PaddedBatch(self.node, size, drop_remainder, padded_shapes, padding_values, site=user_site()))

    def ragged_batch(self, batch_size: int, *, drop_remainder: bool = False) -> "Dataset[Any]":
        """`batch_size` consecutive elements; a leaf with axes becomes an object array with one array per row.

        Raises:
            InvalidArgumentError: `batch_size` below 1.

        Example:
            >>> import penstock as ps
            >>> dataset = ps.Dataset.range(1, 4).map(lambda x: [x] * int(x))
            >>> [[row.tolist() for row in batch] for batch in dataset.ragged_batch(2)]
            [[[1], [2, 2]], [[3, 3, 3]]]
        """
        size = check_integer("ragged_batch", "batch_size", batch_size, minimum=1)
        check_flag("ragged_batch", "drop_remainder", drop_remainder)
        return self._then(RaggedBatch(self.node, size, drop_remainder, site=user_site()))

    def unbatch(self) -> "Dataset[Any]":
        """The rows along the leading axis of every element, as elements.

        Raises:
            ElementError: while iterating, a leaf without axes, or leaves of unequal length.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(5).batch(2).unbatch()]
            [0, 1, 2, 3, 4]
        """
        return self._then(Unbatch(self.node, site=user_site()))

    def rebatch(self, batch_size: int | Sequence[int], *, drop_remainder: bool = False) -> "Dataset[Element]":
        """The rows of batches in batches of another size; several sizes are used in turn.

        Borders of the old batches do not matter.

        Raises:
            InvalidArgumentError: no size, or one below 1.

        Example:
            >>> import penstock as ps
            >>> [batch.tolist() for batch in ps.Dataset.range(7).batch(4).rebatch([2, 1])]
            [[0, 1], [2], [3, 4], [5], [6]]
        """
        sizes = list(batch_size) if isinstance(batch_size, (Sequence, np.ndarray)) else [batch_size]
        if not sizes:
            raise InvalidArgumentError("rebatch(batch_size=...) takes at least one size, got none")
        checked = tuple(check_integer("rebatch", "batch_size", size, minimum=1) for size in sizes)
        check_flag("rebatch", "drop_remainder", drop_remainder)
        return self._then(Rebatch(self.node, checked, drop_remainder, site=user_site()))

    def window(
        self, size: int, shift: int | None = None, stride: int = 1, *, drop_remainder: bool = False
    ) -> "Dataset[Any]":
        """Datasets of `size` elements that are `stride` apart.

        A new one begins every `shift` elements (by default `size`).

        Of elements with several leaves, each leaf becomes a dataset of its own, in the structure of the element.

        Raises:
            InvalidArgumentError: a number below 1.

        Example:
            >>> import penstock as ps
            >>> [[int(x) for x in window] for window in ps.Dataset.range(5).window(3, shift=1, drop_remainder=True)]
            [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
        """
        size = check_integer("window", "size", size, minimum=1)
        shift = size if shift is None else check_integer("window", "shift", shift, minimum=1)
        stride = check_integer("window", "stride", stride, minimum=1)
        check_flag("window", "drop_remainder", drop_remainder)
        return self._then(
            Window(self.node, size, shift, stride, drop_remainder, type(self)._of_block, site=user_site())
        )

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[[Any, Any], Any],
        window_size: int | None = None,
        window_size_func: Callable[[Any], Any] | None = None,
    ) -> "Dataset[Any]":
        """Elements of equal key, collected in windows.

        The result has the elements of `reduce_func(key, window)`, a dataset made of each window.

        A full window is given at once; what is left at the end of the input follows in the order of the keys.

        Args:
            key_func: an integer for an element.
            reduce_func: makes a dataset of a key and the dataset of its window.
            window_size: elements of a window, for every key.
            window_size_func: elements of a window, by key.

        Raises:
            InvalidArgumentError: both or neither of the window sizes, or one below 1.

        Example:
            >>> import penstock as ps
            >>> dataset = ps.Dataset.range(7).group_by_window(
            ...     lambda x: x % 2, lambda key, window: window.batch(2), window_size=2)
            >>> [batch.tolist() for batch in dataset]
            [[0, 2], [1, 3], [4, 6], [5]]
        """
        check_function("group_by_window", "key_func", key_func)
        check_function("group_by_window", "reduce_func", reduce_func)
        if (window_size is None) == (window_size_func is None):
            raise InvalidArgumentError("group_by_window takes either window_size or window_size_func")
        if window_size is not None:
            fixed = check_integer("group_by_window", "window_size", window_size, minimum=1)
            size_of: Callable[[Any], Any] = lambda key: fixed  # noqa: E731  # as short as it can be said
        else:
            size_of = check_function("group_by_window", "window_size_func", window_size_func)
        text = (f"key_func={describe(key_func)}", f"window_size={describe(window_size or window_size_func)}")
        return self._then(
            GroupByWindow(
                self.node,
                "group_by_window",
                key_func,
                reduce_func,
                size_of,
                text,
                dataset_of=type(self)._of_block,
                site=user_site(),
            )
        )

    def group_by_reducer(self, key_func: Callable[..., Any], reducer: Reducer) -> "Dataset[Any]":
        """One element for each key: what the reducer makes of all elements of that key, in the order of the keys.

        Nothing comes before the input has ended. The states of all keys are held; restoring a state reads the input
        again.

        Args:
            key_func: an integer for an element.
            reducer: how the elements of a key become one.

        Raises:
            InvalidTypeError: not a function, or not a `ps.Reducer`.
            InvalidArgumentError: the dataset never ends.
            ElementError: while iterating, states of a key that differ in structure or dtype.

        Example:
            >>> import penstock as ps
            >>> total = ps.Reducer(lambda key: 0, lambda total, x: total + x, lambda total: total)
            >>> [int(x) for x in ps.Dataset.range(10).group_by_reducer(lambda x: x % 3, total)]
            [18, 12, 15]
        """
        check_function("group_by_reducer", "key_func", key_func)
        if not isinstance(reducer, Reducer):
            raise InvalidTypeError(f"group_by_reducer(reducer=...) takes a ps.Reducer, got {reducer!r}")
        if self.node.cardinality == INFINITE_CARDINALITY:
            raise InvalidArgumentError(
                f"group_by_reducer: {self.node.where()} never ends: put .take(count) before group_by_reducer"
            )
        functions = (reducer.init_func, reducer.reduce_func, reducer.finalize_func)
        return self._then(GroupByReducer(self.node, key_func, *functions, site=user_site()))

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Any = None,
        padding_values: Any = None,
        *,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
    ) -> "Dataset[Any]":
        """Batches of elements of similar length: bucket i holds the lengths from boundary i - 1 up to below boundary i.

        A full bucket is given at once as a padded batch; what is left at the end follows in the order of the buckets.

        Args:
            element_length_func: the length of an element.
            bucket_boundaries: k rising lengths.
            bucket_batch_sizes: the k + 1 batch sizes.
            padded_shapes: as in `padded_batch`.
            padding_values: as in `padded_batch`.
            pad_to_bucket_boundary: pad to the bucket's boundary - 1 instead of the longest row; an element that is too
                long for the last boundary is an error. Padded so far are the axes that `padded_shapes` leaves open;
                without it those that are None in `element_spec`, or where only a user's function could tell, those that
                have the element's length and those that differ among the elements read until then.
            no_padding: batch without padding: the elements of a bucket must have one shape.
            drop_remainder: leave shorter last batches out.

        Raises:
            InvalidArgumentError: boundaries that do not rise, or another number of batch sizes than boundaries + 1.
            ElementError: while iterating, an element that is too long.

        Example:
            >>> import penstock as ps
            >>> dataset = ps.Dataset.from_tensor_slices([1, 4, 2, 5, 3]).map(lambda n: [n] * int(n))
            >>> [b.shape for b in dataset.bucket_by_sequence_length(len, [4], [2, 2])]
            [(2, 2), (2, 5), (1, 3)]
        """
        check_function("bucket_by_sequence_length", "element_length_func", element_length_func)
        boundaries, sizes = _buckets(bucket_boundaries, bucket_batch_sizes)

        site = user_site()

        def batching(bucket: int, rows: Node, unknown: tuple[Structure, list[list[bool]]] | None) -> Node:
            if no_padding:
                return Batch(rows, sizes[bucket], drop_remainder, site=site)
            shapes = padded_shapes
            if unknown is not None:
                shapes = bounded_shapes(*unknown, padded_shapes, boundaries[bucket] - 1)
            return PaddedBatch(rows, sizes[bucket], drop_remainder, shapes, padding_values, site=site)

        return self._then(
            Bucket(
                self.node,
                "bucket_by_sequence_length",
                element_length_func,
                batching,
                lambda bucket: sizes[int(bucket)],
                (f"{describe(element_length_func)}", f"{boundaries}", f"{sizes}"),
                dataset_of=type(self)._of_block,
                boundaries=tuple(boundaries),
                bounded=pad_to_bucket_boundary and not no_padding,
                site=site,
            )
        )

    @classmethod
    def _of_block(cls, block: Block) -> Any:
        raise NotImplementedError


def _buckets(boundaries: Sequence[int], sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    edges = [check_integer("bucket_by_sequence_length", "bucket_boundaries", edge, minimum=1) for edge in boundaries]
    if not edges or any(low >= high for low, high in pairwise(edges)):
        raise InvalidArgumentError(f"bucket_by_sequence_length(bucket_boundaries=...) must rise, got {edges}")
    counts = [check_integer("bucket_by_sequence_length", "bucket_batch_sizes", size, minimum=1) for size in sizes]
    if len(counts) != len(edges) + 1:
        raise InvalidArgumentError(
            f"bucket_by_sequence_length takes one batch size more than boundaries: expected {len(edges) + 1}, "
            f"got {len(counts)}"
        )
    return edges, counts
