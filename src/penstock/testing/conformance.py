"""Checks what holds for every dataset, in process and through data services."""

import json
from collections.abc import Callable
from copy import deepcopy
from itertools import islice
from typing import Any

import numpy as np

from penstock.data.dataset import Dataset
from penstock.data.node import Run
from penstock.data.plan import make_plan
from penstock.errors import InvalidTypeError
from penstock.runtime.threads import Threads
from penstock.service.check import check
from penstock.structure import flatten


def check_conformance(make_dataset: Callable[[], Dataset], limit: int = 50) -> list[Any]:
    """Check the promises that hold for every dataset, on its first `limit` elements; gives those elements.

    * Two datasets made in the same way give the same elements, in the first epoch and in the second.
    * What a loop, or the function of a filter, writes into its element changes no other element, of this epoch or the
      next: that is refused, or the memory is the element's own.
    * The elements do not depend on how many rows are asked for at a time.
    * A state taken at any boundary, before the first element, after the last and after the end included, survives JSON,
      and a fresh iterator restored from it gives exactly the elements that had not been given.
    * A state taken from a restored iterator, at once or any number of elements later, is as good as the first one.
    * A state of one dataset restored twice gives the same elements twice, and taking it changes nothing.
    * An iterator can be closed at any place.

    Args:
        make_dataset: builds the dataset; must build the same one each time, with every seed given.

    Raises:
        InvalidTypeError: `make_dataset` is no function, but for instance a dataset.
        AssertionError: a promise is broken; the message says which and where.

    Example:
        >>> import penstock as ps
        >>> len(ps.testing.check_conformance(lambda: ps.Dataset.range(20).shuffle(5, seed=1).batch(3)))
        7
    """
    if not callable(make_dataset):
        raise InvalidTypeError(
            f"check_conformance takes a function that makes the dataset, got {make_dataset!r}: write lambda: ..."
        )
    expected = _elements(iter(make_dataset()), limit)
    _check_epochs(make_dataset, limit)
    _check_functions_that_write(make_dataset, expected)
    _check_block_sizes(make_dataset, expected)
    _check_states(make_dataset, expected, limit)
    if len(expected) < limit:
        _check_end(make_dataset)
    return expected


def assert_same_elements(found: Any, expected: Any, what: str = "elements") -> None:
    """Check that two sequences of elements are equal in structure, dtype, shape and value.

    Args:
        found: the elements to check, such as a dataset.
        expected: the right ones.
        what: what errors call them.

    Raises:
        AssertionError: they differ; the message names the first element that does.

    Example:
        >>> import numpy as np
        >>> import penstock as ps
        >>> ps.testing.assert_same_elements(ps.Dataset.range(2), [np.int64(0), np.int64(1)])
    """
    _assert_equal(list(found), list(expected), what)


def check_service(dataset: Dataset, limit: int = 1000, kills: int = 2) -> None:
    """Check that a dataset gives the same elements through data services on this machine as in this process.

    With one worker and with three, while workers are killed, and by iterators that are restored from a state.

    Args:
        limit: how many elements are read.
        kills: how many workers are killed.

    Raises:
        AssertionError: something else came; the message says in which run, and which element was the first.
        InvalidArgumentError: the dataset is distributed already.

    Example:
        >>> import penstock as ps
        >>> ps.testing.check_service(ps.Dataset.range(50).shuffle(10, seed=1).batch(3), kills=0)
    """
    differences = check(dataset, limit=limit, kills=kills)
    assert not differences, "; ".join(map(str, differences))


def _elements(iterator: Any, limit: int) -> list[Any]:
    return [_frozen(element) for element in islice(iterator, limit)]


def _frozen(element: Any) -> Any:
    """An element with every dataset inside it (of a window) replaced by the list of its elements."""
    leaves, structure = flatten(element)
    return structure.unflatten([list(leaf) if isinstance(leaf, Dataset) else leaf for leaf in leaves])


def _check_epochs(make_dataset: Callable[[], Dataset], limit: int) -> None:
    first, second = make_dataset(), make_dataset()
    for epoch in range(2):
        with iter(first) as one, iter(second) as other:
            found = [_overwritten(element) for element in islice(one, limit)]
            _assert_equal(found, _elements(other, limit), f"epoch {epoch} of two datasets made alike")


def _check_functions_that_write(make_dataset: Callable[[], Dataset], expected: list[Any]) -> None:
    dataset = make_dataset()
    taken: list[Any] = []

    def overwrite(*leaves: Any) -> bool:
        taken.append(_overwritten(leaves))
        return True

    with iter(dataset.filter(overwrite)) as filtered:
        _elements(filtered, len(expected))
    arguments = [element if flatten(element)[1].kind == "tuple" else (element,) for element in expected]
    _assert_equal([tuple(leaves) for leaves in taken[: len(expected)]], arguments, "given to a function that writes")
    _assert_equal(_elements(iter(dataset), len(expected)), expected, "after a function that writes")


def _overwritten(element: Any) -> Any:
    """A copy of an element, which is then overwritten wherever NumPy lets it be."""
    element = _frozen(element)
    copied = deepcopy(element)
    _overwrite(flatten(element)[0])
    return copied


def _overwrite(leaf: Any) -> None:
    if isinstance(leaf, list) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind == "O"):
        for entry in np.ravel(leaf) if isinstance(leaf, np.ndarray) else leaf:
            _overwrite(flatten(entry)[0] if isinstance(entry, (tuple, dict)) else entry)
    elif isinstance(leaf, np.ndarray) and leaf.flags.writeable and leaf.dtype.kind in "biufc":
        leaf[...] = leaf == 0


def _check_block_sizes(make_dataset: Callable[[], Dataset], expected: list[Any]) -> None:
    for rows in (1, 3, 1000):
        dataset = make_dataset()
        threads = Threads()
        root = make_plan(dataset.node).root
        seed = dataset.options().seed
        cursor = root.cursor(Run(root, seed or 0, threads, seeded=seed is not None), 0)
        found: list[Any] = []
        try:
            while len(found) < len(expected):
                block = cursor.pull(1, min(rows, len(expected) - len(found)))
                assert block is not None, f"{len(found)} elements, {rows} rows at a time; expected {len(expected)}"
                found.extend(map(_frozen, block.rows()))
        finally:
            cursor.close()
            threads.stop()
            threads.join()
        _assert_equal(found, expected, f"read {rows} rows at a time")


def _check_states(make_dataset: Callable[[], Dataset], expected: list[Any], limit: int) -> None:
    """States taken at every boundary disturb nothing and continue with the elements after them, and so do theirs."""
    known: set[tuple[int, str | None]] = set()
    waiting: list[tuple[int, str | None]] = [(0, None)]
    for what in (
        "with a state taken at every boundary",
        "resumed after {} elements",
        "resumed again after {} elements",
    ):
        found: dict[tuple[int, str | None], None] = {}
        for given, state in waiting:
            found |= dict.fromkeys(_continued(make_dataset, state, expected, given, limit, what.format(given)))
        waiting = [each for each in found if each not in known]  # equal states continue alike
        known |= found.keys()


def _continued(
    make_dataset: Callable[[], Dataset], state: str | None, expected: list[Any], given: int, limit: int, what: str
) -> list[tuple[int, str]]:
    """The states of an iterator, restored from a state as JSON, each with how many elements come before it."""
    found: list[Any] = []
    with iter(make_dataset()) as resumed:
        if state is not None:
            resumed.load_state_dict(json.loads(state))
        states = [(given, json.dumps(resumed.state_dict()))]
        for element in islice(resumed, limit - given):
            found.append(_frozen(element))
            states.append((given + len(found), json.dumps(resumed.state_dict())))
    _assert_equal(found, expected[given:], what)
    return states


def _check_end(make_dataset: Callable[[], Dataset]) -> None:
    """The end stays the end, in the iterator that met it and in one restored from its state."""
    with iter(make_dataset()) as iterator:
        for _ in iterator:
            pass
        state = iterator.state_dict()
        assert next(iterator, None) is None, "an element after the end"
    with iter(make_dataset()) as resumed:
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert next(resumed, None) is None, "an element after the end, in an iterator restored there"


def _assert_equal(found: list[Any], expected: list[Any], what: str) -> None:
    assert len(found) == len(expected), f"{what}: {len(found)} elements, expected {len(expected)}"
    for position, (a, b) in enumerate(zip(found, expected, strict=True)):
        leaves, structure = flatten(a)
        others, other_structure = flatten(b)
        assert structure == other_structure, f"{what}: element {position} is {structure}, expected {other_structure}"
        for path, x, y in zip(structure.paths(), leaves, others, strict=True):
            assert _same(x, y), f"{what}: element {position}{path} is {x!r}, expected {y!r}"


def _same(x: Any, y: Any) -> bool:
    if isinstance(x, list) and isinstance(y, list):
        return len(x) == len(y) and all(map(_same, x, y))
    if getattr(x, "dtype", object) != getattr(y, "dtype", object) or np.shape(x) != np.shape(y):
        return False
    if isinstance(x, np.ndarray) and x.dtype.kind == "O":
        return all(map(_same, np.ravel(x), np.ravel(y)))
    return bool(np.array_equal(x, y))
