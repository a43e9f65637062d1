"""Which files of the package are looked through for examples: those that have some."""

from pathlib import Path

PACKAGE = Path(__file__).parent / "src"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files without examples: looking for some in all objects of 500 modules takes a second and a half."""
    if collection_path.suffix != ".py" or not collection_path.is_relative_to(PACKAGE):
        return None
    return True if ">>>" not in collection_path.read_text() else None
