"""What training loops need around a step: scaled losses, Keras models in `strategy.run`, checkpoints."""

import os

# Where Keras is imported after this, and nobody has chosen a backend: it is JAX that runs steps here.
os.environ.setdefault("KERAS_BACKEND", "jax")
