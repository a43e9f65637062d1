"""The strategies on devices, with the variables of every framework that a step may touch."""

from penstock.distribute.framework import register
from penstock.distribute.mirrored import MirroredStrategy as MirroredStrategy
from penstock.distribute.multi_worker import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from penstock.distribute.multi_worker import TPUStrategy as TPUStrategy
from penstock.training.keras_state import KerasFramework

register(KerasFramework())
