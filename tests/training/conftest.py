"""Four CPU devices, Keras on JAX, and small things to save."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax

# Before anything starts JAX's backend: afterwards the number of devices is fixed.
jax.config.update("jax_num_cpu_devices", 4)
