"""Calls that all workers make: one that does not come, makes another call, or fails in its own, is named on all."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.distribute.control.channel import CALL_SECONDS, Control
from penstock.errors import WorkerError
from penstock.printing import text_of_error


@contextmanager
def made_by_all(control: Control, topic: str, call: str) -> Iterator[None]:
    """A context that all workers enter in the same call, and leave together.

    Args:
        control: by which they meet, within its `call_seconds`.
        topic: what their calls have in common, for errors.
        call: which one this worker makes. All must make the same.

    Raises:
        WorkerError: a worker did not come in time, which fails all; another one makes another call, or has failed
            within the context.
    """
    calls = control.gather(topic, call, str, timeout=control.call_seconds)
    for worker, other in enumerate(calls):
        if other != calls[0]:
            raise WorkerError(
                f"{topic} is {calls[0]} on {control.member} 0 and {other} on {control.member} {worker}: every "
                f"{control.member} must make the same calls in the same order"
            )
    try:
        yield
    except Exception as error:
        _outcomes(control, topic, text_of_error(error))
        raise
    for worker, failure in enumerate(_outcomes(control, topic, "")):
        if failure:
            raise WorkerError(f"{call} failed on {control.member} {worker} of {control.workers}: {failure}")


def _outcomes(control: Control, topic: str, failure: str) -> list[str]:
    """Return what each worker has failed with within the context; "" where it has not."""
    return control.gather(f"{topic}, its arguments", failure, str, timeout=CALL_SECONDS)
