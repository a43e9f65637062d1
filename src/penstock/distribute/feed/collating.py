"""The function that a loader calls on the rows of each replica: `collate=`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.data.functions.apply import no_result
from penstock.distribute.control.messages import RowShape
from penstock.distribute.feed.steps import HostStep, Layout, StepLeaf
from penstock.errors import ElementError, InvalidTypeError
from penstock.spec import as_leaf
from penstock.structure import Structure, flatten

_OURS = (np.ndarray, np.generic, bool, int, float, list, str, bytes)
"""Values that are held as in elements; others, such as tensors of torch, are handed out as they are."""


class Collate:
    """Makes of the rows of each local replica what the replica gets instead of them.

    Args:
        call: of the loader, for errors.
        function: the user's.

    Raises:
        InvalidTypeError: `function` is not callable.
    """

    def __init__(self, call: str, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise InvalidTypeError(f"{call}(collate=...) takes a function, got {function!r}")
        self._call = call
        self._function = function

    def __call__(self, step: HostStep) -> HostStep:
        """The step with the function's results.

        Raises:
            ElementError: the results for two replicas differ in structure.
        """
        results = [self._of_replica(step, number) for number in range(len(step.sizes))]
        structure = results[0][1]
        for _, other in results:
            if other != structure:
                raise ElementError(
                    f"{self._call}(collate=...) must give one structure for all replicas, got {structure} and {other}"
                )
        leaves = [StepLeaf(list(parts)) for parts in zip(*(leaves for leaves, _ in results), strict=True)]
        return HostStep(structure, leaves, step.sizes)

    def _of_replica(self, step: HostStep, number: int) -> tuple[list[Any], Structure]:
        rows = step.structure.unflatten([leaf.slices[number] for leaf in step.leaves])
        try:
            result = self._function(*rows) if step.structure.kind == "tuple" else self._function(rows)
        except StopIteration:  # it would end the data silently
            raise no_result() from None
        except Exception as error:
            error.add_note(f"raised by {self._call}(collate=...) for {step.sizes[number]} rows of one replica")
            raise
        leaves, structure = flatten(result)
        return [_held(leaf) for leaf in leaves], structure


def _held(leaf: Any) -> Any:
    value = as_leaf(leaf) if isinstance(leaf, _OURS) else leaf
    return np.asarray(value) if isinstance(value, np.generic) else value


def shapes_of(step: HostStep) -> Layout:
    """The dtype and the whole shape of every leaf, without the shape where the local replicas differ in it."""
    shapes = [{np.shape(part) for part in leaf.slices} for leaf in step.leaves]
    return tuple(
        RowShape(str(getattr(leaf.slices[0], "dtype", "")), shapes.pop() if len(shapes) == 1 else None)
        for leaf, shapes in zip(step.leaves, shapes, strict=True)
    )
