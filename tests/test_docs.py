"""Every Python example in the README and in the documents runs, and gives what the document says it gives.

The examples of one document are one program: later ones see the names of earlier ones. An example with `>>>` is a
doctest. Of any other, what it prints must equal the ```text block that follows it, if one does.
"""

import contextlib
import doctest
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

EXAMPLE = re.compile(r"^```python\n(?P<code>.*?)^```\n(\n*```text\n(?P<output>.*?)^```$)?", re.DOTALL | re.MULTILINE)
DOCTEST_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Example:
    """A block of code, the line of its document that it begins at, and what it must print, if the document says so."""

    code: str
    line: int
    output: str | None


def examples_of(document: Path) -> Iterator[Example]:
    text = document.read_text()
    for found in EXAMPLE.finditer(text):
        yield Example(found["code"], text.count("\n", 0, found.start("code")) + 1, found["output"])


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


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_run_as_the_document_says(document: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for example in examples_of(document):
            run = run_doctest if ">>>" in example.code else run_program
            run(example, names, document)
    finally:
        names.clear()  # as a program's end does: an iterator that was left open closes


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []
