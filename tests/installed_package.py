"""Runs the README's first example with the penstock that this Python has installed, in an empty directory."""

import contextlib
import io
import os
import re
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

readme = (ROOT / "README.md").read_text()
code, output = re.search(r"^```python\n(.*?)^```$\n+```text\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE).groups()
printed = io.StringIO()
with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(printed):
    os.chdir(directory)
    names = {}
    exec(code, names)
    os.chdir(ROOT)

found = Path(names["ps"].__file__)
if ROOT in found.parents and "site-packages" not in found.parts:
    raise SystemExit(f"expected an installed package, got {found}")
if printed.getvalue() != output:
    raise SystemExit(f"the README says:\n{output}\nits example printed:\n{printed.getvalue()}")
print(f"penstock {names['ps'].__version__} in {found.parent} runs the README's example")
