"""Checkpoints: models, optimizers, values and positions in the data, saved and restored together."""
