"""`Dataset`: its sources, its operators, and how it is read.

A method checks its arguments and adds one node.
"""

import builtins
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial, reduce
from html import escape
from itertools import islice, pairwise
from typing import Any, Final, Generic, TypeVar, overload

import numpy as np

from penstock.data import functions, saving
from penstock.data.arguments import (
    as_numbers,
    as_seed,
    as_signature,
    check_encoding,
    check_function,
    check_parallel_calls,
    user_site,
)
from penstock.data.batches.batching import Batch, Batching, RaggedBatch
from penstock.data.batches.buckets import Bucket
from penstock.data.batches.by_size import BatchBy
from penstock.data.batches.padded import PaddedBatch
from penstock.data.block import Block, object_column
from penstock.data.cached_rows import CachedRows
from penstock.data.element_kinds import check_one_kind, merged_spec
from penstock.data.fingerprint import fingerprint_of
from penstock.data.folder_datasets import FolderRequest, class_names_of
from penstock.data.iterator import DatasetIterator, Element, Iterations, blocks_of
from penstock.data.made_by import MadeBy
from penstock.data.mixtures.arguments import mixed
from penstock.data.node import EVERYTHING, Node, Run, describe
from penstock.data.operators.balance import Balance
from penstock.data.operators.choose import Choose
from penstock.data.operators.collection import Source, length_of, rows_of
from penstock.data.operators.combine import Concatenate, Zip
from penstock.data.operators.element import Filter, Map, WithCosts
from penstock.data.operators.expand import Interleave
from penstock.data.operators.generator import ArrowStream, Generator
from penstock.data.operators.grouping import GroupByReducer, GroupByWindow, Reducer
from penstock.data.operators.ignore_errors import IgnoreErrors
from penstock.data.operators.lengths import LeafLength, WithKnownSizes, WithLengths, as_length, check_lengths
from penstock.data.operators.order import AssertCardinality, Enumerate, Repeat, Shard, ShardHint, Skip, Take
from penstock.data.operators.pack import Pack
from penstock.data.operators.prefetch_and_cache import Cache, Prefetch
from penstock.data.operators.rebatching import Rebatch, Unbatch
from penstock.data.operators.resample import RejectionResample
from penstock.data.operators.sampler import FromSampler
from penstock.data.operators.select import Sample, Select, checked_rows, sample_of
from penstock.data.operators.sequence import Scan, TakeWhile, Unique
from penstock.data.operators.shuffle import ClumpedShuffle, Shuffle
from penstock.data.operators.skip_rows import DropRows, MaskRows, names_of_rows
from penstock.data.operators.sources import Choices, Counter, Listing, Random, Range, Slices, TimeseriesWindows
from penstock.data.operators.window import Window
from penstock.data.origins import Row, rows_made_of
from penstock.data.packed_rows import PackedRows
from penstock.data.packing_plans import Packing
from penstock.data.plan import PlannedDataset, described
from penstock.data.randomness import checked_randomness
from penstock.data.sample import element_spec, tells_by_index
from penstock.data.shown_rows import ShownRows, print_rows, shown_rows
from penstock.data.skip_guards import settled, without_guards
from penstock.data.splits import part_of_key, parts_by_position, parts_of_numbers
from penstock.data.tensorflow import DATASET
from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError
from penstock.formats import media, tables
from penstock.formats.matching import matching_files
from penstock.formats.media.example_folder import ImageReader, Labels, TextReader
from penstock.options import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    SHARD_HINT,
    UNKNOWN_CARDINALITY,
    Hint,
    Options,
    check_flag,
    check_integer,
    merged_inputs,
    merged_options,
)
from penstock.paths import local_path
from penstock.printing import text_of_error
from penstock.rng import DrawnSeed
from penstock.runtime.threads import Threads, failures
from penstock.sharding import SliceRule
from penstock.spec import TensorSpec, alike, as_leaf, is_untold, spec_of_leaf
from penstock.structure import LEAF, Structure, flatten, map_structure

_logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_CYCLE_LENGTH: Final = 16
_DEFAULTS: Final = Options()
_IMAGE_ENDINGS: Final = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")
_OBJECT: Final = np.dtype(object)


@DATASET
class Dataset(Generic[Element]):
    """A sequence of elements, described step by step and read as often as wanted.

    Datasets never change: every method returns a new one. Iterating gives NumPy elements. Each iteration is one epoch,
    and random operators draw differently in each. For type checkers `Dataset[T]` gives elements of type T.

    Example:
        >>> import penstock as ps
        >>> dataset = ps.Dataset.range(10).filter(lambda x: x % 2 == 1).map(lambda x: x * x).batch(2)
        >>> [batch.tolist() for batch in dataset]
        [[1, 9], [25, 49], [81]]
    """

    def __init__(self, node: Node, options: Options | None = None, iterations: Iterations | None = None) -> None:
        if not isinstance(node, Node):
            raise InvalidTypeError(
                f"ps.Dataset(...) does not take data, got {node!r:.200}: use ps.Dataset.from_tensor_slices(...), "
                "ps.Dataset.from_generator(...) or another of its sources"
            )
        self._options = options or _DEFAULTS
        self.node = settled(node, self._options)
        self._iterations = iterations or Iterations(self._options.seed)
        self._planned = PlannedDataset(self.node, self._options)
        # The calls of `take` and `skip`.
        self._cuts: set[tuple[type[Node], int]] = set()

    def _then(self, node: Node, options: Options | None = None) -> "Dataset[Any]":
        """Return the dataset whose last step is `node`, with these options, or by default this dataset's."""
        return type(self)(node, options or self._options)

    def __reduce__(self) -> tuple[Callable[..., "Dataset[Any]"], tuple[list[Node], Options]]:
        """Pickle nodes and options: in another process iterations are counted from 0."""
        return type(self)._of_nodes, ([*self.node.walk_all()], self._options)

    @classmethod
    def _of_nodes(cls, nodes: list[Node], options: Options) -> "Dataset[Any]":
        return cls(nodes[-1], options)

    @staticmethod
    def _of_block(block: Block) -> "Dataset[Any]":
        return Dataset(Slices("window", block.columns, block.structure, len(block)))

    # Sources

    @staticmethod
    def range(*args: int) -> "Dataset[np.int64]":
        """The int64 numbers of `range(stop)`, `range(start, stop)` or `range(start, stop, step)`.

        Raises:
            InvalidTypeError: not one to three integers.
            InvalidArgumentError: a step of 0, or numbers that int64 does not hold.

        Example:
            >>> [int(x) for x in Dataset.range(2, 10, 3)]
            [2, 5, 8]
        """
        if not 1 <= len(args) <= 3:
            raise InvalidTypeError(f"range takes 1 to 3 integers, got {len(args)}")
        names = ("stop",) if len(args) == 1 else ("start", "stop", "step")
        given = {name: check_integer("range", name, number, minimum=-(1 << 63)) for name, number in zip(names, args)}
        for name, number in given.items():
            if number >= 1 << 63:
                raise InvalidArgumentError(f"range({name}=...) takes a number of int64, got {number}")
        start, stop, step = given.get("start", 0), given["stop"], given.get("step", 1)
        if step == 0:
            raise InvalidArgumentError("range(step=...) must not be 0")
        return Dataset(Range(start, stop, step, site=user_site()))

    @staticmethod
    def from_tensors(tensors: Any) -> "Dataset[Any]":
        """A dataset of one element.

        Example:
            >>> list(Dataset.from_tensors(([1.0], 2)))
            [(array([1.], dtype=float32), np.int64(2))]
        """
        leaves, structure = flatten(tensors)
        block = Block.of_leaves([leaves], structure)
        return Dataset(Slices("from_tensors", block.columns, structure, 1, site=user_site()))

    @staticmethod
    def from_tensor_slices(tensors: Any) -> "Dataset[Any]":
        """The rows along the leading axis of arrays (or lists), in any structure. The arrays are not copied.

        A table of Arrow, pandas, polars or Hugging Face counts as the dictionary of its columns, and a column as an
        array. Numeric columns stored in one piece are not copied. NumPy's numbers have no null, so a null is an error;
        add a mask as a separate column: `{"x": column.fill_null(0), "x_is_valid": column.is_valid()}`.

        Raises:
            InvalidArgumentError: no leaves, a leaf without axes, leading axes of unequal length, or a null.
            InvalidTypeError: a column of a type that NumPy does not have.

        Example:
            >>> [(x.tolist(), int(y)) for x, y in Dataset.from_tensor_slices(([[1, 2], [3, 4]], [0, 1]))]
            [([1, 2], 0), ([3, 4], 1)]
            >>> import pyarrow as pa
            >>> list(Dataset.from_tensor_slices(pa.table({"age": [31, 17], "name": ["Ada", "Bob"]})))
            [{'age': np.int64(31), 'name': 'Ada'}, {'age': np.int64(17), 'name': 'Bob'}]
        """
        leaves, structure = flatten(tensors)
        dataset = next((leaf for leaf in leaves if isinstance(leaf, Dataset)), None)
        if dataset is not None:
            raise InvalidArgumentError(
                f"from_tensor_slices takes arrays with a leading axis, got {dataset!r}: use it as it is"
            )
        columnar = [
            leaf if isinstance(leaf, np.ndarray) else tables.arrow_columns.as_columns(leaf, path)
            for leaf, path in zip(leaves, structure.paths(), strict=True)
        ]
        leaves, structure = flatten(structure.unflatten(columnar))
        try:
            columns = tuple(np.asarray(as_leaf(leaf)) for leaf in leaves)
        except ElementError as error:
            differ = ": from_generator takes rows that differ" if error.__cause__ else ""
            raise ElementError(f"from_tensor_slices: {error}{differ}") from error
        for path, leaf, column in zip(structure.paths(), leaves, columns, strict=True):
            if column.ndim == 0:
                raise InvalidArgumentError(
                    f"from_tensor_slices takes arrays with a leading axis, got {leaf!r:.200}"
                    f"{' at ' + path if path else ''}: from_tensors takes one element, from_generator an iterator"
                )
        if not columns:
            raise InvalidArgumentError(f"from_tensor_slices takes arrays with a leading axis, got {tensors!r:.200}")
        lengths = [len(column) for column in columns]
        if len(set(lengths)) > 1:
            named = ", ".join(f"{path or 'the array'}: {n}" for path, n in zip(structure.paths(), lengths, strict=True))
            raise InvalidArgumentError(f"from_tensor_slices takes arrays of one length, got {named}")
        return Dataset(Slices("from_tensor_slices", columns, structure, lengths[0], site=user_site()))

    @staticmethod
    def from_arrow(data: Any, *, mask_nulls: bool | Sequence[str] | None = None) -> "Dataset[Any]":
        """The rows of an Arrow table, or of anything that supports Arrow's PyCapsule protocol, as dictionaries.

        That includes tables, record batches and their readers, Polars and pandas frames, and results of DuckDB. A
        reader is read at once. Numbers without nulls in one chunk are not copied; strings become Python strings. Lists
        become arrays: the rows of one array, not copied either, if all have one length.

        Args:
            data: an object with `__arrow_c_stream__` or `__arrow_c_array__`, such as a `pyarrow.Table`.
            mask_nulls: the replacement of nulls, which NumPy does not have. None: they are an error. True, or the names
                of columns: in a column "x" with nulls, or of that name, they become zeros, empty strings or empty
                lists, and a column "x_is_valid" of booleans is added.

        Raises:
            InvalidTypeError: not Arrow data, or a column of a type that NumPy does not have.
            InvalidArgumentError: nulls that are not masked, a column to be masked that is not there, or no columns.

        Example:
            >>> import pyarrow as pa
            >>> table = pa.table({"age": [31, None], "name": ["Ada", "Bob"]})
            >>> list(Dataset.from_arrow(table, mask_nulls=True))[1]
            {'age': np.int64(0), 'name': 'Bob', 'age_is_valid': np.False_}
        """
        columns = tables.arrow_columns.as_columns(tables.arrow_columns.arrow_table(data, mask_nulls), call="from_arrow")
        leaves, structure = flatten(columns)
        return Dataset(
            Slices("from_arrow", tuple(map(np.asarray, leaves)), structure, len(leaves[0]), site=user_site())
        )

    @staticmethod
    def from_arrow_stream(
        make: Callable[[], Any], *, mask_nulls: bool | Sequence[str] | None = None
    ) -> "Dataset[dict[str, Any]]":
        """The rows of batches of Arrow as dictionaries, one batch after the other: results that do not fit into memory.

        `make()` opens the stream, once per epoch: a query of DuckDB, a scan of Polars, a reader of Arrow Flight. One
        batch at a time is held. A state counts the rows taken; restoring it opens the stream again and drops that many,
        so the stream should give the same rows each time, in one order.

        Args:
            make: called without arguments; returns an object with `__arrow_c_stream__`.
            mask_nulls: as for `from_arrow`; True stands for all columns.

        Raises:
            InvalidTypeError: `make` is not callable; while iterating, its result is no stream, or has a column of a
                type that NumPy does not have.
            InvalidArgumentError: while iterating, nulls that are not masked. Iterating continues behind the row.

        Example:
            >>> import pyarrow as pa
            >>> table = pa.table({"age": [31, 17], "name": ["Ada", "Bob"]})
            >>> [row["name"] for row in Dataset.from_arrow_stream(lambda: table.to_reader(max_chunksize=1))]
            ['Ada', 'Bob']
        """
        if not callable(make):
            raise InvalidTypeError(
                f"from_arrow_stream(make=...) takes a function that opens a stream, in every epoch a new one, got "
                f"{make!r:.200}: from_arrow takes tables, and lambda: ... makes a function"
            )
        return Dataset(ArrowStream(make, mask_nulls, site=user_site()))

    @staticmethod
    def from_source(source: Any, *, mask_nulls: bool | Sequence[str] | None = None) -> "Dataset[Any]":
        """The rows of a collection with `__len__` and `__getitem__`, read by index when they are needed.

        For example a map-style dataset of PyTorch, a data source of Grain, a dataset of Hugging Face, an array of HDF5
        or zarr, or a class of your own. Rows are read in blocks if the collection has `__getitems__`, is an array, or
        gives Arrow columns, and otherwise one by one. `map(..., num_parallel_calls=)` and data workers call it from
        several threads and processes; a data service pickles it.

        A shuffle above it, `skip`, `shard` and resuming read no row that is not needed.

        Args:
            source: a collection whose length does not change; all its rows must be of one structure and dtype. Rows may
                hold anything that NumPy can turn into arrays, such as PyTorch tensors on the CPU.
            mask_nulls: of a dataset of Hugging Face, as for `from_arrow`; True stands for all columns.

        Raises:
            InvalidTypeError: not a collection.
            ElementError: while iterating, rows of different structure or dtype. An exception that the collection raises
                is raised instead of its row, and iterating continues with the next row.

        Example:
            >>> class Squares:
            ...     def __len__(self):
            ...         return 100
            ...     def __getitem__(self, index):
            ...         return {"number": index, "square": index * index}
            >>> next(iter(Dataset.from_source(Squares()).skip(7).batch(2)))
            {'number': array([7, 8]), 'square': array([49, 64])}
        """
        if isinstance(source, Dataset):
            raise InvalidTypeError("from_source(source=...) takes a collection, got a ps.Dataset: use it as it is")
        rows = rows_of(source, mask_nulls)
        return Dataset(Source(source, length_of(source), rows, site=user_site()))

    @staticmethod
    def from_sampler(sampler: Any, data: Any) -> "Dataset[Any]":
        """The rows of `data` at the positions that a sampler of yours draws, for curricula and hard examples.

        The sampler runs in this process, and no further than rows are asked for. What it learns between two rows, as by
        an `observe(positions, values)` that you call on it, changes what it draws next, and is in the state: with the
        positions that were drawn ahead and not consumed. Several ranks draw alike if all tell their samplers the same,
        and read nothing ahead: `ps.InputOptions(per_replica_buffer_size=0)`.

        Args:
            sampler: `iter(sampler)` gives the positions of an epoch, or its rest after `load_state_dict`;
                `state_dict()` gives plain data.
            data: a dataset that is read by index, or what `from_source` takes.

        Raises:
            InvalidTypeError: a sampler without these methods.
            InvalidArgumentError: data that is not read by index.

        Example:
            >>> import penstock as ps
            >>> class Hardest:
            ...     def __init__(self):
            ...         self.losses = [1.0, 1.0, 1.0]
            ...     def __iter__(self):
            ...         while max(self.losses) > 0.5:
            ...             yield self.losses.index(max(self.losses))
            ...     def observe(self, positions, values):
            ...         self.losses[positions] = values
            ...     def state_dict(self):
            ...         return {"losses": list(self.losses)}
            ...     def load_state_dict(self, state):
            ...         self.losses = list(state["losses"])
            >>> sampler = Hardest()
            >>> for letter in ps.Dataset.from_sampler(sampler, ps.Dataset.from_list(["a", "b", "c"])):
            ...     sampler.observe("abc".index(letter), 0.9 if letter == "b" and sampler.losses[1] == 1.0 else 0.1)
            ...     print(letter, end=" ")
            a b c b
        """
        missing = [name for name in ("__iter__", "state_dict", "load_state_dict") if not hasattr(sampler, name)]
        if missing:
            raise InvalidTypeError(
                f"from_sampler(sampler) takes an object with __iter__, state_dict and load_state_dict, got "
                f"{sampler!r:.200} without {missing[0]}: positions that are known before are for select(indices)"
            )
        rows = data if isinstance(data, Dataset) else Dataset.from_source(data)
        rows._check_by_index("from_sampler", "give it the data before this step", ends=True)
        return rows._then(FromSampler(rows.node, sampler, site=user_site()))

    @staticmethod
    def from_list(elements: Sequence[Any]) -> "Dataset[Any]":
        """The elements of a list, which must have one structure; their shapes may differ.

        Raises:
            InvalidTypeError: not a list or a tuple.
            InvalidArgumentError: an empty list, which does not show what its elements are: use `ps.Dataset.range(0)`.
            ElementError: elements of different structure or dtype.

        Example:
            >>> [(int(number), word) for number, word in Dataset.from_list([(1, "one"), (2, "two")])]
            [(1, 'one'), (2, 'two')]
        """
        if not isinstance(elements, (list, tuple)):
            raise InvalidTypeError(
                f"from_list(elements=...) takes a list of elements, got {type(elements).__name__}: "
                "from_tensor_slices takes arrays, from_generator an iterator"
            )
        if not elements:
            raise InvalidArgumentError(
                "from_list(elements=...) takes at least one element, got none: use ps.Dataset.range(0) for no elements"
            )
        try:
            block = Block.of_rows(elements)
        except ElementError as error:
            raise _first_unlike(elements) or ElementError(f"from_list: {error}") from error
        return Dataset(Slices("from_list", block.columns, block.structure, len(block), site=user_site()))

    @staticmethod
    def from_generator(fn: Callable[[], Iterable[Result]], output_signature: Any = None) -> "Dataset[Result]":
        """The elements that `fn()` yields. It is called once per epoch, and runs no further than needed.

        A state counts the elements taken. Restoring it runs the generator again and drops that many, so the generator
        should yield the same elements each time.

        Args:
            fn: called without arguments at the start of an iteration; returns an iterator.
            output_signature: the structure of an element with a `ps.TensorSpec` or `ps.RaggedTensorSpec` for each leaf.
                Elements are checked against it. Python numbers and lists take its dtype if that loses nothing.

        Raises:
            InvalidTypeError: `fn` is not callable, or a signature with other leaves.
            ElementError: while iterating, an element that does not fit the signature.

        Example:
            >>> import penstock as ps
            >>> list(Dataset.from_generator(lambda: iter([1, 2]), output_signature=ps.TensorSpec((), "int64")))
            [np.int64(1), np.int64(2)]
        """
        if not callable(fn):
            raise InvalidTypeError(
                f"from_generator(fn=...) takes a function that makes an iterator, in every epoch a new one, got "
                f"{fn!r:.200}: give the generator function itself, not its result"
            )
        signature = as_signature("from_generator", output_signature)
        return Dataset(Generator(fn, signature, site=user_site()))

    @staticmethod
    def counter(start: int = 0, step: int = 1) -> "Dataset[np.int64]":
        """start, start + step, … without end.

        Raises:
            InvalidTypeError: not integers.
            InvalidArgumentError: a step of 0.

        Example:
            >>> [int(x) for x in Dataset.counter(10, 5).take(3)]
            [10, 15, 20]
        """
        start = check_integer("counter", "start", start, minimum=-(1 << 63))
        step = check_integer("counter", "step", step, minimum=-(1 << 63))
        if step == 0:
            raise InvalidArgumentError("counter(step=...) must not be 0: for one number again and again, repeat it")
        return Dataset(Counter(start, step, site=user_site()))

    @staticmethod
    def random(seed: int | None = None, *, rerandomize_each_iteration: bool = True) -> "Dataset[np.int64]":
        """Random int64 numbers in [0, 2**32) without end.

        Args:
            seed: from which the numbers follow; None draws one.
            rerandomize_each_iteration: give other numbers in each epoch.

        Raises:
            InvalidTypeError: an argument of the wrong type.
            InvalidArgumentError: a negative seed.

        Example:
            >>> first, second = Dataset.random(seed=1), Dataset.random(seed=1)
            >>> [int(x) for x in first.take(3)] == [int(x) for x in second.take(3)]
            True
        """
        seed, drawn = _seed_of_draws("random", seed, "rerandomize_each_iteration", rerandomize_each_iteration)
        return Dataset(Random(seed, rerandomize_each_iteration, drawn=drawn, site=user_site()))

    @staticmethod
    def list_files(
        pattern: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        shuffle: bool | None = None,
        seed: int | None = None,
    ) -> "Dataset[str]":
        """The names of the files that match a pattern, or one of several: sorted, each once.

        The files are listed now, not when the dataset is read. Names are sorted unless `shuffle` is True; TensorFlow
        shuffles by default.

        Args:
            pattern: with `*`, `?`, `[...]`, and `**` for any directories, each of which is gone into once, whatever
                links lead to it; names that begin with a dot are hidden. `~` is an ordinary character. Patterns with a
                protocol, such as "s3://bucket/*.tfrecord", need `pip install 'penstock-data[cloud]'`.
            shuffle: order the names at random, differently in every epoch.
            seed: of that order; without one the dataset's seed is used.

        Raises:
            InvalidArgumentError: no file matches a pattern, an unknown protocol, or a seed without `shuffle=True`.
            InvalidTypeError: not a pattern.
            MissingExtraError: what lists files with the pattern's protocol is not installed.

        Example:
            >>> import pathlib, tempfile
            >>> directory = pathlib.Path(tempfile.mkdtemp())
            >>> for name in ("b.txt", "a.txt", "c.csv"):
            ...     (directory / name).touch()
            >>> [pathlib.Path(name).name for name in Dataset.list_files(directory / "*.txt")]
            ['a.txt', 'b.txt']
        """
        if seed is not None and not shuffle:
            raise InvalidArgumentError("list_files(seed=...) has nothing to order: it needs shuffle=True")
        seed = as_seed("list_files", seed)
        names = matching_files("list_files", pattern)
        node: Node = Listing("list_files", (object_column(names),), LEAF, len(names), site=user_site())
        return Dataset(Shuffle(node, len(names), seed, site=user_site()) if shuffle else node)

    @staticmethod
    def from_image_folder(
        directory: str | os.PathLike[str],
        image_size: tuple[int, int] | None = (256, 256),
        *,
        label_mode: str | None = "int",
        class_names: Sequence[str] | None = None,
        channels: int = 3,
        interpolation: str = "bilinear",
        crop_to_aspect_ratio: bool = False,
        pad_to_aspect_ratio: bool = False,
        validation_split: float | None = None,
        subset: str | None = None,
        seed: int | None = None,
        num_parallel_calls: int | None = AUTOTUNE,
    ) -> "Dataset[Any]":
        """The images of a folder with one folder for each class, as (image, label), in the order of classes and names.

        The files are listed at once. They are read and decoded by index, when their elements are needed: a shuffle
        reorders all images, and workers read only their own. `class_names` of the dataset, or of one made from it, has
        the names of the classes. Files that end in .jpg, .jpeg, .png, .bmp, .gif and .webp are taken.

        Classes, labels and the parts of a `validation_split` are those of Keras's `image_dataset_from_directory`.
        Unlike there, images are uint8, in a fixed order and not batched: use `shuffle` and `batch`.

        Args:
            directory: where the folders of the classes are; it may have a protocol, as "s3://bucket/images".
            image_size: (height, width) of all images, see `ps.image.decode`; None keeps that of each file.
            label_mode: "int": the number of the class, int32. "categorical": one-hot, float32. "binary": [0.0] or
                [1.0], of two classes. None: images alone, of all files below the directory.
            class_names: the folders to read, in the order of their labels; None for all, sorted.
            channels: 1, 3 or 4, as for `ps.image.decode`.
            interpolation: as for `ps.image.resize`.
            crop_to_aspect_ratio: as for `ps.image.resize`.
            pad_to_aspect_ratio: as for `ps.image.resize`.
            validation_split: the share of the files that are for validation.
            subset: "training" or "validation". Call it once for each, with the same seed.
            seed: draws the files for validation.
            num_parallel_calls: threads that read and decode; `ps.AUTOTUNE` for one per core. Remote files gain from
                more threads.

        Raises:
            StorageError: the directory cannot be listed; while iterating, a file cannot be read.
            ElementError: while iterating, a file that is damaged, or not an image. Iterating continues with the next.
            InvalidArgumentError: no classes, no files, or arguments that never work.
            MissingExtraError: simplejpeg or Pillow is not installed.

        Example:
            >>> import pathlib, tempfile
            >>> import numpy as np
            >>> import PIL.Image
            >>> directory = pathlib.Path(tempfile.mkdtemp())
            >>> for number, name in enumerate(["cat/a.png", "cat/b.png", "dog/a.png"]):
            ...     (directory / name).parent.mkdir(exist_ok=True)
            ...     PIL.Image.fromarray(np.full((40, 60, 3), number, np.uint8)).save(directory / name)
            >>> dataset = Dataset.from_image_folder(directory, image_size=(32, 32))
            >>> images, labels = next(iter(dataset.batch(3)))
            >>> images.shape, labels.tolist(), dataset.class_names
            ((3, 32, 32, 3), [0, 0, 1], ['cat', 'dog'])
        """
        call = "from_image_folder"
        request = FolderRequest(
            call, directory, label_mode, class_names, validation_split, subset, seed, num_parallel_calls
        )
        decoding: dict[str, Any] = {
            "size": image_size,
            "interpolation": interpolation,
            "crop_to_aspect_ratio": crop_to_aspect_ratio,
            "pad_to_aspect_ratio": pad_to_aspect_ratio,
        }
        media.images.check_decode(call, channels, "uint8", *decoding.values(), argument="image_size")
        spec = TensorSpec((*(image_size or (None, None)), channels), np.uint8)
        return Dataset(request.node(_IMAGE_ENDINGS, spec, lambda labels: ImageReader(labels, channels, decoding)))

    @staticmethod
    def from_text_folder(
        directory: str | os.PathLike[str],
        *,
        label_mode: str | None = "int",
        class_names: Sequence[str] | None = None,
        max_length: int | None = None,
        encoding: str = "utf-8",
        validation_split: float | None = None,
        subset: str | None = None,
        seed: int | None = None,
        num_parallel_calls: int | None = None,
    ) -> "Dataset[Any]":
        """The texts of a folder with one folder for each class, as (text, label), in the order of classes and names.

        Each file that ends in .txt is one text. Everything else is as in `from_image_folder`; classes, labels
        and the parts of a `validation_split` are those of Keras's `text_dataset_from_directory`.

        Args:
            directory: where the folders of the classes are.
            label_mode: as for `from_image_folder`.
            class_names: as for `from_image_folder`.
            max_length: how many characters of a text are kept; None for all.
            encoding: of the texts, by a name that Python knows.
            validation_split: as for `from_image_folder`.
            subset: as for `from_image_folder`.
            seed: as for `from_image_folder`.
            num_parallel_calls: threads that read; remote files gain from several.

        Raises:
            StorageError: the directory cannot be listed; while iterating, a file cannot be read.
            ElementError: while iterating, a text that is not in the encoding. Iterating continues with the next.
            InvalidArgumentError: no classes, no files, or arguments that never work.

        Example:
            >>> import pathlib, tempfile
            >>> directory = pathlib.Path(tempfile.mkdtemp())
            >>> for name, text in {"bad/1.txt": "Dull.", "good/1.txt": "Fine!", "good/2.txt": "Great!"}.items():
            ...     (directory / name).parent.mkdir(exist_ok=True)
            ...     _ = (directory / name).write_text(text)
            >>> [(text, int(label)) for text, label in Dataset.from_text_folder(directory)]
            [('Dull.', 0), ('Fine!', 1), ('Great!', 1)]
        """
        call = "from_text_folder"
        request = FolderRequest(
            call, directory, label_mode, class_names, validation_split, subset, seed, num_parallel_calls
        )
        if max_length is not None:
            max_length = check_integer(call, "max_length", max_length, minimum=1)
        check_encoding(call, encoding)

        def reader(labels: Labels | None) -> TextReader:
            return TextReader(labels, max_length, encoding)

        return Dataset(request.node((".txt",), TensorSpec((), object), reader))

    @staticmethod
    def timeseries_windows(
        data: Any,
        targets: Any,
        sequence_length: int,
        sequence_stride: int = 1,
        sampling_rate: int = 1,
        start_index: int = 0,
        end_index: int | None = None,
    ) -> "Dataset[Any]":
        """Windows of consecutive rows, each with its target, as (window, target).

        They are those of Keras's `timeseries_dataset_from_array`, but not batched, and read by index: a shuffle
        reorders all windows. The arrays are not copied, and a window is made when it is needed.

        Args:
            data: an array whose first axis is time, or a structure of such arrays; the same for `targets`.
            targets: row i belongs to the window that begins with row i of the data. None for windows alone.
            sequence_length: the number of rows of a window.
            sequence_stride: rows from the beginning of a window to that of the next.
            sampling_rate: rows from one row of a window to the next.
            start_index: the first row to use.
            end_index: the row before which to end; None for the end of the data.

        Raises:
            InvalidArgumentError: no window fits, numbers below 1, or arrays of different lengths.
            InvalidTypeError: not integers.

        Example:
            >>> temperatures = np.arange(10.0, dtype=np.float32)
            >>> windows = Dataset.timeseries_windows(temperatures[:-1], temperatures[3:], sequence_length=3)
            >>> len(windows), [(x.tolist(), float(y)) for x, y in windows.skip(5)]
            (7, [([5.0, 6.0, 7.0], 8.0), ([6.0, 7.0, 8.0], 9.0)])
        """
        call = "timeseries_windows"
        leaves, structure = flatten(data if targets is None else (data, targets))
        count = len(flatten(data)[0])
        arrays = tuple(np.asarray(as_leaf(leaf)) for leaf in leaves)
        rows = _rows_of(call, "data", arrays[:count])
        sequence_length = check_integer(call, "sequence_length", sequence_length, minimum=1)
        sampling_rate = check_integer(call, "sampling_rate", sampling_rate, minimum=1)
        sequence_stride = check_integer(call, "sequence_stride", sequence_stride, minimum=1)
        span = (sequence_length - 1) * sampling_rate
        start = check_integer(call, "start_index", start_index, minimum=0)
        stop = rows if end_index is None else min(rows, check_integer(call, "end_index", end_index, minimum=1))
        beginnings = stop - start - span
        if targets is not None:
            beginnings = min(beginnings, _rows_of(call, "targets", arrays[count:]) - start)
        if beginnings < 1:
            raise InvalidArgumentError(
                f"{call}: a window reaches over {span + 1} rows, and there are {max(0, stop - start)} from start_index "
                f"to end_index{'' if targets is None else ', with targets for some of them'}"
            )
        windows = -(-beginnings // sequence_stride)
        numbers = (windows, start, sequence_length, sequence_stride, sampling_rate)
        return Dataset(TimeseriesWindows(arrays[:count], arrays[count:], structure, *numbers, site=user_site()))

    @staticmethod
    def zip(*datasets: Any) -> "Dataset[Any]":
        """Elements of several datasets together: a tuple of one from each, or any structure whose leaves are datasets.

        Raises:
            InvalidTypeError: a leaf that is not a dataset.

        Example:
            >>> [(int(a), int(b)) for a, b in Dataset.zip(Dataset.range(3), Dataset.range(10, 12))]
            [(0, 10), (1, 11)]
        """
        if len(datasets) == 1 and isinstance(datasets[0], list):
            raise InvalidTypeError(
                "zip takes datasets, or a tuple or a dictionary of them, got a list: write zip(*datasets)"
            )
        members, structure = flatten(datasets[0] if len(datasets) == 1 else datasets)
        nodes = tuple(node_of("zip", member) for member in members)
        if not nodes:
            raise InvalidArgumentError("zip takes at least one dataset, got none")
        return Dataset(Zip(nodes, structure, site=user_site()), options_of("zip", members))

    @staticmethod
    def choose_from_datasets(
        datasets: Sequence["Dataset[Result]"], choice_dataset: "Dataset[Any]", *, stop_on_empty_dataset: bool = True
    ) -> "Dataset[Result]":
        """The next element of the dataset whose number `choice_dataset` gives.

        Args:
            datasets: the datasets, with elements of one kind.
            choice_dataset: their numbers, from 0.
            stop_on_empty_dataset: end when the chosen dataset has ended; otherwise skip such choices.

        Raises:
            InvalidTypeError: not datasets.
            InvalidArgumentError: no datasets.

        Example:
            >>> parts = [Dataset.from_tensors(word).repeat() for word in ("a", "b")]
            >>> [str(x) for x in Dataset.choose_from_datasets(parts, Dataset.range(2).repeat(2))]
            ['a', 'b', 'a', 'b']
        """
        nodes = _members("choose_from_datasets", datasets)
        choice = node_of("choose_from_datasets(choice_dataset=...)", choice_dataset)
        check_flag("choose_from_datasets", "stop_on_empty_dataset", stop_on_empty_dataset)
        chosen = Choose("choose_from_datasets", nodes, choice, stop_on_empty_dataset, site=user_site())
        return Dataset(chosen, options_of("choose_from_datasets", [choice_dataset, *datasets]))

    @staticmethod
    def sample_from_datasets(
        datasets: Sequence["Dataset[Result]"],
        weights: "Sequence[float] | Dataset[Any] | None" = None,
        seed: int | None = None,
        *,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool = True,
    ) -> "Dataset[Result]":
        """Elements of several datasets; each element comes from a dataset drawn at random.

        For named sources in exact shares, by index, which can change during a run, use `Dataset.mix`.

        Args:
            datasets: the datasets, with elements of one kind.
            weights: how often each is drawn, relative to the others; equally often by default. A dataset of such
                weights gives those of each draw, and needs a seed.
            seed: of the draws; without one the dataset's seed is used.
            stop_on_empty_dataset: end when the drawn dataset has ended; otherwise continue with the others.
            rerandomize_each_iteration: draw differently in every epoch.

        Raises:
            InvalidArgumentError: no datasets, another number of weights, a negative one, or none above 0.

        Example:
            >>> ones, twos = Dataset.from_tensors(1).repeat(300), Dataset.from_tensors(2).repeat(300)
            >>> drawn = Dataset.sample_from_datasets([ones, twos], [0.9, 0.1], seed=3).take(100)
            >>> 5 <= sum(int(x) == 2 for x in drawn) <= 15
            True
        """
        call = "sample_from_datasets"
        nodes = _members(call, datasets)
        seed, own = _seed_of_draws(call, seed, "rerandomize_each_iteration", rerandomize_each_iteration)
        check_flag(call, "stop_on_empty_dataset", stop_on_empty_dataset)
        if isinstance(weights, Dataset):
            if seed is None or not rerandomize_each_iteration:
                raise InvalidArgumentError(
                    f"{call}(weights=dataset) takes a seed, from which every epoch draws anew: add seed=..."
                )
            return Dataset.choose_from_datasets(
                datasets, weights.map(_drawn_by, seed=seed), stop_on_empty_dataset=stop_on_empty_dataset
            )
        shares = as_numbers(call, "weights", [1.0] * len(nodes) if weights is None else weights)
        if len(shares) != len(nodes) or not (min(shares) >= 0 and 0 < sum(shares) < float("inf")):
            raise InvalidArgumentError(
                f"{call}(weights=...) takes {len(nodes)} weights, none below 0, not all 0, got {weights}"
            )
        drawn = [(node, share) for node, share in zip(nodes, shares, strict=True) if share > 0]
        choice = Choices(seed, rerandomize_each_iteration, tuple(share for _, share in drawn), drawn=own)
        members = tuple(node for node, _ in drawn)
        sampled = Choose(call, members, choice, stop_on_empty_dataset, draws=True, site=user_site())
        return Dataset(sampled, options_of(call, datasets))

    @staticmethod
    def mix(
        sources: Mapping[str, "Dataset[Result]"],
        weights: Any = None,
        *,
        seed: int = 0,
        unit: str = "elements",
        stop: str = "first",
        max_epochs: Mapping[str, int] | None = None,
    ) -> "Dataset[Result]":
        """Elements of named sources by their weights, each source in its own order.

        After any number of elements, each source has given its share of them within two, however small the share. Over
        sources that are read by index, so is the mixture, unless it counts tokens.

        Args:
            sources: the datasets by name, with elements of one kind. States keep their positions under these names.
            weights: how much each source gives, relative to the others: a dictionary by name, or numbers in the order
                of the sources; equally much by default. In stages, a list of (position, weights), the first at 0.
            seed: of the order in which the sources take turns, which is the same in every epoch.
            unit: what the weights count: "elements"; "tokens", for sources whose lengths are known (`with_lengths`),
                where the source that has given the fewest for its weight comes next, and the positions of stages are
                numbers of tokens; or "batches", for sources of batches, each of which has rows of one source.
            stop: "first" ends when a source has no element for its turn, "all" goes on with the others until all have
                ended, "repeat" begins the next epoch of that source.
            max_epochs: by name, after how many epochs a source ends.

        Raises:
            InvalidTypeError: not datasets by name, elements of different kinds, or weights that are not numbers.
            InvalidArgumentError: no sources, an empty one, an unknown name, a weight that is negative, NaN or missing,
                or only zeros.

        Example:
            >>> web, code = Dataset.range(100), Dataset.range(1000, 1010)
            >>> mixed = Dataset.mix({"web": web, "code": code}, {"web": 3, "code": 1}, stop="repeat")
            >>> [int(x) for x in mixed.take(12)]
            [0, 1, 2, 1000, 3, 4, 5, 1001, 6, 7, 8, 1002]
            >>> int(mixed.at(10**12))
            0
        """
        call = "mix"
        if not isinstance(sources, Mapping):
            raise InvalidTypeError(f"{call}(sources=...) takes a dictionary of datasets by name, got {sources!r:.200}")
        nodes = dict(zip(sources, _members(call, list(sources.values())), strict=True))
        seed = check_integer(call, "seed", seed, minimum=0)
        node = mixed(nodes, weights, seed, unit, stop, max_epochs, user_site())
        return Dataset(node, options_of(call, sources.values()))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Dataset[Any]":
        """The dataset that `save` wrote to `path`, in whatever format: any row is read by its number.

        Raises:
            StorageError: there is no saved dataset, or it is damaged; altered rows raise when they are first read.
            InvalidArgumentError: the path has a protocol.

        Example:
            >>> import pathlib, tempfile
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "squares"
            >>> Dataset.range(4).map(lambda x: x * x).save(path)
            >>> [int(x) for x in Dataset.load(path)]
            [0, 1, 4, 9]
        """
        return Dataset(saving.load.saved_node(path))

    # A function for every element

    def map(
        self,
        fn: Callable[..., Result],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        seed: int | None = None,
        output_signature: Any = None,
        *,
        processes: bool = False,
    ) -> "Dataset[Result]":
        """Call `fn` with every element; the results are the elements.

        A tuple element is unpacked into the arguments. The function may return anything whose leaves are numbers,
        arrays, strings, bytes or lists; Python floats become float32, Python integers int64. All results must have one
        structure and dtype; their shapes may differ.

        Args:
            fn: called once per element, with NumPy values; a layer of `ps.preprocessing`, once for a block of them. A
                random layer of Keras goes in as `ps.preprocessing.random(layer)`, together with `seed`.
            num_parallel_calls: how many calls run at the same time, in threads, whatever steps come before and after;
                elements are read that far ahead. `ps.AUTOTUNE` times the first calls, and uses threads only where they
                gain.
            deterministic: accepted for programs written for tf.data; it changes nothing. Results come in the order of
                the input, and behind a slow call there is room for many others.
            seed: if given, `fn` gets a `numpy.random.Generator` as its last argument, keyed by (seed, epoch, position),
                so that an element gets the same random numbers on any number of threads. Do not use it after the call.
            output_signature: the structure of a result with a `ps.TensorSpec` or `ps.RaggedTensorSpec` for each leaf,
                as for `from_generator`. It makes `element_spec` exact without a call of `fn`. Results are checked
                against it. Python numbers and lists take its dtype if that loses nothing.
            processes: make the `num_parallel_calls` calls in that number of processes, for functions that keep the lock
                of Python's interpreter; AUTOTUNE means one per core. Elements, their order and states are the same.
                `fn` is sent as code if it is of the main program, else by the name of its module; changes that it makes
                there, such as to a list, have no effect here. The processes start and end with each iteration.

        Raises:
            InvalidTypeError: `fn` is not callable, a layer of Keras that draws random numbers by itself, a signature
                with other leaves, or with `processes` an `fn` that cannot be sent to another process.
            InvalidArgumentError: `num_parallel_calls` below 1, a layer that draws random numbers and no `seed`, or
                `processes` without `num_parallel_calls`.
            ElementError: while iterating, a result that does not fit the signature.
            WorkerError: while iterating, a process was killed.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(4).map(lambda x: x * x)]
            [0, 1, 4, 9]
            >>> halves = ps.Dataset.range(4).map(lambda x: [x / 2, 0.5], output_signature=ps.TensorSpec((2,)))
            >>> halves.batch(2).element_spec
            TensorSpec(shape=(2, 2), dtype=float32)
        """
        check_function("map", "fn", fn)
        check_parallel_calls("map", num_parallel_calls)
        if deterministic is not None:
            check_flag("map", "deterministic", deterministic)
        seed = as_seed("map", seed)
        fn = checked_randomness(fn, seed)
        signature = as_signature("map", output_signature)
        if check_flag("map", "processes", processes):
            functions.in_processes.check_processes(fn, num_parallel_calls)
        return self._then(
            Map(self.node, fn, num_parallel_calls, seed, signature, processes=processes, site=user_site())
        )

    def filter(self, predicate: Callable[..., Any]) -> "Dataset[Element]":
        """The elements for which `predicate` is true.

        Raises:
            InvalidTypeError: `predicate` is not callable; while iterating, if it returns something other than one truth
                value.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(6).filter(lambda x: x % 2 == 0)]
            [0, 2, 4]
        """
        return self._then(Filter(self.node, check_function("filter", "predicate", predicate), site=user_site()))

    def flat_map(self, fn: Callable[..., "Dataset[Result]"]) -> "Dataset[Result]":
        """The elements of the datasets that `fn` returns for the elements, one dataset after the other.

        Raises:
            InvalidTypeError: `fn` is not callable; while iterating, if it returns something other than a dataset.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(4).flat_map(ps.Dataset.range)]
            [0, 0, 1, 0, 1, 2]
        """
        return self._then(Interleave(self.node, "flat_map", check_function("flat_map", "fn", fn), site=user_site()))

    def interleave(
        self,
        fn: Callable[..., "Dataset[Result]"],
        cycle_length: int = _CYCLE_LENGTH,
        block_length: int = 1,
        num_parallel_calls: int | None = None,
    ) -> "Dataset[Result]":
        """The elements of several datasets in turn; `fn` makes a dataset of each element.

        `cycle_length` datasets are open at a time, and `block_length` elements are taken from each in turn.

        When a dataset ends, the next one's turn begins at once. When the ended one's turn comes again, `fn` makes a
        dataset of the next input element in its place.

        Args:
            fn: makes a dataset of an element.
            cycle_length: datasets that are open at the same time. The default, and `ps.AUTOTUNE`, is 16 on every
                machine, so that the order does not depend on it.
            block_length: elements taken from a dataset before the next one's turn.
            num_parallel_calls: if given, every open dataset is read ahead by a thread; the order stays the same.

        Raises:
            InvalidTypeError: `fn` is not callable; while iterating, if it returns something other than a dataset.
            InvalidArgumentError: a number below 1.

        Example:
            >>> import penstock as ps
            >>> dataset = ps.Dataset.range(1, 4).interleave(
            ...     lambda x: ps.Dataset.from_tensors(x).repeat(3), cycle_length=2, block_length=2)
            >>> [int(x) for x in dataset]
            [1, 1, 2, 2, 1, 2, 3, 3, 3]
        """
        check_function("interleave", "fn", fn)
        cycle_length = _CYCLE_LENGTH if cycle_length == AUTOTUNE else cycle_length
        cycle_length = check_integer("interleave", "cycle_length", cycle_length, minimum=1)
        block_length = check_integer("interleave", "block_length", block_length, minimum=1)
        check_parallel_calls("interleave", num_parallel_calls)
        return self._then(
            Interleave(self.node, "interleave", fn, cycle_length, block_length, num_parallel_calls, site=user_site())
        )

    def scan(
        self, initial_state: Any, scan_func: Callable[[Any, Any], tuple[Any, Result]], output_signature: Any = None
    ) -> "Dataset[Result]":
        """The outputs of `scan_func(state, element) -> (new state, output)`, the state carried from element to element.

        The carried state is part of the iterator's state, so it should be small.

        Args:
            initial_state: the first state.
            scan_func: gives the next state, and the output.
            output_signature: what an output is, as in `map`.

        Raises:
            InvalidTypeError: `scan_func` is not callable; while iterating, if it does not return a pair.
            ElementError: while iterating, an output that does not fit the signature.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(1, 5).scan(0, lambda total, x: (total + x, total + x))]
            [1, 3, 6, 10]
        """
        check_function("scan", "scan_func", scan_func)
        signature = as_signature("scan", output_signature)
        return self._then(Scan(self.node, initial_state, scan_func, signature, site=user_site()))

    def take_while(self, predicate: Callable[..., Any]) -> "Dataset[Element]":
        """The elements up to the first for which `predicate` is false.

        Raises:
            InvalidTypeError: `predicate` is not callable.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(9).take_while(lambda x: x < 3)]
            [0, 1, 2]
        """
        return self._then(TakeWhile(self.node, check_function("take_while", "predicate", predicate), site=user_site()))

    def ignore_errors(self, *, log: bool = False) -> "Dataset[Element]":
        """The elements without those that raise an exception; these are skipped and counted.

        It catches the errors of all steps before it: after `batch` it skips a whole batch, before it one row. Mistakes
        in the program, such as a `flat_map` function that returns no dataset, are still raised. The iterator's `errors`
        names the skipped elements; `ps.Options(max_errors=...)` limits their number. `ps.Options(on_error="skip")` does
        this for a whole dataset, and keeps the pairs of a `zip` together.

        Args:
            log: whether to log the first 20 elements that are skipped, and at the end their number.

        Raises:
            InvalidTypeError: `log` is not True or False.
            TooManySkippedError: while iterating, more elements failed than `max_errors` allows.

        Example:
            >>> import penstock as ps
            >>> dataset = ps.Dataset.from_tensor_slices(["1", "2", "three", "4"]).map(int).ignore_errors()
            >>> iterator = iter(dataset.batch(2))
            >>> [batch.tolist() for batch in iterator]
            [[1, 2], [4]]
            >>> iterator.errors.count, iterator.errors.rows[0].position
            (1, 2)
        """
        return self._then(IgnoreErrors(self.node, check_flag("ignore_errors", "log", log), site=user_site()))

    def rejection_resample(
        self, class_func: Callable[..., Any], target_dist: Any, initial_dist: Any = None, seed: int | None = None
    ) -> "Dataset[tuple[Any, Element]]":
        """(class, element) pairs, with elements dropped at random so that classes come in given proportions.

        Args:
            class_func: the class of an element, from 0.
            target_dist: the wanted share of each class; they sum to 1.
            initial_dist: the share of each class in the data; estimated from the elements seen so far if it is not
                given.
            seed: of the random decisions.

        Raises:
            InvalidArgumentError: distributions that are negative, of unequal length, or do not sum to 1.

        Example:
            >>> import penstock as ps
            >>> dataset = ps.Dataset.range(1000).rejection_resample(
            ...     lambda x: x % 10 == 0, target_dist=[0.5, 0.5], initial_dist=[0.9, 0.1], seed=1)
            >>> kinds = [int(kind) for kind, x in dataset]
            >>> sum(kinds), 80 < len(kinds) - sum(kinds) < 140
            (100, True)
        """
        check_function("rejection_resample", "class_func", class_func)
        target = _distribution("rejection_resample", "target_dist", target_dist)
        initial = None if initial_dist is None else _distribution("rejection_resample", "initial_dist", initial_dist)
        if initial is not None and len(initial) != len(target):
            raise InvalidArgumentError(
                f"rejection_resample: target_dist has {len(target)} classes, initial_dist has {len(initial)}"
            )
        seed = as_seed("rejection_resample", seed)
        return self._then(RejectionResample(self.node, class_func, target, initial, seed, site=user_site()))

    # Which elements, and in which order

    def shuffle(
        self,
        buffer_size: int | None = None,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
        *,
        clump: int | None = None,
    ) -> "Dataset[Element]":
        """The elements in a random order, none of them more than `buffer_size` - 1 positions early.

        A buffer as large as the dataset gives a full shuffle. If rows can be read by index, only indices move: a full
        shuffle then takes at most 8 bytes per row. The order is a function of (seed, epoch, position).

        Args:
            buffer_size: at least 1; 1 changes nothing. None means the whole dataset, if its rows can be read by index;
                `ps.UNKNOWN_CARDINALITY` means the whole dataset in any case, and over a stream holds all its rows in
                memory.
            seed: of the order; without one the dataset's seed is used.
            reshuffle_each_iteration: a new order in every epoch. If False and there is no seed here or in the dataset's
                options, one is drawn now: all datasets derived from this one have the same order, so that `take` and
                `skip` divide it.
            clump: instead of a buffer, for files whose rows cost much at random, as `explain()` says. The groups of
                rows that are read together, row groups of Parquet and of other formats whole files, come in a random
                order, and the rows of so many groups at a time are mixed. A group is decoded once an epoch if so many
                fit into memory.

        Raises:
            InvalidArgumentError: `buffer_size` below 1; or None over a stream or an endless dataset; `clump` after a
                step that hides which rows are read together.

        Example:
            >>> import penstock as ps
            >>> dataset = ps.Dataset.range(6).shuffle(seed=1)
            >>> [int(x) for x in dataset], [int(x) for x in dataset]
            ([5, 4, 2, 1, 0, 3], [0, 5, 4, 1, 2, 3])
        """
        if clump is not None:
            clump = check_integer("shuffle", "clump", clump, minimum=1)
            self._check_groups(buffer_size)
            buffer_size = EVERYTHING
        if buffer_size is None:
            if not self.node.indexable or self.node.cardinality < 0:
                raise InvalidArgumentError(
                    "shuffle without a buffer_size is for datasets of known length whose rows are read by index, and "
                    f"{self.node.where()} is {'endless' if self.node.indexable else 'a stream'}: give the number of "
                    "rows to hold, shuffle before this step, or say shuffle(ps.UNKNOWN_CARDINALITY) to hold all rows"
                )
            buffer_size = max(1, self.node.cardinality)
        size = EVERYTHING if buffer_size == UNKNOWN_CARDINALITY else buffer_size
        size = check_integer("shuffle", "buffer_size", size, minimum=1)
        seed, drawn = _seed_of_draws("shuffle", seed, "reshuffle_each_iteration", reshuffle_each_iteration)
        kind = Shuffle if clump is None else partial(ClumpedShuffle, clump=clump)
        return self._then(kind(self.node, size, seed, reshuffle_each_iteration, drawn=drawn, site=user_site()))

    def _check_groups(self, buffer_size: int | None) -> None:
        """Refuse `shuffle(clump=...)` where it is unknown which rows are read together."""
        self._check_by_index("shuffle(clump=...)", "shuffle before this step", ends=True)
        if buffer_size is not None:
            raise InvalidArgumentError(f"shuffle takes a buffer_size or a clump, got {buffer_size} and a clump")
        if self.node.group_ends is None:
            raise InvalidArgumentError(
                f"shuffle(clump=...): {self.node.where()} does not say which rows are read together: shuffle before it"
            )

    def repeat(self, count: int | None = None) -> "Dataset[Element]":
        """The dataset's epochs one after the other: `count` of them, or without end (None or -1).

        An epoch without elements ends it. A dataset of unknown length that is repeated without end counts as infinite,
        as in TensorFlow, although it may turn out to be empty; so `take(3)` of it has an unknown length.

        Raises:
            InvalidArgumentError: `count` below -1.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(2).repeat(3)]
            [0, 1, 0, 1, 0, 1]
        """
        times = -1 if count is None else check_integer("repeat", "count", count, minimum=-1)
        return self._then(Repeat(self.node, None if times == -1 else times, site=user_site()))

    def take(self, count: int) -> "Dataset[Element]":
        """The first `count` elements; all of them for -1.

        Raises:
            InvalidArgumentError: `count` below -1.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(9).take(2)]
            [0, 1]
        """
        count = check_integer("take", "count", count, minimum=-1)
        return self._cut(Take, EVERYTHING if count == -1 else count)

    def skip(self, count: int) -> "Dataset[Element]":
        """All elements but the first `count`; none for -1.

        Raises:
            InvalidArgumentError: `count` below -1.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(4).skip(2)]
            [2, 3]
        """
        count = check_integer("skip", "count", count, minimum=-1)
        return self.take(0) if count == -1 else self._cut(Skip, count)

    def _cut(self, kind: type[Take | Skip], count: int) -> "Dataset[Element]":
        """Return one part of the dataset, and warn if each epoch shuffles the rows that `take` and `skip` divide."""
        self._cuts.add((kind, count))
        shuffles = self.node.walk() if {(Take, count), (Skip, count)} <= self._cuts else ()
        for below in shuffles:
            reshuffles = isinstance(below, Shuffle) and below.reshuffle_each_iteration
            if reshuffles and (self.node.varies or below.draws_unseeded):  # each part of a cache draws its own seed
                _logger.warning(
                    "%s changes the order in every epoch before take(%d) and skip(%d) divide the rows, so each row "
                    "reaches both parts in the end: divide first and shuffle the parts, or pass "
                    "reshuffle_each_iteration=False to shuffle",
                    *(below.where(), count, count),
                )
                break
        return self._then(kind(self.node, count, site=user_site()))

    def shard(self, num_shards: int | Hint, index: int | Hint) -> "Dataset[Element]":
        """Every `num_shards`-th element, beginning with element `index`.

        `shard(ps.SHARD_HINT, ps.SHARD_HINT)` marks where `ps.AutoShardPolicy.HINT` shards the dataset for each worker.

        Raises:
            InvalidArgumentError: `num_shards` below 1, or `index` not in [0, num_shards).

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(7).shard(3, 1)]
            [1, 4]
        """
        if num_shards is index is SHARD_HINT:
            return self._then(ShardHint(self.node, site=user_site()))
        if num_shards is SHARD_HINT or index is SHARD_HINT:
            raise InvalidArgumentError(
                f"shard takes ps.SHARD_HINT instead of both numbers or of none, got shard({num_shards!r}, {index!r})"
            )
        num_shards = check_integer("shard", "num_shards", num_shards, minimum=1)
        index = check_integer("shard", "index", index, minimum=0)
        if index >= num_shards:
            raise InvalidArgumentError(f"shard(index=...) must be below num_shards = {num_shards}, got {index}")
        return self._then(Shard(self.node, num_shards, index, site=user_site()))

    def select(self, indices: Any) -> "Dataset[Element]":
        """The elements at these positions, in this order, each as often as its position comes.

        Any row is read by its number, so a shuffle above it is one of all of them. It holds the positions, at most 8
        bytes each; of an array that maps a file, as `numpy.load(path, mmap_mode="r")` gives, those that it reads.

        Args:
            indices: an array or a list of integers, a slice, or a dataset of integers, whose first epoch is read now.

        Raises:
            InvalidTypeError: other positions than integers.
            InvalidArgumentError: a position that is negative or beyond the end, or a dataset that is not read by index.

        Example:
            >>> import penstock as ps
            >>> letters = ps.Dataset.from_tensor_slices(["a", "b", "c", "d"])
            >>> list(letters.select([3, 0, 0])), list(letters.select(slice(None, None, -2)))
            (['d', 'a', 'a'], ['d', 'b'])
        """
        self._check_by_index("select", "select before this step, or filter the elements")
        if isinstance(indices, Dataset):
            indices = indices._first_epoch("select", "indices", "integers")
        return self._then(Select(self.node, checked_rows(self.node, indices), site=user_site()))

    def sample(
        self, weights: Any, num: int | None = None, *, replacement: bool = True, seed: int | None = None
    ) -> "Dataset[Element]":
        """Elements drawn at random in each epoch, with a probability in proportion to their weights.

        Any row is read by its number, at up to 8 bytes a row of memory. Which rows come is a function of seed and
        epoch.

        Args:
            weights: a number of at least 0 for each row: an array, a list, or a dataset, whose first epoch is read now.
                Or the name of a column, or a function of an element: this call then reads all elements once.
            num: how many are drawn in an epoch; by default as many as there are rows, and without replacement as many
                as have a weight above 0.
            replacement: whether a row may come several times in an epoch. If not, each draw is of the rows that are
                left, and an epoch begins with computing its order: a second for ten million rows.
            seed: of the draws; without one the dataset's seed is used.

        Raises:
            InvalidTypeError: weights that are no numbers.
            InvalidArgumentError: a weight that is negative, NaN or infinite, another number of weights than rows, none
                above 0, more draws than rows without replacement, or a dataset that is not read by index, or whose rows
                have other numbers in every epoch.

        Example:
            >>> import penstock as ps
            >>> letters = ps.Dataset.from_tensor_slices(["a", "b", "c"])
            >>> list(letters.sample([0.0, 1.0, 3.0], num=8, seed=1))
            ['c', 'c', 'c', 'c', 'b', 'b', 'b', 'b']
        """
        self._check_by_index("sample", "sample before this step, or use rejection_resample", ends=True)
        # A cache of what is drawn by a given seed has one order.
        for below in self.node.walk(lambda one: () if isinstance(one, Cache) and not one.unseeded else one.inputs):
            if isinstance(below, Sample) or (isinstance(below, Shuffle) and below.reshuffle_each_iteration):
                raise InvalidArgumentError(
                    f"sample(weights=...) has a weight for each row by its number, and {below.where()} gives other "
                    "rows these numbers in every epoch: sample before it"
                )
        if isinstance(weights, str):
            weights = LeafLength(weights, "sample(weights)")
        if callable(weights) and not isinstance(weights, Dataset):
            weights = Dataset(without_guards(self.node)).map(weights)
        if isinstance(weights, Dataset):
            weights = weights._first_epoch("sample", "weights", "numbers")
        check_flag("sample", "replacement", replacement)
        return self._then(sample_of(self.node, weights, num, replacement, as_seed("sample", seed), user_site()))

    def split(
        self, fractions: float | Sequence[float], key: Callable[..., Any] | str | None = None, seed: int | None = None
    ) -> "tuple[Dataset[Element], ...]":
        """Several datasets that share the rows of this one among them, each with its rows in the same order as here.

        By default the parts are of consecutive rows; with a seed, of rows drawn at random, the same in every epoch and
        every run. With a key, all rows with one key are in one part, which depends on nothing but the key, the
        fractions and the seed: rows that are added later change no other row's part, and parts are about as large as
        asked for.

        Args:
            fractions: the share of each part; they sum to 1. A number is the share of the first of two parts.
            key: a function of an element, or the name of a column, that gives a string, bytes or an integer. Over an
                index all rows are read now to find their keys, so split before steps that take long. Over a stream, or
                after a shuffle, each part is a filter.
            seed: of the draws, or of the hash of the keys.

        Raises:
            InvalidTypeError: a key of another type.
            InvalidArgumentError: fractions that do not sum to 1; or, without a key, a dataset that is not read by
                index, or that gives other rows in every epoch.

        Example:
            >>> import penstock as ps
            >>> users = ps.Dataset.from_tensor_slices({"user": ["ann", "bob", "cid", "bob"], "x": [1, 2, 3, 4]})
            >>> train, test = users.split([0.5, 0.5], key="user")
            >>> [int(row["x"]) for row in train], [int(row["x"]) for row in test]
            ([2, 4], [1, 3])
        """
        if isinstance(fractions, (int, float)):
            fractions = [fractions, 1 - fractions]
        shares, seed = _distribution("split", "fractions", fractions), as_seed("split", seed)
        if key is None:
            self._check_by_index("split", "split before this step, or by a key", ends=True)
            if self.node.varies or any(below.draws_unseeded and not below.drawn for below in self.node.walk()):
                raise InvalidArgumentError(
                    f"split divides rows once for all epochs, and {self.node.where()} gives others in every epoch or "
                    "run: split before the steps that draw at random, or by a key; or pass "
                    "reshuffle_each_iteration=False to shuffle"
                )
            parts = parts_by_position(shares, self.node.cardinality, seed)
        else:
            part_of = part_of_key(shares, key if isinstance(key, str) else check_function("split", "key", key), seed)
            if not self.node.indexable or self.node.cardinality < 0 or self.node.varies or self.node.unseeded:
                return tuple(self.filter(lambda *row, own=own: part_of(*row) == own) for own in range(len(shares)))
            keyed = self.with_options(Options(on_error="raise")).map(part_of)  # with a number for every position
            numbers = np.asarray(keyed._first_epoch("split", "key", "keys"), np.uint16)
            parts = parts_of_numbers(len(shares), numbers)
        return tuple(self._then(Select(self.node, rows, site=user_site())) for rows in parts)

    def _first_epoch(self, call: str, name: str, kind: str) -> Any:
        """The elements of the first epoch, which are leaves, as an array."""
        self._check_ends(call)
        with iter(self._then(self.node)) as elements:  # the epochs of this dataset are the user's
            blocks = list(blocks_of(elements))
        if blocks and blocks[0].structure != LEAF:
            raise InvalidTypeError(f"{call}({name}=...) takes a dataset of {kind}, got one of {blocks[0].spec()}")
        return Block.concatenate(blocks).columns[0] if blocks else []

    def _check_by_index(self, call: str, advice: str, *, ends: bool = False) -> None:
        if not self.node.indexable:
            raise InvalidArgumentError(f"{call} reads by index, and {self.node.where()} is a stream: {advice}")
        if ends:
            self._check_ends(call)

    def with_lengths(
        self,
        lengths: Any = None,
        path: str | os.PathLike[str] | None = None,
        *,
        num_parallel_calls: int | None = None,
    ) -> "Dataset[Element]":
        """The same elements, whose lengths `pack` and `mix` then know without reading them.

        Files of tokens (`ps.text.TokenFiles`, Megatron's) know them by themselves. Operators that only choose or order
        elements keep the lengths; `map` forgets them, so put it before.

        Args:
            lengths: None for elements that are arrays; the name of a leaf, which has that length or, if it is an
                integer, is the length; a function of an element; or the lengths: an array, also one that maps a file,
                or a dataset.
            path: a directory in which the lengths are kept, 4 bytes each, with the `fingerprint()` of this dataset.
                The first call reads all elements once, later calls read the lengths. None: this call reads the
                elements, and holds the lengths in memory.
            num_parallel_calls: as of `map`, for reading the elements.

        Raises:
            InvalidArgumentError: another number of lengths than elements, or elements that are not read by number.
            InvalidTypeError: lengths that are no integers.
            ElementError: an element without such a leaf, or whose length is no integer.
            Exception: that of a step which fails, also under `on_error="skip"`, since all elements keep their numbers.
                Give the lengths of such elements as an array, or `pack` without this: then they are skipped.
            StorageError: the lengths at `path` are those of another dataset.

        Example:
            >>> import penstock as ps
            >>> documents = ps.Dataset.from_list([[5, 6, 7], [8], [9, 9]]).with_lengths()
            >>> documents.node.has_lengths, documents.shuffle(seed=1).node.has_lengths
            (True, True)
        """
        bare = without_guards(self.node)
        if not bare.indexable or bare.cardinality < 0:
            raise InvalidArgumentError(
                f"with_lengths: {bare.where()} has no elements by number: put it before that step, or pack without it"
            )
        if isinstance(lengths, Dataset):
            found = lengths
        elif lengths is None or isinstance(lengths, str) or callable(lengths):
            function = lengths if callable(lengths) else LeafLength(lengths)
            found = Dataset(bare).map(function, num_parallel_calls).map(as_length, num_parallel_calls)
            if path is not None:
                found = found.snapshot(path)
            else:
                with iter(found) as numbers:
                    blocks = [block.columns[0] for block in blocks_of(numbers)]
                found = Dataset.from_tensor_slices(np.concatenate([np.empty(0, np.uint32), *blocks]))
        else:
            given = np.asanyarray(lengths)
            found = Dataset.from_tensor_slices(given if given.size else given.astype(np.uint32))
        check_lengths(bare, found.node, found.element_spec)
        return self._then(WithLengths(self.node, found.node, site=user_site()))

    def skip_rows(self, rows: Iterable[Any] = (), *, steps: Iterable[int] = (), how: str = "drop") -> "Dataset[Any]":
        """The elements without those that are made of some rows, or have some numbers; all others as they were.

        Args:
            rows: rows as `rows(step)` gives them: an element that is made of one of them is skipped, in every epoch.
            steps: numbers of elements of this dataset, in every epoch.
            how: "drop": skipped elements do not come, so later ones move up. A state counts them nevertheless: it can
                be restored with other rows and steps, if only `skip_rows` was there before. "mask": all elements come,
                each as a pair with False if it is to be skipped, else True. States are those of a dataset without it.

        Raises:
            InvalidArgumentError: something that is no row, a row that no element is made of as far as is known without
                reading, or another `how`.

        Example:
            >>> import penstock as ps
            >>> letters = ps.Dataset.from_list(["a", "b", "c", "d"]).shuffle(seed=1)
            >>> bad = letters.rows(1)
            >>> list(letters), list(letters.skip_rows(bad))
            (['c', 'b', 'a', 'd'], ['c', 'a', 'd'])
            >>> list(letters.skip_rows(bad, how="mask").batch(2))[0]
            (array(['c', 'b'], dtype=object), array([ True, False]))
        """
        if how not in ("drop", "mask"):
            raise InvalidArgumentError(f'skip_rows(how=...) must be "drop" or "mask", got {how!r}')
        numbers = [check_integer("skip_rows", "steps", step, minimum=0) for step in steps]
        kind = DropRows if how == "drop" else MaskRows
        return self._then(
            kind(self.node, names_of_rows(rows, self.node), np.array(numbers, np.int64), site=user_site())
        )

    def concatenate(self, dataset: "Dataset[Any]", *datasets: "Dataset[Any]") -> "Dataset[Element]":
        """All elements of this dataset, then all of the other, or of the others one after the other.

        Raises:
            InvalidTypeError: not a dataset, or one whose elements have another structure or dtype. If only your
                function determines these and its input can be read by index, it is called with the first element.
            ElementError: while iterating, such elements, if they can be found only by reading a stream.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(2).concatenate(ps.Dataset.range(5, 7))]
            [0, 1, 5, 6]
        """
        others = [as_dataset("concatenate", other) for other in (dataset, *datasets)]
        specs = _specs_of_one_kind("concatenate", [self, *others])
        joined = Concatenate((*_joined(self.node), *(other.node for other in others)), site=user_site())
        found = self._then(joined, options_of("concatenate", [self, *others]))
        found._seen = None  # computed once, not again for each dataset of a chain
        if all(spec is not None for spec in specs):
            with suppress(ElementError):  # axes differ in the one element that was read
                found._seen = reduce(merged_spec, specs)
        return found

    def enumerate(self, start: int = 0) -> "Dataset[tuple[np.int64, Element]]":
        """(position, element) pairs, counted from `start`.

        Raises:
            InvalidTypeError: `start` is not an integer.

        Example:
            >>> import penstock as ps
            >>> [(int(i), str(x)) for i, x in ps.Dataset.from_tensor_slices(["a", "b"]).enumerate(5)]
            [(5, 'a'), (6, 'b')]
        """
        start = check_integer("enumerate", "start", start, minimum=-EVERYTHING)
        return self._then(Enumerate(self.node, start, site=user_site()))

    def assert_cardinality(self, expected_cardinality: int) -> "Dataset[Element]":
        """The same elements, after a check of their number: for a length that you know and penstock cannot.

        The dataset then has a length, so the number of steps is known in advance when it is distributed.

        Args:
            expected_cardinality: the number of elements, or `ps.INFINITE_CARDINALITY`.

        Raises:
            InvalidArgumentError: a number below -1, or the dataset is known to have another length.
            CardinalityError: while iterating, instead of the first element too many, or at the end if some are
                missing; the elements before it are given.

        Example:
            >>> import penstock as ps
            >>> even = ps.Dataset.range(10).filter(lambda x: x % 2 == 0).assert_cardinality(5)
            >>> len(even), len(list(even))
            (5, 5)
        """
        expected = check_integer("assert_cardinality", "expected_cardinality", expected_cardinality, minimum=-1)
        if self.node.cardinality not in (UNKNOWN_CARDINALITY, expected):
            found = "never ends" if self.node.cardinality == INFINITE_CARDINALITY else f"has {self.node.cardinality}"
            wanted = "without end" if expected == INFINITE_CARDINALITY else f"of {expected}"
            raise InvalidArgumentError(f"assert_cardinality: expected elements {wanted}, {self.node.where()} {found}")
        return self._then(AssertCardinality(self.node, expected, site=user_site()))

    def unique(self) -> "Dataset[Element]":
        """Each distinct element once, at its first occurrence.

        All of them are held in memory, and restoring a state reads the input again.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.from_tensor_slices([1, 2, 1, 3, 2]).unique()]
            [1, 2, 3]
        """
        return self._then(Unique(self.node, site=user_site()))

    def cache(self, filename: str | os.PathLike[str] = "") -> "Dataset[Element]":
        """The elements, kept after they are first read: in memory, or in the directory `filename`.

        Over an index, each row is kept when it is first read; over a stream, the rows are kept when a pass reaches the
        end. Every epoch gives the rows of the first, so a shuffle before the cache is frozen: shuffle after it.

        A directory serves later runs, and several processes at once: over an index each reads what the others have
        kept, and what one has kept that is killed is not lost; over a stream one makes the pass, and the others wait.
        The directory knows its dataset, as `snapshot` does, by operators, arguments, code of functions, and arrays.

        Raises:
            StorageError: while iterating, the directory holds rows of another dataset, or cannot be written.

        Example:
            >>> import penstock as ps
            >>> calls = []
            >>> dataset = ps.Dataset.range(3).map(lambda x: (calls.append(x), x)[1]).cache()
            >>> len(list(dataset)), len(list(dataset)), len(calls)
            (3, 3, 3)
        """
        if not isinstance(filename, (str, os.PathLike)):
            raise InvalidTypeError(f"cache(filename=...) takes a path, got {filename!r}")
        return self._then(Cache(self.node, local_path(filename), rows=CachedRows(self.node), site=user_site()))

    def prefetch(self, buffer_size: int = AUTOTUNE) -> "Dataset[Element]":
        """The same elements; a thread prepares up to `buffer_size` of them in advance.

        Args:
            buffer_size: elements to prepare; 0 means none, `ps.AUTOTUNE` two blocks, whose size follows the cost of the
                elements.

        Raises:
            InvalidArgumentError: `buffer_size` below -1.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(3).prefetch(2)]
            [0, 1, 2]
        """
        size = check_integer("prefetch", "buffer_size", buffer_size, minimum=AUTOTUNE)
        return self._then(Prefetch(self.node, size, site=user_site()))

    # Elements put together and taken apart

    def batch(
        self, batch_size: int, drop_remainder: bool = False, num_parallel_calls: int | None = None
    ) -> "Dataset[Any]":
        """`batch_size` consecutive elements stacked along a new leading axis; the last batch may be shorter.

        Args:
            batch_size: rows of a batch.
            drop_remainder: leave a shorter last batch out.
            num_parallel_calls: threads that copy the rows of one batch together, for instance after a shuffle, which
                gathers them from all over an array; `ps.AUTOTUNE` for one per core. Use it for batches of many
                megabytes; a batch below one megabyte is copied by one thread.

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
            padding_values: the values to pad with, for all leaves or in the structure of the elements; 0, "" or b"" by
                default.
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

    def batch_by(
        self,
        budget: float,
        size: Callable[..., Any] | str | None = None,
        max_rows: int | None = None,
        multiple_of: int = 1,
        *,
        padded_shapes: Any = None,
        padding_values: Any = None,
    ) -> "Dataset[Any]":
        """Batches of as many consecutive elements as fit into a budget, such as tokens of a step on all ranks together.

        Elements are padded as by `padded_batch`. The rows of a batch depend on sizes alone, never on the ranks.

        With the lengths that `with_lengths` knows, and one order in all epochs, batches are read by number: shuffle,
        shard and resume them like any others. The call plans them all, some million elements a second.

        Args:
            budget: the most that the elements of a batch may have in sum.
            size: a function of an element: a number of at least 0, such as `len`. Or the name of a column: its value,
                or the length of an array. None: the lengths of the elements, which are known without reading.
            max_rows: the most elements of a batch.
            multiple_of: the number of rows of a batch is a multiple of it, but for the last one and one before an
                element that fails. Take a number that all your numbers of ranks divide.
            padded_shapes: as for `padded_batch`.
            padding_values: as for `padded_batch`.

        Raises:
            InvalidArgumentError: a budget that is not above 0, numbers below 1 or that do not fit each other, or no
                size and no lengths.
            ElementError: an element that is larger than the budget, or a size that is NaN or negative: at the call
                where batches are read by number, otherwise while iterating.

        Example:
            >>> import penstock as ps
            >>> rows = ps.Dataset.from_list([[1, 1, 1], [2], [3, 3], [4, 4, 4, 4, 4]])
            >>> [batch.shape for batch in rows.batch_by(6, len)]
            [(3, 3), (1, 5)]
            >>> rows.with_lengths().batch_by(6)[1].tolist()
            [[4, 4, 4, 4, 4]]
        """
        if not 0 < budget < float("inf"):
            raise InvalidArgumentError(f"batch_by(budget=...) must be a number above 0, got {budget!r}")
        multiple = check_integer("batch_by", "multiple_of", multiple_of, minimum=1)
        most = EVERYTHING // multiple * multiple
        if max_rows is not None and (most := check_integer("batch_by", "max_rows", max_rows, minimum=1)) % multiple:
            raise InvalidArgumentError(f"batch_by(max_rows={most}) must be a multiple of multiple_of={multiple}")
        site = user_site()
        sized = self._with_costs(self.node, "batch_by(size)", size, site)
        padding = {"padded_shapes": padded_shapes, "padding_values": padding_values}
        node = BatchBy(sized, most, **padding, budget=budget, multiple_of=multiple, site=site)
        node.cardinality  # noqa: B018  # plans all batches, so that an element that is too large is an error here
        return self._then(node)

    def balance(
        self, cost: Callable[..., Any] | str | None = None, slices: int | None = None, window: int = 1
    ) -> "Dataset[Any]":
        """The same batches, each with its rows in an order in which consecutive slices cost alike.

        It follows `batch`, `padded_batch`, `ragged_batch`, or `batch_by`, whose sizes then are the costs. Each slice
        keeps its number of rows, so ranks that get the slices of a batch finish at the same time.

        Args:
            cost: a function of a row, before rows are put together: a number of at least 0, or several, such as those
                of an encoder and a decoder. Or the name of a column: its value, or the length of an array. Each worker
                then reads all rows of a batch. None: the lengths of the rows, which `with_lengths` knows without
                reading.
            slices: how many; None: those for the replicas in sync of whatever distributes the dataset. Below a data
                service, and for micro-batches, give the number: halves of the slices cost alike too, then their halves.
            window: of this many batches the rows are also divided among the batches, so that steps cost alike. Which
                rows are in a batch depends on the window and the costs only, never on the number of ranks.

        Raises:
            InvalidArgumentError: elements that are no batches, more slices than rows, or no cost and no lengths.
            ElementError: while iterating, a cost that is NaN, negative or infinite.

        Example:
            >>> import penstock as ps
            >>> texts = ps.Dataset.from_list(["aaaaaaa", "bbbbb", "cc", "d"]).batch(4).balance(len, slices=2)
            >>> list(texts)
            [array(['aaaaaaa', 'd', 'bbbbb', 'cc'], dtype=object)]
        """
        batch = without_guards(self.node)
        if not isinstance(batch, Batching):
            raise InvalidArgumentError(
                f"balance follows batch, padded_batch, ragged_batch or batch_by, and here follows {batch.where()}"
            )
        if slices is not None and check_integer("balance", "slices", slices, minimum=1) > batch.batch_size:
            raise InvalidArgumentError(
                f"balance(slices={slices}) of batches of {batch.batch_size} rows leaves slices without a row: make "
                "larger batches, or fewer slices"
            )
        window, site = check_integer("balance", "window", window, minimum=1), user_site()
        rule = None if slices is None else SliceRule(slices)
        if isinstance(batch, BatchBy):
            if cost is not None or window > 1:
                raise InvalidArgumentError(
                    f"balance() after {batch.where()} takes its sizes as costs, a batch at a time: leave cost and "
                    "window out, or balance batches of one number of rows"
                )
            return self._then(replace(batch, slices=slices, balances=True, rule=rule))
        rows = replace(self._with_costs(batch.input, "balance(cost)", cost, site), divides=window > 1)
        balance = Balance(rows, batch.batch_size, slices, window, rule=rule, site=site)
        return self._then(replace(batch, input=balance))

    @staticmethod
    def _with_costs(rows: Node, call: str, cost: Any, site: str) -> WithCosts | WithKnownSizes:
        """Return pairs of rows and what they cost; `call` names the argument. None: their lengths, which are known."""
        name, argument = call.rstrip(")").split("(")
        if cost is None and (bare := without_guards(rows)).has_lengths:
            return WithKnownSizes(bare, call=name, site=site)
        if cost is None:
            raise InvalidArgumentError(
                f"{name}() has no lengths of the rows of {rows.where()}: give a function of a row as {argument}=..., "
                "or call with_lengths() before the rows are read"
            )
        function = LeafLength(cost, call) if isinstance(cost, str) else check_function(name, argument, cost)
        return WithCosts(rows, function, call=call, site=site)

    def ragged_batch(self, batch_size: int, *, drop_remainder: bool = False) -> "Dataset[Any]":
        """`batch_size` consecutive elements; a leaf with axes becomes an object array with one array per row.

        Args:
            batch_size: rows of a batch.
            drop_remainder: leave a shorter last batch out.

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

        Where all elements are read by index and known to have one number of rows, rows are read by index too: after
        `batch`, of arrays, and after a `map` whose `output_signature` gives the number.

        Raises:
            ElementError: while iterating, a leaf without axes, or leaves of unequal length.

        Example:
            >>> import numpy as np
            >>> import penstock as ps
            >>> patches = ps.TensorSpec((2, 8), np.uint8)
            >>> volumes = ps.Dataset.range(3).map(lambda x: np.full((2, 8), x, np.uint8), output_signature=patches)
            >>> [int(row[0]) for row in volumes.unbatch().shuffle(seed=1)]
            [2, 2, 1, 0, 0, 1]
        """
        return self._then(Unbatch(self.node, site=user_site()))

    def rebatch(self, batch_size: int | Sequence[int], *, drop_remainder: bool = False) -> "Dataset[Element]":
        """The rows of batches, in batches of another size; several sizes are used in turn.

        New batches may span the borders of the old ones.

        Args:
            batch_size: rows of a new batch, or a list of such numbers.
            drop_remainder: drop a last batch that is shorter than its size.

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

    def pack(
        self,
        length: int,
        how: str = "best_fit",
        window: int = 4096,
        too_long: str = "error",
        max_segments: int | None = None,
        align: int = 1,
        *,
        carry: Sequence[str] = (),
        padding_values: Any = 0,
        mask_borders: bool = False,
        cu_seqlens: bool = False,
    ) -> "Dataset[dict[str, Any]]":
        """Documents of tokens in rows of one length, as dictionaries.

        An element is an array of tokens, which a row names "tokens", or a dictionary: all leaves with axes are packed
        along the first, and must have one length in a document. A row also has "segment_ids" (1 for the tokens of its
        first document, 2 for those of the second; 0 is padding), "positions", which begin at 0 with each document, and
        "loss_mask", false in padding. BOS and EOS are tokens of the documents.

        If the lengths are known without reading (`with_lengths`, `ps.text.TokenFiles`) and all epochs have one order,
        rows are read by number: shuffle, shard and resume them like any others. The call plans all windows, about a
        million documents a second. Otherwise it is a stream, whose state is the beginning of a window.

        Args:
            length: of a row.
            how: "best_fit" puts the longest documents of a window first, each into the fullest row with room for it;
                "first_fit" takes them in order, each into the first row with room. "concat_split" puts all documents
                one after the other, and cuts where a row ends; only the last row has padding.
            window: the documents that are planned together.
            too_long: a document longer than a row is an error, or is "split", "truncate"d or "drop"ped; "concat_split"
                splits them anyway.
            max_segments: the most documents in a row, or parts of them. Carried leaves and `cu_seqlens` then have one
                shape.
            align: a document begins at a multiple of this number in its row, with padding before it.
            carry: the names of leaves that are not packed, such as images. Like leaves without axes, a row has one of
                them for each segment, in an array; of arrays an object array, as `ragged_batch` has it.
            padding_values: the value of padding in all packed leaves, or a dictionary of them by name.
            mask_borders: whether "loss_mask" is false at the last token of each document too, whose next token is one
                of another document.
            cu_seqlens: adds "cu_seqlens": where each segment begins, and from the end of the last one on `length`:
                padding is a segment of its own. With `max_segments` it has `max_segments + 2` entries.

        Raises:
            InvalidArgumentError: arguments that do not go together.
            ElementError: a document that is empty, longer than a row, or has another length than is known. The call
                raises it where lengths are known, otherwise iterating does.

        Example:
            >>> import penstock as ps
            >>> documents = ps.Dataset.from_list([[5, 6, 7], [8, 8], [9], [4, 4]])
            >>> for row in documents.pack(4):
            ...     print(row["tokens"], row["segment_ids"], row["positions"])
            [5 6 7 9] [1 1 1 2] [0 1 2 0]
            [8 8 4 4] [1 1 2 2] [0 1 0 1]
        """
        packing = Packing(
            check_integer("pack", "length", length, minimum=1),
            how,
            check_integer("pack", "window", window, minimum=1),
            too_long,
            None if max_segments is None else check_integer("pack", "max_segments", max_segments, minimum=1),
            check_integer("pack", "align", align, minimum=1),
        )
        check_flag("pack", "mask_borders", mask_borders)
        check_flag("pack", "cu_seqlens", cu_seqlens)
        if isinstance(carry, str):
            raise InvalidTypeError(f"pack(carry=...) takes names of leaves in a list, got the string {carry!r}")
        rows = PackedRows(packing, tuple(carry), padding_values, mask_borders, cu_seqlens)
        node = Pack(self.node, rows, site=user_site())
        if self.node.spec is not None:
            rows.spec(self.node.spec)
        if node.indexable:
            node.identity  # noqa: B018  # plans all windows, so that a document that cannot be packed is an error here
        return self._then(node)

    def window(
        self, size: int, shift: int | None = None, stride: int = 1, *, drop_remainder: bool = False
    ) -> "Dataset[Any]":
        """Datasets of `size` elements that are `stride` apart.

        A new one begins every `shift` elements (by default `size`).

        If elements have several leaves, a window has their structure, with a dataset for each leaf.

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
        return self._then(Window(self.node, size, shift, stride, drop_remainder, self._of_block, site=user_site()))

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[[Any, Any], Any],
        window_size: int | None = None,
        window_size_func: Callable[[Any], Any] | None = None,
    ) -> "Dataset[Any]":
        """Elements of equal key, collected in windows.

        The result has the elements of `reduce_func(key, window)`, a dataset made of each window.

        A full window is processed at once; at the end of the input, the incomplete windows follow in the order of their
        keys.

        Args:
            key_func: returns the integer key of an element.
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
            size: Any = check_integer("group_by_window", "window_size", window_size, minimum=1)
        else:
            size = check_function("group_by_window", "window_size_func", window_size_func)
        return self._then(
            GroupByWindow(
                self.node,
                key_func,
                size,
                reduce_func,
                dataset_of=self._of_block,
                site=user_site(),
            )
        )

    def group_by_reducer(self, key_func: Callable[..., Any], reducer: Reducer) -> "Dataset[Any]":
        """One element for each key, in the order of the keys: the reducer's result for all elements of that key.

        The first element comes after the input has ended. The states of all keys are held in memory; restoring a state
        reads the input again.

        Args:
            key_func: returns the integer key of an element.
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
        self._check_ends("group_by_reducer")
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
        """Batches of elements of similar length: bucket i has lengths from boundary i - 1 up to, excluding, boundary i.

        A full bucket becomes a padded batch at once; at the end of the input, the others follow in the order of the
        buckets.

        Args:
            element_length_func: the length of an element.
            bucket_boundaries: k rising lengths.
            bucket_batch_sizes: the k + 1 batch sizes.
            padded_shapes: as in `padded_batch`.
            padding_values: as in `padded_batch`.
            pad_to_bucket_boundary: pad to the bucket's boundary - 1 instead of the longest row; an element that is too
                long for the last boundary is an error. This pads the axes that `padded_shapes` leaves open; without
                `padded_shapes`, the axes that are None in `element_spec`, or, for results of a user's function, those
                that have the element's length and those that differ among the elements read so far.
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

        return self._then(
            Bucket(
                self.node,
                element_length_func,
                sizes,
                boundaries,
                drop_remainder,
                padded_shapes,
                padding_values,
                no_padding,
                bounded=pad_to_bucket_boundary and not no_padding,
                site=user_site(),
            )
        )

    # Settings

    def apply(self, transformation: Callable[["Dataset[Element]"], Result]) -> Result:
        """Return `transformation(self)`, which must be a dataset.

        Raises:
            InvalidTypeError: not a function, or one that returns something else.

        Example:
            >>> [int(x) for x in Dataset.range(4).apply(lambda dataset: dataset.skip(2))]
            [2, 3]
        """
        result: Result = check_function("apply", "transformation", transformation)(self)
        if not isinstance(result, Dataset):
            advice = "does it lack a `return`?" if result is None else "it must return a ps.Dataset"
            raise InvalidTypeError(
                f"apply(transformation=...): {describe(transformation)} returned {result!r:.200}: {advice}"
            )
        return result

    def with_options(self, options: Options) -> "Dataset[Element]":
        """The same dataset with these options; options that are None keep their value.

        They apply to the whole dataset, to steps before and after, and to datasets that `zip`, `concatenate`,
        `choose_from_datasets` and `sample_from_datasets` make of it. If two of these set an option differently, the
        last one wins, and a warning is logged. Datasets inside `flat_map` or `interleave` keep their own options.

        Raises:
            InvalidTypeError: not `ps.Options`.

        Example:
            >>> import penstock as ps
            >>> seeded = ps.Dataset.range(4).shuffle(4).with_options(ps.Options(seed=1))
            >>> list(seeded) == list(ps.Dataset.range(4).shuffle(4).with_options(ps.Options(seed=1)))
            True
        """
        if not isinstance(options, Options):
            raise InvalidTypeError(f"with_options takes ps.Options, got {options!r}")
        return Dataset(self.node, merged_options(self._options, options))

    # Reading, and properties known in advance

    def __iter__(self) -> DatasetIterator[Element]:
        return DatasetIterator(self._planned, self._iterations, lambda: self.element_spec)

    def as_numpy_iterator(self) -> DatasetIterator[Element]:
        """The same as `iter(dataset)`, whose elements are NumPy arrays.

        Example:
            >>> import penstock as ps
            >>> list(ps.Dataset.range(2).as_numpy_iterator())
            [np.int64(0), np.int64(1)]
        """
        return self.__iter__()

    def get_single_element(self) -> Element:
        """The only element of a dataset.

        Raises:
            InvalidArgumentError: there is none, or more than one.

        Example:
            >>> import penstock as ps
            >>> ps.Dataset.range(4).batch(4).get_single_element()
            array([0, 1, 2, 3])
        """
        if self.node.cardinality not in (1, UNKNOWN_CARDINALITY):
            count = "no end" if self.node.cardinality == INFINITE_CARDINALITY else f"{self.node.cardinality} elements"
            raise InvalidArgumentError(f"get_single_element: {self.node.where()} has {count}, not one element")
        with iter(self) as iterator:
            found: list[Element] = list(islice(iterator, 1 if self.node.cardinality == 1 else 2))
        if len(found) != 1:
            count = "more than one element" if found else "no element"
            raise InvalidArgumentError(f"get_single_element: {self.node.where()} has {count}")
        return found[0]

    def at(self, index: int) -> Element:
        """The element at a position of the first epoch, read by index, without reading the elements before it.

        Raises:
            InvalidTypeError: not an integer.
            InvalidArgumentError: a position outside of the dataset, or a dataset that can only be read in order.

        Example:
            >>> import penstock as ps
            >>> ps.Dataset.range(10).map(lambda x: x * x).at(9)
            np.int64(81)
        """
        position = check_integer("at", "index", index, minimum=0)
        node = self._planned.plan.root
        while isinstance(node, Prefetch):
            node = node.input
        if not node.indexable:
            stream = next(below for below in node.walk() if not below.indexable)
            raise InvalidArgumentError(
                f"at(index=...) reads by index, and {stream.where()} is read in order: use "
                f".skip({position}).take(1).get_single_element()"
            )
        if node.cardinality != INFINITE_CARDINALITY and position >= node.cardinality:
            raise InvalidArgumentError(
                f"at(index=...) must be below the {node.cardinality} elements of {self.node.where()}, got {position}"
            )
        threads = Threads()
        try:
            run = Run(node, self._iterations.seed, threads, seeded=self._iterations.seeded)
            element: Element = next(node.read(run, 0, range(position, position + 1)).rows())
            return element
        finally:
            threads.stop()
            threads.join()

    def rows(self, step: int, *, epoch: int = 0) -> list[Row]:
        """The rows of sources of which an element is made, each with its `source`, `file` and `row`, in their order.

        They are worked out from the number of the element; nothing is read. Rows of a stream, such as a `filter`, are
        known by reading only: then `source` is that stream, and `row` the number of its element.

        Args:
            step: the number of the element in its epoch, from 0: of a step, if the elements are batches.
            epoch: the number of the epoch, from 0. The order of an unseeded shuffle is that of this dataset's own
                iterations.

        Raises:
            InvalidTypeError: not an integer.
            InvalidArgumentError: a number outside of the dataset.

        Example:
            >>> import penstock as ps
            >>> batches = ps.Dataset.from_list(["a", "b", "c", "d"]).shuffle(seed=1).batch(2)
            >>> batches.at(1), [row.row for row in batches.rows(1)]
            (array(['a', 'd'], dtype=object), [0, 3])
        """
        position = check_integer("rows", "step", step, minimum=0)
        epoch = check_integer("rows", "epoch", epoch, minimum=0)
        root = self._planned.plan.root
        if 0 <= root.cardinality <= position:
            raise InvalidArgumentError(
                f"rows(step=...) must be below the {root.cardinality} elements of {self.node.where()}, got {position}"
            )
        seeds = self._iterations
        run = Run(root, seeds.seed, Threads(), seeded=seeds.seeded, epoch=epoch)
        return rows_made_of(root, run, epoch, position)

    def save(
        self,
        path: str | os.PathLike[str],
        format: str = "penstock",
        shards: int | None = None,
        *,
        rows_per_shard: int | None = None,
    ) -> None:
        """Write the elements of one iteration to the directory `path`, which appears when it is complete.

        `ps.Dataset.load(path)` gives them back unchanged, by index; other programs can read the files too. Shards are
        written in several threads if rows can be read by index and every `map` has `num_parallel_calls`. On a terminal,
        a bar shows the progress.

        A save that was killed leaves `<path>.unfinished`. The same call then continues after the complete shards, if
        the dataset has the same `fingerprint()`; otherwise it begins again.

        Args:
            path: a local directory.
            format: "penstock" holds every kind of element, and is read by memory map. "parquet", "npy", "megatron"
                (documents of tokens), "tfrecord" (elements of several leaves as `tf.train.Example`), "array_record"
                (the same; needs the extra `array-record`) and "tar" (WebDataset) are formats of other programs.
            shards: the number of files, whose numbers of rows differ by at most one. None: one per 128 MiB or so.
            rows_per_shard: instead of `shards`: the rows of each file but the last. It works for datasets of unknown
                length too.

        Raises:
            InvalidArgumentError: the dataset never ends; no such format; `shards` of a dataset of unknown length.
            InvalidTypeError: elements that the format cannot hold.
            ElementError: rows whose structure or dtype differs from the first.
            StorageError: `path` exists, another process is writing it, or it cannot be written.

        Example:
            >>> import pathlib, tempfile
            >>> import penstock as ps
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "words"
            >>> ps.Dataset.from_tensor_slices({"word": ["rose", "violet"]}).save(path, format="parquet", shards=2)
            >>> list(ps.Dataset.load(path))
            [{'word': 'rose'}, {'word': 'violet'}]
            >>> sorted(file.name for file in path.glob("*.parquet"))
            ['part-00000.parquet', 'part-00001.parquet']
        """
        directory = saving.save.SaveRequest.checked_path("save", path)
        save_dataset(self, saving.save.SaveRequest("save", directory, format, shards, rows_per_shard))

    def snapshot(
        self, path: str | os.PathLike[str], format: str = "penstock", shards: int | None = None
    ) -> "Dataset[Element]":
        """The elements of one iteration: the first call saves them in the directory `path`, later calls load them.

        The call returns when everything is written. Then any row is read by its number, however it was made, and every
        epoch gives the same rows: shuffle after it. Several processes may call it at the same time: one writes, the
        others wait. If it was killed, the next call continues after the complete shards.

        The pipeline is identified by its `fingerprint()`: operators, arguments, code of functions, arrays and options.
        The content of files that functions and readers read is not part of it.

        Args:
            path: a local directory.
            format: as for `save`.
            shards: as for `save`.

        Raises:
            StorageError: another pipeline has made the snapshot, something else is at the path, or it cannot be
                written.
            InvalidTypeError: something in the pipeline exists in this process only, so that no other process can
                recognise it; elements that the format cannot hold.
            InvalidArgumentError: as `save`.

        Example:
            >>> import pathlib, tempfile
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "squares"
            >>> def squares():
            ...     return Dataset.range(4).map(lambda x: x * x).filter(lambda x: x != 4).snapshot(path)
            >>> [int(x) for x in squares()], len(squares()), squares().at(2)
            ([0, 1, 9], 3, np.int64(9))
        """
        directory = saving.save.SaveRequest.checked_path("snapshot", path)

        def save(made_by: MadeBy) -> None:
            save_dataset(self, saving.save.SaveRequest("snapshot", directory, format, shards, None, made_by))

        saving.save.make_snapshot(directory, self.node, self._options, save)
        return self._then(Dataset.load(directory).node)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """The last state of `reduce_func(state, element)`, carried from element to element.

        Args:
            initial_state: the first state, and the result of an empty dataset.
            reduce_func: gives the next state.

        Raises:
            InvalidTypeError: not a function, or one that returns a state of another structure, or objects for numbers.
            InvalidArgumentError: the dataset never ends.

        Example:
            >>> import penstock as ps
            >>> ps.Dataset.range(5).reduce(0, lambda total, x: total + x)
            np.int64(10)
        """
        check_function("reduce", "reduce_func", reduce_func)
        self._check_ends("reduce")
        state = map_structure(as_leaf, initial_state)
        kind = _kind_of_state(state)
        with iter(self) as iterator:
            for element in iterator:
                state = map_structure(as_leaf, reduce_func(state, element))
                if (found := _kind_of_state(state)) != kind:
                    (shown, kinds), (first, before) = found, kind
                    raise InvalidTypeError(
                        f"reduce(reduce_func) must return a state like {first.shown(before)}, got "
                        f"{shown.shown(kinds)}{': does it lack a `return`?' if state is None else ''}"
                    )
        return state

    def _check_ends(self, call: str) -> None:
        if self.node.cardinality == INFINITE_CARDINALITY:
            raise InvalidArgumentError(f"{call}: {self.node.where()} never ends: put .take(count) before {call}")

    @property
    def element_spec(self) -> Any:
        """The structure of an element with a `ps.TensorSpec` for each leaf.

        A length that differs from element to element is None; a leaf whose rows differ in shape has a
        `ps.RaggedTensorSpec`.

        It mostly follows from the construction, without reading anything. If only a user's function determines it
        (`map`, `scan`, `flat_map` and others, a generator without a signature), the function is called once, with the
        first element, and the result is marked by `~`: other elements may have other lengths. `output_signature` makes
        it exact.

        Raises:
            ElementError: a function would have to be called, and there is no element to call it with.

        Example:
            >>> import penstock as ps
            >>> ps.Dataset.range(10).batch(4).element_spec
            TensorSpec(shape=(None,), dtype=int64)
            >>> ps.Dataset.range(10).map(lambda x: [x, x]).batch(5).element_spec
            TensorSpec(shape=(5, ~2), dtype=~int64)
        """
        return element_spec(self.node)

    @cached_property
    def _seen(self) -> Any:
        """The specification of the elements; None if it is unknown without reading a stream, or if reading fails."""
        try:
            return self.element_spec if tells_by_index(self.node) else None
        except failures():  # no elements, or a function that fails at the first: reading raises that error
            return None

    def cardinality(self) -> int:
        """The number of elements of an epoch, or `ps.INFINITE_CARDINALITY`, or `ps.UNKNOWN_CARDINALITY`.

        Example:
            >>> import penstock as ps
            >>> ps.Dataset.range(10).batch(4).cardinality(), ps.Dataset.range(10).filter(bool).cardinality()
            (3, -2)
        """
        return self.node.cardinality

    def __len__(self) -> int:
        """The number of elements; a TypeError where it is infinite or unknown."""
        if self.node.cardinality < 0:
            why = (
                "it never ends"
                if self.node.cardinality == INFINITE_CARDINALITY
                else "it is unknown before all is read; if you know it, add .assert_cardinality(n)"
            )
            raise InvalidTypeError(f"{self.node.where()} has no length: {why}")
        return self.node.cardinality

    @overload
    def __getitem__(self, index: int) -> Element: ...
    @overload
    def __getitem__(self, index: slice) -> "Dataset[Element]": ...
    def __getitem__(self, index: int | slice) -> "Element | Dataset[Element]":
        """With a number what `at` gives; with a slice the dataset that `skip`, `take` and `shard` give.

        Negative numbers count from the end of a finite dataset.

        Raises:
            IndexError: the dataset has no element of this number.
            InvalidTypeError: neither a number nor a slice.
            InvalidArgumentError: a number of a dataset that can only be read in order, or a slice that goes backwards.

        Example:
            >>> dataset = Dataset.range(100).map(lambda x: x * x).batch(10)
            >>> dataset[1].tolist()[:3], dataset[-1].tolist()[-1], len(dataset[2:5])
            ([100, 121, 144], 9801, 3)
        """
        if isinstance(index, slice):
            return self._between(index)
        try:
            number = check_integer("dataset[...]", "index", index, minimum=-(1 << 63))
        except InvalidTypeError:
            raise InvalidTypeError(
                f"dataset[...] takes a number or a slice, got {index!r:.200}: map(lambda row: row[name]) gives a "
                "column, select(numbers) gives rows by their numbers"
            ) from None
        length = self.node.cardinality
        position = number + length if number < 0 <= length else number
        if position < 0 or 0 <= length <= position:
            raise IndexError(f"dataset[{number}]: {self.node.where()} has {length} elements")
        return self.at(position)

    def _between(self, part: slice) -> "Dataset[Element]":
        start, stop, step = (
            default if bound is None else check_integer("dataset[...]", name, bound, minimum=-(1 << 63))
            for name, bound, default in (("start", part.start, 0), ("stop", part.stop, -1), ("step", part.step, 1))
        )
        if step < 1:
            raise InvalidArgumentError(f"dataset[...] takes a slice that goes forward, got a step of {step}")
        if start < 0 or (part.stop is not None and stop < 0):
            start, stop, _ = slice(start, part.stop).indices(len(self))
        chosen = self.skip(start) if start else self
        if part.stop is not None:
            chosen = chosen.take(max(0, stop - start))
        return chosen.shard(step, 0) if step > 1 else chosen

    def __bool__(self) -> bool:
        return True

    @property
    def class_names(self) -> list[str]:
        """The names of the classes, in the order of their labels, of the folder that this dataset reads.

        Raises:
            InvalidArgumentError: it is not made by `from_image_folder` or `from_text_folder` with labels, or reads
                folders of different classes.
        """
        return class_names_of(self.node)

    def fingerprint(self) -> str:
        """A digest of everything that this dataset is made of: operators, arguments, functions, arrays and options.

        Two datasets with equal fingerprints and a seed give the same elements, as long as files and other things that
        functions read stay the same. Datasets with the same elements may have different fingerprints, for instance
        because of another number of threads. A fingerprint is the same in every process with the same version of
        Python.

        Raises:
            InvalidTypeError: something in it exists in this process only, such as a lock or an open file.

        Example:
            >>> import penstock as ps
            >>> def scaled(factor):
            ...     return ps.Dataset.range(9).map(lambda x: x * factor)
            >>> scaled(2).fingerprint() == scaled(2).fingerprint(), scaled(2).fingerprint() == scaled(3).fingerprint()
            (True, False)
        """
        return fingerprint_of(self.node, self._options)

    def options(self) -> Options:
        """The options set so far."""
        return self._options

    def explain(self) -> str:
        """The plan as text: which steps run by index and which as streams, with their threads and memory.

        It also says which steps were moved.

        Example:
            >>> import penstock as ps
            >>> print(ps.Dataset.range(1000).shuffle(1000, seed=1).map(abs).batch(10).explain())
            batch(batch_size=10)                     index, 100
              map(function=abs)                      index, 1,000  element_spec assumed
                shuffle(buffer_size=1000, seed=1)    index, 1,000  moves indices only, holds 8 kB
                  range(start=0, stop=1000, step=1)  index, 1,000
        """
        return described(self._planned.plan)

    def show(self, n: int = 5, tokenizer: Any = None) -> ShownRows:
        """The first elements as people look at them, as HTML that a notebook shows; elsewhere they are printed as text.

        Images are pictures, sound has a player, and arrays have their range and a histogram, in batches too. Sound is
        known by a leaf "rate", "sample_rate" or "sampling_rate" beside it, or by its file's bytes. Packed rows have
        their segments in colours. To write a page: `pathlib.Path("rows.html").write_text(dataset.show())`.

        Args:
            n: the number of elements.
            tokenizer: an object whose `decode(ids)` gives text, for leaves of integers.

        Raises:
            InvalidArgumentError: `n` below 1.
            InvalidTypeError: a tokenizer without `decode`.

        Example:
            >>> import penstock as ps
            >>> html = ps.Dataset.from_list([{"word": "rose", "petals": 5}]).show()
            0  petals: 5, word: rose
            >>> "<td>rose</td>" in html
            True
        """
        with iter(self.take(check_integer("show", "n", n, minimum=1))) as iterator:
            elements = list(iterator)
        shown = shown_rows(elements, tokenizer)
        if not hasattr(builtins, "__IPYTHON__"):  # which only IPython has, and notebooks by it
            print_rows(elements)
        return shown

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the plan and `element_spec`, for which a user's function may be called once."""
        try:
            elements = repr(self.element_spec)
        except Exception as error:  # of the user's function: showing a dataset raises nothing
            elements = f"unknown, because the function for the first element failed: {text_of_error(error)}"
        parts = (("plan", self.explain()), ("elements", elements))
        shown = "".join(f"<dt>{title}</dt><dd><pre>{escape(text, quote=False)}</pre></dd>" for title, text in parts)
        return f"<p>{escape(repr(self), quote=False)}</p><dl>{shown}</dl>"

    def __repr__(self) -> str:
        return f"<penstock.Dataset {self.node.label}, cardinality {self.node.cardinality}>"


def _rows_of(call: str, name: str, arrays: Sequence[Any]) -> int:
    """The length of arrays along their first axis, which must be the same for all."""
    lengths = {array.shape[:1] for array in arrays}
    if len(lengths) != 1 or () in lengths:
        raise InvalidArgumentError(
            f"{call}({name}=...) takes arrays of one length with an axis of time in front, got shapes "
            f"{[array.shape for array in arrays]}"
        )
    return int(lengths.pop()[0])


def _distribution(call: str, name: str, values: Any) -> tuple[float, ...]:
    shares = as_numbers(call, name, values)
    if not shares or not (min(shares) >= 0 and abs(sum(shares) - 1) <= 1e-6):
        raise InvalidArgumentError(f"{call}({name}=...) takes shares that sum to 1, got {values!r}")
    return shares


def _buckets(boundaries: Sequence[int], sizes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    edges = [check_integer("bucket_by_sequence_length", "bucket_boundaries", edge, minimum=1) for edge in boundaries]
    if not edges or any(low >= high for low, high in pairwise(edges)):
        raise InvalidArgumentError(f"bucket_by_sequence_length(bucket_boundaries=...) must rise, got {edges}")
    counts = [check_integer("bucket_by_sequence_length", "bucket_batch_sizes", size, minimum=1) for size in sizes]
    if len(counts) != len(edges) + 1:
        raise InvalidArgumentError(
            f"bucket_by_sequence_length takes one batch size more than boundaries: expected {len(edges) + 1}, "
            f"got {len(counts)}"
        )
    return tuple(edges), tuple(counts)


def _first_unlike(elements: Sequence[Any]) -> ElementError | None:
    """Return the error for the first element that differs from element 0 in structure or dtype."""
    expected = None
    for number, element in enumerate(elements):
        try:
            dtypes, own = _kind_of(element)
        except ElementError as error:
            return ElementError(f"from_list: element {number}: {error}")
        first, structure = expected = expected or (dtypes, own)
        told = [(a, b) for a, b in zip(dtypes, first, strict=own == structure) if a is not None and b is not None]
        if own != structure or not all(alike(*both) for both in told):
            kinds = own.shown(map(str, dtypes)), structure.shown(map(str, first))
            return ElementError(
                f"from_list: element {number} is {kinds[0]}, where element 0 is {kinds[1]}: all elements need one "
                "structure and one dtype for each leaf (object stands for strings, bytes and other Python objects)"
            )
    return None


def _kind_of_state(state: Any) -> tuple[Structure, list[str]]:
    """Return the structure of a state, and which of its leaves are numbers; their dtypes may grow."""
    leaves, structure = flatten(state)
    return structure, ["numbers" if getattr(leaf, "dtype", _OBJECT).kind in "biufc" else "objects" for leaf in leaves]


def _kind_of(element: Any) -> tuple[list[np.dtype[Any] | None], Structure]:
    """The dtypes of an element's leaves, None for an empty list, and its structure."""
    leaves, structure = flatten(element)
    return [None if is_untold(leaf) else spec_of_leaf(leaf).dtype for leaf in map(as_leaf, leaves)], structure


def _joined(node: Node) -> tuple[Node, ...]:
    """Return the datasets that `concatenate` has joined in a node; a prefetch of it becomes a prefetch of each."""
    if isinstance(node, Prefetch) and len(below := _joined(node.input)) > 1:
        return tuple(Prefetch(member, node.buffer_size, site=node.site) for member in below)
    return node.members if isinstance(node, Concatenate) else (node,)


def _members(call: str, datasets: Sequence[Dataset[Any]]) -> tuple[Node, ...]:
    given = [as_dataset(call, dataset) for dataset in datasets]
    if not given:
        raise InvalidArgumentError(f"{call} takes at least one dataset, got none")
    _specs_of_one_kind(call, given)
    return tuple(dataset.node for dataset in given)


def _specs_of_one_kind(call: str, datasets: Sequence[Dataset[Any]]) -> list[Any]:
    """Return the known specification of each dataset, after a check that elements are of one kind."""
    specs = [dataset._seen for dataset in datasets]
    check_one_kind(call, [(dataset.node, spec) for dataset, spec in zip(datasets, specs, strict=True)])
    return specs


def _drawn_by(weights: Any, generator: np.random.Generator) -> int:
    """Return a number drawn by these weights."""
    shares = np.asarray(weights, np.float64)
    if shares.ndim != 1 or not (shares.min() >= 0 and 0 < shares.sum() < np.inf):
        raise ElementError(f"an element of weights must be numbers, none below 0, not all 0, got {weights!r:.200}")
    return int(generator.choice(len(shares), p=shares / shares.sum()))


def _seed_of_draws(call: str, seed: int | None, name: str, anew: bool) -> tuple[int | None, DrawnSeed | None]:
    """Return the seed, and one drawn now if none was given and all epochs draw alike, which the flag `name` decides."""
    seed = as_seed(call, seed)
    return seed, None if check_flag(call, name, anew) or seed is not None else DrawnSeed()


def save_dataset(
    dataset: Dataset[Any], request: "saving.save.SaveRequest", write_missing: "saving.save.WriteMissing | None" = None
) -> None:
    """Save a dataset; `write_missing` writes shards that may be written in any order; None: threads write them."""
    dataset._check_ends(request.call)
    node, options = dataset.node, dataset.options()
    checked = request.checked(node)
    save = saving.save.Save(checked, node, options, lambda: dataset.element_spec, lambda: dataset._seen)
    save.run(lambda: iter(dataset), write_missing)


def iterations_of(dataset: Dataset[Any]) -> Iterations:
    """Return the seed and the epochs of a dataset, for a dataset that is read instead of it."""
    return dataset._iterations


def options_of(call: str, datasets: Iterable[Dataset[Any]]) -> Options:
    """The options of a dataset made of these datasets."""
    return merged_inputs(f"{call} at {user_site()}", (dataset._options for dataset in datasets))


def node_of(call: str, dataset: object) -> Node:
    """The node of an argument that must be a dataset."""
    return as_dataset(call, dataset).node


def as_dataset(call: str, dataset: object) -> Dataset[Any]:
    """An argument that must be a dataset."""
    if not isinstance(dataset, Dataset):
        raise InvalidTypeError(f"{call} takes a ps.Dataset, got {dataset!r}")
    return dataset
