"""Traces: every span is where and when it was, the file ends where it should, and nothing of it stops a run."""

import gzip
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import jax
import pytest
from until import until

import penstock as ps
from penstock.statistics import tracing


def events_of(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)["traceEvents"]


def spans_of(path: Path) -> list[dict[str, Any]]:
    events = events_of(path)
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    return [event | {"thread": threads.get(event["tid"], "")} for event in events if event["ph"] == "X"]


def test_spans_show_threads_operators_waits_and_steps(tmp_path: Path) -> None:
    dataset = ps.Dataset.range(8).map(lambda x: time.sleep(0.001) or x, num_parallel_calls=2).batch(4).prefetch(1)
    path, begun = tmp_path / "steps.json.gz", time.perf_counter()
    with ps.trace(path):
        list(dataset)
    ended = time.perf_counter()
    spans = spans_of(path)
    where = {(span["name"].partition("(")[0], span["thread"]) for span in spans}
    assert {("map", "penstock-worker"), ("prefetch", "MainThread"), ("next", "MainThread")} <= where
    assert {name for name, thread in where if thread == "penstock-prefetch"} >= {"batch"}
    assert any(span["name"].startswith("prefetch(") and span["name"].endswith(" waits") for span in spans)
    assert [span["args"]["number"] for span in spans if span["name"] == "next"] == [0, 1]
    assert [span["args"]["number"] for span in spans if span["name"] == "your step"][:1] == [0]
    for span in spans:
        assert begun <= span["ts"] / 1e6 <= (span["ts"] + span["dur"]) / 1e6 <= ended + 1e-6
        assert span["pid"] == os.getpid()


def test_arrows_lead_from_blocks_to_batches_to_steps_within_their_spans(tmp_path: Path) -> None:
    dataset = ps.Dataset.range(12).map(lambda x: time.sleep(0.003) or x, num_parallel_calls=2).batch(4).prefetch(1)
    path = tmp_path / "steps.json"
    with ps.trace(path):
        list(dataset)
    events = events_of(path)
    for event in events:
        assert {"ph", "pid", "tid", "name"} <= event.keys()
        assert event["ph"] == "M" or event["ts"] > 0
    flows: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] in "stf":
            flows.setdefault(event["id"], []).append(event)
    ways = set()
    for flow in flows.values():
        assert [event["ph"] for event in flow] == ["s", *"t" * (len(flow) - 2), "f"]
        assert [event["ts"] for event in flow] == sorted(event["ts"] for event in flow)
        ways.add(" ".join(spans_around(event, spans_of(path)) for event in flow))
    assert "map map prefetch your step" in ways
    fills = [event["args"]["holds"] for event in events if event["ph"] == "C"]
    assert set(fills) == {0, 1}


def spans_around(event: dict[str, Any], spans: list[dict[str, Any]]) -> str:
    """Return the name of the innermost span in which an event is, as Perfetto binds it."""
    around = [
        span for span in spans if span["tid"] == event["tid"] and span["ts"] <= event["ts"] < span["ts"] + span["dur"]
    ]
    return min(around, key=lambda span: span["dur"])["name"].partition("(")[0]


def test_a_trace_of_some_steps_is_written_when_it_has_them(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    with ps.trace(path, steps=2), iter(ps.Dataset.range(6).batch(1).prefetch(0)) as rows:
        while tracing.recorder is not None and not tracing.recorder._full:
            next(rows)
        until(lambda: path.read_text().endswith("]}\n"))
        list(rows)
    assert 1 <= len([span for span in spans_of(path) if span["name"] == "next"]) <= 2


@pytest.mark.slow
def test_processes_of_a_map_are_on_the_same_clock(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    dataset = ps.Dataset.range(2).map(lambda x: x + 1, num_parallel_calls=1, processes=True)
    with ps.trace(path):
        list(dataset)
    spans = spans_of(path)
    calls = [span for span in spans if span["pid"] != os.getpid()]
    steps = [span for span in spans if span["name"] == "next"]
    assert calls and {span["name"] for span in calls} == {"calls"}
    assert steps[0]["ts"] <= calls[0]["ts"] <= steps[-1]["ts"] + steps[-1]["dur"]


def test_a_trace_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_MOST_SPANS", 5)
    path = tmp_path / "steps.json"
    with ps.trace(path):
        for _ in range(4):
            list(ps.Dataset.range(4).batch(1))
    assert len(spans_of(path)) == 5


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_an_error_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), ps.trace("/dev/full"):
        assert list(ps.Dataset.range(3)) == [0, 1, 2]
    assert "the trace could not be written: [Errno 28] No space left on device" in caplog.text
    assert tracing.recorder is None


def test_a_trace_that_cannot_begin_is_refused_at_once(tmp_path: Path) -> None:
    with (
        pytest.raises(ps.StorageError, match="'.*/no/steps.json' cannot be written: No such file"),
        ps.trace(tmp_path / "no" / "steps.json"),
    ):
        pass
    with pytest.raises(ps.InvalidArgumentError, match="steps=...\\) must be at least 1, got 0"), ps.trace("x", steps=0):
        pass
    with ps.trace(tmp_path / "one.json"):
        with (
            pytest.raises(ps.InvalidArgumentError, match="being made in this process already"),
            ps.trace(tmp_path / "two.json"),
        ):
            pass
        assert list(ps.Dataset.range(1)) == [0]
    assert not (tmp_path / "two.json").exists()


def test_operators_are_marked_in_the_trace_of_a_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    marked = threading.local()

    class Mark:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            marked.__dict__.setdefault("names", []).append(self.name)
            marked.__dict__.setdefault("open", []).append(self)

        def __exit__(self, *_: object) -> None:
            assert marked.open.pop() is self

    with iter(ps.Dataset.range(4).filter(lambda x: x > 0).batch(1)) as rows:
        monkeypatch.setattr(tracing, "annotation", Mark)
        list(rows)
    assert marked.open == []
    assert any(name.startswith("filter(") for name in marked.names)


def test_copies_of_jax_loaders_are_spans_of_a_trace(tmp_path: Path) -> None:
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    batches = ps.Dataset.range(8).batch(4)
    with ps.jax.loader(batches, mesh, jax.P("data")) as loader, ps.trace(tmp_path / "steps.json"):
        assert len(list(loader)) == 2
    assert [span["name"] for span in spans_of(tmp_path / "steps.json")].count("copy to the devices") == 2
