"""Every example in the README and in the documents runs, and gives what the document says it gives.

The Python examples of one document are one program: later ones see the names of earlier ones. An example with `>>>` is
a doctest. Of any other, what it prints must equal the ```text block that follows it, if one does. JAX has four devices.

An example that begins with a comment of nothing but a file name, `# train.py`, is a program of its own: it is written
to a file of that name. A ```console block runs its commands, the lines after "$ "; what a command prints must equal the
lines below it. The lines of one worker come in order, those of several in any.

An example that begins with ```py is only compiled, because it needs what `NOT_RUN` says.

All of a document runs in one directory, which is empty when it begins.
"""

import contextlib
import doctest
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
import jax
import pytest
from forked_workers import run_workers

from penstock.cli import _parser

# Before anything starts JAX's backend: afterwards the number of devices is fixed.
jax.config.update("jax_num_cpu_devices", 4)

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXTENDED = {
    "docs/keras.md",
    "docs/parameter-servers.md",
    "docs/training/README.md",
    "docs/training/jax-and-flax.md",
}
"""Documents whose examples train for seconds."""
NEEDS = {
    "docs/audio-and-video.md": ("soundfile", "av"),
    "docs/object-stores.md": ("obstore",),
    "docs/files/array-record.md": ("array_record",),
    "docs/files/arrays.md": ("h5py",),
    "docs/files/tables-with-versions.md": ("deltalake", "lance", "pyiceberg.catalog.sql"),
    "docs/pytorch.md": ("torch",),
    "docs/training/small-gpt.md": ("torch",),
}
"""Packages of extras, without which the examples of a document are left out."""
OPTIMISED = {"docs/training/README.md"}
"""Documents whose examples run programs so often that optimising them costs less than it saves."""

NOT_RUN = {
    "README.md": "CUDA",
    "docs/audio-and-video.md": "torchcodec",
    "docs/files/tables-with-versions.md": "DuckDB, and files of huggingface.co",
    "docs/jax-meshes.md": "several processes",
    "docs/object-stores.md": "stores of others",
    "docs/pytorch.md": "ranks of torchrun",
    "docs/recipes.md": "a disk of its own, W&B and a long fit",
}
"""Needs of examples that begin with ```py and are only compiled."""

EXAMPLE = re.compile(
    r"^```(?P<kind>python|console)\n(?P<code>.*?)^```$(\n+```text\n(?P<output>.*?)^```$)?", re.DOTALL | re.MULTILINE
)
FILE_NAME = re.compile(r"# ([\w-]+\.py)\n")
DOCTEST_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Example:
    """A block of code, the line of its document that it begins at, and what it must print, if the document says so."""

    kind: str
    code: str
    line: int
    output: str | None


def examples_of(document: Path) -> Iterator[Example]:
    text = document.read_text()
    for found in EXAMPLE.finditer(text):
        yield Example(found["kind"], found["code"], text.count("\n", 0, found.start("code")) + 1, found["output"])


def run_doctest(example: Example, names: dict[str, Any], document: Path) -> None:
    test = doctest.DocTestParser().get_doctest(example.code, {}, document.name, str(document), example.line - 1)
    test.globs = names  # themselves, not a copy: functions of this example are called by later ones
    report = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False, optionflags=DOCTEST_FLAGS)
    runner.run(test, out=report.write, clear_globs=False)
    assert not runner.failures, report.getvalue()


def run_program(example: Example, names: dict[str, Any], document: Path) -> None:
    printed = io.StringIO()
    # Empty lines in front give errors the line numbers of the document, and `explain()` its file name.
    code = compile("\n" * (example.line - 1) + example.code, document.name, "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    if example.output is not None:
        assert printed.getvalue().splitlines() == example.output.splitlines()


def run_commands(example: Example) -> None:
    for part in re.split(r"^\$ ", example.code, flags=re.MULTILINE)[1:]:
        command, *expected = part.splitlines()
        written, errors = run_command(command)
        printed = [line for line in written.splitlines() if not is_greeting(line)]
        assert by_worker(printed) == by_worker(expected), errors


def run_command(command: str) -> tuple[str, str]:
    """What a command writes to stdout and to stderr; those of penstock run in processes that have it loaded."""
    program, *arguments = shlex.split(command)
    if program == "python":
        command = shlex.join([sys.executable, *arguments])
    if program != "penstock":
        ran = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
        return ran.stdout, ran.stderr
    if arguments[0] != "launch":
        ran = forked.run("-m", "penstock", *arguments)
        return ran.stdout, ran.stderr
    options = _parser().parse_args(arguments)
    workers = run_workers(options.program, workers=options.num_workers, devices=options.devices_per_worker)
    return workers.output, workers.errors


def is_greeting(line: str) -> bool:
    """Whether a line is of Gloo, through which JAX's CPU devices talk: threads of it write into each other's lines."""
    torn = re.fullmatch(r"\[\d+\] \d?", line) is not None  # a rank, cut off
    return torn or any(words in line for words in ("[Gloo]", "is connected to", "peer ranks"))


def by_worker(lines: list[str]) -> list[str]:
    """The lines of `penstock launch`, those of one worker together and in their order."""

    def worker(line: str) -> str:
        found = re.match(r"\[\d+\] ", line)
        return found[0] if found else ""

    return sorted(lines, key=worker)


def run_example(example: Example, names: dict[str, Any], document: Path) -> None:
    file_name = FILE_NAME.match(example.code)
    if example.kind == "console":
        run_commands(example)
    elif file_name:
        Path(file_name[1]).write_text(example.code)
    elif ">>>" in example.code:
        run_doctest(example, names, document)
    else:
        run_program(example, names, document)


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def test_documents_that_are_named_here_are_there() -> None:
    assert set(map(name_of, DOCUMENTS)) >= EXTENDED | OPTIMISED


@pytest.mark.slow
@pytest.mark.parametrize(
    "document",
    [pytest.param(path, marks=pytest.mark.extended if name_of(path) in EXTENDED else ()) for path in DOCUMENTS],
    ids=map(name_of, DOCUMENTS),
)
def test_examples_run_as_the_document_says(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in NEEDS.get(name_of(document), ()):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    quickly_compiled = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", quickly_compiled and name_of(document) not in OPTIMISED)
    try:
        for example in examples_of(document):
            run_example(example, names, document)
    finally:
        jax.config.update("jax_disable_most_optimizations", quickly_compiled)
        names.clear()  # as a program's end does: an iterator that was left open closes


def test_every_example_runs_or_has_a_reason_not_to() -> None:
    parts = {name_of(path): re.findall(r"^```py\n(.*?)^```$", path.read_text(), re.S | re.M) for path in DOCUMENTS}
    parts = {name: examples for name, examples in parts.items() if examples}
    assert parts.keys() == NOT_RUN.keys()
    for name, examples in parts.items():
        for example in examples:
            compile(example, name, "exec")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


def test_the_files_that_contributing_names_are_there() -> None:
    tables = "\n".join(line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith("| "))
    named = re.findall(r"`([a-z_/]+(?:/|\.py))`", tables)
    assert len(named) > 80
    assert [
        name for name in named if not any((ROOT / below / name).exists() for below in ("src/penstock", "src", "."))
    ] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", document.read_text()):
        page = document.parent / target if target else document
        assert page.exists(), target
        assert not heading or heading in headings_of(page), f"{target}#{heading}"


def headings_of(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
