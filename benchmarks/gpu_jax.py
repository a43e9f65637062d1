"""The models and copies of `benchmarks.gpu` in JAX."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import penstock as ps
from benchmarks.gpu import result, step_seconds

TYPE = jnp.bfloat16 if jax.default_backend() == "gpu" else jnp.float32


def resnet_step(small: bool) -> Callable[[Any], Any]:
    """A training step of a ResNet without normalisation over (images, labels)."""
    widths = (8, 16) if small else (64, 128, 256, 512)
    keys = iter(jax.random.split(jax.random.key(0), 100))

    def weights(*shape: int) -> Any:
        return jax.random.normal(next(keys), shape, jnp.float32) * (2 / np.prod(shape[:-1])) ** 0.5

    inputs = (widths[0], *widths[:-1])
    parameters = {
        "stem": weights(7, 7, 3, widths[0]),
        "blocks": [
            [(weights(3, 3, a, b), weights(3, 3, b, b), weights(1, 1, a, b)) for a in (first, b)]
            for first, b in zip(inputs, widths, strict=True)
        ],
        "head": weights(widths[-1], 10),
    }

    def convolved(x: Any, kernel: Any, stride: int = 1) -> Any:
        dimensions = ("NHWC", "HWIO", "NHWC")
        kernel = kernel.astype(TYPE)
        return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=dimensions)

    def loss(parameters: Any, batch: Any) -> Any:
        pictures, labels = batch
        x = convolved(pictures.astype(TYPE), parameters["stem"], 4)
        for stage, blocks in enumerate(parameters["blocks"]):
            for number, (first, second, shortcut) in enumerate(blocks):
                stride = 2 if stage and not number else 1
                inner = convolved(jax.nn.relu(convolved(x, first, stride)), second)
                x = jax.nn.relu(0.5 * inner + convolved(x, shortcut, stride))
        logits = x.mean((1, 2)).astype(jnp.float32) @ parameters["head"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()

    return training_step(parameters, loss)


def gpt_step(small: bool, length: int) -> Callable[[Any], Any]:
    """A training step of a GPT over tokens."""
    width, layers, heads = (32, 1, 2) if small else (768, 12, 12)
    keys = iter(jax.random.split(jax.random.key(0), 100))

    def weights(*shape: int) -> Any:
        return jax.random.normal(next(keys), shape, jnp.float32) * 0.02

    parameters = {
        "tokens": weights(1000, width),
        "positions": weights(length, width),
        "blocks": [
            {"qkv": weights(width, 3, heads, width // heads), "out": weights(heads, width // heads, width)}
            | {"up": weights(width, 4 * width), "down": weights(4 * width, width)}
            for _ in range(layers)
        ],
    }

    def normal(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def loss(parameters: Any, tokens: Any) -> Any:
        parameters = jax.tree.map(lambda w: w.astype(TYPE), parameters)
        x = parameters["tokens"][tokens] + parameters["positions"]
        for block in parameters["blocks"]:
            q, k, v = jnp.moveaxis(jnp.einsum("btd,dshw->btshw", normal(x), block["qkv"]), 2, 0)
            attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            x = x + jnp.einsum("bthw,hwd->btd", attended, block["out"])
            x = x + jax.nn.gelu(normal(x) @ block["up"]) @ block["down"]
        logits = (normal(x) @ parameters["tokens"].T).astype(jnp.float32)[:, :-1]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], 2).mean()

    return training_step(parameters, loss)


def training_step(parameters: Any, loss: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """One compiled step of SGD, which keeps its parameters."""

    def update(parameters: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, batch)
        return value, jax.tree.map(lambda w, g: w - 0.01 * g, parameters, gradients)

    compiled = jax.jit(update, donate_argnums=0)
    state = [parameters]

    def step(batch: Any) -> Any:
        value, state[0] = compiled(state[0], batch)
        return value

    return step


def loader(dataset: ps.Dataset) -> Any:
    """Batches on the device."""
    mesh = jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    return ps.jax.loader(dataset, mesh, jax.sharding.PartitionSpec("data"))


def wait(value: Any) -> None:
    """Return when the device has computed the value."""
    jax.block_until_ready(value)


def peak_memory() -> int:
    """The bytes of the device that arrays have taken at most."""
    return int((jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))


def copies(small: bool) -> Iterator[dict[str, Any]]:
    """GB a second of batches of 38 MB to the device: by `device_put`, and by the loader."""
    rows = np.zeros((8 if small else 1024, 3 * 56 * 56), np.float32)
    gigabytes = rows.nbytes / 1e9
    yield result("device_put", gigabytes / step_seconds(lambda: jax.device_put(rows), wait, small), "GB/s")
    with loader(ps.Dataset.from_tensors(rows).repeat()) as batches:
        ready = iter(batches)
        yield result("ps.jax.loader", gigabytes / step_seconds(lambda: next(ready), wait, small), "GB/s")
