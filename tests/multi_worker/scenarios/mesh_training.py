"""Training on a mesh with three axes in the styles of several libraries: each gives the losses of its steps."""

import os
from functools import partial
from importlib.util import find_spec
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from scenarios.meshes import P, _mesh

import penstock as ps

NEEDS_STRATEGY = False
ROWS = P(("data", "fsdp"))
RATE = 0.5

examples = ps.Dataset.range(32).map(lambda row: (np.float32([row, 1]) / 32, np.float32(row / 16 + 1))).batch(8)


def _loss(weights: Any, batch: Any) -> Any:
    inputs, targets = batch
    return jnp.mean((inputs @ weights - targets) ** 2)


def _losses(step: Any, weights: Any, loader: Any) -> list[float]:
    losses = []
    with loader:
        for batch in loader:
            with jax.transfer_guard("disallow"):
                weights, loss = step(weights, batch)
            losses.append(float(loss))
    return losses


def _step(weights: Any, batch: Any) -> Any:
    loss, gradient = jax.value_and_grad(_loss)(weights, batch)
    return weights - RATE * gradient, loss


def jitted(_: None) -> Any:
    """As MaxText's loop: one jitted step that donates a state of its own sharding."""
    mesh = _mesh()
    state = NamedSharding(mesh, P("tensor"))
    weights = jax.jit(lambda: jnp.zeros(2), out_shardings=state)()
    step = jax.jit(_step, donate_argnums=0, out_shardings=(state, NamedSharding(mesh, P())))
    return _losses(step, weights, ps.jax.loader(examples, mesh, ROWS))


def explicit(_: None) -> Any:
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 3)
    with jax.set_mesh(mesh):
        weights = jax.jit(lambda: jnp.zeros(2))()
        loader = ps.jax.loader(examples, (P(("data", "fsdp"), None), ROWS))
        return _losses(jax.jit(_step), weights, loader)


def in_shard_map(_: None) -> Any:
    mesh = _mesh()

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), ROWS), out_specs=(P(), P()))
    def step(weights: Any, batch: Any) -> Any:
        # The gradient of replicated weights is summed over the mesh already.
        loss, gradient = jax.value_and_grad(lambda weights: jax.lax.pmean(_loss(weights, batch), ("data", "fsdp")))(
            weights
        )
        return weights - RATE * gradient, loss

    weights = jax.jit(lambda: jnp.zeros(2), out_shardings=NamedSharding(mesh, P()))()
    return _losses(step, weights, ps.jax.loader(examples, mesh, ROWS))


class _Line(nnx.Module):
    def __init__(self) -> None:
        self.weights = nnx.Param(jnp.zeros(2))


def flax_nnx(_: None) -> Any:
    mesh = _mesh()
    replicated = NamedSharding(mesh, P())
    definition, state = nnx.split(_Line())
    state = jax.jit(lambda: state, out_shardings=replicated)()

    @jax.jit
    def step(state: Any, batch: Any) -> Any:
        model = nnx.merge(definition, state)
        loss, gradient = nnx.value_and_grad(lambda model: _loss(model.weights[...], batch))(model)
        return jax.tree.map(lambda weights, slope: weights - RATE * slope, state, gradient), loss

    return _losses(step, state, ps.jax.loader(examples, mesh, ROWS))


def equinox(_: None) -> Any:
    if find_spec("equinox") is None:
        return None
    eqx = __import__("equinox")
    mesh = _mesh()

    class Line(eqx.Module):
        weights: Any

    @eqx.filter_jit
    def step(model: Any, batch: Any) -> Any:
        loss, slopes = eqx.filter_value_and_grad(lambda model: _loss(model.weights, batch))(model)
        return eqx.apply_updates(model, jax.tree.map(lambda slope: -RATE * slope, slopes)), loss

    model = jax.jit(lambda: Line(jnp.zeros(2)), out_shardings=NamedSharding(mesh, P()))()
    return _losses(step, model, ps.jax.loader(examples, mesh, ROWS))


def keras_distribution(_: None) -> Any:
    """Both of Keras's distributions, whose layout of the data is the sharding; the model's variables are Keras's."""
    devices = keras.distribution.list_devices()
    one_axis = keras.distribution.DeviceMesh((8,), ("batch",), devices)
    two_axes = keras.distribution.DeviceMesh((4, 2), ("batch", "model"), devices)
    layout = keras.distribution.LayoutMap(two_axes)
    layout["kernel"] = ("model", None)
    seen = {}
    for distribution in (
        keras.distribution.DataParallel(one_axis, auto_shard_dataset=False),
        keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch", auto_shard_dataset=False),
    ):
        with distribution.scope():
            model = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
            model.build((None, 2))
            shardings = tuple(distribution.get_data_layout(shape).backend_layout for shape in ((8, 2), (8,)))

            @jax.jit
            def step(values: Any, batch: Any, model: Any = model) -> Any:
                def loss(kernel: Any) -> Any:
                    found, _ = model.stateless_call([kernel], [], batch[0])
                    return jnp.mean((found[:, 0] - batch[1]) ** 2)

                value, slope = jax.value_and_grad(loss)(values)
                return values - RATE * slope, value

            losses = _losses(step, model.kernel.value, ps.jax.loader(examples, shardings))
            seen[type(distribution).__name__] = losses
    return seen
