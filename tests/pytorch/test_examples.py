"""The examples of the docstrings, which need torch and so are not collected with the others."""

import doctest
import importlib
from pathlib import Path

import pytest

import penstock as ps

FILES = [path for path in Path(ps.torch.__file__).parent.glob("*.py") if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_examples_of_docstrings_run(path: Path) -> None:
    ran = doctest.testmod(importlib.import_module(f"penstock.torch.{path.stem}"), optionflags=doctest.ELLIPSIS)
    assert (ran.failed, ran.attempted > 0) == (0, True)
