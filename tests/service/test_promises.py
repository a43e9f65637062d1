"""The table of what a data service promises when something goes wrong, in `docs/data-service.md`: each row is shown."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def rows() -> list[list[str]]:
    """The cells of the table's rows."""
    page = (ROOT / "docs" / "data-service.md").read_text()
    table = page.partition("| what happens |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_every_promise_names_its_duration_and_an_existing_test() -> None:
    shown = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("*.py"))
    modes = set(re.findall(r'"(\w+)"', re.search(r"^MODES = .*$", shown, re.MULTILINE)[0]))  # type: ignore[index]
    assert len(rows()) > 20
    for row in rows():
        assert len(row) == 5 and all(row), row
        tests, named = re.findall(r"`(test_\w+)`", row[4]), re.findall(r"mode `(\w+)`", row[4])
        assert tests or "`make chaos" in row[4], row
        assert [test for test in tests if f"def {test}(" not in shown] == []
        assert set(named) <= modes
