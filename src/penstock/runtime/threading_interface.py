"""All that penstock takes from Python's `threading` beyond what is documented: a call at the end of the main program.

No public means comes in time. `atexit` calls its functions when `concurrent.futures` has closed all pools of threads,
and a thread of our own that waits for the main one, as by `main_thread().join()`, goes on only then too.
`tests/runtime/test_threading_interface.py` names the version of Python that has changed this.
"""

import threading
from collections.abc import Callable


def call_before_pools_close(call: Callable[[], None]) -> None:
    """Have something called when the main program has ended, while pools of threads still take work.

    `concurrent.futures` closes them by this very function, and what was registered later is called earlier.
    """
    threading._register_atexit(call)  # type: ignore[attr-defined]
