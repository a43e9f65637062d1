"""Programs with a known bottleneck: the report names the operator, with the line that added it, and what to change.

Their work is sleeping, so that the machine's speed decides nothing.
"""

import ctypes
import inspect
import re
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.formats import decoded_rows
from penstock.formats.tables import parquet
from penstock.report.report import Report
from penstock.report.verdict import short_name

_with_lock = ctypes.PyDLL(None)


def decode(x):
    time.sleep(0.004)
    return x


def locked(x, seconds=0.003):
    """Sleeps with Python's lock, and computes a little."""
    _with_lock.usleep(int(1e6 * seconds))
    until = time.thread_time() + seconds / 12
    while time.thread_time() < until:
        pass
    return x


def reported(dataset, step=0.0, steps=None):
    with iter(dataset) as iterator:
        for number, _ in enumerate(iterator, 1):
            if number == steps:
                break
            time.sleep(step)
        return iterator.report()


def limit_of(report):
    """The name of the operator that limits, what to change, and the gain."""
    verdict = report.verdicts[report.slowest]
    return short_name(report.ranks[report.slowest].operators[verdict.operator]), verdict.change, verdict.gain


def here(lines=1):
    frame = inspect.currentframe().f_back
    return f"at test_bottlenecks.py:{frame.f_lineno - lines}"


@pytest.fixture
def slow_store():
    """An HTTP server that takes its time."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            time.sleep(float(self.path[1:]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"7")

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 64  # more than ask at a time: others would be asked again after a second

    server = Server(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


class Stored:
    def __init__(self, url, seconds=0.01):
        self.url, self.seconds = url, seconds

    def __len__(self):
        return 30

    def __getitem__(self, index):
        with urllib.request.urlopen(f"{self.url}{self.seconds}", timeout=30) as answer:
            return int(answer.read())


def test_a_slow_store_is_named(slow_store):
    report = reported(ps.Dataset.from_source(Stored(slow_store)).map(abs).batch(2).prefetch(2), step=0.001)
    name, change, _ = limit_of(report)
    assert name == f"from_source {here(2)}"
    assert "waits for the storage" in change


def test_a_slow_function_in_one_thread_is_named():
    report = reported(ps.Dataset.range(60).map(decode).batch(4).prefetch(2), step=0.004)
    name, change, gain = limit_of(report)
    assert name == f"map(decode) {here(2)}"
    assert re.match(r"num_parallel_calls=\d \(its calls wait", change)
    assert gain > 1


def test_too_few_threads_are_told_with_the_number_that_is_enough():
    report = reported(ps.Dataset.range(120).map(decode, num_parallel_calls=2).batch(4).prefetch(2), step=0.002)
    name, change, gain = limit_of(report)
    assert name == f"map(decode) {here(2)}"
    assert int(re.match(r"num_parallel_calls=(\d+) instead of 2", change)[1]) >= 4
    assert gain > 0.5


def test_threads_that_are_enough_but_for_one_long_call_are_not_said_to_compute():
    def stalls(x):
        time.sleep(0.2 if x == 39 else 0.002)
        return x

    report = reported(ps.Dataset.range(80).map(stalls, num_parallel_calls=8).batch(4).prefetch(2), step=0.008)
    name, change, _ = limit_of(report)
    assert name == f"map(stalls) {here(2)}"
    assert "a few steps wait long" in change and "processors busy" not in change


def test_a_function_that_keeps_pythons_lock_is_told_from_one_that_waits():
    report = reported(ps.Dataset.range(100).map(locked, num_parallel_calls=4).batch(5).prefetch(2))
    name, change, _ = limit_of(report)
    assert name == f"map(locked) {here(2)}"
    assert "processes=True" in change


def test_work_in_the_consumers_thread_is_moved_beside_the_step():
    kept = ps.Dataset.range(40).filter(lambda x: decode(x) >= 0).batch(4)
    report = reported(kept, step=0.05)
    name, change, gain = limit_of(report)
    assert name == f"filter(<lambda>) {here(3)}"
    assert change.startswith("add .prefetch(ps.AUTOTUNE) at the end")
    assert 0.2 < gain < 1


def test_a_slow_consumer_has_nothing_to_change_in_its_input():
    report = reported(ps.Dataset.range(30).batch(1).prefetch(4), step=0.02)
    assert report.verdicts[0].operator == -1
    assert report.lines()[0].startswith("the input keeps up")


def test_a_tiny_shuffle_is_named():
    report = reported(ps.Dataset.from_generator(rows).shuffle(2, seed=1).batch(100), steps=40)
    name, change, _ = limit_of(report)
    assert name == f"shuffle {here(2)}"
    assert "larger buffer_size" in change


def test_a_shuffle_of_row_numbers_is_not_told_to_have_a_larger_buffer():
    report = reported(ps.Dataset.range(3_000_000).shuffle(seed=1), steps=2)
    name, change, _ = limit_of(report)
    assert name == f"shuffle {here(2)}"
    assert "buffer_size" not in change


def test_row_groups_that_are_too_large_are_named(tmp_path, monkeypatch):
    for module in (decoded_rows, parquet):
        monkeypatch.setattr(module, "CACHE_BYTES", 2 << 20)  # five of the 32 row groups
    table = pa.table({"x": np.random.default_rng(1).integers(0, 1 << 60, 1_600_000)})
    pq.write_table(table, tmp_path / "large.parquet", row_group_size=50_000)
    rows = ps.ParquetDataset(str(tmp_path / "large.parquet")).shuffle(seed=1).batch(8).prefetch(1)
    report = reported(rows, steps=20)
    name, change, _ = limit_of(report)
    assert name == f"ParquetDataset {here(3)}"
    assert "row group" in change


def test_the_slowest_rank_is_told_from_those_that_wait_for_it():
    slow = reported(ps.Dataset.range(20).map(decode).batch(2).prefetch(2), step=0.004).ranks[0]
    quick = reported(ps.Dataset.range(20).batch(2).prefetch(2), step=0.01).ranks[0]
    slow.rank, slow.host = 1, "b07"
    report = Report([quick, slow])
    assert report.slowest == 1
    told = [line for line in report.lines() if line.startswith("slowest: rank 1 (host b07)")]
    assert len(told) == 1
    assert limit_of(report)[0].startswith("map(decode)")


def test_a_prefetch_that_hands_over_tiny_elements_one_by_one_is_named():
    report = reported(ps.Dataset.range(1000).prefetch(1))
    assert limit_of(report)[0] == "prefetch"


def loaded(x):
    time.sleep(0.02)
    return x


def loading(calls=None):
    return ps.Dataset.range(96).map(loaded, num_parallel_calls=calls).batch(4)


def selected():
    return ps.Dataset.range(96).filter(lambda x: loaded(x) >= 0).batch(4)


def chosen(change):
    return int(re.search(r"num_parallel_calls=(\d+)", change)[1])


def rows():
    for number in range(15_000):
        yield np.full(16, number)


def compare(before, after, step, steps=None):
    """Return the operator that limits, the gain, and what the change brings."""
    report = reported(before, step, steps)
    name, change, gain = limit_of(report)
    assert gain > 0.2, report
    return name, gain, report.verdicts[0].step / reported(after(change), step, steps).verdicts[0].step - 1


def check_gain(before, after, step, steps=None):
    """Compare the gain with that of the change; returns the operator that limits."""
    name, gain, found = compare(before, after, step, steps)
    assert 1 + found == pytest.approx(1 + gain, rel=0.2)
    return name


@pytest.mark.extended
@pytest.mark.alone
@pytest.mark.parametrize(
    ("before", "after", "step"),
    [
        (loading(), lambda change: loading(chosen(change)).prefetch(ps.AUTOTUNE), 0.05),
        (loading().prefetch(2), lambda change: loading(chosen(change)).prefetch(2), 0.04),
        (loading(2).prefetch(2), lambda change: loading(chosen(change)).prefetch(2), 0.025),
        (loading(), lambda change: loading().prefetch(ps.AUTOTUNE), 0.1),
        (selected(), lambda change: selected().prefetch(ps.AUTOTUNE), 0.15),
    ],
    ids=["one thread", "one thread ahead", "too few threads", "nothing ahead", "filter"],
)
def test_the_gain_is_within_a_fifth_of_what_the_change_brings(before, after, step):
    check_gain(before, after, step)


@pytest.mark.extended
@pytest.mark.alone
def test_the_gain_of_several_requests_to_a_slow_store_at_a_time(slow_store):
    stored = Stored(slow_store, 0.08)

    def several(change):
        assert "map(read, num_parallel_calls=16)" in change
        return ps.Dataset.range(30).map(stored.__getitem__, num_parallel_calls=16).batch(2).prefetch(2)

    name = check_gain(ps.Dataset.from_source(stored).batch(2).prefetch(2), several, 0.1)
    assert name.startswith("from_source")


@pytest.mark.extended
@pytest.mark.alone
def test_the_gain_of_processes_for_calls_that_keep_pythons_lock():
    def holding(calls=4, **options):
        function = lambda x: locked(x, 0.02)  # noqa: E731  # gone with the test, and its processes with it
        return ps.Dataset.range(60).map(function, num_parallel_calls=calls, **options).batch(4).prefetch(2)

    name = check_gain(holding(), lambda change: holding(chosen(change), processes=True), 0.0)
    assert name.startswith("map(<lambda>)")


@pytest.mark.extended
@pytest.mark.alone
def test_the_gain_of_a_larger_shuffle():
    def shuffled(buffer_size):
        return ps.Dataset.from_generator(rows).shuffle(buffer_size, seed=1).batch(1500).prefetch(2)

    name, gain, found = compare(shuffled(2), lambda change: shuffled(1000), 0.04)
    assert name.startswith("shuffle")
    assert found > 0.8 * gain  # more where the step itself waited for Python's lock


@pytest.mark.extended
@pytest.mark.alone
def test_the_gain_of_clumps_where_row_groups_are_too_large(tmp_path, monkeypatch):
    for module in (decoded_rows, parquet):
        monkeypatch.setattr(module, "CACHE_BYTES", 2 << 20)  # five row groups of 64
    table = pa.table({"x": np.random.default_rng(1).integers(0, 1 << 60, 3_200_000)})
    pq.write_table(table, tmp_path / "large.parquet", row_group_size=50_000)

    def random(**clump):
        read = ps.ParquetDataset(str(tmp_path / "large.parquet")).shuffle(seed=1, **clump)
        return read.batch(128).prefetch(1)

    def clumped(change):
        return random(clump=int(re.search(r"clump=(\d+)", change)[1]))

    assert check_gain(random(), clumped, 0.015, 20).startswith("ParquetDataset")


@pytest.mark.extended
@pytest.mark.alone
def test_the_gain_of_a_slow_rank_is_that_of_all_ranks():
    def ranks(slow):
        """Two ranks, which wait for each other at the end of each step."""
        together = threading.Barrier(2)

        def train(dataset):
            with iter(dataset) as iterator:
                for _ in iterator:
                    time.sleep(0.03)
                    together.wait(60)
                return iterator.report().ranks[0]

        with ThreadPoolExecutor() as pool:
            quick, own = pool.map(train, (ps.Dataset.range(96).batch(4).prefetch(2), slow))
        own.rank, own.host = 1, "b07"
        return Report([quick, own])

    before = ranks(loading().prefetch(2))
    assert before.slowest == 1
    name, change, gain = limit_of(before)
    assert name.startswith("map(loaded)")
    after = ranks(loading(chosen(change)).prefetch(2))
    assert [old.step / new.step for old, new in zip(before.verdicts, after.verdicts)] == pytest.approx(
        [1 + gain] * 2, rel=0.2
    )
