"""TensorFlow's names where penstock has others: using one raises an error that says what to use instead.

The tables are beside their classes, in files `tensorflow.py`; `tests/test_tensorflow_names.py` compares them with
TensorFlow's own lists.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import FrozenInstanceError, dataclass, field, is_dataclass
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

from penstock.errors import InvalidTypeError

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type[Any])


@dataclass(frozen=True)
class NotHere:
    """Why there is no such thing, and what to do instead."""

    why: str


_MODULES = {
    "errors": "BusyError CancelledError CardinalityError ClosedError LostDataWorkerError LostLeaseError "
    "MissingExtraError ServiceError TooManySkippedError UnavailableError",
    "files": "FileFormat cache_remote_files open_file reads_file register_format",
    "parameter_server": "FixedShardsPartitioner MaxSizePartitioner MinSizePartitioner PerWorkerDataset RemoteValue "
    "ServerTable ServerVariables",
    "tfrecord": "RaggedFeature parse_sequence_example",
    "training": "best_checkpoint compute_average_loss scale_regularization_loss",
    "types": "DatasetIterator DistributedDataset DistributedIterator InputReplicationMode Optional PartialBatch "
    "Preemption ReplicaContext SkippedRow SkippedRows ValueContext",
}
PLACES = {name: module for module, names in _MODULES.items() for name in names.split()}
"""The module of `ps` that has a name which one may look for in `ps` itself."""

Names = Mapping[str, str | NotHere]
"""By TensorFlow's name: the name here, or why there is none."""


@dataclass(frozen=True)
class OtherNames:
    """TensorFlow's names of the parts of a class.

    Attributes:
        keywords: of each method, those arguments that are called otherwise; `__init__` for the class itself.
        of_all_methods: arguments that many methods have elsewhere, and none here.
        attributes: methods and attributes that are called otherwise.
    """

    keywords: Mapping[str, Names] = field(default_factory=dict)
    of_all_methods: Names = field(default_factory=dict)
    attributes: Names = field(default_factory=dict)

    def __call__(self, kind: Class) -> Class:
        """The class, with errors that answer to these names. Signatures and documentation stay the same."""
        for name, member in list(vars(kind).items()):
            names = {**self.of_all_methods, **self.keywords.get(name, {})}
            function = member.__func__ if isinstance(member, staticmethod) else member
            if not names or not callable(function) or (name.startswith("_") and name not in self.keywords):
                continue
            answering = _answering(function, name, names)
            setattr(kind, name, staticmethod(answering) if isinstance(member, staticmethod) else answering)
        if self.attributes:
            kind.__getattr__ = _attribute_error(self.attributes, is_dataclass(kind))
            if is_dataclass(kind):
                kind.__setattr__ = _assignment_error(self.attributes)  # type: ignore[method-assign]  # that of a frozen dataclass
        return kind


def other_keywords(names: Names, whose: str = "TensorFlow") -> Callable[[Function], Function]:
    """A function whose errors answer to these names of keywords, which are another library's or class's."""
    return lambda function: _answering(function, function.__name__, names, whose)


def _answering(function: Function, call: str, names: Names, whose: str = "TensorFlow") -> Function:
    @wraps(function)
    def answering(*args: Any, **keywords: Any) -> Any:
        if keywords and not names.keys().isdisjoint(keywords):
            named = type(args[0]).__name__ if call == "__init__" else call
            raise InvalidTypeError("; ".join(_explained(named, names, keywords, whose)))
        try:
            return function(*args, **keywords)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:  # raised inside of the function
                raise
            taken = [name for name in signature(function).parameters if name != "self"]
            end = " It" if str(error).endswith("?") else "; it"  # from Python 3.13 on it may ask which name was meant
            raise InvalidTypeError(f"{error}{end} takes {', '.join(taken) or 'none'}") from None

    return answering  # type: ignore[return-value]  # it takes what the function takes


def _explained(call: str, names: Names, keywords: Mapping[str, Any], whose: str) -> Iterator[str]:
    for theirs in keywords:
        ours = names.get(theirs)
        if isinstance(ours, NotHere):
            yield f"{call}({theirs}=...) is {whose}'s and not taken here: {ours.why}"
        elif ours is not None:
            yield f"{call}({theirs}=...) is {whose}'s name: here it is {call}({ours}=...)"


def _attribute_error(names: Names, by_keyword: bool) -> Callable[[Any, str], Any]:
    def __getattr__(self: Any, name: str) -> Any:  # noqa: N807  # becomes that method
        if name not in names:
            # No such attribute, or a property that failed with its own AttributeError: either is raised again.
            return object.__getattribute__(self, name)
        kind, ours = type(self).__name__, names[name]
        here = f"say ps.{kind}({ours}=...)" if by_keyword else f"here it is {kind}.{ours}"
        advice = ours.why if isinstance(ours, NotHere) else here
        message = f"{kind!r} object has no attribute {name!r}, which is TensorFlow's name: {advice}"
        raise AttributeError(message, name=name, obj=self)

    return __getattr__


def _assignment_error(names: Names) -> Callable[[Any, str, Any], None]:
    def __setattr__(self: Any, name: str, value: Any) -> None:  # noqa: N807  # becomes that method
        kind = type(self).__name__
        ours = names.get(name, name)
        if isinstance(ours, NotHere):
            raise FrozenInstanceError(f"{kind}.{name} is TensorFlow's and not here: {ours.why}")
        raise FrozenInstanceError(f"ps.{kind} is not changed after it was made: say ps.{kind}({ours}=...)")

    return __setattr__
