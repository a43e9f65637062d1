"""The transform as a layer of Keras, which is imported when the first layer is made."""

from penstock.extras import when_used

__getattr__ = when_used(__name__, TransformLayer="layer", computable="layer")
