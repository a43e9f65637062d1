"""`penstock report`: the saved reports of two runs side by side, and the exit status for CI."""

import pytest

from penstock import cli
from penstock.report.report import Report
from penstock.statistics.schema import Counts, Histogram, Operator, Snapshot, Stage, Steps


def run(path, step, row, name="map"):
    """Save the report of 10 steps of `step` seconds, of which an operator works `row` for each of 100 rows."""
    yours, blocked = Histogram(), Histogram()
    for _ in range(10):
        yours.add([step / 2])
        blocked.add([step / 2])
    stage = Stage("consumer", -1, {0: Counts(rows=100, seconds=100 * row)})
    operator = Operator(name, f"{name}(function=decode)", "/home/me/train.py:7")
    Report([Snapshot(10 * step, [operator], [stage], Steps(10, blocked, yours))]).save(path)
    return str(path)


def test_a_slower_run_is_told_and_fails_the_check(tmp_path, capsys):
    before, after = run(tmp_path / "a.json", 0.010, 0.001), run(tmp_path / "b.json", 0.011, 0.002)
    assert cli.main(["report", before, after, "--fail-above", "5%"]) == 1
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "step: +10.0%",
        "waiting: 50% of the step before, 50% now",
        "map(decode): 2 ms a row, +100%, 1 ms a row before",
    ]
    assert "a step takes 10.0% longer than before, more than the 5.0% allowed" in told.err


def test_a_run_that_is_as_fast_passes_the_check(tmp_path, capsys):
    before, after = run(tmp_path / "a.json", 0.010, 0.001), run(tmp_path / "b.json", 0.0104, 0.001, "filter")
    assert cli.main(["report", before, after, "--fail-above=5"]) == 0
    assert "map(decode): it is not there any more" in capsys.readouterr().out


def test_one_report_is_shown(tmp_path, capsys):
    assert cli.main(["report", run(tmp_path / "a.json", 0.01, 0.001)]) == 0
    assert "limit: map(decode) at train.py:7" in capsys.readouterr().out


@pytest.mark.parametrize("share", ["much", "-5%", "nan"])
def test_a_share_that_is_none_is_refused(share, capsys):
    with pytest.raises(SystemExit):
        cli.main(["report", "a.json", "b.json", f"--fail-above={share}"])
    assert "must be a percentage such as 5%" in capsys.readouterr().err


def test_a_report_that_is_missing_is_an_error_without_a_traceback(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path / "none.json")]) == 1
    assert "cannot be read" in capsys.readouterr().err
