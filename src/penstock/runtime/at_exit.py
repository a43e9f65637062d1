"""One registry of everything that has to end before the process does.

An object that runs something registers how it is ended. The registry keeps no object alive, and a forked process begins
with an empty one. During Python's exit things end in this order:

1. The main program has ended; pools of threads still take work: `finish_before_pools_close`.
2. `atexit` calls its functions, the newest first. Objects registered by `end_before_libraries` end in a separate
   call, and so before the libraries that were imported until then; those registered by `end_at_exit` end in one
   call that is as old as the import of this file.

From Python 3.12 on no thread can be started by then: what ends something must not need a new one.
"""

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

Thing = TypeVar("Thing")
_End = Callable[[Any], None]

_at_exit: weakref.WeakKeyDictionary[Any, tuple[_End, bool]] = weakref.WeakKeyDictionary()
_before_libraries: weakref.WeakKeyDictionary[Any, _End] = weakref.WeakKeyDictionary()
_unfinished: dict[int, Callable[[], None]] = {}
_hooked: set[Callable[[], None]] = set()
"""Which functions of this file are registered with the interpreter."""


def end_at_exit(thing: Thing, end: Callable[[Thing], None], *, last: bool = False) -> None:
    """Have `end(thing)` called when the interpreter exits, unless the object is gone by then; the newest come first.

    Args:
        thing: the object; each has one way to end.
        end: must not refer to the object itself, which would never be gone.
        last: whether it ends after all that is not `last`: what others have made for their own use does.
    """
    if _end_all not in _hooked:  # in a process that was forked
        atexit.register(_end_all)
        _hooked.add(_end_all)
    _at_exit[thing] = end, last


def end_before_libraries(thing: Thing, end: Callable[[Thing], None]) -> None:
    """Variant of `end_at_exit`, before what libraries that are imported by now have registered with `atexit`."""
    _before_libraries[thing] = end
    atexit.register(_end_one, weakref.ref(thing))


def finish_before_pools_close(thing: object, finish: Callable[[], None]) -> None:
    """Have `finish()` called when the main program has ended, while pools of threads still take work.

    It is called also if nothing refers to the object any more; `forget` prevents it. Threads of the user's may still
    run then. No public means comes in time: `atexit` calls its functions when `concurrent.futures` has closed all pools
    of threads, and a thread that waits for the main one, as by `main_thread().join()`, continues only then too.
    `concurrent.futures` closes them by this very function of `threading`, and functions registered later are called
    earlier. `tests/runtime/test_at_exit.py` names the version of Python that has changed this.
    """
    if _finish_all not in _hooked:
        threading._register_atexit(_finish_all)  # type: ignore[attr-defined]
        _hooked.add(_finish_all)
    _unfinished[id(thing)] = finish


def after_interrupt() -> bool:
    """Return whether the program has ended by Ctrl-C, and so its user waits for the end."""
    return getattr(sys, "last_type", None) is KeyboardInterrupt


def forget(thing: object) -> None:
    """Remove an object that has ended from the registry. Takes no lock and waits for nothing."""
    if _at_exit.pop(thing, None) is None and _before_libraries.pop(thing, None) is None:
        _unfinished.pop(id(thing), None)


def _end_all() -> None:
    endings = sorted(_at_exit.items(), key=lambda ending: not ending[1][1])
    _at_exit.clear()
    # It calls the newest first, and all of them, whatever one raises.
    with ExitStack() as stack:
        for thing, (end, _) in endings:
            stack.callback(end, thing)


def _end_one(reference: weakref.ref[Any]) -> None:
    thing = reference()
    end = None if thing is None else _before_libraries.pop(thing, None)
    if end is not None:
        end(thing)


def _finish_all() -> None:
    unfinished = list(_unfinished.values())
    _unfinished.clear()
    with ExitStack() as stack:
        for finish in unfinished:
            stack.callback(finish)


def _forget_everything() -> None:
    _at_exit.clear()
    _before_libraries.clear()
    _unfinished.clear()
    _hooked.clear()  # multiprocessing clears what `atexit` calls


atexit.register(_end_all)
_hooked.add(_end_all)
os.register_at_fork(after_in_child=_forget_everything)
