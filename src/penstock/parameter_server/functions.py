"""The functions that a coordinator schedules: each is pickled once, and released when it is no longer needed.

A program may schedule a new function for every step, such as a lambda that captures a batch. What workers know of it
ends with it here.
"""

import gc
import itertools
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from penstock.parameter_server.closures import loads

_NEWEST: Final = 256
_NEWEST_BYTES: Final = 1 << 26
"""Of functions that the program has forgotten, those that were scheduled last are kept, up to this number and these
bytes of pickles: a lambda in a loop is another object each time, and often the same function, which workers have
compiled."""
_MOST_GARBAGE: Final = 1024
"""Collecting garbage takes a worker a tenth of a second where Keras is loaded."""


class PickledFunction:
    """A function as workers get it.

    Attributes:
        number: by which workers know it.
    """

    def __init__(self, number: int, content: bytes) -> None:
        self.number = number
        self.content = content


class ScheduledFunctions:
    """Those that the program still has, those that wait or run, and those that were scheduled last.

    Args:
        pickled: returns the pickle of an object that it names in errors.
        forget: called with the number of a function that was released, in any thread and at any time.
    """

    def __init__(self, pickled: Callable[[str, Any], bytes], forget: Callable[[int], None]) -> None:
        self._pickled = pickled
        self._forget = forget
        self._of_program: weakref.WeakKeyDictionary[types.FunctionType, PickledFunction] = weakref.WeakKeyDictionary()
        self._by_content: weakref.WeakValueDictionary[bytes, PickledFunction] = weakref.WeakValueDictionary()
        self._newest: OrderedDict[PickledFunction, None] = OrderedDict()
        self._newest_bytes = 0
        self._numbers = itertools.count()  # several threads may schedule

    def get(self, fn: Callable[..., Any]) -> PickledFunction:
        """A function as it was when it was scheduled first; other callables as they are now.

        Raises:
            InvalidTypeError: it cannot be sent to another process.
        """
        if not isinstance(fn, types.FunctionType):
            return self._found(self._pickled("the function", fn))
        known = self._of_program.get(fn)
        if known is None:
            known = self._of_program[fn] = self._found(self._pickled(f"the function {fn.__qualname__}", fn))
        return known

    def _found(self, content: bytes) -> PickledFunction:
        known = self._by_content.get(content)
        if known is None:
            known = self._by_content[content] = PickledFunction(next(self._numbers), content)
            weakref.finalize(known, self._forget, known.number).atexit = False
        return known

    def note_use(self, function: PickledFunction) -> None:
        """Note that a function was scheduled, and let those go that were scheduled longest ago."""
        if function in self._newest:
            self._newest.move_to_end(function)
            return
        self._newest[function] = None
        self._newest_bytes += len(function.content)
        while len(self._newest) > 1 and (len(self._newest) > _NEWEST or self._newest_bytes > _NEWEST_BYTES):
            self._newest_bytes -= len(self._newest.popitem(last=False)[0].content)


class FunctionsOfWorker:
    """Those that a worker knows by their numbers; each is loaded when it runs first."""

    def __init__(self) -> None:
        self._contents: dict[int, bytes] = {}
        self._loaded: dict[int, Callable[..., Any]] = {}
        self._sizes: dict[int, int] = {}
        self._released = self._released_bytes = 0

    def define(self, number: int, content: bytes) -> None:
        """Take a function."""
        self._contents[number] = content
        self._sizes[number] = len(content)

    def get(self, number: int) -> Callable[..., Any]:
        """A function.

        Raises:
            Exception: it cannot be loaded here; the next call tries it again.
        """
        if number not in self._loaded:
            self._loaded[number] = loads(self._contents[number])
            del self._contents[number]
        return self._loaded[number]

    def forget(self, number: int) -> None:
        """Release a function, and now and then what only garbage collection finds.

        Functions of the main program refer to each other by their globals, so to themselves. Garbage that has lived for
        hundreds of calls would otherwise stay until many other objects are made.
        """
        self._contents.pop(number, None)
        self._loaded.pop(number, None)
        self._released += 1
        self._released_bytes += self._sizes.pop(number)
        if self._released >= _MOST_GARBAGE or self._released_bytes >= _NEWEST_BYTES:
            self._released = self._released_bytes = 0
            gc.collect()
