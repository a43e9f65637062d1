"""Settings of a dataset that no single operator owns: frozen values, merged along the chain, the later one wins."""

import logging
import operator
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import Enum, IntEnum
from typing import Final, TypeVar

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.other_names import Names, NotHere, OtherNames

_logger = logging.getLogger(__name__)

AUTOTUNE: Final = -1
"""Let penstock choose a degree of parallelism or a buffer size."""
INFINITE_CARDINALITY: Final = -1
"""The cardinality of a dataset that never ends."""
UNKNOWN_CARDINALITY: Final = -2
"""The cardinality of a dataset whose length is not known before it was read."""


class Hint(Enum):
    """The kind of `SHARD_HINT`, which is no number: `shard(AUTOTUNE, AUTOTUNE)` is a mistake."""

    SHARD_HINT = "SHARD_HINT"

    def __repr__(self) -> str:
        return "ps.SHARD_HINT"


SHARD_HINT: Final = Hint.SHARD_HINT
"""In `shard(SHARD_HINT, SHARD_HINT)`: the number of workers and the worker, where `AutoShardPolicy.HINT` is set."""


class AutoShardPolicy(IntEnum):
    """Policies by which `distribute_dataset` divides a dataset over several workers.

    Attributes:
        OFF: every worker reads everything.
        AUTO: FILE if every source reads files, otherwise DATA; the log says which and why.
        FILE: whole files: every n-th for a worker, which makes its own batches of them.
        DATA: the slices of the worker's replicas, from each global batch. If rows can be read by index and are batched
            last, a worker reads only these rows, otherwise all.
        HINT: at the places marked by `shard(SHARD_HINT, SHARD_HINT)`.
        FILE_RANGE: an equal number of records for each worker, in one piece, which may begin and end within a file. The
            records are counted when the dataset is distributed.

    Example:
        >>> import penstock as ps
        >>> dataset = ps.Dataset.range(8).batch(4).with_options(ps.Options(auto_shard_policy=ps.AutoShardPolicy.DATA))
        >>> second = ps.HostStrategy(num_workers=2, worker_index=1)
        >>> [step.values[0].tolist() for step in second.distribute_dataset(dataset)]
        [[2, 3], [6, 7]]
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3
    FILE_RANGE = 4


_FIXED = NotHere("num_parallel_calls and prefetch set the number of threads; explain() shows what runs")
_ALWAYS_DONE = NotHere("useful optimisations are always on, and explain() shows them")
_EXACT = NotHere("a state is always exact and holds positions, never elements")
_TENSORFLOW: Names = {
    "autotune": _FIXED,
    "dataset_name": NotHere("steps are named by the line of your program that added them"),
    "experimental_deterministic": "deterministic",
    "experimental_distribute": "auto_shard_policy",
    "experimental_external_state_policy": _EXACT,
    "experimental_optimization": _ALWAYS_DONE,
    "experimental_service": NotHere("the service uses the fastest available transport"),
    "experimental_slack": _ALWAYS_DONE,
    "experimental_symbolic_checkpoint": _EXACT,
    "experimental_threading": _FIXED,
    "experimental_warm_start": NotHere("the first `next` starts prefetching"),
    "framework_type": NotHere("TensorFlow sets it for its own records"),
    "merge": NotHere("dataset.with_options(options) merges"),
    "threading": _FIXED,
}


@OtherNames(keywords={"__init__": _TENSORFLOW}, attributes=_TENSORFLOW)
@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings for a whole dataset; None means not set.

    Args:
        auto_shard_policy: how the dataset is divided over several workers: an `AutoShardPolicy`, or its name.
        deterministic: False lets a data service give elements as they arrive, in any order. Within a process the order
            is always kept.
        seed: the root of all randomness without a seed.
        on_error: "skip" skips the rows at which one of your functions or a source fails, anywhere in the dataset;
            the iterator's `errors` names them. "raise", the default, raises the exception in their place.
        max_errors: how many rows one iteration may skip, also by `ignore_errors`; None for any number.
        watchdog_seconds: if `next` takes longer, the log says what all threads and processes of this one wait for; 0
            for never. By default 300, or what the environment's PENSTOCK_WATCHDOG_SECONDS says.
        statistics: False counts nothing of what runs, and `iterator.report()` is empty; counting takes 1 to 4 % of
            the time of cheap functions, and up to 15 % of batches that cost little more than being copied.

    Raises:
        InvalidTypeError: a value of the wrong type.
        InvalidArgumentError: a negative number, or another word for `on_error`.

    Example:
        >>> import penstock as ps
        >>> ps.Dataset.range(3).with_options(ps.Options(seed=7)).options().seed
        7
    """

    auto_shard_policy: AutoShardPolicy | str | None = None
    deterministic: bool | None = None
    seed: int | None = None
    on_error: str | None = None
    max_errors: int | None = None
    watchdog_seconds: float | None = None
    statistics: bool | None = None

    def __post_init__(self) -> None:
        if self.auto_shard_policy is not None:
            policy = as_member("Options(auto_shard_policy=...)", AutoShardPolicy, self.auto_shard_policy)
            object.__setattr__(self, "auto_shard_policy", policy)
        if self.deterministic is not None:
            check_flag("Options", "deterministic", self.deterministic)
        if self.seed is not None:
            object.__setattr__(self, "seed", check_integer("Options", "seed", self.seed, minimum=0))
        if self.statistics is not None:
            check_flag("Options", "statistics", self.statistics)
        if isinstance(self.on_error, str):
            object.__setattr__(self, "on_error", self.on_error.lower())
        if self.on_error not in (None, "raise", "skip"):
            raise InvalidArgumentError(f'Options(on_error=...) takes "raise" or "skip", got {self.on_error!r}')
        if self.max_errors is not None:
            object.__setattr__(self, "max_errors", check_integer("Options", "max_errors", self.max_errors, minimum=0))
        if self.watchdog_seconds:
            check_seconds("Options", "watchdog_seconds", self.watchdog_seconds)


def merged_options(earlier: Options, later: Options) -> Options:
    """The options of `earlier` with everything that `later` sets put in their place."""
    changes = {field.name: getattr(later, field.name) for field in fields(later)}
    return replace(earlier, **{name: value for name, value in changes.items() if value is not None})


def merged_inputs(where: str, inputs: Iterable[Options]) -> Options:
    """The options of a dataset that is made of several: of those that two of them set, the last one's.

    A line of the log says which these are, and `where`.
    """
    merged = Options()
    for later in inputs:
        for field in fields(later):
            before, after = getattr(merged, field.name), getattr(later, field.name)
            if before is not None and after is not None and before != after:
                _logger.warning(
                    "%s: its datasets have different options: %s=%r is taken, the last one's, and not %r. "
                    "with_options after it settles it",
                    where,
                    field.name,
                    after,
                    before,
                )
        merged = merged_options(merged, later)
    return merged


Member = TypeVar("Member", bound=Enum)


def as_member(where: str, kind: type[Member], value: object) -> Member:
    """The member of an enumeration that `value` is, or whose name it is in upper or lower case.

    Raises:
        InvalidTypeError: neither a member nor a string; `where` says in the message where it was given.
        InvalidArgumentError: a name that no member has.
    """
    if isinstance(value, kind):
        return value
    member = kind.__members__.get(value.upper()) if isinstance(value, str) else None
    if member is not None:
        return member
    names = ", ".join(f'"{member.name}"' for member in kind)
    if not isinstance(value, str):
        raise InvalidTypeError(f"{where} takes a ps.{kind.__name__} or one of {names}, got {value!r}")
    raise InvalidArgumentError(f"{where} takes one of {names}, got {value!r}")


def check_flag(call: str, name: str, value: object) -> bool:
    """`value`, which must be True or False; `call` and `name` say in the error where it was given."""
    if not isinstance(value, bool):
        raise InvalidTypeError(f"{call}({name}=...) takes True or False, got {value!r}")
    return value


def check_integer(call: str, name: str, value: object, *, minimum: int) -> int:
    """`value` as a Python integer of at least `minimum`; `call` and `name` say in the error where it was given."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]  # tried here
    except TypeError:  # arrays and booleans of NumPy have the method, and refuse only now
        number = None
    if number is None:
        raise InvalidTypeError(f"{call}({name}=...) takes an integer, got {value!r:.200}")
    if number < minimum:
        raise InvalidArgumentError(f"{call}({name}=...) must be at least {minimum}, got {number}")
    return number


def check_number(call: str, name: str, value: object) -> float:
    """Check that an argument is a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidTypeError(f"{call}({name}=...) takes a number, got {value!r}")
    return value


def check_seconds(call: str, name: str, seconds: object) -> float:
    """Check that an argument is a number of seconds greater than 0."""
    if not 0 < check_number(call, name, seconds) < float("inf"):
        raise InvalidArgumentError(f"{call}({name}=...) must be a number of seconds greater than 0, got {seconds!r}")
    return check_number(call, name, seconds)
