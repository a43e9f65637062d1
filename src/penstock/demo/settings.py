"""Options of `penstock demo`, and their checks."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from penstock.errors import PenstockError

DatasetName = Literal["auto", "fashion-mnist", "digits"]
DATASET_NAMES: Final[tuple[DatasetName, ...]] = get_args(DatasetName)
Engine = Literal["local", "ray"]
ENGINES: Final[tuple[Engine, ...]] = get_args(Engine)


class DemoError(PenstockError):
    """The demo cannot run as requested on this machine; the message says why."""


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """The options of the demo; None leaves the choice to it.

    Args:
        dataset: the images to train on; "auto" takes Fashion-MNIST where it can be had.
        data: a directory of images in their stead, with one folder for each class.
        epochs: how often every image is seen; by default 30 for the digits, which are few, else 10.
        batch_size_per_replica: images per replica and step; by default 64 for Fashion-MNIST, else 16.
        replicas: by default all local accelerators, or 4 virtual CPU devices where there are none.
        seed: decides the first weights, the order of the images, and which images are kept for testing.
        checkpoints: the directory in which each run keeps its own directory.
        fresh: start from the beginning, and delete the checkpoints of the earlier run, from which it would otherwise
            resume.
        service: let two worker processes make the batches.
        engine: what starts these: this process, or Ray, which then does it without `service` too.
    """

    dataset: DatasetName = "auto"
    data: str | None = None
    epochs: int | None = None
    batch_size_per_replica: int | None = None
    replicas: int | None = None
    seed: int = 0
    checkpoints: str = "checkpoints"
    fresh: bool = False
    service: bool = False
    engine: Engine = "local"
