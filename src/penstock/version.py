"""The version of penstock, as in pyproject.toml: a source tree on PYTHONPATH has no metadata of a package."""

from typing import Final

VERSION: Final = "0.1.0rc1"
