"""The same is learned on any number of workers, and by workers that are killed."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from tft_in_penstock import dataset, function

import penstock as ps
from penstock.transform import passes

pytestmark = pytest.mark.slow

ROWS = 160


def learned(directory):
    saved = json.loads((directory / "transform.json").read_text())
    return saved["learned"], saved["rows"]


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    directory = tmp_path_factory.mktemp("in_process")
    passes.ROWS, before = 27, passes.ROWS
    try:
        ps.transform.analyze(dataset(ROWS), function, directory)
        yield learned(directory)
    finally:
        passes.ROWS = before


@pytest.mark.extended
def test_one_worker_learns_the_same_to_the_last_bit_and_tells_how_far_it_is(in_process, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("penstock.runtime.progress._FIRST_LINE_SECONDS", 0.0)
    monkeypatch.setattr("penstock.runtime.progress._LINE_SECONDS", 0.0)
    caplog.set_level("INFO", "penstock.runtime.progress")
    with ps.service.local(num_workers=1) as service:
        ps.transform.analyze(dataset(ROWS), function, tmp_path, service=service.target)
    assert learned(tmp_path) == in_process
    told = [re.match(rf"(.*), (\d+) of {ROWS} rows", record.getMessage()) for record in caplog.records]
    passes_told = [line[1] for line in told if line is not None and line[2] == str(ROWS)]
    assert dict.fromkeys(passes_told) == dict.fromkeys(
        [f"ps.transform.analyze, pass {number} of 2: 100%" for number in (1, 2)]
    )
    assert any(line is not None and line[2] != str(ROWS) for line in told)


@pytest.mark.extended
@pytest.mark.parametrize(
    "num_workers", [pytest.param(1, marks=pytest.mark.extended), 2, pytest.param(3, marks=pytest.mark.extended)]
)
def test_workers_that_are_killed_in_a_pass_learn_every_row_once(in_process, tmp_path, num_workers):
    flags = Path(tmp_path) / "flags"
    flags.mkdir()
    with ps.service.local(num_workers=num_workers) as service:
        ps.transform.analyze(dataset(ROWS, str(flags)), function, tmp_path / "working_dir", service=service.target)
    assert sorted(path.name for path in flags.iterdir()) == ["100", "150"]
    assert learned(tmp_path / "working_dir") == in_process


def test_rows_that_end_every_worker_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "ROWS", 128)

    def row(n):
        if n == 1000:  # as where there is too little memory
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": float(n)}

    def preprocess(c):
        return {"x": ps.transform.scale_to_0_1(c["x"])}

    with (
        ps.service.local(num_workers=2) as service,
        pytest.raises(
            ps.PoisonError, match=r"among rows 896 to 1,023 is one whose function ends.*more memory, or leave"
        ),
    ):
        ps.transform.analyze(ps.Dataset.range(1500).map(row), preprocess, tmp_path, service=service.target)
