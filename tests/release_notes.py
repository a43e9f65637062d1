"""Prints what CHANGELOG.md says of the version of pyproject.toml, if that is the one of the tag given as argument."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
if sys.argv[1] != f"v{version}":
    raise SystemExit(f"expected the tag v{version}, by the version in pyproject.toml, got {sys.argv[1]}")
# A candidate has the notes of the version that it is for: 0.1.0rc1 has those of 0.1.0, or of 0.1.
names = {version, final := re.match(r"[\d.]+", version)[0], final.removesuffix(".0")}
sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
notes = [text for title, _, text in (section.partition("\n") for section in sections) if names & set(title.split())]
if len(notes) != 1:
    raise SystemExit(f"expected one section for {version} in CHANGELOG.md, found {len(notes)}")
print(notes[0].strip())
