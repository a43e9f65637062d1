"""Collectives inside loops and branches give in a ragged step what they give in a full one."""

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

    with pytest.raises(ps.InvalidArgumentError, match=r"turns 2 times on replica 0 and once on replica 1"):
        four.run(loop, args=(ps.PerReplica(SHARES[:2] * 2),))
