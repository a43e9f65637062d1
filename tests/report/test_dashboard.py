"""Live pages: they show what the report says now, to this machine and to those that know the token."""

import base64
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path
from urllib.error import HTTPError

import pytest
from until import until

import penstock as ps
from penstock.cli import main
from penstock.cli.processes import own_access
from penstock.errors import ServiceError
from penstock.rpc.listener import Access
from penstock.runtime.dashboard import live_pages
from penstock.runtime.web_server import WebServer


def read(url: str, **headers: str) -> str:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        with error:
            return f"{error.code} {error.reason}"


def refuses(url: str) -> bool:
    try:
        read(url)
    except OSError:
        return True
    return False


def test_the_page_of_an_iterator_shows_its_present_report() -> None:
    with iter(ps.Dataset.range(40).batch(4)) as rows:
        next(rows)
        url = rows.dashboard()
        assert url == rows.dashboard()
        assert "<title>penstock report</title>" in read(url) and 'fetch("now")' in read(url)
        assert 'data-head="rows">1</td>' in read(url + "now")
        list(rows)
        assert 'data-head="rows">10</td>' in read(url + "now")
        assert read(url + "other") == "404 only / and /now are here"
    until(lambda: refuses(url))


def test_a_page_keeps_no_iterator_alive_and_ends_with_it() -> None:
    rows = iter(ps.Dataset.range(4))
    url = rows.dashboard()
    del rows
    gc.collect()
    until(lambda: refuses(url))


def test_loaders_distributed_iterators_and_fit_have_pages_too() -> None:
    batches = ps.Dataset.range(8).batch(4)
    with ps.HostStrategy(2).distribute_dataset(batches).__iter__() as steps:
        next(steps)
        assert "batch at test_dashboard.py" in read(steps.dashboard())
    data = ps.keras.as_input(batches)
    assert "nothing was read yet" in read(data.dashboard())


def test_a_name_of_another_site_for_this_machine_reads_no_page() -> None:
    with iter(ps.Dataset.range(4)) as rows:
        assert read(rows.dashboard(), Host="evil.example").startswith("401 / is read on this machine alone")


def test_a_port_that_is_taken_is_said_at_the_call() -> None:
    with iter(ps.Dataset.range(4)) as one, iter(ps.Dataset.range(4)) as two:
        port = int(one.dashboard().rstrip("/").rpartition(":")[2])
        with pytest.raises(ServiceError, match=f"a page cannot be served at 127.0.0.1:{port}: .*in use"):
            two.dashboard(port)


def test_a_browser_elsewhere_gives_the_token_as_its_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-of-32-letters-and-digits")
    (tmp_path / "token").chmod(0o600)
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(tmp_path / "token"))
    with WebServer(
        "127.0.0.1", 0, live_pages(lambda: "<h1>fine</h1>"), partial(Access, own_access().secrets)
    ) as server:
        url = f"http://127.0.0.1:{server.port}/"
        for given, shown in (("", "401"), ("other", "401"), ("a-token-of-32-letters-and-digits", "<!DOCTYPE")):
            password = base64.b64encode(f"me:{given}".encode()).decode()
            assert read(url, Host="trainer", Authorization=f"Basic {password}").startswith(shown)
            assert read(url, Host="trainer", Authorization=f"Bearer {given}").startswith(shown)


def served(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], target: str) -> str:
    """The page that `penstock dashboard` serves, until Ctrl-C."""
    pages = []

    def look(_: float) -> None:
        address = re.search(r"(http://127.0.0.1:\d+/)\n", capsys.readouterr().out)
        assert address is not None
        pages.append(read(address[1]))
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.dashboard.time.sleep", look)
    assert main(["dashboard", target]) == 130
    return pages[0]


def test_the_page_of_a_service_shows_workers_and_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ps.service.DispatchServer() as dispatcher:
        assert "<h2>data workers</h2><p>none</p>" in served(monkeypatch, capsys, dispatcher.target)
        config = ps.service.WorkerConfig(dispatcher_address=dispatcher.target)
        with (
            ps.service.WorkerServer(config),
            iter(
                ps.Dataset.range(8).apply(ps.service.distribute("DYNAMIC", dispatcher.target, job_name="<train>"))
            ) as rows,
        ):
            next(rows)
            page = served(monkeypatch, capsys, dispatcher.target)
    assert "job &#x27;&lt;train&gt;&#x27;, epoch 0" in page and 'data-head="BUSY"' in page and "ROUND" not in page


def test_a_dashboard_of_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(60)
    assert main(["dashboard", str(ended.pid)]) == 1
    assert f"there is no process {ended.pid} on this machine" in capsys.readouterr().err
    assert main(["dashboard", "localhost"]) == 2


@pytest.mark.extended
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_shows_what_has_changed_since_the_page_was_loaded() -> None:
    begun = '<p id="count">0</p>'
    shown = iter([begun, *(f'<p id="count">{count}</p>' for count in range(1, 1000))])
    with WebServer("127.0.0.1", 0, live_pages(lambda: next(shown))) as server:
        arguments = [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=3500",
            "--dump-dom",
        ]
        browser = subprocess.Popen(
            [*arguments, f"http://127.0.0.1:{server.port}/"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            page, _ = browser.communicate(timeout=120)
        finally:
            if browser.poll() is None:
                os.killpg(browser.pid, signal.SIGKILL)
    assert re.search(r'<p id="count">[1-9]\d*</p>', page) and 'id="ended" hidden' in page
