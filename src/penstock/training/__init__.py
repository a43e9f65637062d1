"""What training loops need around a step: scaled losses, Keras models in `strategy.run` and in `fit`, checkpoints."""
