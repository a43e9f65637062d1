"""Workers that find each other at other addresses than those of IPv4."""

import pytest
from ipv6 import needs_ipv6


@pytest.mark.extended
@needs_ipv6
def test_workers_train_together_where_there_is_only_ipv6(workers) -> None:
    """The coordinator, the control channel by which the steps of filtered rows are agreed on, and the collectives."""
    ended = workers("addresses", host="::1")
    assert (ended.errors, ended.statuses) == ("", [0, 0])
    assert ended.of("sums_of_filtered_rows") == [[10, 26]] * 2
