"""Memory of large arrays that were freed: who gets it next, and how much is kept."""

import threading

import numpy as np

from penstock.runtime.memory import empty
from penstock.runtime.memory_pool import SMALLEST, MemoryPool

LARGE = (SMALLEST,)


def test_large_arrays_of_one_size_get_the_memory_of_those_that_were_freed() -> None:
    places = set()
    for _ in range(10):
        first, second = empty(LARGE, np.dtype(np.uint8)), empty((2 * SMALLEST // 4,), np.dtype(np.float32))
        places |= {first.ctypes.data, second.ctypes.data}
        del first, second
    assert len(places) <= 4


def test_memory_that_a_view_shows_is_not_given_to_another_array() -> None:
    views = []
    for number in range(4):
        views.append(empty(LARGE, np.dtype(np.uint8))[5:].reshape(1, -1))
        views[-1][:] = number
    assert [set(view[0, ::1000].tolist()) for view in views] == [{0}, {1}, {2}, {3}]
    assert not any(np.may_share_memory(view, other) for view in views for other in views if view is not other)


def freed(kept: MemoryPool, *sizes: int) -> list[int]:
    """Take memory of these sizes at once, give it back in order, and return where it was."""
    taken = [kept.take(size) for size in sizes]
    places = [memory.ctypes.data for memory, _ in taken]
    while taken:
        taken.pop(0)[1]()
    return places


def test_no_more_is_kept_than_may_be_and_the_newest_stays() -> None:
    kept = MemoryPool(most=300)
    places = freed(kept, 100, 100, 100, 100)
    assert kept.nbytes == 300
    again = [kept.take(90)[0] for _ in range(3)]
    assert [memory.ctypes.data for memory in again] == places[:0:-1] and kept.nbytes == 0


def test_nothing_is_kept_of_sizes_that_are_wanted_once() -> None:
    kept = MemoryPool(most=10_000)
    freed(kept, 800, 500, 700)
    freed(kept, 300, 1100, 200, 1600)
    assert kept.nbytes == 0


def test_memory_of_another_size_takes_the_place_of_what_is_kept() -> None:
    kept = MemoryPool(most=1000)
    freed(kept, 200, 200, 200)
    assert kept.take(100)[0].nbytes == 100 and kept.nbytes == 400
    assert kept.take(160)[0].nbytes == 200 and kept.nbytes == 200


def test_more_than_may_be_kept_is_freed() -> None:
    kept = MemoryPool(most=100)
    freed(kept, 101, 101)
    assert kept.nbytes == 0


def test_threads_that_take_and_give_back_never_share_memory() -> None:
    kept, wrong = MemoryPool(most=400), []

    def work(number: int) -> None:
        for _ in range(300):
            memory, released = kept.take(100)
            memory[:] = number
            if not (memory == number).all():
                wrong.append(number)
            released()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and kept.nbytes <= 400
