"""Checkpoints: models, optimizers, values and places in the data, saved together and restored together."""
