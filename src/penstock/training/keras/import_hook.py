"""Connects penstock with Keras when Keras is imported, without importing it."""

import json
import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import penstock.training.keras as of_keras
from penstock.errors import InvalidArgumentError


def connect_when_imported() -> None:
    """Connect penstock with Keras: now, if Keras was imported before, otherwise as soon as it is."""
    if "keras" in sys.modules:
        of_keras.connection.connect()
    else:
        sys.meta_path.insert(0, _Watch())


class _Watch:
    """The first finder until Keras is imported. `importlib.util.find_spec` calls it too."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "keras":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)
            return spec
        if chosen_backend() == "jax":
            os.environ["KERAS_BACKEND"] = "jax"
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            try:
                execute(module)
            except BaseException:
                sys.meta_path.insert(0, self)  # the import may be tried again
                raise
            of_keras.connection.connect()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def chosen_backend() -> str:
    """The backend that Keras would choose: that of KERAS_BACKEND, otherwise that of the file keras.json.

    JAX where that is TensorFlow and TensorFlow is not installed: Keras writes TensorFlow into its settings file if the
    user has not chosen.
    """
    named = os.environ.get("KERAS_BACKEND")
    if named:
        return named
    written = _written_backend()
    return "jax" if written == "tensorflow" and find_spec("tensorflow") is None else written


def check_jax(what: str, backend: str) -> None:
    """Refuse what needs JAX where Keras has another backend.

    Raises:
        InvalidArgumentError: it has.
    """
    if backend != "jax":
        raise InvalidArgumentError(
            f"{what} needs Keras on JAX, but Keras's backend is {backend}, by the environment variable "
            "KERAS_BACKEND or the file keras.json: set KERAS_BACKEND=jax before Keras is imported"
        )


def _written_backend() -> str:
    """The backend in keras.json, which Keras looks for in these places."""
    home = Path.home() if os.access(Path.home(), os.W_OK) else Path("/tmp")
    directory = Path(os.environ.get("KERAS_HOME") or home / ".keras")
    try:
        return str(json.loads((directory / "keras.json").read_text()).get("backend", "tensorflow"))
    except (OSError, ValueError, AttributeError):
        return "tensorflow"
