"""Prints the packages that the extras given as arguments need, without bounds, so that pip takes the newest of each."""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def packages(needs: list[str]) -> set[str]:
    found = set()
    for name, extras in (re.match(r"([\w-]+)(?:\[([\w,-]+)\])?", need).groups() for need in needs):
        found |= packages_of(extras.split(",")) if name == project["name"] else {name}
    return found


def packages_of(extras: list[str]) -> set[str]:
    return set().union(*(packages(project["optional-dependencies"][extra]) for extra in extras))


print(*sorted(packages(project["dependencies"]) | packages_of(sys.argv[1:])), sep="\n")
