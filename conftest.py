"""The files of the package in which pytest looks for examples: those that have some."""

from pathlib import Path

PACKAGE = Path(__file__).parent / "src"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files without examples: looking for some in all objects of 500 modules takes a second and a half.

    Each package comes before its modules all the same. Otherwise pytest puts the module `penstock.jax.loader` in the
    place of the function of that name, for all tests of the process.
    """
    if collection_path.suffix != ".py" or not collection_path.is_relative_to(PACKAGE):
        return None
    if collection_path.name == "__init__.py":
        return None
    return True if ">>>" not in collection_path.read_text() else None
