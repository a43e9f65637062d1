"""Folders with one file for each example: their files, their classes, and their content."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from penstock.errors import ElementError, InvalidArgumentError
from penstock.formats import media
from penstock.formats.file_errors import named_in_errors
from penstock.formats.matching import is_hidden, not_listed
from penstock.formats.remote.remote_files import matching_remote, read_remote_file
from penstock.formats.remote.shared_listings import shared
from penstock.paths import has_protocol, local_path

_OF_MACS: Final = "__MACOSX"
"""The folder that macOS adds to archives, for attributes of the files: no class, whose number others would move by."""


@dataclass(frozen=True)
class ExampleFolder:
    """A directory whose files are examples; the folders in it may stand for classes.

    Attributes:
        directory: the beginning of the names of files in it.
        endings: of the files that are examples, in lower case.
    """

    directory: str
    endings: tuple[str, ...]

    @staticmethod
    def of(directory: str | os.PathLike[str], endings: tuple[str, ...]) -> "ExampleFolder":
        """The folder of a name that a user gave."""
        given = os.fspath(directory)
        return ExampleFolder((given if has_protocol(given) else local_path(given)).rstrip("/") or "/", endings)

    def files(self, call: str) -> list[str]:
        """The names of all files: folder by folder, each sorted."""
        return sorted(self._all_files(call), key=lambda name: os.path.split(name))

    def classes(self, call: str, chosen: Sequence[str] | None) -> list[str]:
        """The names of the classes: sorted, or as they were chosen.

        Raises:
            InvalidArgumentError: there are none, or not those that were chosen.
            StorageError: there is no such directory.
        """
        found = self._folders(call)
        if not found:
            raise InvalidArgumentError(
                f"{call}: {self.directory!r} has no folders, which would name the classes: label_mode=None reads files "
                "without labels"
            )
        if chosen is None:
            return found
        if isinstance(chosen, str) or not set(chosen) <= set(found) or len(set(chosen)) != len(chosen) or not chosen:
            raise InvalidArgumentError(f"{call}(class_names=...) takes folders of {found}, each once, got {chosen!r}")
        return list(chosen)

    def files_of(self, call: str, classes: Sequence[str]) -> list[str]:
        """The names of the files of some classes, one class after the other."""
        numbers = {name: number for number, name in enumerate(classes)}
        known = [(numbers[kind], name) for name in self.files(call) if (kind := self.class_of(name)) in numbers]
        return [name for _, name in sorted(known, key=lambda pair: pair[0])]

    def class_of(self, name: str) -> str:
        """The class of a file: the outermost folder that it is in; "" without one."""
        folder, _, inner = self._within(name).partition("/")
        return folder if inner else ""

    def _within(self, name: str) -> str:
        """The name of a file as from the directory."""
        # A file system may write the beginning of a name in another way than the user.
        begin = self.directory.partition("://")[2].strip("/") if has_protocol(name) else self.directory
        rest = name.partition("://")[2].lstrip("/") if has_protocol(name) else name
        return rest[len(begin) :].lstrip("/")

    def _folders(self, call: str) -> list[str]:
        if has_protocol(self.directory):
            return sorted({self.class_of(name) for name in self._all_files(call)} - {""})
        try:
            with os.scandir(self.directory) as entries:
                found = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
                return sorted(name for name in found if name != _OF_MACS)
        except OSError as error:
            raise not_listed(call, error) from error

    def _all_files(self, call: str) -> list[str]:
        if has_protocol(self.directory):
            pattern = f"{self.directory}/**"
            found = shared(pattern, lambda: matching_remote(pattern))
        else:
            found = []
            # By itself it is silent about errors. Of links only those to classes are followed.
            for root, folders, names in os.walk(self.directory, onerror=partial(_refuse, call), followlinks=True):
                paths = {name: os.path.join(root, name) for name in folders if not name.startswith(".")}
                folders[:] = [one for one, path in paths.items() if root == self.directory or not os.path.islink(path)]
                found += [os.path.join(root, name) for name in names]
        return [name for name in found if name.lower().endswith(self.endings) and not is_hidden(self._within(name))]


def _refuse(call: str, error: OSError) -> NoReturn:
    raise not_listed(call, error) from error


@dataclass(frozen=True)
class Labels:
    """The label of a file, by its class, in the form that a loss takes.

    Attributes:
        folder: where the files are.
        classes: in the order of their numbers.
        mode: "int", "categorical" or "binary".
    """

    folder: ExampleFolder
    classes: tuple[str, ...]
    mode: str

    def of(self, name: str) -> Any:
        """An int32, one-hot float32 or [0.0] or [1.0] in float32."""
        number = self.classes.index(self.folder.class_of(name))
        if self.mode == "int":
            return np.int32(number)
        if self.mode == "binary":
            return np.array([number], np.float32)
        label = np.zeros(len(self.classes), np.float32)
        label[number] = 1
        return label

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a label."""
        return {"int": (), "binary": (1,)}.get(self.mode, (len(self.classes),))

    @property
    def dtype(self) -> npt.DTypeLike:
        """The dtype of a label."""
        return np.int32 if self.mode == "int" else np.float32


class FileReader(ABC):
    """The content of a file, as the function of a map over names of files, and its label if it has one."""

    def __init__(self, labels: Labels | None) -> None:
        self.labels = labels

    @abstractmethod
    def content(self, data: bytes) -> Any:
        """The content that the bytes of a file stand for.

        Raises:
            ElementError: they are damaged.
        """

    def __call__(self, name: str) -> Any:
        try:
            content = self.content(read_file(name))
        except ElementError as error:
            raise ElementError(f"{name!r}: {error}") from error
        return content if self.labels is None else (content, self.labels.of(name))


class ImageReader(FileReader):
    """Images, decoded."""

    def __init__(self, labels: Labels | None, channels: int, decoding: dict[str, Any]) -> None:
        super().__init__(labels)
        self.channels = channels
        self.decoding = decoding

    def content(self, data: bytes) -> Any:
        return media.images.decode(data, self.channels, **self.decoding)


class TextReader(FileReader):
    """Texts."""

    def __init__(self, labels: Labels | None, max_length: int | None, encoding: str) -> None:
        super().__init__(labels)
        self.max_length = max_length
        self.encoding = encoding

    def content(self, data: bytes) -> str:
        try:
            return data.decode(self.encoding).removeprefix("\ufeff")[: self.max_length]
        except UnicodeDecodeError as error:
            raise ElementError(
                f"the text is not {self.encoding.upper()}: {error}: encoding=... names another one"
            ) from error


def read_file(name: str) -> bytes:
    """All bytes of a file.

    Raises:
        StorageError: it cannot be read.
    """
    with named_in_errors(name, "read"):
        if has_protocol(name):
            return read_remote_file(name)
        with open(name, "rb", buffering=0) as file:  # it is read at once
            return file.read()


def divided(call: str, names: Sequence[str], validation_split: float, seed: int) -> tuple[list[str], list[str]]:
    """The names for training and those for validation, drawn by `seed` as Keras draws them; both in their order.

    Raises:
        InvalidArgumentError: one of the two would be empty.
    """
    numbers = np.arange(len(names))
    np.random.RandomState(seed).shuffle(numbers)
    count = int(validation_split * len(names))
    if not 0 < count < len(names):
        raise InvalidArgumentError(
            f"{call}(validation_split={validation_split}) takes {count} of {len(names)} files for validation: both "
            "need some"
        )
    parts = np.sort(numbers[:-count]), np.sort(numbers[-count:])
    training, validation = ([names[number] for number in part] for part in parts)
    return training, validation
