"""Ragged steps on devices: the numbers of an undistributed computation, whatever the sizes of the shares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps


def loss_of(weights, features, targets):
    return jnp.sum(jnp.square(features @ weights["slope"] + weights["offset"] - targets))


def update(weights, gradients, rows):
    return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient / rows, weights, gradients)


def train_step(weights, batch):
    """One step of gradient descent on all replicas: loss and gradients are those of the whole batch."""
    context = ps.get_replica_context()
    features, targets = batch
    loss, gradients = jax.value_and_grad(loss_of)(weights, features, targets)
    rows, loss, gradients = context.all_reduce("SUM", (features.shape[0], loss, gradients))
    return update(weights, gradients, rows), loss


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 3)).astype(np.float32), rng.normal(size=rows).astype(np.float32)


def undistributed(weights, arrays, batch_size: int):
    losses = []
    for start in range(0, len(arrays[0]), batch_size):
        features, targets = (array[start : start + batch_size] for array in arrays)
        loss, gradients = jax.value_and_grad(loss_of)(weights, features, targets)
        weights = update(weights, gradients, len(features))
        losses.append(float(loss))
    return weights, losses


@pytest.mark.extended
@pytest.mark.parametrize("rows", [32, 33, 37, 39])
def test_training_gives_the_numbers_of_an_undistributed_one(four, rows: int) -> None:
    weights = {"slope": np.zeros(3, np.float32), "offset": np.float32(0)}
    expected, expected_losses = undistributed(weights, data(rows), 8)
    losses = []
    for batch in four.distribute_dataset(ps.Dataset.from_tensor_slices(data(rows)).batch(8)):
        weights, loss = four.run(train_step, args=(weights, batch))
        losses.append(float(loss.values[0]))
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for name, value in expected.items():
        for part in weights[name].values:
            np.testing.assert_allclose(part, value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_state_goes_through_a_ragged_step_without_compiling_again(four) -> None:
    traced = []

    def step(weights, batch):
        traced.append(batch[0].shape[0])
        return train_step(weights, batch)

    weights = {"slope": np.zeros(3, np.float32), "offset": np.float32(0)}
    dataset = ps.Dataset.from_tensor_slices(data(19)).batch(8)
    for _ in range(3):
        for batch in four.distribute_dataset(dataset):
            weights, _ = four.run(step, args=(weights, batch))
    # Once for the full steps; once for each size of share in the last step, which has 3 rows: 1, 1, 1 and 0.
    assert traced == [2, 1, 0]
    assert weights["slope"].stacked is not None


def test_outputs_keep_their_own_sizes_and_devices(four) -> None:
    (batch,) = four.distribute_dataset(ps.Dataset.range(5).batch(8))
    result = four.run(lambda rows: {"rows": rows * 2, "first": rows[:0]}, args=(batch,))
    assert [np.asarray(rows).tolist() for rows in result["rows"].values] == [[0, 2], [4, 6], [8], []]
    assert [rows.devices() for rows in result["rows"].values] == [{device} for device in four._placement.local_devices]
    assert result["first"].stacked.shape == (4, 0)


def sum_in_jit(rows):
    return jax.jit(lambda total: ps.get_replica_context().all_reduce("SUM", total))(rows.sum())


def sum_in_remat(rows):
    return jax.checkpoint(lambda total: ps.get_replica_context().all_reduce("SUM", jnp.sin(total)))(rows.sum() * 1.0)


def gradient_through_sum(rows):
    return jax.grad(lambda scale: ps.get_replica_context().all_reduce("SUM", (scale * rows).sum()))(1.0)


@jax.custom_jvp
def doubled_sum(total):
    return 2 * ps.get_replica_context().all_reduce("SUM", total)


doubled_sum.defjvp(lambda primals, tangents: (doubled_sum(*primals), 2 * tangents[0]))


@jax.custom_vjp
def tripled_sum(total):
    return 3 * ps.get_replica_context().all_reduce("SUM", total)


tripled_sum.defvjp(lambda total: (tripled_sum(total), None), lambda _, cotangent: (3 * cotangent,))


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        sum_in_jit,
        sum_in_remat,
        gradient_through_sum,
        lambda rows: doubled_sum(rows.sum() * 1.0),
        lambda rows: tripled_sum(rows.sum() * 1.0),
        lambda rows: jax.grad(lambda x: doubled_sum(x) ** 2)(rows.sum() * 1.0),
        lambda rows: ps.get_replica_context().all_reduce("MEAN", rows.sum()),
        lambda rows: jax.lax.pmax(jnp.max(rows, initial=-1), "replica"),
        lambda rows: jax.lax.scan(lambda total, row: (total + row, None), 0, rows)[0],
        lambda rows: jax.nn.relu(rows.sum() - ps.get_replica_context().replica_id_in_sync_group),
    ],
)
def test_the_slower_way_gives_the_numbers_of_the_compiled_program(four, function) -> None:
    # Rows of zero change none of these sums, so a full step of padded shares must give the same.
    shares = [np.int32([1, 2]), np.int32([3]), np.int32([]), np.int32([])]
    padded = [np.pad(share, (0, 2 - len(share))) for share in shares]
    ragged = four.run(function, args=(ps.PerReplica(shares),))
    full = four.run(function, args=(ps.PerReplica(padded),))
    np.testing.assert_allclose(np.asarray(ragged.values), np.asarray(full.values), rtol=1e-6)


def test_replicas_that_meet_differently_often_are_refused(four) -> None:
    def sometimes(rows):
        return ps.get_replica_context().all_reduce("SUM", rows.sum()) if rows.shape[0] else rows.sum()

    (batch,) = four.distribute_dataset(ps.Dataset.range(5).batch(8))
    with pytest.raises(ps.InvalidArgumentError, match=r"got all_reduce of \(\) .* the end of .* replica 3"):
        four.run(sometimes, args=(batch,))


def test_replicas_that_bring_different_shapes_are_refused(four) -> None:
    (batch,) = four.distribute_dataset(ps.Dataset.range(5).batch(8))
    with pytest.raises(ps.InvalidArgumentError, match=r"same shapes and in the same order.*\(2,\).*\(1,\).*replica 2"):
        four.run(lambda rows: ps.get_replica_context().all_reduce("SUM", rows), args=(batch,))


def test_results_must_agree_in_structure(four) -> None:
    (batch,) = four.distribute_dataset(ps.Dataset.range(5).batch(8))
    with pytest.raises(ps.InvalidTypeError, match="one structure on every replica"):
        four.run(lambda rows: (rows,) * rows.shape[0], args=(batch,))


def test_an_exception_says_which_share_it_came_with(four) -> None:
    (batch,) = four.distribute_dataset(ps.Dataset.range(5).batch(8))
    with pytest.raises(ZeroDivisionError) as raised:
        four.run(lambda rows: rows.reshape(rows.shape[0], -1), args=(batch,))
    assert any("shapes (0,): a slice may be empty" in note for note in raised.value.__notes__)


def test_a_ragged_step_may_give_a_constant(four) -> None:
    steps = iter(four.distribute_dataset(ps.Dataset.range(3).batch(3)))
    assert [int(value) for value in four.run(lambda rows: 7, args=(next(steps),)).values] == [7, 7, 7, 7]
