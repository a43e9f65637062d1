"""The demo's data service in a Ray cluster: the one that this process is in or RAY_ADDRESS names, or a new one."""

from collections.abc import Iterator
from contextlib import contextmanager

import ray

import penstock as ps
from penstock.demo.settings import DemoError


@contextmanager
def service_on_ray(num_workers: int) -> Iterator[str]:
    """The target of a service whose dispatcher and data workers are Ray's actors; each of the latter takes one CPU.

    Raises:
        DemoError: Ray cannot be started, or the cluster cannot be reached.
        ServiceError: Ray has no place for them.
    """
    of_our_own = not ray.is_initialized()
    if of_our_own:
        try:
            ray.init(log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            raise DemoError(f"Ray cannot be started or reached: {error}") from error
    try:
        with ps.ray.service(num_workers) as service:
            yield service.target
    finally:
        if of_our_own:
            ray.shutdown()
