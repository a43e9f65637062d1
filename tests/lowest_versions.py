"""Prints the lowest version of each package that pyproject.toml allows, as constraints for pip."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
needed = [*project["dependencies"], *(need for extra in project["optional-dependencies"].values() for need in extra)]
lowest = dict(re.findall(r"^([\w-]+)>=([\w.]+)", "\n".join(needed), re.MULTILINE))
for name, version in sorted(lowest.items()):
    print(f"{name}=={version}")
