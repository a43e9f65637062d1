"""A small GPT of Flax NNX on packed and mixed documents: `packed_gpt.py FOLDER AXES KILLED_AT`.

It trains from the newest checkpoint on, on a mesh such as 2x2, and kills itself in a step, or in none, -1.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding
from three_corpora import AFTER, CHANGED_AT, LENGTH, SAVED_EVERY, STEPS, VOCABULARY, steps

import penstock as ps

P = jax.P
jax.config.update("jax_num_cpu_devices", 4)
WIDTH, HEADS = 16, 2


class GPT(nnx.Module):
    """One block, in which a token attends to the earlier ones of its document."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.tokens, self.places = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs), nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.attention = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs)
        self.out, self.logits = nnx.Linear(WIDTH, WIDTH, rngs=rngs), nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, batch: dict[str, Any]) -> Any:
        segments = batch["segment_ids"]
        seen = jnp.tril(segments[:, :, None] == segments[:, None, :])[:, None]
        x = self.tokens(batch["tokens"]) + self.places(batch["positions"])
        heads = self.attention(x).reshape(*x.shape[:2], 3, HEADS, -1)
        attended = jax.nn.dot_product_attention(heads[:, :, 0], heads[:, :, 1], heads[:, :, 2], mask=seen)
        return self.logits(x + self.out(attended.reshape(x.shape)))


def loss_of(model: GPT, batch: dict[str, Any]) -> Any:
    losses = optax.softmax_cross_entropy_with_integer_labels(model(batch), jnp.roll(batch["tokens"], -1, 1))
    return jnp.sum(losses * batch["loss_mask"]) / batch["tokens_of_step"][0]


@nnx.jit
def train_step(model: GPT, optimizer: nnx.Optimizer, batch: dict[str, Any]) -> Any:
    loss, gradients = nnx.value_and_grad(loss_of)(model, batch)
    optimizer.update(model, gradients)
    return loss


def main(folder: Path, axes: str, killed_at: int) -> None:
    mesh = jax.make_mesh(
        tuple(map(int, axes.split("x"))), ("data", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    everywhere = NamedSharding(mesh, P())
    model = GPT(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.3, momentum=0.9), wrt=nnx.Param)
    nnx.update((model, optimizer), jax.device_put(nnx.state((model, optimizer)), everywhere))
    with ps.jax.loader(steps(), mesh, P("data"), input_options=ps.InputOptions(partial_batch="drop")) as loader:
        checkpoint = ps.Checkpoint(model=model, optimizer=optimizer, loader=loader, position=0, max_to_keep=1)
        newest, step = ps.latest_checkpoint(folder / "saved"), 0
        if newest is not None:
            step = int(checkpoint.restore(newest)["position"])
        batches = iter(loader)
        while step < STEPS:
            if step == CHANGED_AT:
                loader.remix(AFTER)
            batch = next(batches)
            if step == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = train_step(model, optimizer, batch)
            arrays = {name: np.asarray(leaf) for name, leaf in batch.items()}
            np.savez(folder / f"step {step}.npz", loss=float(loss), **arrays)
            step += 1
            if step % SAVED_EVERY == 0:
                checkpoint.save(folder / "saved" / "c", step=step, position=step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
