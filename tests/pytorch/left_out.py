"""Prints one line about the tests that a Python without torch leaves out; nothing where torch is installed."""

import ast
from importlib.util import find_spec
from pathlib import Path

if find_spec("torch") is None:
    files = [ast.parse(path.read_text()) for path in Path(__file__).parent.glob("test_*.py")]
    tests = [node for file in files for node in file.body if getattr(node, "name", "").startswith("test_")]
    print(f"{len(tests)} tests of ps.torch were left out, because torch is not installed: `make test-torch` runs them")
