"""One contract for all ways from a worker to a consumer; two of them from another process."""

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from until import until

from penstock.data.block import Block
from penstock.errors import InvalidArgumentError, InvalidTypeError, LostDataWorkerError, ServiceError, StorageError
from penstock.rpc import line as line_module
from penstock.service.security.credentials import ServerSettings
from penstock.service.transport import worker_connection
from penstock.service.transport.block_server import BlockServer
from penstock.service.transport.connect import PROTOCOLS, as_protocol, connect, offered_protocols
from penstock.service.transport.identity import this_machine, this_process
from penstock.service.transport.in_process import InProcessServer
from penstock.service.wire.interfaces import Answers, Connection
from penstock.service.wire.refusals import raise_refused
from penstock.service.wire.subjects import Endpoint, PassInfo, Refused, Span
from penstock.service.wire.worker_messages import Chunk, End, Failed, Fetch, Making
from penstock.structure import LEAF

BETWEEN_PROCESSES = ("shared_memory", "network")


def soon_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a worker be lost after less than half a second of silence."""
    monkeypatch.setattr(worker_connection, "_SILENT_SECONDS", 0.4)
    monkeypatch.setattr(line_module, "TICK_SECONDS", 0.1)


def request(dataset_id: str = "numbers", stop: int = 5, codec: str = "") -> Fetch:
    span = Span(pass_number=0, start=0, stop=stop)
    return Fetch(dataset_id=dataset_id, epoch=0, seed=0, policy=1, pass_info=PassInfo(number=0), span=span, codec=codec)


def values(answers: Answers) -> list[Any]:
    """Rows as lists, and what came last."""
    return [[row.tolist() for row in answer[1].rows()] if isinstance(answer, tuple) else answer for answer in answers]


@pytest.fixture
def reach(worker: Endpoint, producing: Any) -> Iterator[Callable[[str], Connection]]:
    """Connections by a protocol: to this process for the one that means that, else to another."""
    server = InProcessServer(producing.produce, "here:0")
    here = Endpoint(address="here:0", process=this_process())
    opened: list[Connection] = []

    def reach(protocol: str) -> Connection:
        opened.append(connect(here if protocol == "in_process" else worker, protocol))
        return opened[-1]

    yield reach
    for connection in opened:
        connection.close()
    server.stop()


@pytest.fixture(params=PROTOCOLS)
def connection(reach: Callable[[str], Connection], request: pytest.FixtureRequest) -> Connection:
    return reach(request.param)


@pytest.mark.slow
def test_blocks_come_in_order_and_then_the_end(connection: Connection) -> None:
    answers = list(connection.fetch(request()))
    assert [answer[0] for answer in answers[:-1]] == [Chunk(position=p, skip=0, rows=2) for p in range(5)]
    assert [answer[1].columns[0].tolist() for answer in answers[:-1]] == [[2 * p, 2 * p + 1] for p in range(5)]
    assert answers[-1] == End(length=5)


@pytest.mark.slow
def test_an_empty_span_has_only_an_end(connection: Connection) -> None:
    assert list(connection.fetch(request(stop=0))) == [End(length=0)]


@pytest.mark.slow
def test_rows_may_change_their_shape_from_block_to_block(connection: Connection) -> None:
    assert values(connection.fetch(request("changing", 3)))[:3] == [[[], []], [[1.0]] * 2, [[2.0, 2.0]] * 2]


@pytest.mark.slow
def test_ragged_blocks_come_among_dense_ones(connection: Connection) -> None:
    assert values(connection.fetch(request("ragged", 4)))[:4] == [[0, 1], [[0], [0]], [4, 5], [[0, 1, 2], [0]]]


@pytest.mark.slow
def test_a_failure_of_the_users_comes_after_the_blocks_before_it(connection: Connection) -> None:
    answers = list(connection.fetch(request("fails")))
    assert len(answers) == 4
    assert answers[3] == Failed(
        next=Span(pass_number=0, start=4, stop=5), module="builtins", name="KeyError", arguments=["x"], notes=["in map"]
    )


@pytest.mark.slow
def test_a_refusal_is_raised_as_what_it_was_after_the_blocks_before_it(connection: Connection) -> None:
    answers = connection.fetch(request("refuses"))
    assert [next(answers)[0].position for _ in range(3)] == [0, 1, 2]  # type: ignore[index]
    with pytest.raises(InvalidArgumentError, match="no such span"):
        next(answers)


@pytest.mark.slow
def test_arrays_may_be_written_unless_the_worker_keeps_them(connection: Connection) -> None:
    for name, writable in [
        ("numbers", True),
        ("large", True),
        ("ragged", True),
        ("kept", connection.protocol != "in_process"),
    ]:
        column = next(connection.fetch(request(name, 1)))[1].columns[0]  # type: ignore[index]
        assert column.flags.writeable is writable
        if writable:
            column[0] = 9
            assert (column[0] == 9).all()


@pytest.mark.slow
def test_several_threads_fetch_at_the_same_time(connection: Connection) -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(values(connection.fetch(request(stop=50))))) for _ in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [values(connection.fetch(request(stop=50)))] * 3


@pytest.mark.slow
def test_closing_the_answer_early_stops_the_worker(connection: Connection, tmp_path: Path) -> None:
    note = tmp_path / "note"
    answers = connection.fetch(request(f"large:{note}", 1_000_000))
    next(answers)
    answers.close()
    until(note.exists)
    assert values(connection.fetch(request(stop=1))) == [[0, 1], End(length=1)]


@pytest.mark.slow
def test_an_answer_that_is_forgotten_stops_the_worker(connection: Connection, tmp_path: Path) -> None:
    note = tmp_path / "note"
    answers = connection.fetch(request(f"large:{note}", 1_000_000))
    next(answers)
    del answers
    gc.collect()
    until(note.exists)


def blocks_until_it_waits(connection: Connection) -> int:
    """How many large blocks a worker has begun when it makes no more."""
    begun = [0, 1]
    while begun[-1] != begun[-2]:  # as long as it goes on
        threading.Event().wait(0.05)
        begun.append(int(values(connection.fetch(request("begun", 1)))[0][0]))
    return begun[-1]


@pytest.mark.slow
def test_a_worker_is_not_far_ahead_of_its_consumer(connection: Connection) -> None:
    """What it has computed and nobody has taken is bounded, or a slow trainer would fill its memory.

    It would be 1,000 blocks without a bound. How many lie in sockets differs: gRPC gives more room to a slow machine.
    """
    answers = connection.fetch(request("large", 1000))
    next(answers)
    assert blocks_until_it_waits(connection) <= 100
    answers.close()


@pytest.mark.slow
def test_closing_the_connection_ends_what_is_being_fetched(connection: Connection) -> None:
    answers = connection.fetch(request("large", 1_000_000))
    next(answers)
    connection.close()
    with pytest.raises(LostDataWorkerError, match="was closed"):
        for _ in answers:
            pass
    with pytest.raises(LostDataWorkerError, match="was closed"):
        next(connection.fetch(request()))


@pytest.mark.parametrize("protocol", BETWEEN_PROCESSES)
def test_closing_the_connection_wakes_a_thread_that_waits(reach: Callable[[str], Connection], protocol: str) -> None:
    connection, raised, waiting = reach(protocol), [], threading.Event()

    def wait() -> None:
        answers = connection.fetch(request("sleeps"))
        for _ in range(3):
            next(answers)
        waiting.set()
        try:
            next(answers)
        except LostDataWorkerError as error:
            raised.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait(60)
    connection.close()
    thread.join(60)
    assert len(raised) == 1 and "was closed" in raised[0]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", BETWEEN_PROCESSES)
def test_a_mistake_of_the_workers_comes_with_its_traceback(reach: Callable[[str], Connection], protocol: str) -> None:
    with pytest.raises(ServiceError, match=r"failed to answer:\n(.*\n)*ZeroDivisionError: a mistake of ours"):
        list(reach(protocol).fetch(request("breaks")))


def test_only_errors_of_penstocks_own_are_raised_by_name() -> None:
    with pytest.raises(StorageError, match="gone"):
        raise_refused(Refused(kind="StorageError", reason="gone"))
    for kind in ("SystemExit", "traceback", "__name__", "Unheard"):
        with pytest.raises(ServiceError, match=f"{kind}: why"):
            raise_refused(Refused(kind=kind, reason="why"))


@pytest.mark.slow
@pytest.mark.parametrize("protocol", BETWEEN_PROCESSES)
def test_what_cannot_cross_says_so(reach: Callable[[str], Connection], protocol: str) -> None:
    with pytest.raises(InvalidTypeError, match="an element cannot be sent: .* objects of type object"):
        list(reach(protocol).fetch(request("unfit")))


@pytest.mark.parametrize("protocol", BETWEEN_PROCESSES)
def test_a_killed_worker_is_lost_at_once(new_worker: Any, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_connection, "_SILENT_SECONDS", 3600)  # its silence alone would tell only then
    with new_worker() as (endpoint, process):
        connection = connect(endpoint, protocol)
        answers = connection.fetch(request("sleeps"))
        for _ in range(3):
            next(answers)
        threading.Timer(0.1, process.kill).start()
        with pytest.raises(LostDataWorkerError, match=f"worker at {endpoint.address} cannot be reached"):
            next(answers)
        with pytest.raises(LostDataWorkerError):
            next(connection.fetch(request()))
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["closed", "not read"])
def test_a_worker_ended_only_with_a_reader_that_does_not_read(new_worker: Any, end: str) -> None:
    with new_worker() as (endpoint, process):
        connection, asking = connect(endpoint, "network"), connect(endpoint, "shared_memory")
        answers = connection.fetch(request("large", 1_000_000))
        next(answers)
        blocks_until_it_waits(asking)
        asking.close()
        if end == "closed":  # its stream lasted as long as the generator
            connection.close()
        process.stdin.close()
        assert process.wait(60) == 0
        with pytest.raises(LostDataWorkerError):
            list(answers)
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", BETWEEN_PROCESSES)
def test_a_worker_that_has_fallen_silent_is_lost(
    new_worker: Any, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a host that was cut off: its connections stay open, and nothing comes."""
    soon_silent(monkeypatch)
    with new_worker() as (endpoint, process):
        connection = connect(endpoint, protocol)
        answers = connection.fetch(request("large", 1_000_000))
        next(answers)
        process.pause()
        with pytest.raises(LostDataWorkerError, match="cannot be reached: it has given no sign of life"):
            for _ in answers:
                pass
        process.kill()
        connection.close()


@pytest.mark.parametrize("end", ["silence", "close"])
def test_a_worker_that_falls_silent_before_its_first_block_is_lost(
    new_worker: Any, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    if end == "silence":
        soon_silent(monkeypatch)
    with new_worker() as (endpoint, process), ThreadPoolExecutor(1) as pool:
        connection = connect(endpoint, "network")
        assert values(connection.fetch(request(stop=1))) == [[0, 1], End(length=1)]
        process.pause()
        waiting = pool.submit(next, connection.fetch(request()))
        if end == "close":
            while not connection._busy:  # type: ignore[attr-defined]
                time.sleep(0.01)
            connection.close()
        try:
            with pytest.raises(LostDataWorkerError, match="closed" if end == "close" else "no sign of life"):
                waiting.result(60)
        finally:
            process.kill()
        connection.close()


@pytest.mark.slow
def test_an_announced_answer_ends_and_the_next_comes_over_its_line(connection: Connection) -> None:
    for _ in range(3):
        answer = values(connection.fetch(request("announced", stop=2)))
        assert answer == [Making(), [0, 1], [2, 3], End(length=2)]


def test_a_worker_that_computes_for_long_is_not_lost(worker: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    soon_silent(monkeypatch)
    connection = connect(worker, "network")
    assert len(values(connection.fetch(request("pauses")))) == 6
    connection.close()


def test_nobody_at_an_address_is_a_lost_worker() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        connection = connect(Endpoint(address=f"127.0.0.1:{unused.getsockname()[1]}"))
        with pytest.raises(LostDataWorkerError, match="cannot be reached"):
            next(connection.fetch(request()))
        connection.close()


@pytest.mark.slow
def test_a_worker_that_stops_ends_what_is_being_fetched(producing: Any) -> None:
    server = BlockServer(producing.produce, ServerSettings().access())
    connection = connect(Endpoint(address=f"127.0.0.1:{server.port}"))
    answers = connection.fetch(request("large", 1_000_000))
    next(answers)
    threading.Timer(0.1, server.stop).start()
    with pytest.raises(LostDataWorkerError):
        for _ in answers:
            pass
    connection.close()


def test_a_block_too_large_for_the_network_is_refused(producing: Any) -> None:
    def huge(_: Fetch) -> Answers:
        yield Chunk(position=0, skip=0, rows=1), Block((np.empty((1, 1 << 31), np.uint8),), LEAF, 1)  # never touched

    server = BlockServer(huge, ServerSettings().access())
    connection = connect(Endpoint(address=f"127.0.0.1:{server.port}"))
    with pytest.raises(InvalidArgumentError, match="2147483648 bytes is too large .* batches smaller"):
        next(connection.fetch(request()))
    connection.close()
    server.stop()


def test_a_socket_that_is_not_there_is_passed_over(worker: Endpoint) -> None:
    connection = connect(Endpoint(address=worker.address, machine=worker.machine, socket="@nowhere"))
    assert connection.protocol == "network" and len(values(connection.fetch(request()))) == 6
    connection.close()


def test_in_one_process_blocks_go_by_reference(producing: Any) -> None:
    server = InProcessServer(producing.produce, "here:0")
    connection = connect(Endpoint(address="here:0", process=this_process()))
    column = next(connection.fetch(request("kept")))[1].columns[0]  # type: ignore[index]
    assert np.shares_memory(column, producing.keeps["kept"]) and not column.flags.writeable
    server.stop()
    with pytest.raises(LostDataWorkerError, match="was stopped"):
        next(connection.fetch(request()))


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["LZ4", "ZSTD", "SNAPPY", "AUTO"])
def test_blocks_are_compressed_on_their_way(worker: Endpoint, codec: str) -> None:
    elsewhere = Endpoint(address=worker.address)  # not known to be this machine
    connection = connect(elsewhere)
    found = [answer for answer in connection.fetch(request("large", 20, codec)) if isinstance(answer, tuple)]
    assert [int(block.columns[0].min()) for _, block in found] == list(range(20))
    assert all(block.columns[0].flags.writeable for _, block in found)
    connection.close()


def test_the_best_protocol_is_chosen_where_none_is_named(worker: Endpoint, producing: Any) -> None:
    assert offered_protocols(worker) == ["shared_memory", "network"]
    assert offered_protocols(Endpoint(address="elsewhere:1")) == ["network"]
    server = InProcessServer(producing.produce, worker.address)
    here = Endpoint(address=worker.address, machine=worker.machine, socket=worker.socket, process=this_process())
    assert offered_protocols(here) == ["in_process", "shared_memory", "network"]
    server.stop()
    connection = connect(worker)
    assert connection.protocol == "shared_memory"
    connection.close()


def test_protocols_are_checked_where_they_are_named(worker: Endpoint) -> None:
    assert [as_protocol(name) for name in (None, "grpc", "Flight", "shared_memory")] == [
        None, "network", "network", "shared_memory",
    ]  # fmt: skip
    with pytest.raises(
        InvalidArgumentError, match='None or one of "in_process", "shared_memory", "network", "grpc", "flight", got'
    ):
        as_protocol("rdma")
    with pytest.raises(ServiceError, match='"in_process" from this process: it offers "shared_memory", "network"'):
        connect(worker, "in_process")


def test_a_killed_worker_without_its_socket_is_lost_and_ends_no_reader() -> None:
    gone = Endpoint(address="x:1", machine=this_machine(), socket="@nowhere")
    with pytest.raises(LostDataWorkerError, match="x:1 cannot be reached.*refused"):
        connect(gone, "shared_memory")
