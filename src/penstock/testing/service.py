"""Whether a dataset gives through data services what it gives in process."""

from penstock.data.dataset import Dataset
from penstock.service.check import check


def check_service(dataset: Dataset, limit: int = 1000, kills: int = 2) -> None:
    """Check that a dataset gives the same elements through data services on this machine as in this process.

    With one worker and with three, while workers are killed, and by iterators that are restored from a state.

    Args:
        limit: how many elements are read.
        kills: how many workers are killed.

    Raises:
        AssertionError: something else came; the message says in which run, and which element was the first.
        InvalidArgumentError: the dataset is distributed already.

    Example:
        >>> import penstock as ps
        >>> ps.testing.check_service(ps.Dataset.range(50).shuffle(10, seed=1).batch(3), kills=0)
    """
    differences = check(dataset, limit=limit, kills=kills)
    assert not differences, "; ".join(map(str, differences))
