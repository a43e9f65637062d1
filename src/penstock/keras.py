"""`ps.keras`: what a Keras training step needs besides Keras."""

from penstock.training.keras.gradients import value_and_grad as value_and_grad
from penstock.training.keras.input import DatasetInput as DatasetInput
from penstock.training.keras.input import as_input as as_input
from penstock.training.keras.position import KeepPosition as KeepPosition
from penstock.training.keras.report import WriteReport as WriteReport
