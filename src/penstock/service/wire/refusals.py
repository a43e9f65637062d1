"""Refusals: how an error of penstock's in a worker becomes the same error in the consumer."""

import traceback
from typing import NoReturn

from penstock import errors
from penstock.errors import LostDataWorkerError, PenstockError, ServiceError
from penstock.printing import many_lines, one_line
from penstock.service.wire.interfaces import UnreachedDataWorkerError
from penstock.service.wire.subjects import Refused


def refusal_of(error: BaseException) -> Refused:
    """What a consumer is told of an error that its request met in a worker."""
    if isinstance(error, PenstockError):
        # A class of our own that consumers do not know goes as the nearest above it.
        kind = next(base.__name__ for base in type(error).__mro__ if vars(errors).get(base.__name__) is base)
        return Refused(kind=kind, reason=str(error))
    where = "".join(traceback.format_exception(error)).rstrip()
    return Refused(kind=ServiceError.__name__, reason=f"the worker failed to answer:\n{where}")


def raise_refused(refused: Refused) -> NoReturn:
    """Raise the error that was refused with: one of `penstock.errors`, no other."""
    kind = getattr(errors, refused.kind, None)
    if kind is LostDataWorkerError:  # who says so itself has not ended over what it was asked
        raise UnreachedDataWorkerError(many_lines(refused.reason))
    if not (isinstance(kind, type) and issubclass(kind, PenstockError)):
        raise ServiceError(f"{one_line(refused.kind)}: {many_lines(refused.reason)}")
    raise kind(many_lines(refused.reason))
