"""The guide's loop ends by an optional without a value, and the end stays the end."""

import numpy as np
import pytest

import penstock as ps


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_guides_optional_iteration(strategy_of, prefetch) -> None:
    strategy = strategy_of(4)
    dataset = ps.Dataset.range(9).batch(4)
    printed = []
    with iter(strategy.distribute_dataset(dataset, ps.InputOptions(per_replica_buffer_size=prefetch))) as iterator:
        for _ in range(5):
            optional_data = iterator.get_next_as_optional()
            if not optional_data.has_value():
                break
            results = strategy.run(lambda x: x, args=(optional_data.get_value(),))
            printed.append(tuple(np.asarray(rows).tolist() for rows in strategy.local_results(results)))
    assert printed == [([0], [1], [2], [3]), ([4], [5], [6], [7]), ([8], [], [], [])]


def test_the_end_stays_the_end_and_has_no_value(strategy_of) -> None:
    with iter(strategy_of(2).distribute_dataset(ps.Dataset.range(2).batch(2))) as iterator:
        assert iterator.get_next_as_optional().has_value()
        for _ in range(2):
            missing = iterator.get_next_as_optional()
            assert not missing.has_value()
            with pytest.raises(ps.InvalidArgumentError, match="the data has ended; ask has_value"):
                missing.get_value()
        with pytest.raises(ps.OutOfRangeError):
            iterator.get_next()
