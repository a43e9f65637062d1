"""`benchmarks/many_files.py` in small form."""

import pytest
from benchmarks.many_files import measure


@pytest.mark.extended
def test_every_format_gives_a_figure_for_each_number_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", "none")  # which the benchmark replaces
    figures = measure(rows=200, counts=(2, 10, 20), rounds=1)
    assert [figure.question.split(",")[0] for figure in figures] == [
        name for name in ("tfrecord", "text", "csv", "jsonl", "parquet", "penstock") for _ in range(2)
    ]
    assert figures[1].question == "tfrecord, 200 rows shuffled, of 20 files / of 2"
    assert all(figure.value > 0 and figure.goal == 3 and not figure.at_least for figure in figures)
