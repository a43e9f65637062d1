"""`Dataset`: the sources; with the methods of `methods/` everything that follows, and with `ReadMethods` the end."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from penstock.data.block import Block, object_column
from penstock.data.guards import settled
from penstock.data.iterator import Iterations
from penstock.data.methods.base import (
    Element,
    as_dataset,
    as_numbers,
    as_signature,
    check_function,
    node_of,
    options_of,
    user_site,
)
from penstock.data.methods.batching import BatchMethods
from penstock.data.methods.element import ElementMethods
from penstock.data.methods.order import OrderMethods
from penstock.data.methods.tensorflow import DATASET
from penstock.data.node import Node, describe
from penstock.data.operators.combine import Choose, Zip, check_one_kind
from penstock.data.operators.keep import Saved
from penstock.data.operators.shuffle import Shuffle
from penstock.data.operators.sources import Choices, Counter, Generator, Random, Range, Slices
from penstock.data.read import ReadMethods
from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError
from penstock.formats.files import matching_files
from penstock.formats.row_store import RowStore
from penstock.formats.tables import as_columns
from penstock.options import Options, check_flag, check_integer
from penstock.paths import local_path
from penstock.rng import DrawnSeed
from penstock.spec import alike, as_leaf, spec_of_leaf
from penstock.structure import LEAF, Structure, flatten

Result = TypeVar("Result")


@DATASET
class Dataset(ElementMethods[Element], BatchMethods[Element], OrderMethods[Element], ReadMethods[Element]):
    """A sequence of elements, described step by step and read as often as wanted.

    Datasets are values: every method gives a new one. Iterating gives NumPy elements; each iteration is one epoch, and
    what is random differs from epoch to epoch. For type checkers `Dataset[T]` gives elements of type T.

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
        self._options = options or Options()
        self.node = settled(node, self._options)
        self._iterations = iterations or Iterations(self._options.seed)
        self._spec: Any = None

    def _then(self, node: Node, options: Options | None = None) -> "Dataset[Any]":
        return type(self)(node, options or self._options)

    def __reduce__(self) -> tuple[type["Dataset[Any]"], tuple[Node, Options]]:
        """In another process the iterations begin anew."""
        return type(self), (self.node, self._options)

    @classmethod
    def _of_block(cls, block: Block) -> "Dataset[Any]":
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
        array. Numbers of a column in one piece are not copied. NumPy's numbers have no null, so a null is an error;
        carry a mask as a column of its own: `{"x": column.fill_null(0), "x_is_valid": column.is_valid()}`.

        Raises:
            InvalidArgumentError: no leaves, a leaf without axes, leading axes of unequal length, or a null.
            InvalidTypeError: a column of a type that NumPy has no place for.

        Example:
            >>> [(x.tolist(), int(y)) for x, y in Dataset.from_tensor_slices(([[1, 2], [3, 4]], [0, 1]))]
            [([1, 2], 0), ([3, 4], 1)]
            >>> import pyarrow as pa
            >>> list(Dataset.from_tensor_slices(pa.table({"age": [31, 17], "name": ["Ada", "Bob"]})))
            [{'age': np.int64(31), 'name': 'Ada'}, {'age': np.int64(17), 'name': 'Bob'}]
        """
        leaves, structure = flatten(tensors)
        columnar = [as_columns(leaf, path) for leaf, path in zip(leaves, structure.paths(), strict=True)]
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
                    f"{' at ' + path if path else ''}: from_tensors takes one element, from_generator what is iterated"
                )
        if not columns:
            raise InvalidArgumentError(f"from_tensor_slices takes arrays with a leading axis, got {tensors!r:.200}")
        lengths = [len(column) for column in columns]
        if len(set(lengths)) > 1:
            named = ", ".join(f"{path or 'the array'}: {n}" for path, n in zip(structure.paths(), lengths, strict=True))
            raise InvalidArgumentError(f"from_tensor_slices takes arrays of one length, got {named}")
        return Dataset(Slices("from_tensor_slices", columns, structure, lengths[0], site=user_site()))

    @staticmethod
    def from_list(elements: Sequence[Any]) -> "Dataset[Any]":
        """The elements of a list, each of one structure; their shapes may differ.

        Raises:
            InvalidTypeError: not a list or a tuple.
            InvalidArgumentError: an empty one, which does not say what its elements are: use `ps.Dataset.range(0)`.
            ElementError: elements of different structure or dtype.

        Example:
            >>> [(int(number), word) for number, word in Dataset.from_list([(1, "one"), (2, "two")])]
            [(1, 'one'), (2, 'two')]
        """
        if not isinstance(elements, (list, tuple)):
            raise InvalidTypeError(
                f"from_list(elements=...) takes a list of elements, got {type(elements).__name__}: "
                "from_tensor_slices takes arrays, from_generator what is iterated"
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
        """What `fn()` yields. It is called again in every epoch, and runs no further than the elements that are needed.

        A state counts the elements taken: restoring it runs the generator again and drops that many, so it should yield
            the same elements each time.

        Args:
            fn: called without arguments at the start of an iteration; gives an iterator.
            output_signature: the structure of an element with a `ps.TensorSpec` or `ps.RaggedTensorSpec` for each
                leaf; elements are checked against it, and Python numbers and lists take its dtype where that loses
                nothing.

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
                f"{fn!r:.200}: give the generator function itself, not what it returned"
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

        Example:
            >>> first, second = Dataset.random(seed=1), Dataset.random(seed=1)
            >>> [int(x) for x in first.take(3)] == [int(x) for x in second.take(3)]
            True
        """
        if seed is not None:
            check_integer("random", "seed", seed, minimum=0)
        check_flag("random", "rerandomize_each_iteration", rerandomize_each_iteration)
        drawn = DrawnSeed() if seed is None and not rerandomize_each_iteration else None
        return Dataset(Random(seed, rerandomize_each_iteration, drawn=drawn, site=user_site()))

    @staticmethod
    def list_files(
        pattern: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        shuffle: bool | None = None,
        seed: int | None = None,
    ) -> "Dataset[str]":
        """The names of the files that match a pattern, or one of several: sorted, each once.

        They are listed now, not when the dataset is read. Their order is that of the names unless `shuffle` is True; in
        TensorFlow the default is to shuffle.

        Args:
            pattern: with `*`, `?`, `[...]`, and `**` for any directories; `~` is an ordinary character. Patterns with a
                protocol, such as "s3://bucket/*.tfrecord", need fsspec: `pip install 'penstock[cloud]'`.
            shuffle: order the names at random, differently in every epoch.
            seed: of that order; without one the dataset's seed is used.

        Raises:
            InvalidArgumentError: no file matches a pattern, or a seed without `shuffle=True`.
            InvalidTypeError: not a pattern.

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
        if seed is not None:
            check_integer("list_files", "seed", seed, minimum=0)
        names = matching_files("list_files", pattern)
        node: Node = Slices("list_files", (object_column(names),), LEAF, len(names), site=user_site())
        return Dataset(Shuffle(node, len(names), seed, site=user_site()) if shuffle else node)

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
            stop_on_empty_dataset: end when a dataset is chosen that has ended; otherwise skip such choices.

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
        weights: Sequence[float] | None = None,
        seed: int | None = None,
        *,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool = True,
    ) -> "Dataset[Result]":
        """Elements of several datasets, the dataset drawn at random for each.

        Args:
            datasets: the datasets, with elements of one kind.
            weights: how often each is drawn, relative to the others; equally often by default.
            seed: of the draws; without one the dataset's seed is used.
            stop_on_empty_dataset: end when a dataset is drawn that has ended; otherwise continue with the others.
            rerandomize_each_iteration: draw differently in every epoch.

        Raises:
            InvalidArgumentError: no datasets, another number of weights, a negative one, or none above 0.

        Example:
            >>> ones, twos = Dataset.from_tensors(1).repeat(300), Dataset.from_tensors(2).repeat(300)
            >>> drawn = Dataset.sample_from_datasets([ones, twos], [0.9, 0.1], seed=3).take(100)
            >>> 5 <= sum(int(x) == 2 for x in drawn) <= 15
            True
        """
        nodes = _members("sample_from_datasets", datasets)
        if seed is not None:
            check_integer("sample_from_datasets", "seed", seed, minimum=0)
        shares = as_numbers("sample_from_datasets", "weights", [1.0] * len(nodes) if weights is None else weights)
        if len(shares) != len(nodes) or not (min(shares) >= 0 and 0 < sum(shares) < float("inf")):
            raise InvalidArgumentError(
                f"sample_from_datasets(weights=...) takes {len(nodes)} weights, none below 0, not all 0, got {weights}"
            )
        drawn = [(node, share) for node, share in zip(nodes, shares, strict=True) if share > 0]
        check_flag("sample_from_datasets", "rerandomize_each_iteration", rerandomize_each_iteration)
        check_flag("sample_from_datasets", "stop_on_empty_dataset", stop_on_empty_dataset)
        own = DrawnSeed() if seed is None and not rerandomize_each_iteration else None
        choice = Choices(seed, rerandomize_each_iteration, tuple(share for _, share in drawn), drawn=own)
        members = tuple(node for node, _ in drawn)
        sampled = Choose("sample_from_datasets", members, choice, stop_on_empty_dataset, draws=True, site=user_site())
        return Dataset(sampled, options_of("sample_from_datasets", datasets))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Dataset[Any]":
        """The dataset that `save` wrote to `path`: read by memory map, at any row.

        Raises:
            StorageError: no saved dataset there, or a damaged one; of altered rows, when they are first read.

        Example:
            >>> import pathlib, tempfile
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "squares"
            >>> Dataset.range(4).map(lambda x: x * x).save(path)
            >>> [int(x) for x in Dataset.load(path)]
            [0, 1, 4, 9]
        """
        place = local_path(path)
        return Dataset(Saved(place, RowStore(place), site=user_site()))

    def apply(self, transformation: Callable[["Dataset[Element]"], Result]) -> Result:
        """`transformation(self)`.

        Example:
            >>> [int(x) for x in Dataset.range(4).apply(lambda dataset: dataset.skip(2))]
            [2, 3]
        """
        result: Result = check_function("apply", "transformation", transformation)(self)
        if result is None:
            raise InvalidTypeError(
                f"apply(transformation=...): {describe(transformation)} returned None: does it lack a `return`?"
            )
        return result

    def with_options(self, options: Options) -> "Dataset[Element]":
        """The same dataset with these options; options that are None keep their value.

        They hold for the whole dataset, above and below, and also for datasets that `zip`, `concatenate`,
        `choose_from_datasets` and `sample_from_datasets` make of it. If two of these set an option differently, the
        last one wins, and the log says so. The options of datasets inside `flat_map` or `interleave` stay with them.

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
        return Dataset(self.node, self._options.merged(options))


def _first_unlike(elements: Sequence[Any]) -> ElementError | None:
    """The error that names the first element that differs from element 0 in structure or dtype."""
    expected = None
    for number, element in enumerate(elements):
        try:
            dtypes, own = _kind_of(element)
        except ElementError as error:
            return ElementError(f"from_list: element {number}: {error}")
        first, structure = expected = expected or (dtypes, own)
        if own != structure or not all(map(alike, dtypes, first)):
            kinds = own.shown(map(str, dtypes)), structure.shown(map(str, first))
            return ElementError(
                f"from_list: element {number} is {kinds[0]}, where element 0 is {kinds[1]}: all elements need one "
                "structure and one dtype for each leaf (object stands for strings, bytes and other Python objects)"
            )
    return None


def _kind_of(element: Any) -> tuple[list[np.dtype[Any]], Structure]:
    leaves, structure = flatten(element)
    return [spec_of_leaf(as_leaf(leaf)).dtype for leaf in leaves], structure


def _members(call: str, datasets: Sequence[Dataset[Any]]) -> tuple[Node, ...]:
    given = [as_dataset(call, dataset) for dataset in datasets]
    if not given:
        raise InvalidArgumentError(f"{call} takes at least one dataset, got none")
    check_one_kind(call, [dataset._kind() for dataset in given])
    return tuple(dataset.node for dataset in given)
