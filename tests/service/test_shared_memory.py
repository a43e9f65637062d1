"""Memory that two processes share: handed over without a copy, used again, and gone with its last owner."""

import gc
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from until import until

import penstock as ps
from penstock.data.block import Block
from penstock.errors import LostDataWorkerError, ServiceError
from penstock.runtime.memory import allocate_from, empty, memory_of, no_longer_from
from penstock.runtime.shared_memory import Arena, Mapping, Segment, Slot, location_of, slot_size_for
from penstock.service.security.credentials import ClientCredentials
from penstock.service.transport.connect import connect
from penstock.service.wire.interfaces import Connection
from penstock.service.wire.subjects import Endpoint, PassInfo, Span
from penstock.service.wire.worker_messages import Fetch

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts mappings by /proc")


def request(dataset_id: str, stop: int = 1) -> Fetch:
    span = Span(pass_number=0, start=0, stop=stop)
    return Fetch(dataset_id=dataset_id, epoch=0, seed=0, policy=1, pass_info=PassInfo(number=0), span=span)


def columns(connection: Connection, dataset_id: str, stop: int = 1) -> list[Any]:
    return [answer[1].columns[0] for answer in connection.fetch(request(dataset_id, stop)) if isinstance(answer, tuple)]


def mapped(process: int | str = "self") -> int:
    """How many segments a process has mapped."""
    return Path(f"/proc/{process}/maps").read_text().count("/memfd:penstock")


@pytest.fixture
def line(worker: Endpoint) -> Any:
    connection = connect(worker, "shared_memory")
    yield connection
    connection.close()


# Of the arena


def test_slots_are_at_most_a_quarter_larger_than_asked_for() -> None:
    assert slot_size_for(1) == slot_size_for(65536) == 65536
    assert [slot_size_for(size) for size in (65537, 100_000, 131_072, 12_644_352)] == [
        81920,
        114688,
        131072,
        12582912 + 2097152,
    ]
    assert all(size <= slot_size_for(size) <= size * 1.25 for size in range(65536, 1 << 20, 999))


def test_memory_is_used_again_when_nothing_shows_it() -> None:
    arena = Arena()
    first = arena.allocate(1 << 20)
    assert first is not None
    address, view = first.ctypes.data, first[10:20].view(np.uint16)
    del first
    other = arena.allocate(1 << 20)
    assert other is not None and other.ctypes.data != address  # a view is still there
    del view
    again = arena.allocate(1 << 20)
    assert again is not None and again.ctypes.data == address


def test_idle_memory_is_given_back_to_the_system() -> None:
    arena = Arena()
    arrays = [arena.allocate(16 << 20) for _ in range(16)]
    assert arena.nbytes == 16 * (16 << 20)
    del arrays
    assert arena.nbytes == 128 << 20


def test_a_closed_arena_keeps_only_the_memory_of_arrays() -> None:
    arena = Arena()
    kept = arena.allocate(1 << 20)
    idle = arena.allocate(8 << 20)
    assert kept is not None and idle is not None
    kept[:] = 7
    del idle
    arena.close()
    assert arena.nbytes == 16 << 20
    assert arena.allocate(8 << 20) is None
    assert (kept == 7).all()
    del kept
    arena.close()
    assert arena.nbytes == 0


def test_an_arena_without_room_says_so_and_goes_on_when_there_is_some() -> None:
    arena = Arena()
    arrays = [arena.allocate(5 << 20) for _ in range(128)]
    assert arrays[-1] is not None and arena.allocate(5 << 20) is None
    del arrays
    assert arena.allocate(5 << 20) is not None


def test_arrays_of_several_threads_do_not_overlap() -> None:
    arena, found = Arena(), []

    def allocate() -> None:
        for number in range(100):
            array = arena.allocate(1 << 16)
            assert array is not None
            array.fill(number)
            assert (array == number).all()
            if number % 10 == 0:
                found.append(array)

    threads = [threading.Thread(target=allocate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    places = {(place[0].number, place[1]) for place in map(location_of, found) if place is not None}
    assert len(places) == len(found) == 40


def test_without_files_in_memory_there_are_files_without_a_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    array = Arena().allocate(1 << 20)
    assert array is not None
    array[:] = 3
    place = location_of(array)
    assert place is not None and list(tmp_path.iterdir()) == []
    segment, offset = place
    assert os.pread(segment.file, 2, offset) == b"\3\3"


def test_a_file_that_is_too_small_is_not_mapped() -> None:
    segment = Segment(1, 1 << 16)
    with pytest.raises(OSError, match="of 131072 bytes has only 65536"):
        Mapping(segment.file, 1 << 17)


# What operators make lies in the arena


@pytest.fixture
def arena() -> Any:
    arena = Arena()
    allocate_from(arena.allocate)
    yield arena
    no_longer_from(arena.allocate)


IMAGES = np.arange(64, dtype=np.uint8)[:, None, None] * np.ones((1, 64, 64), np.uint8)
PIPELINES = {
    "gathered": lambda: ps.Dataset.from_tensor_slices(IMAGES).shuffle(64, seed=0).batch(32),
    "mapped": lambda: ps.Dataset.range(64).map(lambda x: np.full((64, 64), x, np.uint8)).batch(32),
    "mapped by threads": lambda: (
        ps.Dataset.range(64).map(lambda x: np.full((64, 64), x, np.uint8), num_parallel_calls=2).batch(32)
    ),
    "joined": lambda: (
        ps.Dataset.from_tensor_slices(IMAGES).concatenate(ps.Dataset.from_tensor_slices(IMAGES)).batch(48)
    ),
    "streamed": lambda: ps.Dataset.from_generator(
        lambda: iter(IMAGES), output_signature=ps.TensorSpec((64, 64), "uint8")
    ).batch(32),
    "padded": lambda: ps.Dataset.range(64).map(lambda x: np.full((x + 1, 64, 64), x, np.uint8)).padded_batch(32),
    "large elements": lambda: (
        ps.Dataset.range(3).map(lambda x: np.full((64, 64, 64), x, np.uint8)).filter(lambda x: True)
    ),
    "filtered": lambda: ps.Dataset.from_tensor_slices(IMAGES).filter(lambda image: image[0, 0] % 3 > 0).batch(32),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_batches_lie_in_the_arena(name: str, arena: Arena) -> None:
    found = [memory_of(batch) for batch in PIPELINES[name]() if batch.nbytes >= 1 << 16]
    assert found
    assert any(memory is not None and isinstance(memory.owner, Slot) for memory in found)
    allocated = [memory is not None for memory in found]
    assert all(allocated) or name == "joined"  # but for what is a view of the user's own array


@pytest.mark.slow
def test_the_values_are_the_same_in_the_arena(arena: Arena) -> None:
    inside = [[batch.copy() for batch in make()] for make in PIPELINES.values()]
    no_longer_from(arena.allocate)
    try:
        outside = [list(make()) for make in PIPELINES.values()]
    finally:
        allocate_from(arena.allocate)
    for a, b in zip(inside, outside, strict=True):
        np.testing.assert_equal(a, b)


def test_small_arrays_and_objects_lie_elsewhere(arena: Arena) -> None:
    assert memory_of(empty((100,), np.dtype("f8"))) is None
    assert memory_of(empty((100_000,), np.dtype(object))) is None
    assert memory_of(empty((100_000,), np.dtype("f8"))) is not None


@pytest.mark.slow
def test_wider_strings_still_join(arena: Arena) -> None:
    block = Block.concatenate([Block.of_rows([np.str_("a")] * 20_000), Block.of_rows([np.str_("bcd")] * 20_000)])
    assert block.columns[0].dtype == "U3" and block.columns[0][-1] == "bcd"


# Between two processes


def test_a_block_arrives_where_the_worker_wrote_it(line: Connection) -> None:
    """The worker writes into each block the segment and the offset at which it lies."""
    for column in columns(line, "where", 5):
        memory = memory_of(column)
        assert memory is not None and isinstance(memory.owner, Mapping)
        _, offset = column[0, :16].view(np.int64)
        assert column.ctypes.data - memory.owner.address == offset


@pytest.mark.parametrize("name", ["kept", "kept in the arena"])
def test_what_the_worker_keeps_is_copied_and_may_be_written(line: Connection, name: str) -> None:
    [column] = columns(line, name)
    memory = memory_of(column)
    assert memory is not None and isinstance(memory.owner, Mapping)
    column[0, 0] = 1
    assert (columns(line, name)[0] == 7).all()


@pytest.mark.slow
def test_what_a_consumer_holds_is_not_overwritten(line: Connection) -> None:
    held = columns(line, "large", 30)
    columns(line, "large", 30)
    assert [int(column.min()) for column in held] == [int(column.max()) for column in held] == list(range(30))


def test_what_a_consumer_holds_outlives_the_answer_and_the_connection(worker: Endpoint) -> None:
    connection = connect(worker, "shared_memory")
    answers = connection.fetch(request("large", 1000))
    held = [next(answers)[1].columns[0] for _ in range(3)]  # type: ignore[index]
    answers.close()
    connection.close()
    other = connect(worker, "shared_memory")
    columns(other, "large", 30)
    assert [int(column.min()) for column in held] == [int(column.max()) for column in held] == [0, 1, 2]
    other.close()


def arena_size(connection: Connection) -> int:
    """The size of the worker's arena, of which up to 128 MiB may lie idle."""
    return int(columns(connection, "arena")[0][0])


def test_memory_is_bounded_by_what_the_consumer_holds(line: Connection) -> None:
    for answer in line.fetch(request("large", 200)):  # 400 MB in all
        del answer
    assert arena_size(line) <= 160 << 20


@pytest.mark.extended
def test_memory_comes_back_while_nothing_is_fetched(worker: Endpoint, line: Connection) -> None:
    other = connect(worker, "shared_memory")
    held = columns(line, "large", 100)
    assert arena_size(other) >= 200 << 20
    del held
    gc.collect()
    until(lambda: arena_size(other) <= 160 << 20)
    other.close()


@pytest.mark.slow
@linux
def test_nothing_stays_mapped_when_arrays_and_connections_are_gone(worker: Endpoint) -> None:
    before, files = mapped(), len(os.listdir("/proc/self/fd"))
    connection = connect(worker, "shared_memory")
    held = columns(connection, "large", 10)
    assert mapped() > before
    connection.close()
    assert mapped() > before
    del held
    gc.collect()
    assert mapped() == before and len(os.listdir("/proc/self/fd")) == files


@pytest.mark.slow
@linux
def test_a_killed_worker_leaves_nothing(new_worker: Any) -> None:
    before = mapped()
    with new_worker() as (endpoint, process):
        connection = connect(endpoint, "shared_memory")
        answers = connection.fetch(request("large", 1_000_000))
        held = [next(answers)[1].columns[0] for _ in range(3)]  # type: ignore[index]
        process.kill()
        with pytest.raises(LostDataWorkerError):
            deque(answers, maxlen=0)  # which keeps none of those that were under way
        assert [int(column.max()) for column in held] == [0, 1, 2]
        with pytest.raises(LostDataWorkerError):
            next(connection.fetch(request("large")))
        connection.close()
        del held, answers

        def given_back() -> bool:
            gc.collect()  # it does nothing while another thread collects
            return mapped() <= before

        until(given_back)


CONSUMER = """
import sys, msgspec
from penstock.service.wire.worker_messages import (Fetch)
from penstock.service.wire.subjects import (Endpoint, PassInfo, Span)
from penstock.service.transport.connect import connect
connection = connect(msgspec.json.decode(sys.argv[1], type=Endpoint), "shared_memory")
span = Span(pass_number=0, start=0, stop=1000)
answers = connection.fetch(
    Fetch(dataset_id="large", epoch=0, seed=0, policy=1, pass_info=PassInfo(number=0), span=span)
)
held = [next(answers) for _ in range(110)]
print("holding", flush=True)
sys.stdin.read()
"""


@pytest.mark.extended
def test_a_killed_consumer_gives_all_memory_back(worker: Endpoint, line: Connection) -> None:
    command = [sys.executable, "-c", CONSUMER, msgspec.json.encode(worker).decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as consumer:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "holding\n"
        assert arena_size(line) >= 200 << 20
        consumer.kill()
    until(lambda: arena_size(line) <= 160 << 20)


@pytest.mark.slow
def test_without_segments_blocks_come_through_the_socket(new_worker: Any) -> None:
    with new_worker("--no-files") as (endpoint, _):
        connection = connect(endpoint, "shared_memory")
        found = columns(connection, "large", 3)
        assert not any(isinstance(getattr(memory_of(column), "owner", None), Mapping) for column in found)
        assert [(int(column.min()), int(column.max())) for column in found] == [(0, 0), (1, 1), (2, 2)]
        connection.close()


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # JAX, if it is there, warns of forks
def test_a_fork_of_the_consumer_gives_nothing_back(worker: Endpoint) -> None:
    connection = connect(worker, "shared_memory")
    held = columns(connection, "large", 3)
    gc.collect()  # what other tests have left, such as a server of gRPC's, cannot be freed in a process that was forked
    script = os.fork()
    if script == 0:
        del held
        gc.collect()
        os._exit(0)
    os.waitpid(script, 0)
    columns(connection, "large", 30)
    assert [int(column.max()) for column in held] == [0, 1, 2]
    connection.close()


# The socket


def test_only_who_knows_the_token_gets_in_by_the_socket(worker: Endpoint) -> None:
    with pytest.raises(ServiceError, match="does not let this process in: the token is another one"):
        connect(worker, "shared_memory", ClientCredentials("another-secret-that-is-long"))


@pytest.mark.parametrize("nonsense", [b"\xff" * 12, b"\x05\0\0\0" + b"\0" * 8 + b"hello", b"\x01"])
def test_what_is_no_message_ends_only_its_own_line(worker: Endpoint, line: Connection, nonsense: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(worker.socket.replace("@", "\0").encode())
        stranger.sendall(nonsense)
        stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(5)
        with suppress(ConnectionResetError):
            while stranger.recv(100):
                pass
    assert len(columns(line, "numbers", 3)) == 3
