"""Keras on JAX, whatever backend the file keras.json of this machine names; not if KERAS_BACKEND names another."""

import os

# Keras reads this once, when it is imported; its default would be TensorFlow.
os.environ.setdefault("KERAS_BACKEND", "jax")
import keras as keras
