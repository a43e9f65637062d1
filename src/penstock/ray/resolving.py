"""Finds the service `ray://NAME`: the actor of its dispatcher knows the address."""

from typing import Any, Final

import ray

from penstock.errors import ServiceError
from penstock.ray.actors import NAMESPACE
from penstock.service import ServiceAddress

_ANSWER_SECONDS: Final = 10.0


def resolve(name: str) -> ServiceAddress:
    """The address of a service that `ps.ray.service` has started, and its token.

    Raises:
        ServiceError: this process is not connected to Ray.
        Exception: Ray's, while there is no such actor, or while it is started again.
    """
    if not ray.is_initialized():
        raise ServiceError(f"ray://{name} is a name in a Ray cluster, and this process is in none: call ray.init()")
    dispatcher: Any = ray.get_actor(f"dispatcher of {name}", namespace=NAMESPACE)
    asked: Any = dispatcher.address.remote()
    found: Any = ray.get(asked, timeout=_ANSWER_SECONDS)
    assert isinstance(found, ServiceAddress)
    return found
