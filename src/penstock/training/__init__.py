"""Tools of training loops around a step: scaled losses, Keras models in `strategy.run` and in `fit`, checkpoints."""

from typing import TYPE_CHECKING

from penstock.extras import when_used

if TYPE_CHECKING:
    from penstock.training.checkpoint.keep import best_checkpoint as best_checkpoint
    from penstock.training.loss import compute_average_loss as compute_average_loss
    from penstock.training.loss import scale_regularization_loss as scale_regularization_loss

__getattr__ = when_used(
    __name__,
    extra="jax",
    best_checkpoint="checkpoint.keep",
    compute_average_loss="loss",
    scale_regularization_loss="loss",
)
