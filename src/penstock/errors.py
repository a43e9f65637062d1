"""Every error that penstock raises on purpose.

    PenstockError
    ├── InvalidArgumentError   (ValueError)     a value that can never work
    ├── InvalidTypeError       (TypeError)      a thing of the wrong kind
    ├── ElementError           (ValueError)     elements that do not fit each other or their specification
    │   └── CardinalityError                    more or fewer elements than `assert_cardinality` says
    ├── StateMismatchError     (ValueError)     a state or checkpoint of something else, or of an unknown version
    ├── ClosedError            (RuntimeError)   use after `close()`
    ├── BusyError              (RuntimeError)   a call in the middle of the iterator's own `next`
    ├── WorkerError            (RuntimeError)   another worker was lost, has failed, or takes other steps
    ├── UnavailableError       (RuntimeError)   a parameter server is lost, and its variables with it
    ├── CancelledError                          a closure that will not run, because another one has failed
    ├── ServiceError           (RuntimeError)   the data service cannot do the request
    │   ├── LostDataWorkerError                 a data worker cannot be reached, or no longer answers
    │   ├── PoisonError                         an element ends the process of every data worker that makes it
    │   └── LostLeaseError                      a reader was silent for so long that others got its remaining elements
    ├── MissingExtraError      (ModuleNotFoundError)  a package that an extra brings is not installed
    ├── StorageError           (OSError)        a file that is missing, in use or damaged
    ├── TooManySkippedError    (RuntimeError)   more rows failed than may be skipped
    └── OutOfRangeError                         the end of the data, from `get_next()`

An exception of the user's own function is never wrapped: it arrives as itself, with notes (PEP 678) that name the node,
the element and the line where the node was added.
"""


class PenstockError(Exception):
    """Base of all errors that penstock raises on purpose."""


class InvalidArgumentError(PenstockError, ValueError):
    """An argument has a value that can never work."""


class InvalidTypeError(PenstockError, TypeError):
    """An argument, or what a user's function returned, is of the wrong kind."""


class ElementError(PenstockError, ValueError):
    """Elements do not fit each other (structure, dtype, shape), or not the specification that was declared for them.

    Attributes:
        positions: the rows that fail, of those that were read together, ascending; none where they are not known.
    """

    positions: tuple[int, ...] = ()


class CardinalityError(ElementError):
    """There are more or fewer elements than `assert_cardinality` says."""


class StateMismatchError(PenstockError, ValueError):
    """A state or a checkpoint was saved from another dataset or model, or by a penstock that wrote it differently."""


class ClosedError(PenstockError, RuntimeError):
    """An iterator was used after it was closed."""


class BusyError(PenstockError, RuntimeError):
    """An iterator was called in the middle of its own `next`, by a signal handler or a function of its dataset."""


class MissingExtraError(PenstockError, ModuleNotFoundError):
    """A name or a file needs a package that is not installed; the message says which extra installs it."""


class StorageError(PenstockError, OSError):
    """A file is missing, in use by another writer, or damaged."""


class WorkerError(PenstockError, RuntimeError):
    """Another worker was lost, has failed or takes other steps, so this one cannot continue."""


class UnavailableError(PenstockError, RuntimeError):
    """A parameter server is lost, and its variables with it: start again from a checkpoint."""


class CancelledError(PenstockError):
    """A function that was scheduled will not run, because another one has failed or the coordinator was stopped."""


class ServiceError(PenstockError, RuntimeError):
    """The data service cannot carry out the request."""


class LostDataWorkerError(ServiceError):
    """A data worker cannot be reached, or no longer answers."""


class PoisonError(ServiceError):
    """One element costs data workers, because its function ends their processes.

    Attributes:
        position: of the element in its pass.
        pass_number: 0 under "distributed_epoch"; elsewhere the worker or shard.
    """

    def __init__(self, message: str, position: int = -1, pass_number: int = 0) -> None:
        super().__init__(message)
        self.position = position
        self.pass_number = pass_number


class LostLeaseError(ServiceError):
    """A reader did not report for too long: the elements it had not consumed went to other readers."""


class TooManySkippedError(PenstockError, RuntimeError):
    """More rows failed than `Options(max_errors=...)` allows."""


class OutOfRangeError(PenstockError):
    """The data has ended."""
