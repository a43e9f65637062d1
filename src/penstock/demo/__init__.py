"""The demo behind `penstock demo`: the small network of TensorFlow's custom training tutorial, over several replicas.

`run` needs the packages of extra `demo`; they are imported when `run` is first asked for, not by importing this.
"""

from importlib import import_module
from typing import Any

from penstock.demo.settings import DemoError as DemoError
from penstock.demo.settings import DemoSettings as DemoSettings
from penstock.training.keras.import_hook import check_jax, chosen_backend


def __getattr__(name: str) -> Any:
    """`run` and `service_on_ray`, imported with all that they need when they are first asked for (PEP 562).

    Raises:
        InvalidArgumentError: the user has chosen another backend of Keras than JAX.
    """
    if name == "service_on_ray":
        return import_module("penstock.demo.on_ray").service_on_ray
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_jax("the demo", chosen_backend())  # before the import, which could lack that backend's packages
    return import_module("penstock.demo.train").run
