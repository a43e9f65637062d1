"""Names that need packages of an extra: what takes their place if such a package is missing."""

import importlib
from collections.abc import Callable
from typing import Any, NoReturn

from penstock.errors import MissingExtraError


def load(module: str, extra: str | None, public: str, name: str | None = None) -> Any:
    """A module, or its attribute `name`; a `Missing` where a package is missing that the module needs.

    Args:
        module: the module's full name.
        extra: the extra with its packages; None if it needs none.
        public: what users call the thing, for the error.
        name: the name of a thing in the module; None for the module itself.
    """
    try:
        loaded = importlib.import_module(module)
        return loaded if name is None else getattr(loaded, name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if extra is None or package == "penstock":
            raise
        return Missing(public, package, extra)


def when_used(package: str, *modules: str, extra: str | None = None, **names: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package that imports some of its modules when they are first asked for (PEP 562).

    Args:
        package: the package's full name.
        modules: the modules that are asked for by their own names.
        extra: the extra with the packages that the names need; None if they need none.
        names: the names of things in modules, each with its module.
    """

    def find(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name in names:
            return load(f"{package}.{names[name]}", extra, f"{package.replace('penstock', 'ps')}.{name}", name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


class Missing:
    """Takes the place of a name whose extra is missing: it can be looked up, and using it says what to install."""

    def __init__(self, public: str, package: str, extra: str) -> None:
        self.__public = public
        self.__package = package
        self.__extra = extra

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise MissingExtraError(
            f"{self.__public} needs the package {self.__package}, which is not installed: "
            f"pip install 'penstock-data[{self.__extra}]'",
            name=self.__package,
        )

    __call__ = __instancecheck__ = __subclasscheck__ = __mro_entries__ = __or__ = __ror__ = _refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself asks for, to show the name
            raise AttributeError(name)
        self._refuse()

    def __repr__(self) -> str:
        return f"<{self.__public}, which needs pip install 'penstock-data[{self.__extra}]'>"
