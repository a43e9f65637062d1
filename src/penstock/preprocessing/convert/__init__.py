"""Functions that need Keras, which is imported when the first of them is used."""

from penstock.extras import when_used

__getattr__ = when_used(__name__, to_keras="keras_layers", seeds_of="keras_layers", call_with_seeds="keras_layers")
