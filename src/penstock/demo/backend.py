"""Keras on JAX, whatever backend this machine's settings name."""

import os

# Keras reads this once, when it is imported; its default would be TensorFlow.
os.environ["KERAS_BACKEND"] = "jax"
import keras as keras
