"""How far a dataset reads: what was asked for, what was declared, and no further."""

import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from itertools import islice

import numpy as np
import pytest
from forked import run

import penstock as ps
from penstock.data.iterator import blocks_of
from penstock.data.node import Run
from penstock.runtime.threads import Threads


class Tap:
    """An iterator of numbers that counts how many were taken."""

    def __init__(self):
        self.taken = 0

    def __call__(self):
        self.taken = 0
        return self

    def __iter__(self):
        return self

    def __next__(self):
        self.taken += 1
        return self.taken - 1


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda d: d, [1, 2, 3]),
        (lambda d: d.map(lambda x: x), [1, 2, 3]),
        (lambda d: d.filter(lambda x: x % 2 == 1), [2, 4, 6]),
        (lambda d: d.batch(4), [4, 8, 12]),
        (lambda d: d.batch(4).map(lambda x: x).unbatch(), [4, 4, 4]),
        (lambda d: d.padded_batch(2).enumerate(), [2, 4, 6]),
        (lambda d: d.skip(3), [4, 5, 6]),
        (lambda d: d.shard(3, 1), [2, 5, 8]),
        (lambda d: d.repeat(2).take(5), [1, 2, 3]),
        (lambda d: ps.Dataset.zip(d, ps.Dataset.counter()), [1, 2, 3]),
        (lambda d: d.concatenate(ps.Dataset.range(3)), [1, 2, 3]),
        (lambda d: ps.Dataset.from_tensors(0).flat_map(lambda x: d), [1, 2, 3]),
        (lambda d: ps.Dataset.choose_from_datasets([d, ps.Dataset.range(9)], ps.Dataset.range(2).repeat()), [1, 1, 2]),
        (lambda d: d.scan(0, lambda s, x: (s, x)).take_while(lambda x: True).unique(), [1, 2, 3]),
        (lambda d: d.window(2, shift=1), [2, 3, 4]),
        (lambda d: d.group_by_window(lambda x: x % 2, lambda key, w: w.batch(2), window_size=2), [3, 4, 7]),
        (lambda d: d.bucket_by_sequence_length(lambda x: int(x) % 4, [2], [2, 3]), [2, 6, 7]),
        (lambda d: d.prefetch(0), [1, 2, 3]),
        (lambda d: d.cache(), [1, 2, 3]),
    ],
)
def test_a_generator_is_not_run_ahead_of_the_demand(build, expected):
    tap = Tap()
    iterator = iter(build(ps.Dataset.from_generator(tap)))
    found = []
    for _ in range(3):
        next(iterator)
        found.append(tap.taken)
    iterator.close()
    assert found == expected


def test_no_further_row_is_read_for_a_window_after_a_row_that_fails():
    tap = Tap()
    keyed = ps.Dataset.from_generator(tap).group_by_window(lambda x: 0 // (x - 2), lambda key, w: w.batch(3), 3)
    with np.errstate(divide="raise"), iter(keyed) as iterator:
        with pytest.raises(FloatingPointError):
            next(iterator)
        assert next(iterator).tolist() == [0, 1, 3]
        assert tap.taken == 4


class CountedReads:
    """Pairs of numbers, by position, which note how many are read at a time."""

    def __init__(self, pairs=10_000):
        self.reads = []
        self.pairs = pairs

    def __len__(self):
        return self.pairs

    def __getitem__(self, position):
        return self.__getitems__([position])[0]

    def __getitems__(self, positions):
        self.reads.append(len(positions))
        return [np.array([2 * position, 2 * position + 1]) for position in positions]


@pytest.mark.extended
@pytest.mark.parametrize(
    "build",
    [
        lambda d: d.flat_map(ps.Dataset.from_tensor_slices),
        lambda d: d.interleave(ps.Dataset.from_tensor_slices, cycle_length=1),
        lambda d: d.interleave(ps.Dataset.from_tensor_slices, cycle_length=1, num_parallel_calls=1),
        lambda d: d.filter(lambda pair: True).unbatch(),
        lambda d: d.batch(2).rebatch([1, 3]).unbatch().unbatch(),
        lambda d: d.prefetch(4).unbatch(),
        lambda d: d.batch(2).prefetch(2).unbatch().unbatch(),
        lambda d: d.window(2).flat_map(lambda window: window.batch(2)).unbatch().unbatch(),
    ],
)
def test_rows_that_are_asked_for_one_by_one_are_read_together(build):
    source = CountedReads(1_000)
    pairs = ps.Dataset.from_source(source).shuffle(seed=1)
    expected = [int(number) for pair in pairs for number in pair]
    source.reads.clear()
    assert list(map(int, build(pairs))) == expected
    assert len(source.reads) < 100


def test_rows_that_wait_are_followed_by_as_many_as_are_asked_for():
    source = CountedReads()
    stream = ps.Dataset.from_source(source).node
    cursor = stream.cursor(Run(stream, 0, Threads()), 0)
    for _ in range(70):  # the last of them begins to read 64 rows
        cursor.pull(1, 1)
    rest, block = cursor.pull(1, 1000), cursor.pull(1, 1000)
    assert len(rest) < 64 and len(block) == 1000
    found = [int(row[0]) for one in (rest, block) for row in one.rows()]
    assert found == list(range(140, 2140 + 2 * len(rest), 2))
    cursor.close()


@pytest.mark.parametrize("sample", [True, False])
def test_a_mixture_of_streams_does_not_read_them_row_by_row(sample):
    source = CountedReads()
    members = [ps.Dataset.from_source(source).shuffle(seed=seed).filter(lambda pair: True) for seed in (1, 2)]
    choice = ps.Dataset.random(seed=3).map(lambda number: np.int64(number % 2))
    mixed = (
        ps.Dataset.sample_from_datasets(members, seed=3)
        if sample
        else ps.Dataset.choose_from_datasets(members, choice, stop_on_empty_dataset=False)
    )
    source.reads.clear()
    assert sorted(int(pair[0]) for pair in mixed) == sorted(2 * list(range(0, 20_000, 2)))
    assert len(source.reads) < 2000


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda d: d.filter(lambda pair: pair[0] == 9_000).map(lambda pair: pair[0]), [9_000]),
        (lambda d: d.map(lambda pair: np.int64(0)).unique(), [0]),
        (lambda d: d.map(lambda pair: pair[:1][pair[:1] == 9_000]).unbatch(), [9_000]),
        (
            lambda d: d.rejection_resample(lambda pair: np.int64(pair[0] != 9_000), [1.0, 0.0], [0.5, 0.5], seed=1).map(
                lambda number, pair: pair[0]
            ),
            [9_000],
        ),
    ],
    ids=["filter", "unique", "unbatch", "rejection_resample"],
)
def test_where_hardly_any_element_is_kept_the_others_are_read_together(build, expected):
    source = CountedReads()
    chosen = build(ps.Dataset.from_source(source))
    source.reads.clear()
    iterator = iter(chosen)
    assert [int(next(iterator))] == expected
    assert list(iterator) == []
    assert len(source.reads) < 300


def test_a_parallel_map_is_not_asked_for_thousands_of_rows_at_once():
    """Pieces that were made ahead came at once, so the next were allowed to be twice as large, without an end."""
    calls = []

    def work(x):
        begun = time.perf_counter()
        while time.perf_counter() < begun + 0.0003:
            pass
        calls.append(x)
        return x

    batches = ps.Dataset.range(1 << 30).map(work, num_parallel_calls=2).filter(lambda x: True).batch(8)
    ahead = []
    with iter(batches) as iterator:
        for number in range(1, 250):
            next(iterator)
            ahead.append(len(calls) - 8 * number)
    assert max(ahead) < 600


@pytest.mark.parametrize("ragged", [False, True], ids=["equal", "unequal"])
def test_unbatch_does_not_read_its_input_element_by_element(ragged):
    source = CountedReads()
    pairs = ps.Dataset.from_source(source).shuffle(seed=1)
    cut = pairs.map(lambda pair: pair[: 1 + pair[0] % 4 // 2]) if ragged else pairs
    expected = [int(number) for pair in cut for number in pair]
    source.reads.clear()
    assert list(map(int, cut.unbatch())) == expected
    assert len(source.reads) < 1000


def test_a_generator_runs_ahead_only_as_far_as_prefetch_declares():
    arrived = threading.Semaphore(0)
    allowed = threading.Semaphore(0)

    def numbers():
        for number in range(100):
            arrived.release()
            yield number

    iterator = iter(ps.Dataset.from_generator(numbers).prefetch(4))
    assert next(iterator) == 0
    for _ in range(5):  # the element given, and four ahead of it
        assert arrived.acquire(timeout=60)
    assert not allowed.acquire(timeout=0.05) and not arrived.acquire(blocking=False)
    assert next(iterator) == 1
    assert arrived.acquire(timeout=60)
    iterator.close()


def test_take_reads_only_the_rows_it_needs():
    read = []
    dataset = ps.Dataset.range(1000).map(lambda x: read.append(int(x)) or x).batch(4).take(1)
    assert [batch.tolist() for batch in dataset] == [[0, 1, 2, 3]]
    assert read == [0, 1, 2, 3]


def test_a_shard_reads_only_its_own_rows():
    read = []
    dataset = ps.Dataset.range(100).map(lambda x: read.append(int(x)) or x).shard(10, 3)
    assert list(map(int, dataset)) == read == list(range(3, 100, 10))


def test_the_first_element_of_a_slow_map_does_not_wait_for_others():
    calls = []
    iterator = iter(ps.Dataset.range(10_000).map(lambda x: calls.append(x) or x))
    next(iterator)
    assert len(calls) == 1


def test_blocks_grow_for_cheap_elements():
    blocks = [len(block) for block in blocks_of(iter(ps.Dataset.range(100_000)))]
    assert blocks[0] == 1 and len(blocks) < 60 and sum(blocks) == 100_000


def test_a_shuffle_above_a_map_calls_the_function_once_for_each_row():
    calls = []
    dataset = ps.Dataset.range(50).map(lambda x: calls.append(x) or x).shuffle(50, seed=1)
    iterator = iter(dataset)
    next(iterator)
    assert len(calls) == 1
    list(iterator)
    assert len(calls) == 50


@pytest.mark.slow
def test_the_state_of_a_large_pipeline_is_small_and_plain():
    dataset = (
        ps.Dataset.range(10**9)
        .map(lambda x, rng: x + rng.integers(5), seed=2, num_parallel_calls=2)
        .shuffle(10**9, seed=1)
        .repeat()
        .batch(1024)
        .prefetch(2)
    )
    with iter(dataset) as iterator:
        next(iterator)
        text = json.dumps(iterator.state_dict())
    assert len(text) < 1024


@pytest.mark.slow
def test_a_stream_over_an_index_restores_without_reading_from_the_start():
    calls = []
    dataset = ps.Dataset.range(10**6).filter(lambda x: calls.append(x) is None).batch(100)
    iterator = iter(dataset)
    last = list(islice(iterator, 5000))[-1]
    state = iterator.state_dict()
    calls.clear()
    resumed = iter(dataset)
    resumed.load_state_dict(state)
    assert next(resumed)[0] == last[-1] + 1
    assert len(calls) < 100_000


def penstock_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]


def threaded():
    return ps.Dataset.counter().map(lambda x: x, num_parallel_calls=2).batch(8).prefetch(2)


@pytest.mark.slow
def test_threads_end_with_close_with_the_block_and_with_the_iterator():
    iterator = iter(threaded())
    next(iterator)
    assert penstock_threads()
    iterator.close()
    assert penstock_threads() == []
    with iter(threaded()) as iterator:
        next(iterator)
    assert penstock_threads() == []
    iterator = iter(threaded())
    next(iterator)
    del iterator
    assert_threads_end()


def test_threads_end_when_a_loop_is_left():
    for _ in threaded():
        break
    assert_threads_end()


def assert_threads_end():
    """An iterator that is forgotten tells its threads to end, and waits for nothing."""
    gc.collect()
    for thread in penstock_threads():
        thread.join(60)
    assert penstock_threads() == []


@pytest.mark.slow
@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize(
    "failing",
    [
        lambda d: d.map(fails_at_four),
        lambda d: d.map(fails_at_four, num_parallel_calls=2),
        lambda d: d.filter(fails_at_four),
        lambda d: d.map(fails_at_four).ignore_errors(),
        lambda d: ps.Dataset.range(2).interleave(lambda x: d.skip(2).map(fails_at_four), 2, 1),
    ],
)
def test_a_forgotten_iterator_closes_its_file_after_a_failed_row(tmp_path, failing, restored):
    (tmp_path / "numbers").write_text("".join(f"{number}\n" for number in range(9)))
    dataset = failing(ps.TextLineDataset(tmp_path / "numbers").map(int))
    iterator = iter(dataset)
    assert len(list(islice(iterator, 4))) == 4
    if restored:
        state, iterator = iterator.state_dict(), iter(dataset)
        iterator.load_state_dict(state)
    del iterator
    gc.collect()
    for thread in penstock_threads():
        thread.join(60)
    assert not [name for name in open_files() if str(tmp_path) in name]


def fails_at_four(x):
    if x == 4:
        raise ValueError("four")
    return x + 1


def open_files():
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("this system does not tell which files are open")
    return [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]


def test_closing_reaches_the_datasets_inside_of_an_interleave():
    dataset = ps.Dataset.range(4).interleave(lambda x: ps.Dataset.counter(x), 4, 1, num_parallel_calls=4)
    with iter(dataset) as iterator:
        assert [int(next(iterator)) for _ in range(8)] == [0, 1, 2, 3, 1, 2, 3, 4]
        assert len(penstock_threads()) == 4
    assert penstock_threads() == []


def test_a_closed_generator_runs_its_finally():
    ended = []

    def numbers():
        try:
            while True:
                yield 1
        finally:
            ended.append(True)

    with iter(ps.Dataset.from_generator(numbers).prefetch(1)) as iterator:
        next(iterator)
    assert ended == [True]


def run_script(script, **arguments):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, **arguments
    )


@pytest.mark.slow
def test_the_interpreter_exits_while_threads_are_busy():
    done = run_script("""
        import penstock as ps
        dataset = ps.Dataset.counter().map(lambda x: x, num_parallel_calls=2).batch(8).prefetch(2)
        iterator = iter(dataset)
        print(next(iterator))
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0 1 2 3 4 5 6 7]\n", "")


@pytest.mark.slow
def test_ctrl_c_ends_a_loop_and_leaves_no_thread():
    script = """
        import threading, time
        import penstock as ps

        def slow(x):
            time.sleep(0.01)
            return x

        try:
            for element in ps.Dataset.counter().map(slow, num_parallel_calls=2).prefetch(4):
                print(element, flush=True)
        except KeyboardInterrupt:
            del element
        import gc; gc.collect()
        left = [t for t in threading.enumerate() if t.name.startswith("penstock-")]
        for thread in left:  # they were told to end
            thread.join(60)
        print([t.name for t in left if t.is_alive()], flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "0\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output.endswith("[]\n"), errors) == (0, True, "")  # perhaps in the middle of a line


def test_two_threads_share_the_work_of_a_map():
    meeting, met = threading.Barrier(2, timeout=60), set()

    def wait_for_the_other(x):
        if threading.get_ident() not in met:
            met.add(threading.get_ident())
            meeting.wait()
        return x

    dataset = ps.Dataset.range(17).map(wait_for_the_other, num_parallel_calls=2).batch(17)
    assert next(iter(dataset)).tolist() == list(range(17))
    assert len(met) == 2


def others_go_first(dataset):
    for number in dataset:
        time.sleep(0)  # they find that this thread takes an element
        yield int(number)


@pytest.mark.parametrize(
    "build",
    [
        lambda d: d.map(lambda x: x, num_parallel_calls=2),
        lambda d: d.prefetch(3),
        lambda d: ps.Dataset.from_generator(lambda: others_go_first(d)),
    ],
)
def test_threads_that_share_an_iterator_share_its_elements(build):
    with iter(build(ps.Dataset.range(2000))) as iterator:
        found = []
        consumers = [threading.Thread(target=lambda: found.extend(map(int, iterator))) for _ in range(4)]
        for consumer in consumers:
            consumer.start()
        for consumer in consumers:
            consumer.join()
    assert sorted(found) == list(range(2000))


def test_closing_wakes_a_thread_that_waits_for_an_element():
    waiting, release = threading.Event(), threading.Event()

    def numbers():
        yield 0
        waiting.set()
        release.wait(60)

    iterator = iter(ps.Dataset.from_generator(numbers).prefetch(1))
    assert next(iterator) == 0
    outcome = []

    def consume():
        try:
            next(iterator)
        except (ps.errors.ClosedError, StopIteration) as error:
            outcome.append(type(error))

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert waiting.wait(60)
    closer = threading.Thread(target=iterator.close)
    closer.start()
    consumer.join(timeout=60)
    release.set()
    closer.join()
    assert outcome == [ps.errors.ClosedError]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_an_iterator_of_another_process_is_refused():
    done = run_script("""
        import os, warnings
        import penstock as ps
        warnings.simplefilter("ignore")
        iterator = iter(ps.Dataset.counter().map(lambda x: x, num_parallel_calls=2).batch(1).prefetch(2))
        steps = iter(ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(99).batch(4)))
        next(iterator), next(steps)
        if os.fork() == 0:
            for one in (iterator, steps):
                try:
                    for _ in range(9):
                        next(one)
                except ps.errors.ClosedError as error:
                    print(error, flush=True)
            os._exit(0)
        os.wait()
    """)
    assert done.stdout.count("made in another process") == 2, done.stderr


@pytest.mark.slow
def test_deep_pipelines_resume_in_another_process(tmp_path):
    program = """
        import json, sys
        import penstock as ps

        def noisy(x, rng):
            return x + rng.random()

        dataset = (
            ps.Dataset.range(1000).shuffle(1000).map(noisy, num_parallel_calls=2, seed=1)
            .filter(lambda x: int(x) % 3 > 0).shuffle(50).batch(7).prefetch(3)
        )
        path, start, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        with iter(dataset) as iterator:
            if start:
                iterator.load_state_dict(json.load(open(path)))
            for number, batch in enumerate(iterator):
                print(*batch.tolist())
                if number + 1 == count:
                    json.dump(iterator.state_dict(), open(path, "w"))
                    sys.stdout.flush()
                    import os; os._exit(9) if start == 0 else None
    """
    path = str(tmp_path / "state.json")
    arguments = ["-c", textwrap.dedent(program), path]
    first = run(*arguments, "0", "20")
    assert first.returncode == 9, first.stderr
    rest = run(*arguments, "1", "-1")
    assert rest.returncode == 0, rest.stderr
    seen = [int(float(number)) for number in (first.stdout + rest.stdout).split()]
    assert sorted(seen) == [x for x in range(1000) if x % 3 > 0]


@pytest.mark.slow
def test_memory_of_a_full_shuffle_of_a_thousand_million_rows():
    if not os.path.exists("/proc/self/status"):
        pytest.skip("the peak memory of a process is read from /proc")
    done = run_script("""
        import penstock as ps
        batch = next(iter(ps.Dataset.range(10**9).shuffle(10**9, seed=1).batch(1024)))
        assert len(set(batch.tolist())) == 1024
        print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
    """)
    assert int(done.stdout) < 200_000, done.stderr


def test_float_rows_of_a_batch_are_written_without_a_copy_of_the_block():
    dataset = ps.Dataset.from_tensor_slices(np.zeros((64, 8), np.float32)).map(lambda row: row + 1).batch(16)
    first = next(iter(dataset))
    assert first.base is not None and first.base.shape[-1] == 8


def test_threads_that_share_an_iterator_get_each_element_once():
    iterator = iter(ps.Dataset.range(20_000).map(lambda x: (x, -x)))
    seen = []

    def read():
        for _ in range(4000):
            first, second = next(iterator)
            assert first == -second
            seen.append(int(first))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(16_000))
    resumed = iter(ps.Dataset.range(20_000).map(lambda x: (x, -x)))
    resumed.load_state_dict(iterator.state_dict())
    assert int(next(resumed)[0]) == 16_000


def test_a_thread_waits_for_the_state_until_another_has_its_element():
    waits, goes_on = threading.Event(), threading.Event()

    def numbers():
        yield 0
        waits.set()
        goes_on.wait(60)
        yield 1

    iterator = iter(ps.Dataset.from_generator(numbers))
    assert next(iterator) == 0
    reader = threading.Thread(target=next, args=(iterator,))
    reader.start()
    waits.wait(60)
    states = []
    asking = threading.Thread(target=lambda: states.append(iterator.state_dict()))
    asking.start()
    assert not states
    goes_on.set()
    reader.join()
    asking.join()
    assert states[0]["position"][-1] == 2
