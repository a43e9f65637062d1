"""Sends penstock's errors from a dispatcher or worker to the peer whose request caused them."""

import traceback
from typing import NoReturn

from penstock import errors
from penstock.errors import LostDataWorkerError, PenstockError, ServiceError
from penstock.printing import many_lines, one_line
from penstock.service.wire.interfaces import UnreachedDataWorkerError, UnusableDataWorkerError
from penstock.service.wire.subjects import Refused


def refusal_of(error: BaseException) -> Refused:
    """The answer to a request that caused an error."""
    if isinstance(error, UnusableDataWorkerError):
        return Refused(kind=UnusableDataWorkerError.__name__, reason=str(error))
    if isinstance(error, PenstockError):
        # A private class goes as its nearest base class in `penstock.errors`.
        kind = next(base.__name__ for base in type(error).__mro__ if vars(errors).get(base.__name__) is base)
        return Refused(kind=kind, reason=str(error))
    where = "".join(traceback.format_exception(error)).rstrip()
    return Refused(kind=ServiceError.__name__, reason=f"the worker failed to answer:\n{where}")


def raise_refused(refused: Refused) -> NoReturn:
    """Raise the error of a refusal: one of `penstock.errors`, or `UnusableDataWorkerError`."""
    if refused.kind == UnusableDataWorkerError.__name__:
        raise UnusableDataWorkerError(many_lines(refused.reason))
    kind = getattr(errors, refused.kind, None)
    if kind is LostDataWorkerError:  # a worker that reports a loss has not died over the request
        raise UnreachedDataWorkerError(many_lines(refused.reason))
    if not (isinstance(kind, type) and issubclass(kind, PenstockError)):
        raise ServiceError(f"{one_line(refused.kind)}: {many_lines(refused.reason)}")
    raise kind(many_lines(refused.reason))
