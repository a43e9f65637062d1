"""What holds for every test: nothing that it started is left running or open."""

import atexit
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from importlib.metadata import version
from typing import Any

import compiled
import forked
import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

import penstock.runtime.child_process

# How long an example takes says how busy the machine is, not whether the example holds. A run of the tests draws the
# same examples every time, so that it fails only for what has changed; `make properties` looks for new ones.
settings.register_profile(
    "penstock", deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("many", settings.get_profile("penstock"), derandomize=False, max_examples=1000)
settings.load_profile("penstock")

# Threads and files that libraries open once and keep: JAX's and hypothesis's own pools, font and locale files, …
_OUR_THREADS = "penstock-"
_DESCRIPTORS = "/proc/self/fd"
_FAILED = pytest.StashKey[bool]()

# What one process of a test run has compiled none of the others compiles again: Python's own files first, of which
# some hundred processes would each compile all they import, wherever this variable is set. pytest keeps the tests'
# files, with their rewritten asserts, in the same way.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False  # what this process was told already
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    compiled.share_programs()
# Programs of tests are small and run a few times: compiling is most of their cost. The emitters of fusions, which go
# through MLIR, and a module for each thread double it, and optimising doubles it again. A test that runs a program
# often enough switches JAX's optimisations on. XLA ends a process that is given a flag
# it does not know: since 0.11 there are no others than these emitters.
_EMITTERS = "--xla_cpu_use_fusion_emitters=false" if version("jaxlib").startswith(("0.9.", "0.10.")) else ""
os.environ.setdefault("XLA_FLAGS", f"--xla_cpu_parallel_codegen_split_count=1 {_EMITTERS}".strip())
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")

# Indexes of files are kept for the length of a run of the tests; processes that tests start use the same ones.
if "PENSTOCK_CACHE" not in os.environ:
    os.environ["PENSTOCK_CACHE"] = tempfile.mkdtemp(prefix="penstock-cache-")
    atexit.register(shutil.rmtree, os.environ["PENSTOCK_CACHE"], ignore_errors=True)

# A thread that watches for hangs would last as long as this process, and so would that of each process of the tests.
os.environ["PENSTOCK_WATCHDOG_SECONDS"] = "0"

# Where the processes of a test run meet the one that forks for them all (tests/support/forked.py), for penstock too.
if "FORKING_DIRECTORY" not in os.environ:
    os.environ["FORKING_DIRECTORY"] = tempfile.mkdtemp(prefix="penstock-forking-")
    atexit.register(shutil.rmtree, os.environ["FORKING_DIRECTORY"], ignore_errors=True)

penstock.runtime.child_process.Popen = forked.popen  # type: ignore[misc, assignment]

# No test leaves this machine: without keys, clients of object stores ask the network for some, and real ones are not to
# be used here. Tests that read from a store put its address in place of these, where nothing listens.
os.environ |= {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(
        {"gcs_base_url": "http://127.0.0.1:9", "disable_oauth": True, "client_email": "", "private_key": ""}
        | {"private_key_id": ""}
    ),
    "AZURE_STORAGE_ACCOUNT_NAME": "test",
    "AZURE_STORAGE_ACCOUNT_KEY": "dGVzdA==",
    "AZURE_ENDPOINT": "http://127.0.0.1:9",
}

# Until all tests are collected: hardly anything of the million objects that are made meanwhile is garbage.
gc.disable()

# A shell starts what runs in its background with Ctrl-C ignored, and programs started by tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[Any], list[Any]]:
    """Look for examples to run in the package alone: these files have none, and some are programs."""
    found = yield
    return [one for one in found if not isinstance(one, DoctestModule)]


def pytest_collection_finish() -> None:
    """Leave modules and tests, which last as long as this process, out of every further collection of garbage."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # looking for garbage at every 700th object takes a twentieth of the tests' time


@pytest.fixture
def own_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let penstock start processes by itself, as children of this one."""
    monkeypatch.setattr("penstock.runtime.child_process.Popen", subprocess.Popen)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether a test has failed."""
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread of penstock's running, a child process alive, or files open in its wake."""
    before, earlier = _data_files(), _our_threads()  # servers that several tests share run already
    yield
    if request.node.stash.get(_FAILED, False):
        return  # its traceback keeps alive what it has made
    for thread in _our_threads() - earlier:
        if thread.is_alive():
            thread.join(timeout=0.1)  # most are about to end, which costs less than a collection of garbage
    # An iterator that was forgotten ends its threads when it is collected; a thread about to end can delay that.
    for generation in (1, *[2] * 30):  # what a test has made itself is usually among the younger objects
        if not _our_threads() - earlier:
            break
        gc.collect(generation)
        for thread in _our_threads() - earlier:
            if thread.is_alive():  # one that is just being started cannot be joined yet
                thread.join(timeout=1)
    assert [thread.name for thread in _our_threads() - earlier] == [], "threads left running"
    for generation in (1, 2):  # a memory map lasts as long as an array that shows it
        if _data_files() - before:
            gc.collect(generation)
    assert _data_files() - before == set(), "files left open"


def _our_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(_OUR_THREADS)}


def _data_files() -> set[str]:
    """The tests' own files that this process has open, where the system tells."""
    if not os.path.exists(_DESCRIPTORS):
        return set()
    names = set()
    for number in os.listdir(_DESCRIPTORS):
        try:
            names.add(os.readlink(f"{_DESCRIPTORS}/{number}"))
        except FileNotFoundError:  # closed meanwhile
            continue
    return {name for name in names if "pytest" in name or name.startswith("/dev/shm")}
