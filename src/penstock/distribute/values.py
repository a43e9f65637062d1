"""`PerReplica`: a value of which each replica has its own; and functions over nested structures of such values.

NumPy only: `jax/program.py` registers the classes with JAX.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Never, NoReturn

from penstock.distribute.nested import flatten_nested
from penstock.errors import InvalidArgumentError, InvalidTypeError


class PerReplica:
    """A value that differs from replica to replica: one leaf of a distributed batch, or of a result of `run`.

    It is not an array: inside `run` each replica gets its own value; outside, `reduce`, `gather` and `local_results`
    make arrays of it.

    Args:
        values: one value per local replica, in the replicas' order.

    Raises:
        InvalidTypeError: `values` cannot be iterated over.
        InvalidArgumentError: no values.

    Example:
        >>> PerReplica([1, 2])
        PerReplica:{
          0: 1,
          1: 2
        }
    """

    __slots__ = ("__weakref__", "_ragged_row_counts", "_values", "count", "stacked")

    count: int
    """The number of local replicas."""
    stacked: Any
    """The global array of the stacked form; None in the form of one value per replica."""

    _ragged_row_counts: Callable[[int], Collection[int]] | None
    """For a leaf of a distributed batch: given the rows of a replica in a full step, the numbers of rows that replicas
    may have in one ragged step of the dataset; empty if there is none. None for anything else."""

    # NumPy must leave `array + per_replica` to the refusal below.
    __array_ufunc__ = None

    def __init__(self, values: Iterable[Any]) -> None:
        if isinstance(values, PerReplica) or not isinstance(values, Iterable):
            raise InvalidTypeError(f"PerReplica(values) takes one value per replica in a list or tuple, got {values!r}")
        values = tuple(values)
        if not values:
            raise InvalidArgumentError("PerReplica(values) takes at least one value, got none")
        self._values: tuple[Any, ...] | None = values
        self.stacked = None
        self.count = len(values)
        self._ragged_row_counts = None

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy belongs to no dataset, so it does not copy the reference to one.
        return _copied, (type(self), self._values, self.stacked, self.count)

    @property
    def values(self) -> tuple[Any, ...]:
        """One value per local replica, in order."""
        if self._values is None:
            shape = self.stacked.shape[1:]
            if not self._is_whole:
                raise InvalidTypeError(
                    f"this PerReplica holds {self.stacked!r:.200} and no value for each of {self.count} replicas any "
                    "more: a function outside of strategy.run(...) has taken it apart, as jax.tree.map does. Reduce "
                    "values by strategy.reduce(...); ps.jax.loader(dataset, sharding) gives whole batches to jax.jit"
                )
            shards = sorted(self.stacked.addressable_shards, key=lambda shard: shard.index[0].start or 0)
            self._values = tuple(shard.data.reshape(shape) for shard in shards)
        return self._values

    @property
    def _is_whole(self) -> bool:
        """Return whether the stacked form has one row on each device; JAX builds this class from any results, too."""
        shards = getattr(self.stacked, "addressable_shards", ())
        return len(shards) == self.count and all(shard.data.shape[:1] == (1,) for shard in shards)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # what others look for, to see what this is
            raise AttributeError(name, name=name, obj=self)
        raise AttributeError(_no_meaning(f"{name!r} of", self), name=name, obj=self)

    def __repr__(self) -> str:
        if self._values is None and not self._is_whole:
            return f"PerReplica of {self.stacked!r}"
        lines = [f"  {replica}: {value!r}".replace("\n", "\n     ") for replica, value in enumerate(self.values)]
        return "PerReplica:{\n" + ",\n".join(lines) + "\n}"


class StackedPerReplica(PerReplica):
    """The stacked form: one global array, row i on device i. JAX can take this class apart without a call of Python's.

    Args:
        stacked: the array, of shape (replicas, ...).
        count: how many of its rows are local.
    """

    __slots__ = ()

    def __init__(self, stacked: Any, count: int) -> None:
        self._values = None
        self.stacked = stacked
        self.count = count
        self._ragged_row_counts = None


def _copied(kind: type[PerReplica], values: tuple[Any, ...] | None, stacked: Any, count: int) -> PerReplica:
    value = kind.__new__(kind)
    value._values, value.stacked, value.count, value._ragged_row_counts = values, stacked, count, None
    return value


def _refusal(doing: str) -> Callable[..., Never]:
    def refuse(self: PerReplica, *_: Any) -> Never:
        raise InvalidTypeError(_no_meaning(doing, self))

    return refuse


def _no_meaning(doing: str, value: PerReplica) -> str:
    return (
        f"{doing} a PerReplica has no meaning: it holds one value for each of {value.count} replicas. Use it inside a "
        "function given to strategy.run(...), or get plain values by strategy.reduce(...), strategy.local_results(...) "
        "or its .values. For jax.jit without a strategy, ps.jax.loader(dataset, sharding) gives whole batches"
    )


# Without these Python would use its defaults: every object is true, and the error of `+` would not help.
for _doing, _names in {
    "arithmetic on": "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul "
    "divmod rdivmod neg pos "
    "abs invert and rand or ror xor rxor lshift rlshift rshift rrshift",
    "comparing": "lt le gt ge",
    "converting": "float int complex index bool array jax_array",
    "iterating over": "iter",
    "the length of": "len",
    "indexing": "getitem",
}.items():
    for _name in _names.split():
        setattr(PerReplica, f"__{_name}__", _refusal(_doing))


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """`function` applied to each leaf of a nested value; a `PerReplica` is a leaf."""
    leaves, nest = flatten_nested(value)
    return nest.unflatten([function(leaf) for leaf in leaves])


def local_leaf(leaf: Any, replica: int) -> Any:
    """A leaf as the local replica of this number sees it: its own value of a `PerReplica`, or what all have."""
    return leaf.values[replica] if isinstance(leaf, PerReplica) else leaf


def local_value(value: Any, replica: int) -> Any:
    """A nested value as the local replica of this number sees it: its own value of every `PerReplica`.

    A value without any is given as it is, the very same object: it may be a model that the replicas share.
    """
    if not any(isinstance(leaf, PerReplica) for leaf in flatten_nested(value)[0]):
        return value
    return map_leaves(lambda leaf: local_leaf(leaf, replica), value)


def check_agreement(call: str, structures: Sequence[Any], between: str = "replica") -> None:
    """Refuse structures that differ between replicas, or between steps."""
    for number, structure in enumerate(structures):
        if structure != structures[0]:
            raise InvalidTypeError(
                f"{call} must give one structure on every {between}, got {structures[0]} on {between} 0 and "
                f"{structure} on {between} {number}"
            )
