"""The tutorial's network: two convolutions and two dense layers.

One thing differs: the convolutions pad their input, so that the same network also fits images of 8x8 pixels.
"""

from typing import Final

import keras

_REGULARISATION: Final = 1e-5


def create_model(image_shape: tuple[int, ...], classes: int) -> keras.Model:
    """An untrained network for images of this height, width and number of channels; it gives a score for each class.

    Example:
        >>> [variable.shape for variable in create_model((8, 8, 1), classes=10).trainable_variables[::2]]
        [(3, 3, 1, 32), (3, 3, 32, 64), (256, 64), (64, 10)]
    """
    regularizer = keras.regularizers.L2(_REGULARISATION)
    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu", kernel_regularizer=regularizer),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu", kernel_regularizer=regularizer),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu", kernel_regularizer=regularizer),
            keras.layers.Dense(classes, kernel_regularizer=regularizer),
        ]
    )
