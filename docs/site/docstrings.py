"""An extension of Griffe: a docstring's `Example:` is an example to run, as Griffe's own `Examples:` is.

A function that a package imports from its module of the same name is that function, as it is for Python.
"""

import re
from typing import Any

from griffe import Extension, Module, Object

EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)


class RunnableExamples(Extension):
    """Reads `Example:` as `Examples:`."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for each object when it has been read."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub("Examples:", obj.docstring.value)

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Called for the package when all of it has been read."""
        packages = [pkg]
        for package in packages:
            packages += [one for one in package.modules.values() if not one.is_alias]
            for name, target in package.imports.items():
                if target != f"{package.path}.{name}.{name}":
                    continue
                module = package.members[name]
                for other, place in package.imports.items():
                    if (
                        place == f"{module.path}.{other}"
                    ):  # through the function nothing could be found
                        package.set_member(other, module.members[other])
