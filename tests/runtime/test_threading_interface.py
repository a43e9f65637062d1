"""Whether Python still has what penstock takes from it beyond its promises: where this fails, Python has changed."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, concurrent.futures, threading
from concurrent.futures import ThreadPoolExecutor
from penstock.runtime.threading_interface import call_before_pools_close

def work(when):
    try:
        with ThreadPoolExecutor(1) as pool:
            print(when, pool.submit(lambda: "works").result())
    except RuntimeError:
        print(when, "too late")

def wait():
    threading.main_thread().join()
    work("joined")

atexit.register(work, "atexit")
call_before_pools_close(lambda: work("before"))
threading.Thread(target=wait).start()
"""


@pytest.mark.skipif((3, 12, 0) <= sys.version_info[:3] < (3, 12, 3), reason="starts no thread by then")
def test_pools_of_threads_take_work_until_the_end_of_the_main_program() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    changed = f"Python {platform.python_version()} has changed what penstock.runtime.threading_interface takes from it"
    assert done.returncode == 0, f"{changed}: {done.stderr}"
    before, *later = done.stdout.splitlines()
    assert before == "before works", changed
    # The public ways out come too late; once they do not, one of them can stand in its place.
    assert sorted(later) == ["atexit too late", "joined too late"], changed
