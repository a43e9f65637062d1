"""Ctrl-C: it comes back at once, whatever calls are running, and nothing goes on after those."""

import contextlib
import functools
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import penstock as ps

PIPELINES = {
    "prefetch": lambda d, call: d.map(call).prefetch(2),
    "parallel calls": lambda d, call: d.map(call, num_parallel_calls=3),
    "parallel calls under prefetch": lambda d, call: d.map(call, num_parallel_calls=3).batch(16).prefetch(1),
    "a batch under prefetch": lambda d, call: d.map(call).batch(16).prefetch(1),
    "interleave": lambda d, call: d.interleave(
        lambda x: ps.Dataset.from_tensors(x).map(call), cycle_length=3, num_parallel_calls=3
    ),
}


class Held:
    """A function whose calls do not end before they are released; the first of other threads' calls is told of."""

    def __init__(self):
        self.released = threading.Event()
        self.entered = threading.Event()
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        if threading.current_thread() is not threading.main_thread():
            self.entered.set()
            assert self.released.wait(timeout=60)
        elif self.calls > 1:  # the main thread works too; Ctrl-C ends its call
            assert self.released.wait(timeout=60)
        return x


def ours():
    return [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]


@contextlib.contextmanager
def interrupted(event):
    """Ctrl-C comes when the event is set and what is inside has begun, and ends that; gives what to say so by."""
    begun, ended = threading.Event(), threading.Event()

    def send():
        begun.wait(timeout=60)
        event.wait(timeout=60)
        # Not at once, and again: CPython can miss a signal that comes while its main thread begins to wait for a lock.
        ended.wait(timeout=0.05)
        while not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            ended.wait(timeout=2)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield begun
    finally:
        ended.set()
        sender.join()


@pytest.mark.parametrize("build", PIPELINES.values(), ids=PIPELINES.keys())
def test_ctrl_c_does_not_wait_for_the_running_call(build):
    held = Held()
    with interrupted(held.entered) as begun, iter(build(ps.Dataset.range(1000), held)) as iterator:
        begun.set()
        list(iterator)
    assert not held.released.is_set()
    running = held.calls
    held.released.set()
    for thread in ours():
        thread.join(timeout=60)
    assert (ours(), held.calls) == ([], running)  # each thread ended after the call it was at
    iterator.close()
    with pytest.raises(ps.errors.ClosedError):
        next(iterator)


def test_ctrl_c_in_the_loop_does_not_wait_for_what_is_made_ahead():
    held = Held()
    iterator = iter(ps.Dataset.range(1000).map(lambda x: held(x) if x else x).prefetch(4))
    next(iterator)
    with interrupted(held.entered) as begun, iterator:
        begun.set()
        assert threading.Event().wait(timeout=60)
    assert not held.released.is_set()
    held.released.set()


def test_an_interrupted_iterator_goes_on_from_its_state():
    held = Held()
    iterator = iter(ps.Dataset.range(6).map(lambda x: held(x) if x == 1 else x).prefetch(1))
    taken = [int(next(iterator))]  # the next ones come in one block, after the call of the first of them
    state = iterator.state_dict()
    with interrupted(held.entered) as begun:
        begun.set()
        next(iterator)
    held.released.set()
    iterator.load_state_dict(state)
    assert taken + [int(x) for x in iterator] == list(range(6))


def interrupted_after(seconds, call):
    """Call a function again and again until Ctrl-C, as it were, comes after so many seconds."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        while True:
            call()
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
def test_an_iterator_whose_state_was_being_taken_at_ctrl_c_goes_on():
    iterator = iter(ps.Dataset.from_generator(itertools.count))
    for trial in range(500):
        interrupted_after((1 + trial % 100) * 2e-6, iterator.state_dict)
        given = []
        reader = threading.Thread(target=lambda given=given: given.append(next(iterator)), daemon=True)
        reader.start()
        reader.join(timeout=60)
        assert given == [trial], "the next element, without waiting for ever"


def in_next(thread):
    frame = sys._current_frames().get(thread.ident)
    return frame is not None and frame.f_code is type(iter(ps.Dataset.range(1))).__next__.__code__


def test_threads_share_an_iterator_that_goes_on_after_ctrl_c():
    inside, goes_on, interrupts = threading.Event(), threading.Event(), [False, True]

    def numbers():
        yield 0
        if interrupts.pop():
            raise KeyboardInterrupt
        inside.set()
        goes_on.wait(60)
        yield from (1, 2)

    iterator = iter(ps.Dataset.from_generator(numbers))
    assert next(iterator) == 0
    state = iterator.state_dict()
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    iterator.load_state_dict(state)
    given = []
    readers = [threading.Thread(target=lambda: given.append(next(iterator))) for _ in range(2)]
    readers[0].start()
    assert inside.wait(60)
    readers[1].start()
    while readers[1].is_alive() and not in_next(readers[1]):  # a generator that runs already would be an error
        pass
    goes_on.set()
    for reader in readers:
        reader.join()
    assert sorted(given) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["for x in dataset: pass", "iterator = iter(dataset); next(iterator); pause()"])
def test_a_program_that_is_interrupted_ends_without_its_calls(loop):
    program = f"""
        import os, signal, threading, time
        import penstock as ps

        def call(x):
            if x:
                os.kill(os.getpid(), signal.SIGINT)
                threading.Event().wait(60)
            return x

        def pause():
            while True:  # a signal just before a longer wait would not end it
                time.sleep(0.01)

        dataset = ps.Dataset.range(1000).map(call).prefetch(4)
        {loop}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


def numbers():
    yield from range(40)


def passed_on(x):
    return x


SIGNALLED = {
    "map": lambda call: ps.Dataset.range(40).map(call),
    "map in a prefetched batch": lambda call: ps.Dataset.range(40).map(call).batch(4).prefetch(0).unbatch(),
    "generator": lambda call: ps.Dataset.from_generator(lambda: map(call, range(40))),
    "map of a generator": lambda call: ps.Dataset.from_generator(numbers).map(call),
    "two maps of a generator": lambda call: ps.Dataset.from_generator(numbers).map(passed_on).map(call),
    "map, as many threads as gain": lambda call: ps.Dataset.from_generator(numbers).map(call, num_parallel_calls=-1),
    "filter": lambda call: ps.Dataset.from_generator(numbers).filter(lambda x: call(x) >= 0),
    "batch of a generator": lambda call: ps.Dataset.from_generator(numbers).map(call).batch(3).unbatch(),
    "interleave": lambda call: ps.Dataset.range(1).interleave(lambda _: ps.Dataset.from_generator(numbers).map(call)),
    "large results": lambda call: ps.Dataset.range(40).map(lambda x: np.full(400, x)).map(call).map(lambda x: x[0]),
    "windows of one batch": lambda call: (
        ps.Dataset.from_generator(numbers)
        .group_by_window(lambda _: 0, lambda _, window: window.map(call).batch(4), window_size=4)
        .unbatch()
    ),
    "cache": lambda call: ps.Dataset.from_generator(numbers).map(call).cache(),
}


def read(iterator, given):
    """Read to the end; each element is in the list as soon as it is given."""
    for element in iterator:
        given += (element,)  # not by a call, after which a signal could be handled


@pytest.mark.parametrize("build", SIGNALLED.values(), ids=SIGNALLED.keys())
def test_a_state_that_a_signal_handler_takes_within_next_is_refused(build):
    calls, given, refused = itertools.count(), [], []

    def call(x):
        if next(calls) == 7:
            signal.raise_signal(signal.SIGUSR1)
        return x

    iterator = iter(build(call))

    def handler(*_):
        with pytest.raises(
            ps.errors.BusyError, match=r"is making its next element.*let the handler set a flag"
        ) as error:
            iterator.state_dict()
        refused.append(error)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        read(iterator, given)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == 1 and sorted(given) == list(range(40))  # the handler has changed nothing


@pytest.mark.parametrize(("above", "calls"), [(0, None), (0, 2), (45, None)], ids=["reading", "in threads", "deep"])
@pytest.mark.parametrize("ask", [lambda iterator: iterator.state_dict(), next], ids=["state", "element"])
def test_a_function_that_asks_its_own_iterator_for_something_is_an_error(ask, above, calls):
    dataset = ps.Dataset.range(4).filter(lambda x: True).map(lambda x: ask(iterator) and x, num_parallel_calls=calls)
    dataset = functools.reduce(lambda d, _: d.map(passed_on), range(above), dataset)
    with iter(dataset.with_options(ps.Options(on_error="skip"))) as iterator, pytest.raises(ps.errors.BusyError):
        next(iterator)


@pytest.mark.parametrize("build", SIGNALLED.values(), ids=SIGNALLED.keys())
@pytest.mark.parametrize("number", [0, 1, 2, 7, 20])
def test_ctrl_c_while_an_element_is_made_loses_none_and_doubles_none(build, number):
    calls, given = itertools.count(), []

    def call(x):
        if next(calls) == number:
            raise KeyboardInterrupt
        return x

    dataset = build(call)
    iterator = iter(dataset)
    with pytest.raises(KeyboardInterrupt):
        read(iterator, given)
    resumed = iter(dataset)
    resumed.load_state_dict(iterator.state_dict())
    assert sorted(given + [int(x) for x in resumed]) == list(range(40)), "the state is exact"
    read(iterator, given)
    assert sorted(given) == list(range(40)), "the iterator goes on"


def test_ctrl_c_while_a_state_is_restored_leaves_the_position_of_that_state():
    interrupts = []

    def numbers():
        for number in range(10):
            if interrupts:
                raise interrupts.pop()
            yield number

    dataset = ps.Dataset.from_generator(numbers)
    iterator = iter(dataset)
    assert [int(next(iterator)) for _ in range(5)] == list(range(5))
    state = iterator.state_dict()
    for _ in range(2):
        interrupts.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            iterator.load_state_dict(state)
        assert iterator.state_dict() == state
    interrupts.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert [int(x) for x in iterator] == list(range(5, 10))


def test_a_second_ctrl_c_while_the_first_ends_a_generator_loses_no_position():
    def numbers():
        try:
            yield from range(3)
        finally:
            if interrupts:
                raise interrupts.pop()

    interrupts = [KeyboardInterrupt(), KeyboardInterrupt()]
    iterator = iter(ps.Dataset.from_generator(numbers).map(lambda x: interrupts and x == 1 and stop() or x))

    def stop():
        raise KeyboardInterrupt

    assert next(iterator) == 0
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    interrupts.clear()
    assert [int(x) for x in iterator] == [1, 2]


def test_only_the_interrupted_thread_goes_on_after_ctrl_c():
    interrupts = [KeyboardInterrupt()]

    def call(x):
        if x == 2 and interrupts:
            raise interrupts.pop()
        return x

    iterator = iter(ps.Dataset.range(4).map(call))
    given = []
    with pytest.raises(KeyboardInterrupt):
        read(iterator, given)
    errors = []

    def other():
        try:
            next(iterator)
        except ps.errors.ClosedError as error:
            errors.append(str(error))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert errors == ["this iterator was interrupted: only the interrupted thread can continue with it"]
    read(iterator, given)
    assert given == [0, 1, 2, 3]
    iterator.close()
    with pytest.raises(ps.errors.ClosedError):
        iterator.state_dict()


def wait_for(taken):
    """A function of its own: Python 3.13 does not catch what a signal raises in a loop directly inside of `try`."""
    while not taken:
        pass


# Python drops Ctrl-C where a callback of a weak reference runs, here one of a WeakKeyDictionary, and says so.
@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["map", "map of a generator", "batch of a generator", "interleave"])
def test_ctrl_c_at_random_moments_leaves_the_state_exact(name):
    random = np.random.default_rng(5)
    for _ in range(60):
        dataset, given, taken = SIGNALLED[name](passed_on), [], []
        iterator = iter(dataset)

        def handler(*_, taken=taken):
            taken.append(True)
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, float(random.random()) * 0.002 + 1e-6)
            read(iterator, given)
            wait_for(taken)
        except KeyboardInterrupt:
            pass
        finally:
            signal.signal(signal.SIGALRM, before)
        resumed = iter(dataset)
        resumed.load_state_dict(iterator.state_dict())
        assert [int(x) for x in resumed] == list(range(len(given), 40))
        read(iterator, given)
        assert given == list(range(40))
