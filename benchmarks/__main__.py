"""Runs every benchmark in a process of its own and prints one table: `python -m benchmarks [name …]`."""

import argparse
import json
import platform
import subprocess
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from benchmarks.timing import Figure

NAMES = (
    "data",
    "overlap",
    "tuning",
    "rows",
    "choosing",
    "sequences",
    "statistics",
    "operators",
    "files",
    "many_files",
    "formats",
    "saving",
    "remote",
    "images",
    "distribute",
    "meshes",
    "multi_worker",
    "preprocessing",
    "transform",
    "training",
    "checkpoints",
    "service",
    "parameter_servers",
    "dispatcher",
    "many_clients",
    "transport",
    "recovery",
    "exactly_once",
)
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Print the table; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog="PENSTOCK_BENCH_TENSORFLOW=/path/to/python, one with TensorFlow, adds figures against it to `formats`, "
        "`images`, `operators`, `parameter_servers`, `service`, `training` and `transform`.",
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"which to run: {', '.join(NAMES)} (all by default)")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.names or list(NAMES)
    if unknown := set(names) - set(NAMES):
        parser.error(f"no benchmark is named {', '.join(sorted(unknown))}")
    if arguments.one:
        print(json.dumps([asdict(figure) for figure in import_module(f"benchmarks.{names[0]}").measure()]))
        return 0
    figures = [figure for name in names for figure in _run(name)]
    _print(figures)
    _keep(figures)
    return 0 if all(figure.reached for figure in figures) else 1


def _run(name: str) -> list[Figure]:
    """The figures of one benchmark. A fresh process, because what is imported and configured changes the figures."""
    print(f"{name} …", file=sys.stderr)
    command = [sys.executable, "-m", "benchmarks", name, "--one"]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [Figure(**values) for values in json.loads(output)]


def _print(figures: list[Figure]) -> None:
    width = max(len(figure.question) for figure in figures)
    for figure in figures:
        bound = "at least" if figure.at_least else "at most"
        mark = "" if figure.reached else "   MISSED"
        spread = "" if figure.spread is None else "   ({:.2f} to {:.2f})".format(*figure.spread)
        print(
            f"{figure.question:<{width}}  {figure.value:10.2f} {figure.unit:<12} {bound} {figure.goal:g}{spread}{mark}"
        )


def _keep(figures: list[Figure]) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    RESULTS.mkdir(exist_ok=True)
    machine = f"{platform.machine()} {platform.system()}, Python {platform.python_version()}"
    content = {"commit": commit.strip(), "machine": machine, "figures": [asdict(figure) for figure in figures]}
    (RESULTS / "latest.json").write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    sys.exit(main())
