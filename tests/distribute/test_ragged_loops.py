"""Collectives inside loops and branches give in a ragged step what they give in a full one."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import penstock as ps

SHARES = [np.float32([1, 2]), np.float32([3]), np.float32([]), np.float32([])]
"""Rows of zero change none of the sums below, so a full step of padded shares must give the same."""
PADDED = [np.pad(share, (0, 2 - len(share))) for share in SHARES]


def total(value):
    return ps.get_replica_context().all_reduce("SUM", value)


def in_scan(rows):
    def body(carry, scale):
        carry = total(rows.sum() * scale) + 0.5 * carry
        return carry, (carry, rows.sum() * scale)

    return lax.scan(body, 0.0, jnp.arange(1.0, 4.0), reverse=True)


def in_fori_loop(rows):
    return lax.fori_loop(0, 3, lambda number, carry: 0.5 * carry + total(rows.sum() * number), 0.0)


def in_while_loop(rows):
    """How often it turns depends on what all replicas bring together, in its condition too."""
    return lax.while_loop(
        lambda carry: total(carry[0]) < 40 + 0 * total(rows.sum()),
        lambda carry: (carry[0] + total(rows.sum()), carry[1] + 1),
        (1.0, 0),
    )


def in_cond(rows):
    everything = total(rows.sum())
    own = rows.sum()
    return lax.cond(everything > 5, lambda: total(own * 2), lambda: own), lax.cond(
        everything > 50, lambda: total(own * 2), lambda: own
    )


def in_nested(rows):
    def body(carry, number):
        carry = lax.cond(number % 2 == 0, lambda: carry + total(rows.sum()), lambda: carry * 2)
        return carry, lax.axis_index("replica")

    return lax.scan(body, 0.0, jnp.arange(3))


def gradient_of_scan(rows):
    def loss(weight):
        return lax.scan(lambda carry, _: (carry + total((weight * rows).sum()), None), 0.0, None, length=3)[0]

    return jax.grad(loss)(2.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function", [in_scan, in_fori_loop, in_while_loop, in_cond, in_nested, gradient_of_scan, jax.jit(in_scan)]
)
def test_loops_and_branches_give_the_numbers_of_a_full_step(four, function) -> None:
    ragged = four.run(function, args=(ps.PerReplica(SHARES),))
    full = four.run(function, args=(ps.PerReplica(PADDED),))
    for one, two in zip(four.local_results(ragged), four.local_results(full), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), one, two)


def test_a_loop_over_rows_that_meets_in_every_turn_is_refused(four) -> None:
    def loop(rows):
        return lax.scan(lambda carry, row: (carry + total(row), None), 0.0, rows)[0]

    with pytest.raises(ps.InvalidArgumentError, match=r"loop of length 2 .* replica 0 .* length 1 .* replica 1"):
        four.run(loop, args=(ps.PerReplica(SHARES[:2] * 2),))


def loop_over_rows(rows):
    return lax.scan(lambda carry, row: (carry + total(row), None), 0, rows)[0]


def steps_of(four, dataset, **options):
    return list(four.distribute_dataset(dataset, ps.InputOptions(**options)))


def unknown_length(rows: int) -> ps.Dataset:
    return ps.Dataset.range(rows).filter(lambda row: True)


def moved(value):
    return lax.ppermute(value, "replica", [(0, 1), (1, 2), (2, 3), (3, 0)])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda rows: moved(rows.sum()), "nor collectives other than sums, means and extremes over all replicas"),
        (lambda rows: (moved if len(rows) == 2 else total)(rows.sum()), r"got ppermute on replica 0 and all_reduce of"),
    ],
)
def test_a_ragged_step_refuses_collectives_that_combine_not_all_replicas(four, function, message: str) -> None:
    with pytest.raises(ps.InvalidArgumentError, match=message):
        four.run(function, args=(ps.PerReplica(SHARES),))


@pytest.mark.parametrize("options", [{}, {"fetch_to_device": False}])
@pytest.mark.parametrize("dataset", [ps.Dataset.range(15).batch(8), unknown_length(16).batch(8)])
def test_a_loop_over_rows_is_refused_at_once_if_ragged_steps_follow(four, dataset, options: dict) -> None:
    first = steps_of(four, dataset, **options)[0]

    def step(scale, batch):
        return scale * loop_over_rows(batch["rows"])

    for _ in range(2):
        with pytest.raises(
            ps.InvalidArgumentError, match=r"may have 2 and 1 rows.* length 2 .* length 1 .*partial_batch=\"pad\""
        ):
            four.run(step, args=(2, {"rows": first}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (ps.Dataset.range(16).batch(8), {}),
        (ps.Dataset.range(20).batch(12), {}),  # 3 rows each, then 2
        (ps.Dataset.range(16).batch(8).map(lambda rows: rows), {}),
        (unknown_length(16).batch(8, drop_remainder=True), {}),
        (unknown_length(15).batch(8), {"partial_batch": "pad"}),
        (unknown_length(15).batch(8).map(lambda rows: rows), {"partial_batch": "drop"}),
    ],
)
def test_a_loop_over_rows_that_meets_is_welcome_where_no_ragged_step_comes(four, dataset, options: dict) -> None:
    for batch in steps_of(four, dataset, **options):
        rows = batch[0] if isinstance(batch, tuple) else batch
        everything = sum(int(part.sum()) for part in rows.values)
        assert int(four.run(loop_over_rows, args=(rows,)).values[3]) == everything


@pytest.mark.slow
def test_loops_that_work_in_the_ragged_step_are_not_refused_before(four) -> None:
    def in_pairs(rows):
        """Turns 2 times for a full share of 4 rows, once for 3, and never in the ragged step, with 1 and 0 rows."""
        pairs = rows[: len(rows) // 2 * 2].reshape(-1, 2)
        return lax.scan(lambda carry, pair: (carry + total(pair.sum()), None), 0, pairs)[0]

    def at_least_two(rows):
        return loop_over_rows(jnp.pad(rows, (0, 4 - len(rows))))

    for function in (in_pairs, at_least_two):
        results = [
            int(four.run(function, args=(batch,)).values[0]) for batch in steps_of(four, ps.Dataset.range(19).batch(16))
        ]
        assert results == [120, 0 if function is in_pairs else 51]


@pytest.mark.slow
def test_looking_for_loops_traces_a_step_no_second_time(four) -> None:
    traced = []

    def step(rows):
        traced.append(rows.shape)
        return total(rows.sum())

    for batch in steps_of(four, ps.Dataset.range(23).batch(8))[:2]:
        four.run(step, args=(batch,))
    assert traced == [(2,)]


@pytest.mark.slow
def test_a_batch_of_a_dataset_can_be_copied_and_sent(four) -> None:
    for batch in steps_of(four, ps.Dataset.range(11).batch(8)):
        expected = [part.tolist() for part in batch.values]
        for other in (copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
            assert type(other) is type(batch)
            assert [part.tolist() for part in other.values] == expected
