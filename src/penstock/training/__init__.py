"""Tools of training loops around a step: scaled losses, Keras models in `strategy.run` and in `fit`, checkpoints."""
