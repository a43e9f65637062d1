"""Datasets of the files of folders, as nodes: the arguments that images and texts have in common."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.data.arguments import as_seed, check_parallel_calls, user_site
from penstock.data.block import object_column
from penstock.data.node import Node
from penstock.data.operators.element import Map
from penstock.data.operators.indexed_files import FolderFiles
from penstock.data.operators.sources import Listing
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.formats.media.example_folder import ExampleFolder, FileReader, Labels, divided
from penstock.spec import TensorSpec
from penstock.statistics import process
from penstock.structure import LEAF

_MODES: Final = ("int", "categorical", "binary", None)
_SUBSETS: Final = ("training", "validation", None)


@dataclass(frozen=True)
class FolderRequest:
    """The arguments of a call that reads a folder; see `ps.Dataset.from_image_folder`."""

    call: str
    directory: str | os.PathLike[str]
    label_mode: str | None
    class_names: Sequence[str] | None
    validation_split: float | None
    subset: str | None
    seed: int | None
    num_parallel_calls: int | None

    def __post_init__(self) -> None:
        given: Any = self.directory
        if not isinstance(given, (str, os.PathLike)):
            raise InvalidTypeError(f"{self.call}(directory=...) takes a string or a path, got {given!r:.200}")
        for name, value, choices in (("label_mode", self.label_mode, _MODES), ("subset", self.subset, _SUBSETS)):
            if value not in choices:
                raise InvalidArgumentError(f"{self.call}({name}=...) takes one of {choices}, got {value!r}")
        check_parallel_calls(self.call, self.num_parallel_calls)
        object.__setattr__(self, "seed", as_seed(self.call, self.seed))
        if (self.validation_split is None) != (self.subset is None):
            raise InvalidArgumentError(
                f"{self.call} takes validation_split and subset together, got "
                f"validation_split={self.validation_split!r} and subset={self.subset!r}"
            )
        if self.validation_split is not None and not 0 < self.validation_split < 1:
            raise InvalidArgumentError(
                f"{self.call}(validation_split=...) takes a share between 0 and 1, got {self.validation_split!r}"
            )
        if (self.validation_split is None) != (self.seed is None):
            raise InvalidArgumentError(
                f"{self.call}(validation_split=...) needs a seed, which draws the files of each part"
                if self.seed is None
                else f"{self.call}(seed=...) draws the parts of a validation_split; shuffle(seed=...) orders elements"
            )
        if self.label_mode is None and self.class_names is not None:
            raise InvalidArgumentError(f"{self.call}(class_names=...) has nothing to name with label_mode=None")

    def node(
        self, endings: tuple[str, ...], content: TensorSpec, reader: Callable[[Labels | None], FileReader]
    ) -> Node:
        """Return the dataset that was requested.

        Args:
            endings: of the files that count.
            content: the specification of a file's element, without its label.
            reader: makes the reader of a file.
        """
        folder = ExampleFolder.of(self.directory, endings)
        classes = None if self.label_mode is None else tuple(folder.classes(self.call, self.class_names))
        if self.label_mode == "binary" and len(classes or ()) != 2:
            raise InvalidArgumentError(f'{self.call}(label_mode="binary") takes two classes, got {list(classes or ())}')
        with process.start(process.FILES):
            names = folder.files(self.call) if classes is None else folder.files_of(self.call, classes)
        if not names:
            raise InvalidArgumentError(
                f"{self.call}: no file in {'the classes of ' if classes else ''}{folder.directory!r} ends in "
                f"{' '.join(endings)}"
            )
        if self.validation_split is not None and self.seed is not None:
            names = divided(self.call, names, self.validation_split, self.seed)[self.subset == "validation"]
        labels = None if self.label_mode is None else Labels(folder, classes or (), self.label_mode)
        spec: Any = content if labels is None else (content, TensorSpec(labels.shape, labels.dtype))
        site = user_site()
        given = Listing("names", (object_column(names),), LEAF, len(names), classes or (), site=site)
        files = FolderFiles(given, self.call, folder.directory, classes, site=site)
        return Map(files, reader(labels), self.num_parallel_calls, output_signature=spec, site=site)


def class_names_of(node: Node) -> list[str]:
    """The names of the classes of the folder that a dataset reads.

    Raises:
        InvalidArgumentError: it reads none with classes, or several with different ones.
    """
    found = {below.class_names for below in node.walk_all() if isinstance(below, FolderFiles)} - {None}
    if len(found) != 1:
        what = f"folders of different classes, {sorted(map(str, found))}" if found else "no folder of classes"
        raise InvalidArgumentError(f"class_names: {node.where()} reads {what}")
    (names,) = found
    return list(names or ())
