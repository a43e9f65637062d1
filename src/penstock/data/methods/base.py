"""What every method of a dataset stands on: its node, and how to put another one on top."""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic

from penstock.data.block import Block
from penstock.data.node import Node
from penstock.errors import InvalidTypeError
from penstock.options import AUTOTUNE, Options, check_integer, merged_inputs
from penstock.spec import LeafSpec
from penstock.structure import flatten, map_structure

# What a dataset's elements are, for type checkers. `ps.Dataset` alone means `ps.Dataset[Any]`, also to those that are
# strict; `typing` itself has such defaults from Python 3.13 on.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock.data.dataset import Dataset

    Element = TypeVar("Element", covariant=True, default=Any)
else:
    from typing import TypeVar

    Element = TypeVar("Element", covariant=True)

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "")


class Methods(ABC, Generic[Element]):
    """A dataset as its methods see it."""

    node: Node
    _options: Options

    @abstractmethod
    def _kind(self) -> tuple[Node, Any]:
        """The last node, and what its elements are, where that is known or an element that is read by index tells."""

    @abstractmethod
    def _then(self, node: Node, options: Options | None = None) -> "Dataset[Any]":
        """The dataset whose last step is `node`, with these options in place of this one's."""

    @classmethod
    @abstractmethod
    def _of_block(cls, block: Block) -> Any:
        """A dataset of the rows of a block."""


def user_site() -> str:
    """The line of the user's code that called penstock: "file.py:12"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def check_function(call: str, name: str, function: object) -> Callable[..., Any]:
    """`function`, which must be callable."""
    if not callable(function):
        raise InvalidTypeError(f"{call}({name}=...) takes a function, got {function!r}")
    return function


def check_parallel_calls(call: str, number: int | None) -> None:
    """`num_parallel_calls` is None, AUTOTUNE, or at least 1."""
    if number is not None and number != AUTOTUNE:
        check_integer(call, "num_parallel_calls", number, minimum=1)


def as_signature(call: str, signature: Any) -> Any:
    """`output_signature`: a structure of specifications, which the user promises: nothing of them is assumed."""
    for leaf in flatten(signature)[0]:
        if not isinstance(leaf, LeafSpec):
            raise InvalidTypeError(
                f"{call}(output_signature=...) takes ps.TensorSpec leaves, got {leaf!r}: such as "
                "ps.TensorSpec((), 'int64') for a number"
            )
    return map_structure(lambda leaf: leaf.assuming((), dtype=False), signature)


def as_numbers(call: str, name: str, values: object) -> tuple[float, ...]:
    """`values`, which must be numbers."""
    try:
        return tuple(float(value) for value in values)  # type: ignore[attr-defined]  # what is refused below
    except (TypeError, ValueError):
        raise InvalidTypeError(f"{call}({name}=...) takes numbers, got {values!r}") from None


def options_of(call: str, datasets: Iterable[Methods[Any]]) -> Options:
    """The options of what a call makes of these datasets."""
    return merged_inputs(f"{call} at {user_site()}", (dataset._options for dataset in datasets))


def node_of(call: str, dataset: object) -> Node:
    """The node of an argument that must be a dataset."""
    return as_dataset(call, dataset).node


def as_dataset(call: str, dataset: object) -> Methods[Any]:
    """An argument that must be a dataset."""
    if not isinstance(dataset, Methods):
        raise InvalidTypeError(f"{call} takes a ps.Dataset, got {dataset!r}")
    return dataset
