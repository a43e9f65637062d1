"""Reading on after elements that fail."""

from typing import Any

import penstock as ps


def read_past_errors(dataset: ps.Dataset, *errors: type[BaseException]) -> tuple[list[int], list[Any]]:
    """The numbers that a dataset gives, and the errors of these kinds that it raises between them."""
    found, raised = [], []
    with iter(dataset) as iterator:
        while True:
            try:
                found.append(int(next(iterator)))
            except StopIteration:
                return found, raised
            except errors as error:
                raised.append(error)
