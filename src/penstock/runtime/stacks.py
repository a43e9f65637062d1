"""The threads of this process in words: what the calls of each wait for, and its stack.

An object on a stack says what its calls wait for by a method `waits_for`. So nothing is noted while all goes well.
"""

import sys
import threading
from collections import defaultdict
from traceback import walk_stack
from types import FrameType
from typing import Any


def threads_in_words() -> str:
    """All threads but the calling one, the main one first; those with the same stack together.

    It reads no files, not even those of the program: what hangs may be their disk.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            alike[_described(frame)].append(names.get(ident, f"thread {ident}"))
    shown = sorted(alike.items(), key=lambda item: threading.main_thread().name not in item[1])
    return "\n".join(f"{', '.join(sorted(threads))}\n{described}" for described, threads in shown)


def _described(frame: FrameType) -> str:
    """Describe what a thread waits for, from the outermost call on, and its stack, as `faulthandler` shows one."""
    frames = list(walk_stack(frame))
    waits: list[str] = []
    for caller, _ in reversed(frames):
        wait = _waits_for(caller.f_locals.get("self"))
        if wait not in ("", *waits[-1:]):
            waits.append(wait)
    calls = [(one.f_code, line) for one, line in frames if one.f_code.co_filename != threading.__file__]
    lines = [f"    {code.co_filename}:{line} in {code.co_qualname}" for code, line in calls]
    return "\n".join([*(f"  waits for {wait}" for wait in waits), *lines])


def _waits_for(owner: Any) -> str:
    waits_for = getattr(type(owner), "waits_for", None)
    try:
        return "" if waits_for is None else str(waits_for(owner))
    except Exception as error:  # it may be in the middle of a change
        return f"{type(owner).__name__}, which cannot say it: {error!r}"
