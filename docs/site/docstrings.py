"""An extension of Griffe: a docstring's `Example:` is an example to run, as Griffe's own `Examples:` is."""

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)


class RunnableExamples(Extension):
    """Reads `Example:` as `Examples:`."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for each object when it has been read."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub("Examples:", obj.docstring.value)
