"""A pool of worker threads that starts when it is first needed and shares one piece of work at a time."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Lock


class WorkerPool:
    """Threads for the user's functions of one iteration.

    The calling thread always works too, so `parallelism` 1 starts nothing.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._executors: dict[int, ThreadPoolExecutor] = {}

    def share(self, work: Callable[[int, int], None], rows: int, parallelism: int, chunk: int) -> None:
        """Call `work(start, stop)` for consecutive chunks of `range(rows)`, on up to `parallelism` threads.

        An exception of one chunk stops the handing out of further ones and is raised when all running chunks have
        ended; of several, that of the earliest chunk.
        """
        starts = itertools.count(0, chunk)
        failures: list[tuple[int, BaseException]] = []

        def drain() -> None:
            for start in starts:
                if start >= rows or failures:
                    return
                try:
                    work(start, min(start + chunk, rows))
                except BaseException as error:  # handed to the caller below
                    failures.append((start, error))

        helpers = min(parallelism, -(-rows // chunk)) - 1
        futures = [self._threads_for(helpers).submit(drain) for _ in range(helpers)]
        drain()
        try:
            wait(futures)
        except BaseException as interrupt:  # Ctrl-C: the threads stop after the chunk they are at
            failures.append((rows, interrupt))
            raise
        if failures:
            raise min(failures, key=lambda failure: failure[0])[1]

    def submit(self, work: Callable[..., None], parallelism: int, *arguments: object) -> None:
        """Call `work(*arguments)` on one of `parallelism` threads, some time. `work` must not raise."""
        self._threads_for(parallelism).submit(work, *arguments)

    def _threads_for(self, count: int) -> ThreadPoolExecutor:
        with self._lock:
            if count not in self._executors:
                self._executors[count] = ThreadPoolExecutor(count, thread_name_prefix="penstock-map")
            return self._executors[count]

    def close(self) -> None:
        """End the threads; waits for the functions that run."""
        with self._lock:
            executors, self._executors = self._executors, {}
        for executor in executors.values():
            executor.shutdown(wait=True, cancel_futures=True)
