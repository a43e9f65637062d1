"""What ends when the interpreter exits, in which order; and the one hook of `threading` that has no public name."""

import platform
import subprocess
import sys

import pytest

from penstock.runtime.at_exit import end_at_exit

POOLS = """
import atexit, concurrent.futures, threading
from concurrent.futures import ThreadPoolExecutor
from penstock.runtime.at_exit import finish_before_pools_close

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
finish_before_pools_close(object(), lambda: work("before"))
threading.Thread(target=wait).start()
"""

THINGS = """
import atexit, os
from penstock.runtime.at_exit import end_at_exit, end_before_libraries, finish_before_pools_close, forget

class Thing:
    def __init__(self, name):
        self.name = name

    def end(self):
        print(self.name, flush=True)

    def fail(self):
        raise RuntimeError(self.name)

things = {name: Thing(name) for name in "iteration service reader failing forgotten gone hub channel writer".split()}
end_at_exit(things["iteration"], Thing.end, last=True)
end_at_exit(things["service"], Thing.end)
end_at_exit(things["failing"], Thing.fail)
end_before_libraries(things["hub"], Thing.end)
end_before_libraries(things["channel"], Thing.end)
end_at_exit(things["forgotten"], Thing.end)
forget(things["forgotten"])
end_at_exit(things["gone"], Thing.end)
del things["gone"]
end_at_exit(things["reader"], Thing.end)
finish_before_pools_close(things["writer"], things["writer"].end)
child = os.fork()
if child == 0:
    things["of the child"] = Thing("of the child")
    end_at_exit(things["of the child"], Thing.end)
else:
    os.waitpid(child, 0)
    atexit.register(print, "library", flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif((3, 12, 0) <= sys.version_info[:3] < (3, 12, 3), reason="starts no thread by then")
def test_pools_of_threads_take_work_until_the_end_of_the_main_program() -> None:
    done = subprocess.run([sys.executable, "-c", POOLS], capture_output=True, text=True, check=False)
    changed = f"Python {platform.python_version()} has changed what penstock.runtime.at_exit takes from it"
    assert done.returncode == 0, f"{changed}: {done.stderr}"
    before, *later = done.stdout.splitlines()
    assert before == "before works", changed
    # The public ways out come too late; once they do not, one of them can stand in its place.
    assert sorted(later) == ["atexit too late", "joined too late"], changed


@pytest.mark.slow
def test_everything_ends_in_order_and_a_forked_process_ends_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", THINGS], capture_output=True, text=True, check=False)
    ended = done.stdout.splitlines()
    assert ended == ["of the child", "writer", "library", "channel", "hub", "reader", "service", "iteration"]
    assert done.stderr.count("RuntimeError: failing") == 1


def test_nothing_is_kept_alive_by_its_end() -> None:
    class Thing:
        gone = False

        def __del__(self) -> None:
            Thing.gone = True

    end_at_exit(Thing(), lambda thing: None)
    assert Thing.gone
