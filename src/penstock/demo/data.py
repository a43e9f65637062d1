"""The images that the demo trains on: a folder of the user's, Fashion-MNIST, or scikit-learn's scans of digits."""

import os
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import keras
import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import penstock as ps
from penstock.demo.settings import DemoError, DemoSettings

_FASHION_MNIST_URL: Final = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/train-labels-idx1-ubyte.gz"
_FASHION_MNIST_FILES: Final = 4
_PATIENCE_SECONDS: Final = 4.0
_FOLDER_SIZE: Final = (64, 64)
_MOST_NAMED: Final = 5


@dataclass(frozen=True)
class Images:
    """A data set, and how long and in how small steps the demo trains on it if it is not told.

    Attributes:
        train: elements are an image of float32 from 0 to 1 and the number of its class.
        test: likewise.
    """

    name: str
    title: str
    train: ps.Dataset[Any]
    test: ps.Dataset[Any]
    classes: int
    epochs: int
    batch_size_per_replica: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of an image."""
        shape: tuple[int, ...] = self.train.element_spec[0].shape
        return shape


def load(settings: DemoSettings, say: Callable[[str], None]) -> Images:
    """The images that are asked for; "auto" takes Fashion-MNIST, or the digits after saying why.

    Raises:
        DemoError: they cannot be had.
    """
    if settings.data is not None:
        return folder(settings.data, settings.seed)
    if settings.dataset == "digits":
        return digits(settings.seed)
    try:
        return fashion_mnist()
    except DemoError as error:
        if settings.dataset == "fashion-mnist":
            raise
        say(f"{error}: training on the 1,797 scans of digits that come with scikit-learn instead.")
        return digits(settings.seed)


def folder(directory: str, seed: int) -> Images:
    """The images of a directory with one folder for each class; a fifth, drawn by the seed, for testing.

    Raises:
        DemoError: fewer than two classes.
        PenstockError: as `ps.Dataset.from_image_folder` says.
    """
    train, test = (
        ps.Dataset.from_image_folder(
            directory, _FOLDER_SIZE, crop_to_aspect_ratio=True, validation_split=0.2, subset=subset, seed=seed
        )
        for subset in ("training", "validation")
    )
    classes = train.class_names
    if len(classes) < 2:
        raise DemoError(f"{directory!r} has one class, {classes[0]!r}: the demo needs a folder for each of several")
    return Images(
        name=f"folder-{Path(directory).resolve().name}",
        title=f"{directory} ({', '.join(classes[:_MOST_NAMED])}{', ...' if len(classes) > _MOST_NAMED else ''})",
        train=_between_0_and_1(train),
        test=_between_0_and_1(test),
        classes=len(classes),
        epochs=10,
        batch_size_per_replica=16,
    )


def _between_0_and_1(dataset: ps.Dataset[Any]) -> ps.Dataset[Any]:
    return dataset.map(lambda image, label: (image / np.float32(255), label))


def digits(seed: int) -> Images:
    """The 1,797 real scans of 8x8 pixels in scikit-learn; a fifth of each digit's, drawn by the seed, for testing."""
    scans, labels = load_digits(return_X_y=True)
    train_scans, test_scans, train_labels, test_labels = train_test_split(
        scans.reshape(-1, 8, 8), labels, test_size=0.2, random_state=seed, stratify=labels
    )
    return Images(
        name="digits",
        title="scikit-learn's digits",
        train=_dataset_of(16, train_scans, train_labels),
        test=_dataset_of(16, test_scans, test_labels),
        classes=10,
        epochs=30,
        batch_size_per_replica=16,
    )


def fashion_mnist() -> Images:
    """The 70,000 images of 28x28 pixels of Fashion-MNIST, through Keras's loader and its cache.

    Raises:
        DemoError: they are not in the cache and cannot be downloaded.
    """
    if not _is_cached():
        _check_reachable()
    keras.utils.disable_interactive_logging()
    try:
        train, test = keras.datasets.fashion_mnist.load_data()
    except Exception as error:  # bare `Exception` is what Keras raises for a failed download
        raise _unavailable(_first_line(error)) from error
    return Images(
        name="fashion-mnist",
        title="Fashion-MNIST",
        train=_dataset_of(255, *train),
        test=_dataset_of(255, *test),
        classes=10,
        epochs=10,
        batch_size_per_replica=64,
    )


def _dataset_of(brightest: int, images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> ps.Dataset[Any]:
    pixels = (images[..., np.newaxis] / brightest).astype(np.float32)
    return ps.Dataset.from_tensor_slices((pixels, labels.astype(np.int32)))


def _is_cached() -> bool:
    home = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
    return len(list(home.glob("datasets/fashion-mnist/*.gz"))) == _FASHION_MNIST_FILES


def _check_reachable() -> None:
    """Ask the server for the head of one file: Keras's loader itself would wait without a limit.

    In a thread, because looking up a name cannot be given a limit either; it ends with the process.
    """
    failures: list[str] = []
    answered = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(_FASHION_MNIST_URL, method="HEAD")
        try:
            urllib.request.urlopen(request, timeout=_PATIENCE_SECONDS).close()
        except (OSError, ValueError) as error:
            failures.append(_first_line(getattr(error, "reason", error)))
        answered.set()

    threading.Thread(target=ask, name="penstock-demo-reachable", daemon=True).start()
    if not answered.wait(_PATIENCE_SECONDS):
        raise _unavailable(f"no answer from its server within {_PATIENCE_SECONDS:.0f} seconds")
    if failures:
        raise _unavailable(failures[0])


def _unavailable(reason: str) -> DemoError:
    return DemoError(f"Fashion-MNIST cannot be downloaded here ({reason})")


def _first_line(error: object) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
