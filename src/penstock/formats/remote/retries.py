"""Requests that are sent again after temporary faults, such as a busy server and a connection that breaks."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

from penstock.statistics.process import stores

BUSY: Final = frozenset((408, 429, 500, 502, 503, 504))
"""The answers of servers that refuse a request for the moment."""
BUSY_DELAYS: Final = (1.0, 2.0, 4.0, 8.0, *[15.0] * 11)
"""The seconds between requests to a server that is too busy: two to three minutes in all."""
BROKEN_DELAYS: Final = (0.1, 0.2, 0.4, 0.8, 1.5)
"""The same where a connection breaks or cannot be made: a wrong address should not take minutes to be an error."""

MOST_SECONDS: Final = 600.0
"""All delays of a request together, also where its server asks for longer ones."""

Result = TypeVar("Result")


def with_retries(
    request: Callable[[], Result],
    delays_after: Callable[[Exception], Sequence[float]],
    nbytes: Callable[[Any], int],
    asked: Callable[[Exception], float] = lambda error: 0.0,
) -> Result:
    """Return the result of a request, which is sent again after temporary faults.

    Args:
        request: sends it.
        delays_after: the most seconds between requests that fail in this way; the least are half of them. It gives
            none if sending the request again would not help.
        nbytes: the size of the content in a result.
        asked: the seconds that the server asks to wait after such a failure.
    """
    sent, waited = 0, 0.0
    while True:
        stores.count(requests=1, repeats=bool(sent))
        try:
            result = request()
            stores.count(nbytes=nbytes(result))
            return result
        except Exception as error:
            delays = delays_after(error)
            if sent >= len(delays):
                raise
            # Later than asked by a random part, too: all readers got the same answer.
            delay = max(delays[sent] * random.uniform(0.5, 1), asked(error) * random.uniform(1, 1.1))
            waited += delay
            if waited > MOST_SECONDS:
                raise
        time.sleep(delay)
        stores.count(waited=delay)
        sent += 1


def seconds_asked(headers: Mapping[str, str]) -> float:
    """Return the seconds that a server asks to wait by the header `Retry-After` of its answer; 0 without one."""
    value = next((value for name, value in headers.items() if name.lower() == "retry-after"), "").strip()
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:  # there is none, or no date
        return 0.0
