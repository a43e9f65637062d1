"""Prints one file of constraints from what pip chose for each Python: `locked_versions.py 3.11.json 3.12.json ...`."""

import json
import sys
from collections import defaultdict
from pathlib import Path

chosen: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
for report in map(Path, sys.argv[1:]):
    for one in json.loads(report.read_text())["install"]:
        found = one["metadata"]
        if found["name"] != "penstock-data":
            chosen[found["name"].lower().replace("_", "-")][found["version"]].append(report.stem)

print("# Exact versions of what the extras dev and docs need; written by `make lock`.")
for name, versions in sorted(chosen.items()):
    for version, pythons in versions.items():
        everywhere = len(pythons) == len(sys.argv) - 1
        markers = " or ".join(f"python_version == '{python}'" for python in pythons)
        print(f"{name}=={version}{'' if everywhere else f'; {markers}'}")
