"""Flight calls that can be cancelled: by itself `do_get` waits for a worker's first block without a limit."""

import threading
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
from pyarrow import flight


class OpeningCall:
    """A call in a thread of its own, which continues unobserved if it was cancelled.

    Args:
        call: returns the stream.
    """

    def __init__(self, call: Callable[[], flight.FlightStreamReader]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._cancelled = False
        self._reader: flight.FlightStreamReader | None = None
        self._error: Exception | None = None
        threading.Thread(target=self._run, name="penstock-open", daemon=True).start()

    def _run(self) -> None:
        try:
            reader = self._call()
        except Exception as error:
            self._error = error
        else:
            with self._lock:
                self._reader = None if self._cancelled else reader
            if self._reader is None:
                with suppress(pa.ArrowException, OSError):
                    reader.cancel()
        self._over.set()

    def reader(self) -> flight.FlightStreamReader:
        """Wait for the stream.

        Raises:
            FlightCancelledError: it was cancelled.
            Exception: what the call raised.
        """
        self._over.wait()
        if self._error is not None:
            raise self._error
        with self._lock:
            if self._reader is None:
                raise flight.FlightCancelledError("given up")
            return self._reader

    def cancel(self) -> None:
        """Cancel the call, or the stream if that has begun."""
        with self._lock:
            self._cancelled = True
            reader = self._reader
        if reader is not None:
            reader.cancel()
        self._over.set()
