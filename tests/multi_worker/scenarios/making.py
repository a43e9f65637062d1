"""How strategies are made, and when not."""

from typing import Any

import jax
from scenarios.steps import said

import penstock as ps

NEEDS_STRATEGY = False


def after_jax_was_used(_: None) -> Any:
    jax.devices()
    try:
        ps.MultiWorkerMirroredStrategy()
    except ps.InvalidArgumentError as error:
        return said(error)
    return None
