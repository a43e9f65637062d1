"""Calls that all workers must make are numbered and compared: one that a single worker makes is named."""

from typing import Any

import pytest

from penstock.distribute.control import call_log
from penstock.distribute.control.call_log import CallLog


def logs(*calls: list[str]) -> list[CallLog]:
    found = [CallLog(worker, len(calls)) for worker in range(len(calls))]
    for log, names in zip(found, calls, strict=True):
        for name in names:
            log.note(name)
    return found


STEP = ["run"] * 200


@pytest.mark.parametrize(
    ("mine", "others", "differs"),
    [
        (STEP, STEP[:150], None),
        ([*STEP, "reduce", *STEP], [*STEP, "reduce", "run"], None),
        ([*STEP, "reduce", "run"], [*STEP, "run"], (201, "reduce", "run")),
        (["reduce", *STEP], STEP, (1, "reduce", "run")),
        (["reduce", *["run", "gather"] * 99], ["run", "gather"] * 99, (136, "run", "gather")),  # as far as both know
        (["reduce", *["run", "gather"] * 99], ["gather", *["run", "gather"] * 99], (0, "", "")),
    ],
)
def test_the_first_call_that_differs_is_found_by_who_is_ahead(mine: Any, others: Any, differs: Any) -> None:
    one, other = logs(mine, others)
    behind, ahead = other.news(), one.news()
    assert behind is not None and ahead is not None
    assert one.compare(behind) == differs
    if len(others) < len(mine):
        assert other.compare(ahead) is None
    assert one.news() is None


def test_a_worker_that_does_not_come_to_a_call_is_missed_when_nobody_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(call_log.time, "monotonic", lambda: now[0])
    one, other = logs(["run", "reduce", "run"], ["run"])
    now[0] = 104.0
    told, of_the_first = other.news(), one.news()
    assert told is not None and of_the_first is not None
    one.compare(told)
    other.compare(of_the_first)
    now[0] = 109.0
    assert one.missing(5.0) is None
    now[0] = 109.5
    assert one.missing(5.0) == (1, 2, "reduce")
    assert other.missing(5.0) is None
    one.note("run")
    assert one.missing(5.0) is None
