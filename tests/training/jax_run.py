"""Training in JAX alone, as `training_run` describes it."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from training_run import run

import penstock as ps


class JaxTraining:
    """State in, state out, on one device."""

    def __init__(self, dataset: ps.Dataset) -> None:
        self.optimizer = optax.adam(0.05)
        params = {"w": jnp.ones(3), "b": jnp.zeros(())}
        self.state = params, self.optimizer.init(params)
        self.iterator = iter(dataset)
        self.objects = {"state": self.state}
        self.update = jax.jit(self._update, donate_argnums=0)

    def _update(self, state: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean((jnp.tanh(x @ params["w"]) - x[:, 0] + params["b"]) ** 2)

        params, optimizer = state
        value, gradients = jax.value_and_grad(loss)(params)
        updates, optimizer = self.optimizer.update(gradients, optimizer)
        return (optax.apply_updates(params, updates), optimizer), value

    def step(self, batch: Any) -> float:
        self.state, loss = self.update(self.state, batch["x"])
        return float(loss)

    def ids(self, batch: Any) -> list[int]:
        return batch["id"].tolist()

    def values(self) -> dict[str, Any]:
        return {"state": self.state}

    def restored(self, values: dict[str, Any]) -> None:
        self.state = values["state"]

    def result(self) -> list[Any]:
        return jax.tree.leaves(self.state)


run({"jax": JaxTraining})
