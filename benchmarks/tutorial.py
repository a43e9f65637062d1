"""The custom training tutorial's images and network, and a smaller one, for Keras on any backend."""

import keras
import numpy as np

ROWS_PER_REPLICA = 64


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random images of the shape of Fashion-MNIST's, and labels."""
    rng = np.random.default_rng(0)
    return rng.random((count, 28, 28, 1), dtype=np.float32), rng.integers(0, 10, count).astype(np.int32)


def convolutional() -> keras.Model:
    """The tutorial's."""
    regularizer = keras.regularizers.L2(1e-5)
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu", kernel_regularizer=regularizer),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu", kernel_regularizer=regularizer),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu", kernel_regularizer=regularizer),
            keras.layers.Dense(10, kernel_regularizer=regularizer),
        ]
    )


def dense() -> keras.Model:
    """A network whose steps are small: what is around them shows."""
    layers = [keras.layers.Flatten(), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((28, 28, 1)), *layers])


NETWORKS = {"convolutional": convolutional, "dense": dense}
