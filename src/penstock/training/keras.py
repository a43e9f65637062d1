"""`ps.keras`: what a Keras training step needs besides Keras."""

from penstock.training.keras_gradients import value_and_grad as value_and_grad
from penstock.training.keras_input import DatasetInput as DatasetInput
from penstock.training.keras_input import as_input as as_input
from penstock.training.keras_position import KeepPosition as KeepPosition
