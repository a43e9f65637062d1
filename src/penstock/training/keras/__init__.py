"""Keras models, optimizers and metrics in strategies, in `fit` and in compiled steps."""

from penstock.extras import when_used

__getattr__ = when_used(__name__, "connection", "fit", "served", "served_fit", "served_variables", "state")
