"""Changes one operator or number of a room's files at a time, and counts the changes that no test of the room notices.

    python tests/mutants.py --room service/dispatcher/machine --count 30 --seed 1
    python tests/mutants.py --room transform --only transform/columns.py

A survivor is shown as a diff: either a test is missing, or what the line says makes no difference. The sources are
changed in a copy. The exit status is 1 if more than one in twenty survives, and 2 if the tests fail without any change.
"""

import argparse
import ast
import difflib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

ROOMS = {
    "accumulators": ["accumulators"],
    "data/operators": ["data/test_conformance.py", "data/test_semantics.py", "data/test_batches.py"],
    "data/streams": ["data/test_conformance.py", "data/test_semantics.py", "data/test_reading.py"],
    "distribute/feed": ["distribute"],
    "formats": ["data/test_indexed_formats.py", "data/test_streamed_formats.py"],
    "parameter_server": ["parameter_server"],
    "preprocessing": ["preprocessing"],
    "service/dispatcher/machine": ["service/test_machine.py", "service/test_machine_properties.py"],
    "service/reader": ["service/test_progress.py", "service/test_states.py", "service/test_lanes.py"],
    "service/worker": [
        "service/test_production.py",
        "service/test_sharing.py",
        "service/test_spans.py",
        "service/test_window.py",
    ],
    "transform": ["transform"],
}
"""The tests of each room, below tests/."""

_PAIRS = [
    pair.split("|")
    for pair in ("<|<=", ">|>=", "==|!=", "is|is not", "in|not in", "and|or", "+|-", "*|//", "any|all", "min|max")
]
_OTHERS = {**{a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}, "/": "*", "%": "//"}
_SHARE = 20
_SECONDS = 600
"""Tests that take longer have noticed the change."""

Change = tuple[int, int, str]
"""The first and the last offset of what is replaced, and by what."""


def changes(source: str) -> Iterator[Change]:
    """Everything that can be changed in a file."""
    text = source.encode()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def begin(node: ast.expr) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def end(node: ast.expr) -> int:
        return starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def between(left: ast.expr, right: ast.expr) -> Iterator[Change]:
        gap = text[end(left) : begin(right)].decode()
        found = re.search(r"is not\b|not in\b|\bis\b|\bin\b|\band\b|\bor\b|//|[<>=!]=|[-<>+*/%]", gap)
        if found and found.group() in _OTHERS:
            yield end(left) + found.start(), end(left) + found.end(), _OTHERS[found.group()]

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
                yield from between(left, right)
        elif isinstance(node, ast.BinOp):
            yield from between(node.left, node.right)
        elif isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from between(left, right)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield begin(node), begin(node.operand), ""
        elif isinstance(node, ast.Name) and node.id in ("any", "all", "min", "max"):
            yield begin(node), end(node), _OTHERS[node.id]
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            yield begin(node), end(node), str(not node.value if isinstance(node.value, bool) else node.value + 1)


def passes(copy: Path, tests: list[str]) -> bool:
    """Run the tests with the sources of a copy; returns whether all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not long and not extended"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=ROOT,
            env=environment,
            timeout=_SECONDS,
            capture_output=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> int:
    """Try the sampled changes; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", choices=sorted(ROOMS), required=True, metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--only", default="", help="of its files, change those whose path contains this")
    parser.add_argument("--tests", nargs="*", help="run these files below tests/ instead of those of the room")
    parser.add_argument("--count", type=int, default=30, help="how many changes, of all that are possible, to try (30)")
    parser.add_argument("--seed", type=int, default=1, help="another seed tries other changes (1)")
    given = parser.parse_args()
    tests = given.tests or ROOMS[given.room]
    survivors = tried = 0
    with tempfile.TemporaryDirectory(prefix="penstock-mutants-") as directory:
        copy = Path(directory)
        shutil.copytree(ROOT / "src" / "penstock", copy / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
        if not passes(copy, tests):
            print("the tests of this room fail without any change, or take too long")
            return 2
        files = [path for path in sorted((copy / "penstock" / given.room).rglob("*.py")) if given.only in str(path)]
        all_changes = [(path, change) for path in files for change in changes(path.read_text())]
        for path, (first, last, replacement) in random.Random(given.seed).sample(
            all_changes, min(given.count, len(all_changes))
        ):
            source = path.read_bytes()
            changed = source[:first] + replacement.encode() + source[last:]
            path.write_bytes(changed)
            tried += 1
            if passes(copy, tests):
                survivors += 1
                lines = (part.decode().splitlines(keepends=True) for part in (source, changed))
                name = str(path.relative_to(copy))
                print("".join(difflib.unified_diff(*lines, name, name, n=2)), flush=True)
            path.write_bytes(source)
    print(f"{survivors} of {tried} changes in {given.room} survive; at most one in {_SHARE} may")
    return int(survivors * _SHARE > tried)


if __name__ == "__main__":
    sys.exit(main())
