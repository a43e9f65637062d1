"""Methods that call a function for every element."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.data.methods.base import (
    Element,
    Methods,
    as_numbers,
    as_signature,
    check_function,
    check_parallel_calls,
    user_site,
)
from penstock.data.methods.randomness import checked_randomness
from penstock.data.methods.tensorflow import DATASET
from penstock.data.operators.element import Filter, Map
from penstock.data.operators.expand import Interleave
from penstock.data.operators.ignore_errors import IgnoreErrors
from penstock.data.operators.resample import RejectionResample
from penstock.data.operators.sequence import Scan, TakeWhile
from penstock.errors import InvalidArgumentError
from penstock.options import AUTOTUNE, check_flag, check_integer

if TYPE_CHECKING:
    from penstock.data.dataset import Dataset

Result = TypeVar("Result")
_CYCLE_LENGTH: Final = 16


@DATASET
class ElementMethods(Methods[Element]):
    """map, filter, flat_map, interleave, scan, take_while, rejection_resample."""

    def map(
        self,
        fn: Callable[..., Result],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        seed: int | None = None,
        output_signature: Any = None,
    ) -> "Dataset[Result]":
        """`fn` of every element.

        A tuple element is unpacked into the arguments. The function may return anything whose leaves are numbers,
        arrays, strings, bytes or lists; Python floats become float32, Python integers int64. All results must have one
        structure and dtype; their shapes may differ.

        Args:
            fn: called once per element, with NumPy values; a layer of `ps.preprocessing`, once for a block of them. A
                random layer of Keras goes in as `ps.preprocessing.random(layer)`, together with `seed`.
            num_parallel_calls: threads that call it at the same time; `ps.AUTOTUNE` for one per core.
            deterministic: False gives the results of parallel calls as soon as they are there, in whatever order; no
                element is lost or given twice, also over a restore. Below a step that must be able to read the same
                rows again (`shuffle`, `unbatch`, …) the order is kept all the same; `explain()` says so. None takes
                `ps.Options(deterministic=...)`, and without it the order of the input is kept.
            seed: if given, `fn` gets a `numpy.random.Generator` as its last argument, keyed by (seed, epoch, position),
                so that an element gets the same random numbers on any number of threads. It is valid during the call.
            output_signature: the structure of a result with a `ps.TensorSpec` or `ps.RaggedTensorSpec` for each leaf,
                as for `from_generator`. It makes `element_spec` exact and saves the call that it would cost; results
                are checked against it, and Python numbers and lists take its dtype where that loses nothing.

        Raises:
            InvalidTypeError: `fn` is not callable, a layer of Keras that draws random numbers of its own, or a
                signature with other leaves.
            InvalidArgumentError: `num_parallel_calls` below 1, or a layer that draws random numbers and no `seed`.
            ElementError: while iterating, a result that does not fit the signature.

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
        if seed is not None:
            check_integer("map", "seed", seed, minimum=0)
        fn = checked_randomness(fn, seed)
        signature = as_signature("map", output_signature)
        return self._then(Map(self.node, fn, num_parallel_calls, deterministic, seed, signature, site=user_site()))

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
        """The elements of the datasets that `fn` makes of every element, one dataset after the other.

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
        """The elements of several datasets in turn, each made by `fn` of an element.

        `cycle_length` datasets are open at a time, and `block_length` elements are taken from each in turn.

        A dataset that ends gives up its turn at once; its slot takes the next element of the input when its turn comes
        again.

        Args:
            fn: makes a dataset of an element.
            cycle_length: datasets that are open at the same time. The default, which `ps.AUTOTUNE` means too, is fixed,
                so that the order does not depend on the machine.
            block_length: elements taken from one before the next has its turn.
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
        if cycle_length == AUTOTUNE:
            cycle_length = _CYCLE_LENGTH
        cycle_length = check_integer("interleave", "cycle_length", cycle_length, minimum=1)
        block_length = check_integer("interleave", "block_length", block_length, minimum=1)
        check_parallel_calls("interleave", num_parallel_calls)
        return self._then(
            Interleave(self.node, "interleave", fn, cycle_length, block_length, num_parallel_calls, site=user_site())
        )

    def scan(
        self,
        initial_state: Any,
        scan_func: Callable[[Any, Any], tuple[Any, Result]],
        output_signature: Any = None,
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
        """The elements that can be made: where making one raises an exception, it is left out and counted.

        It is about what stands below: above `batch` a whole batch is left out, below it one row. Mistakes of the
        program, such as a `flat_map` function that returns no dataset, are raised all the same. The iterator's `errors`
        says what was left out; `ps.Options(max_errors=...)` says how much may be. For a whole dataset there is
        `ps.Options(on_error="skip")`, which also keeps pairs together in `zip`.

        Args:
            log: a line of the log for each of the first elements that are left out, then their number.

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
        target = _distribution("target_dist", target_dist)
        initial = None if initial_dist is None else _distribution("initial_dist", initial_dist)
        if initial is not None and len(initial) != len(target):
            raise InvalidArgumentError(
                f"rejection_resample: target_dist has {len(target)} classes, initial_dist has {len(initial)}"
            )
        if seed is not None:
            check_integer("rejection_resample", "seed", seed, minimum=0)
        return self._then(RejectionResample(self.node, class_func, target, initial, seed, site=user_site()))


def _distribution(name: str, values: Any) -> tuple[float, ...]:
    shares = as_numbers("rejection_resample", name, values)
    if not shares or not (min(shares) >= 0 and abs(sum(shares) - 1) <= 1e-6):
        raise InvalidArgumentError(f"rejection_resample({name}=...) takes shares that sum to 1, got {values!r}")
    return shares
