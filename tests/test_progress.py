"""Progress of what takes long: a bar on a terminal, lines elsewhere, nothing for what is quick."""

import io
import itertools
import sys
import time

import numpy as np
import pytest

import penstock as ps
from penstock.runtime.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def slow_clock(monkeypatch):
    """A clock that is 31 seconds later at each look."""
    seconds = itertools.count(0, 31)
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))


@pytest.mark.usefixtures("slow_clock")
def test_a_terminal_shows_a_bar(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with Progress("saving x", 200, 50) as progress:
        progress.add(50, 3_000_000)
        progress.add(100)
    first, *_, last = screen.getvalue().split("\r")[1:]
    assert first == "saving x: [###############...............] 50%, 100 of 200 rows, 3 MB, 2 rows/s, 62 s left\x1b[K"
    assert "100%, 200 of 200 rows" in last and last.endswith("\n")


@pytest.mark.usefixtures("slow_clock")
def test_a_cell_of_a_notebook_shows_a_bar(monkeypatch):
    class Cell(io.StringIO):
        __module__ = "ipykernel.iostream"

    monkeypatch.setattr(sys, "stderr", Cell())
    with Progress("saving x", 200) as progress:
        progress.add(100)
    assert "\rsaving x: [###############...............] 50%" in sys.stderr.getvalue()


@pytest.mark.usefixtures("slow_clock")
def test_without_a_terminal_a_line_goes_to_stderr_or_to_the_log(capsys, caplog):
    Progress("saving y").add(7)
    assert capsys.readouterr().err == "saving y: 7 rows, 0 rows/s\n"
    caplog.set_level("INFO", "penstock")
    Progress("indexing z", 4_000, unit="bytes").add(1_000)
    assert caplog.messages == ["indexing z: 25%, 1 kB of 4 kB, 32 B/s, 93 s left"]
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("slow_clock")
def test_in_the_middle_of_a_loop_a_terminal_has_lines(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    Progress("filling a cache", 4, bar=False).add(1)
    assert screen.getvalue() == "filling a cache: 25%, 1 of 4 rows, 0 rows/s, 93 s left\n"


def test_what_is_quick_shows_nothing(tmp_path, capsys):
    ps.Dataset.range(100).save(tmp_path / "saved", format="npy")
    assert len(list(ps.Dataset.range(100).cache(str(tmp_path / "cache")))) == 100
    assert capsys.readouterr().err == ""


@pytest.fixture
def every_line(monkeypatch):
    """Lines about everything, however quick."""
    for name in ("_FIRST_LINE_SECONDS", "_LINE_SECONDS"):
        monkeypatch.setattr(f"penstock.runtime.progress.{name}", 0.0)


def last_line(capsys, what: str) -> str:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith(what)][-1]


@pytest.mark.usefixtures("every_line")
@pytest.mark.parametrize("by_index", [True, False])
def test_filling_a_cache_counts_its_rows_and_reading_it_counts_none(capsys, by_index):
    rows = ps.Dataset.range(8) if by_index else ps.Dataset.range(8).filter(lambda x: x >= 0)
    cached = rows.cache()
    list(cached)
    known = " of 8" if by_index else ""
    assert f"8{known} rows, 64 B" in last_line(capsys, "filling a cache")
    list(cached)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("every_line")
def test_indexing_counts_files_and_the_bytes_of_a_large_one(tmp_path, capsys):
    size = 400_000
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(b"x" * 99 + b"\n" if name == "a.txt" else (b"x" * 99 + b"\n") * (size // 100))
    assert len(ps.FilesDataset(str(tmp_path / "*.txt"), "text")) == 4001
    printed = capsys.readouterr().err
    assert "FilesDataset: looking into files: 100%, 2 of 2 files" in printed
    assert f"indexing {tmp_path / 'b.txt'}: 100%, 400 kB of 400 kB" in printed


@pytest.mark.usefixtures("every_line")
def test_a_checkpoint_that_is_copied_elsewhere_counts_bytes(capsys):
    pytest.importorskip("fsspec")
    pytest.importorskip("orbax.checkpoint")
    weights = np.zeros(1000)
    ps.Checkpoint(weights=weights).save("memory://run/ckpt", weights=weights)
    assert "uploading memory://run/ckpt-1: 100%" in capsys.readouterr().err
