"""The ways to read a dataset, and what is known of it before."""

import os
from collections.abc import Callable
from html import escape
from itertools import islice
from typing import Any

from penstock.data.fingerprint import fingerprint_of
from penstock.data.iterator import DatasetIterator, Iterations
from penstock.data.methods.base import Element, Methods, check_function
from penstock.data.methods.tensorflow import DATASET
from penstock.data.node import Node, Run
from penstock.data.operators.keep import Prefetch
from penstock.data.plan import explain, make_plan
from penstock.data.sample import element_spec, tells_by_index
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.formats.row_store import RowStoreWriter
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Options, check_integer
from penstock.paths import local_path
from penstock.runtime.threads import Threads, failures
from penstock.spec import as_leaf
from penstock.structure import map_structure


@DATASET
class ReadMethods(Methods[Element]):
    """Reading a dataset, as a whole or element by element."""

    _options: Options
    _iterations: Iterations
    _spec: Any

    def __iter__(self) -> DatasetIterator[Element]:
        return DatasetIterator(self.node, self._options, self._iterations, lambda: self.element_spec)

    def as_numpy_iterator(self) -> DatasetIterator[Element]:
        """`iter(dataset)`: elements are NumPy's already.

        Example:
            >>> import penstock as ps
            >>> list(ps.Dataset.range(2).as_numpy_iterator())
            [np.int64(0), np.int64(1)]
        """
        return iter(self)

    def get_single_element(self) -> Element:
        """The element of a dataset of one.

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
            found = list(islice(iterator, 1 if self.node.cardinality == 1 else 2))
        if len(found) != 1:
            count = "more than one element" if found else "no element"
            raise InvalidArgumentError(f"get_single_element: {self.node.where()} has {count}")
        return found[0]

    def at(self, index: int) -> Element:
        """The element at a position of the first epoch, read by index: nothing before it is read.

        Raises:
            InvalidTypeError: not an integer.
            InvalidArgumentError: a position outside of the dataset, or a dataset that can only be read in order.

        Example:
            >>> import penstock as ps
            >>> ps.Dataset.range(10).map(lambda x: x * x).at(9)
            np.int64(81)
        """
        position = check_integer("at", "index", index, minimum=0)
        node = make_plan(self.node, self._options).root
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the elements of one iteration to the directory `path`, which appears when it is complete.

        Raises:
            InvalidArgumentError: the dataset never ends.
            StorageError: `path` exists, or cannot be written.
            InvalidTypeError: elements with objects other than arrays, strings and bytes.

        Example:
            >>> import pathlib, tempfile
            >>> import penstock as ps
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "words"
            >>> ps.Dataset.from_tensor_slices(["rose", "violet"]).save(path)
            >>> list(ps.Dataset.load(path))
            ['rose', 'violet']
        """
        self._check_ends("save")
        writer = RowStoreWriter(local_path(path))
        try:
            with iter(self) as iterator:
                for block in iterator._blocks():
                    writer.write(block.columns, block.structure, len(block))
            writer.finish()
        except BaseException:
            writer.discard()
            raise

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """The last state of `reduce_func(state, element)`, carried from element to element.

        Raises:
            InvalidTypeError: not a function.
            InvalidArgumentError: the dataset never ends.

        Example:
            >>> import penstock as ps
            >>> ps.Dataset.range(5).reduce(0, lambda total, x: total + x)
            np.int64(10)
        """
        check_function("reduce", "reduce_func", reduce_func)
        self._check_ends("reduce")
        state = map_structure(as_leaf, initial_state)
        with iter(self) as iterator:
            for element in iterator:
                state = map_structure(as_leaf, reduce_func(state, element))
        return state

    def _check_ends(self, call: str) -> None:
        if self.node.cardinality == INFINITE_CARDINALITY:
            raise InvalidArgumentError(f"{call}: {self.node.where()} never ends: put .take(count) before {call}")

    @property
    def element_spec(self) -> Any:
        """The structure of an element with a `ps.TensorSpec` for each leaf.

        A length that differs from element to element is None; a leaf whose rows differ in shape has a
        `ps.RaggedTensorSpec`.

        What construction tells is known without reading anything. Where only a user's function can tell (`map`,
        `scan`, `flat_map` and others, a generator without a signature), it is called once, with the first element, and
        what is seen then is marked by `~`: other elements may have other lengths. `output_signature` says it instead.

        Raises:
            ElementError: a function would have to be called, and there is no element to call it with.

        Example:
            >>> import penstock as ps
            >>> ps.Dataset.range(10).batch(4).element_spec
            TensorSpec(shape=(None,), dtype=int64)
            >>> ps.Dataset.range(10).map(lambda x: [x, x]).batch(5).element_spec
            TensorSpec(shape=(5, ~2), dtype=~int64)
        """
        if self._spec is None:
            self._spec = element_spec(self.node)
        return self._spec

    def _kind(self) -> tuple[Node, Any]:
        if self._spec is None and not tells_by_index(self.node):
            return self.node, None
        try:
            return self.node, self.element_spec
        except failures():  # no elements, or a function that fails at the first: reading it says so
            return self.node, None

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
            why = "it never ends" if self.node.cardinality == INFINITE_CARDINALITY else "only reading it would tell"
            raise InvalidTypeError(f"{self.node.where()} has no length: {why}")
        return self.node.cardinality

    def __bool__(self) -> bool:
        return True

    def fingerprint(self) -> str:
        """A digest of everything that this dataset is made of: operators, arguments, functions, arrays and options.

        Two datasets with one fingerprint and a seed give the same elements, as long as files, and what functions read
        elsewhere, stay the same. Two that give the same elements may have different ones, by another number of threads,
        say. It is the same in every process of one version of Python.

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
        """The plan as text: what runs by index and what streams, threads, memory held, and what was moved.

        Example:
            >>> import penstock as ps
            >>> print(ps.Dataset.range(1000).shuffle(1000, seed=1).map(abs).batch(10).explain())
            batch(batch_size=10)                     index, 100
              map(function=abs)                      index, 1,000  element_spec assumed
                shuffle(buffer_size=1000, seed=1)    index, 1,000  moves indices only, holds 8 kB
                  range(start=0, stop=1000, step=1)  index, 1,000
        """
        return explain(self.node, self._options)

    def _repr_html_(self) -> str:
        """What a notebook shows: the plan, and what the elements are.

        Where only a user's function tells what they are, it is called once, as for `element_spec`.
        """
        try:
            elements = repr(self.element_spec)
        except Exception as error:  # of the user's function: a dataset that is looked at raises nothing
            elements = f"unknown, because the function for the first element failed: {type(error).__name__}: {error}"
        parts = (("plan", self.explain()), ("elements", elements))
        shown = "".join(f"<dt>{title}</dt><dd><pre>{escape(text)}</pre></dd>" for title, text in parts)
        return f"<p>{escape(repr(self))}</p><dl>{shown}</dl>"

    def __repr__(self) -> str:
        return f"<penstock.Dataset {self.node.label}, cardinality {self.node.cardinality}>"
