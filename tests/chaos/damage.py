"""A dispatcher's journal, and how it is spoiled while the dispatcher is down."""

import shutil
from pathlib import Path

from schedule import Damage


class JournalFolder:
    """Where the dispatcher of a trial keeps its journal.

    Attributes:
        path: the `work_dir`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self.path = folder / "journal"
        self._copy = folder / "copy"

    def spoil(self, damage: Damage) -> bool:
        """Damage it, and keep a copy as it was; whether there was anything to damage."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.path, self._copy)
        file = self.path / damage.file
        content = bytearray(file.read_bytes() if file.exists() else b"")
        if not content:
            return False
        if damage.what == "remove":
            file.unlink()
        elif damage.what == "halve":
            file.write_bytes(content[: len(content) // 2])
        else:
            bit = int(damage.place * 8 * len(content))
            content[bit // 8] ^= 1 << bit % 8
            file.write_bytes(content)
        return True

    def bring_back(self) -> None:
        """As it was before it was spoiled."""
        shutil.rmtree(self.path)
        shutil.copytree(self._copy, self.path)

    @property
    def begun_anew(self) -> bool:
        """Whether another folder has taken the place of the first one."""
        return self._number > 0

    def begin_anew(self) -> None:
        """Another folder takes its place."""
        self._number += 1
        self.path = self._folder / f"journal-{self._number}"
