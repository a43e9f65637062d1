"""The files of a folder, whose content a map above it reads."""

from dataclasses import dataclass, field
from typing import Any

from penstock.data.block import Block, Indices
from penstock.data.node import ByMethod, DependsOn, OneInput, Run, derived
from penstock.spec import TensorSpec
from penstock.structure import LEAF


@dataclass(frozen=True, eq=False)
class FolderFiles(ByMethod, OneInput):
    """The names of its input, known to be files: by them the dataset is divided where that is by file.

    An element of the input is a name, or (name, start, stop), which means its only record.
    """

    depends_on = DependsOn.ANY
    reads_files = True
    fails = False
    directory: str
    class_names: tuple[str, ...] | None = field(repr=False)

    @property
    def identity(self) -> None:
        """The names alone count."""
        return None

    @derived
    def spec(self) -> TensorSpec:
        return TensorSpec((), object)

    @derived
    def indexable(self) -> bool:
        return self.input.indexable

    def records_in(self, file: str) -> int:
        return 1

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        block = self.input.read(run, epoch, indices)
        return Block((block.columns[0],), LEAF, len(block))

    def arguments(self) -> list[Any]:
        return [f"directory={self.directory!r}"]
