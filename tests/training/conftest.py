"""Four CPU devices for these tests, and Keras on JAX."""

import os

import jax

os.environ.setdefault("KERAS_BACKEND", "jax")
# Before anything starts JAX's backend: afterwards the number of devices is fixed.
jax.config.update("jax_num_cpu_devices", 4)
