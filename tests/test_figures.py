"""Figures in the documents are those of `benchmarks/figures.json`."""

import pytest
from benchmarks.figures import DOCUMENTS, FIGURES, PLOT, ROOT, plot, table, with_tables


@pytest.mark.parametrize("name", DOCUMENTS)
def test_tables_are_those_that_the_program_writes(name: str) -> None:
    document = (ROOT / name).read_text()
    assert with_tables(document) == document, "run `python -m benchmarks.figures`"


def test_the_plot_is_the_one_that_the_program_writes() -> None:
    assert plot(FIGURES["peers"]) == (ROOT / PLOT).read_text(), "run `python -m benchmarks.figures`"


def test_every_table_stands_in_one_document() -> None:
    documents = "".join((ROOT / name).read_text() for name in DOCUMENTS)
    assert [documents.count(f"<!-- figures: {name} -->\n\n{table(name)}") for name in FIGURES] == [1] * len(FIGURES)


def test_a_missed_goal_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"what": "a", "seen": 3, "at_most": 2, "unit": "s"}, {"what": "b", "seen": 3, "at_least": 2}]
    monkeypatch.setitem(FIGURES, "peers", rows)
    assert table("peers").splitlines()[2:] == ["| a | 3 s | at most 2 s: **missed** |", "| b | 3 | at least 2 |"]
