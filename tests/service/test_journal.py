"""The dispatcher's journal: what was answered is on disk, whatever happens to the process or the file."""

import os
import resource
import shutil
import signal
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from forked import Forked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.service.config import DispatcherConfig
from penstock.service.dispatcher import journal_mark
from penstock.service.dispatcher.journal import FILE, Journal
from penstock.service.dispatcher.machine.machine import Machine
from penstock.service.dispatcher.machine.state import State
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import (
    GetDataset,
    GetStatus,
    Lease,
    OpenEpoch,
    RegisterDataset,
    Status,
    Stop,
    ToDispatcher,
    WorkerHello,
)
from penstock.service.wire.subjects import DatasetInfo, Endpoint, JobParameters, Span

FILES = (FILE, f"{FILE}-wal", journal_mark.FILE)

INFO = DatasetInfo(kind="rows", length=1 << 40, cardinality=1 << 40)


class Kept:
    """A machine with a journal."""

    def __init__(self, directory: Path) -> None:
        self.journal = Journal(directory, State(next_worker=7, next_consumer=7))
        self.machine = Machine(DispatcherConfig(), 0.0, self.journal.write, self.journal.state)

    def tell(self, message: ToDispatcher) -> Any:
        return self.machine.answer(message, 0.0)

    def begin(self) -> int:
        """A job with a reader; gives the reader's id."""
        dataset_id = self.tell(RegisterDataset(definition=b"x" * 5000, info=INFO)).dataset_id
        self.tell(WorkerHello(endpoint=Endpoint(address="a:1", process="p")))
        parameters = JobParameters(dataset_id=dataset_id, policy=ps.service.ShardingPolicy.DYNAMIC)
        opening = OpenEpoch(job_name="job", parameters=parameters, epoch=0, seed=3, consumer="me")
        return int(self.tell(opening).consumer_id)

    def step(self, consumer_id: int, number: int) -> None:
        """Lease ten positions, and acknowledge all but five of those before."""
        consumed = [Span(pass_number=0, start=0, stop=max(0, 10 * number - 15))]
        self.tell(Lease(consumer_id=consumer_id, positions=10, number=number, consumed=consumed))


def written(state: State) -> bytes:
    return msgspec.msgpack.encode(state)


def found(directory: Path) -> bytes:
    journal = Journal(directory, State())
    journal.close()
    return written(journal.state)


def test_a_journal_gives_the_state_that_was_left(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "made" / "here")
    reader = kept.begin()
    for number in range(1, 30):
        kept.step(reader, number)
    expected = written(kept.machine.state)
    kept.journal.close()
    assert found(tmp_path / "made" / "here") == expected
    again = Kept(tmp_path / "made" / "here")
    assert again.journal.found
    assert again.machine.state.next_consumer == 8
    kept_dataset = again.tell(GetDataset(dataset_id=next(iter(again.machine.state.datasets))))
    assert kept_dataset.definition == b"x" * 5000
    again.journal.close()


@pytest.mark.slow
def test_compaction_keeps_the_state_and_bounds_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.service.dispatcher.journal._FIRST_COMPACTION_BYTES", 2000)
    kept = Kept(tmp_path)
    reader = kept.begin()
    for number in range(1, 400):
        kept.step(reader, number)
    expected = written(kept.machine.state)
    kept.journal.close()
    with sqlite3.connect(tmp_path / FILE) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM entries").fetchall()
    connection.close()
    assert count < 100
    assert found(tmp_path) == expected


def test_a_request_to_stop_is_not_for_the_next_dispatcher(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.begin()
    kept.tell(Stop())
    kept.journal.close()
    again = Kept(tmp_path)
    assert again.machine.state.stopping == ""
    again.journal.close()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """The files that a killed dispatcher leaves, and the state after each message."""
    directory = tmp_path_factory.mktemp("killed")
    kept = Kept(directory / "live")
    states = [written(kept.machine.state)]
    answer = kept.machine.answer
    reader = 0

    def noting(message: ToDispatcher, now: float) -> Any:
        reply = answer(message, now)
        if written(kept.machine.state) != states[-1]:
            states.append(written(kept.machine.state))
        return reply

    kept.machine.answer = noting  # type: ignore[method-assign]
    reader = kept.begin()
    for number in range(1, 12):
        kept.step(reader, number)
    (directory / "left").mkdir()
    for name in FILES:
        shutil.copy(directory / "live" / name, directory / "left" / name)
    kept.journal.close()
    return directory / "left", states


@pytest.fixture
def copied(killed: tuple[Path, list[bytes]], tmp_path: Path) -> tuple[Path, list[bytes]]:
    return fresh(killed, tmp_path), killed[1]


def fresh(killed: tuple[Path, list[bytes]], tmp_path: Path) -> Path:
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    return Path(shutil.copytree(killed[0], tmp_path / "copy"))


def test_nothing_that_was_answered_is_lost_with_the_process(copied: tuple[Path, list[bytes]]) -> None:
    assert found(copied[0]) == copied[1][-1]


QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@QUICK
@given(part=st.floats(0, 1))
def test_a_journal_that_has_lost_its_end_is_refused(
    killed: tuple[Path, list[bytes]], tmp_path: Path, part: float
) -> None:
    """SQLite leaves out what is torn or damaged in its write-ahead log, without a word."""
    directory = fresh(killed, tmp_path)
    tail = directory / f"{FILE}-wal"
    left = tail.read_bytes()[: int(part * tail.stat().st_size)]
    tail.write_bytes(left)
    if part == 1:
        assert found(directory) == killed[1][-1]
        return
    for _ in range(2):
        with pytest.raises(ps.StorageError, match="has lost its end: entry .*mark: elements read after entry"):
            found(directory)
        assert tail.read_bytes() == left
    (directory / journal_mark.FILE).unlink()
    assert found(directory) in killed[1]


def test_a_journal_without_its_write_ahead_log_is_refused(copied: tuple[Path, list[bytes]]) -> None:
    (copied[0] / f"{FILE}-wal").unlink()
    with pytest.raises(ps.StorageError, match=r"has lost its end: entry 14 was acknowledged, .* can be read is 0\."):
        found(copied[0])


@pytest.mark.slow
@QUICK
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), name=st.sampled_from(FILES))
def test_a_changed_byte_is_found_or_does_not_matter(
    killed: tuple[Path, list[bytes]], tmp_path: Path, place: float, bit: int, name: str
) -> None:
    directory = fresh(killed, tmp_path)
    damaged = directory / name
    content = bytearray(damaged.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    damaged.write_bytes(content)
    try:
        state = found(directory)
    except ps.StorageError:
        return
    assert state == killed[1][-1]


def test_a_mark_that_is_missing_is_said(copied: tuple[Path, list[bytes]], caplog: pytest.LogCaptureFixture) -> None:
    (copied[0] / journal_mark.FILE).unlink()
    assert found(copied[0]) == copied[1][-1]
    assert "journal.mark is missing: the journal beside it may have lost its end without a trace" in caplog.text


def test_a_mark_of_another_journal_is_refused(copied: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    Journal(tmp_path / "other", State()).close()
    shutil.copy(tmp_path / "other" / journal_mark.FILE, copied[0])
    with pytest.raises(ps.StorageError, match="another journal than the one beside it: .* choose another work_dir"):
        found(copied[0])


def test_a_damaged_mark_is_refused(copied: tuple[Path, list[bytes]]) -> None:
    (copied[0] / journal_mark.FILE).write_bytes(b"x" * 56)
    with pytest.raises(
        ps.StorageError, match=r"journal\.mark is damaged, .* from a copy, or choose another work_dir .* To continue"
    ):
        found(copied[0])


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0", b"no journal at all " * 500])
def test_what_is_no_journal_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ps.StorageError, match=r"journal\.sqlite is (not a dispatcher's journal|damaged)"):
        Journal(tmp_path, State())
    assert (tmp_path / FILE).read_bytes() == content


def test_the_file_of_another_program_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("CREATE TABLE snapshot (number)")
    connection.close()
    with pytest.raises(ps.StorageError, match="not a dispatcher's journal: choose another work_dir"):
        Journal(tmp_path, State())


def changed(directory: Path, statement: str) -> None:
    connection = sqlite3.connect(directory / FILE)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("PRAGMA user_version = 3", "has version 3, and this penstock reads version 4"),
        ("UPDATE entries SET body = zeroblob(9) WHERE number = 5", "entry 5 is not as it was written"),
        ("DELETE FROM entries WHERE number = 5", "entry 6 follows 4"),
        ("DELETE FROM snapshot", "it has 0 snapshots"),
        ("UPDATE snapshot SET number = -1", "its snapshot has the number -1"),
        ("DELETE FROM definitions", "dataset '.*' is missing"),
        ("DROP TABLE entries", "no such table: entries"),
    ],
)
def test_a_damaged_journal_is_refused_with_a_reason(
    copied: tuple[Path, list[bytes]], statement: str, message: str
) -> None:
    changed(copied[0], statement)
    with pytest.raises(ps.StorageError, match=message):
        Journal(copied[0], State())


@pytest.mark.parametrize("left", FILES[1:])
def test_what_is_left_without_its_journal_is_no_new_beginning(copied: tuple[Path, list[bytes]], left: str) -> None:
    for name in {*FILES} - {left}:
        (copied[0] / name).unlink()
    with pytest.raises(ps.StorageError, match="belongs to a journal that is missing"):
        Journal(copied[0], State())


def test_a_directory_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ps.StorageError, match="cannot keep a journal in"):
        Journal(tmp_path / "file", State())


# Other users


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_directory_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    """Whoever writes a journal there has data workers run it."""
    tmp_path.chmod(mode)
    with pytest.raises(ps.StorageError, match=f"could be written by .*: `chmod go-w {tmp_path}`"):
        ps.service.DispatchServer(DispatcherConfig(work_dir=tmp_path))
    assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(0o755)
    Journal(tmp_path, State()).close()


@pytest.mark.parametrize("name", FILES)
def test_a_journal_that_others_may_write_is_refused(copied: tuple[Path, list[bytes]], name: str) -> None:
    (copied[0] / name).chmod(0o620)
    with pytest.raises(ps.StorageError, match=f"could be written by all users or a group, who may write .*{name}`"):
        Journal(copied[0], State())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to others")
@pytest.mark.parametrize("name", ["", FILE])
def test_a_journal_of_another_users_is_refused(copied: tuple[Path, list[bytes]], name: str) -> None:
    os.chown(copied[0] / name, 65534, 65534)
    with pytest.raises(ps.StorageError, match="could be written by user 65534, who owns .* make another one"):
        Journal(copied[0], State())


def test_what_a_dispatcher_writes_nobody_else_can_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        journal = Journal(tmp_path / "made", State())
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "made", *journal._files()]}
        journal.close()
    finally:
        os.umask(before)
    assert modes == {"made": 0o700, **dict.fromkeys(FILES, 0o600)}


def test_a_journal_that_others_could_read_is_read_by_them_no_more(
    copied: tuple[Path, list[bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    (copied[0] / FILE).chmod(0o644)
    Journal(copied[0], State()).close()
    assert f"other users could read {copied[0] / FILE}" in caplog.text
    assert stat.S_IMODE((copied[0] / FILE).stat().st_mode) == 0o600


# Processes


def dispatcher(directory: Path) -> Forked:
    command = ("-m", "penstock", "dispatcher", "--port", "0", "--work-dir", str(directory))
    return Forked(*command, pipes=("stdout", "stderr"))


def address_of(process: Forked) -> str:
    assert process.stdout is not None
    return process.stdout.readline().split("://")[1].strip()


def killed_at_once(process: Forked) -> None:
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_a_second_dispatcher_on_a_work_dir_is_refused(tmp_path: Path) -> None:
    first = dispatcher(tmp_path)
    try:
        address_of(first)
        with pytest.raises(ps.StorageError, match="another dispatcher works in"):
            ps.service.DispatchServer(DispatcherConfig(work_dir=tmp_path))
    finally:
        killed_at_once(first)
    with ps.service.DispatchServer(DispatcherConfig(work_dir=tmp_path)):
        second = dispatcher(tmp_path)
        _, errors = second.communicate(timeout=30)
        assert second.returncode == 1
        assert f"another dispatcher works in {tmp_path}" in errors
        with pytest.raises(ps.StorageError, match="another dispatcher works in"):
            ps.service.DispatchServer(DispatcherConfig(work_dir=tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="a process's limits can be set by others on Linux only")
def test_a_full_disk_refuses_what_would_have_to_be_written_and_nothing_else(tmp_path: Path) -> None:
    process = dispatcher(tmp_path)
    try:
        client = DispatcherClient(address_of(process))
        kept = client.ask(RegisterDataset(definition=b"kept", info=INFO)).dataset_id
        size = (tmp_path / f"{FILE}-wal").stat().st_size
        _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, most))
        with pytest.raises(ps.StorageError, match=r"cannot write its journal .*journal\.sqlite.*tried for"):
            client.ask(RegisterDataset(definition=b"lost" * 5000, info=INFO), patience_seconds=0)
        status = client.ask(GetStatus())
        assert isinstance(status, Status) and status.datasets == 1
        assert client.ask(GetDataset(dataset_id=kept)).definition == b"kept"
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))
        client.ask(RegisterDataset(definition=b"late" * 5000, info=INFO))
        client.close()
    finally:
        killed_at_once(process)
    journal = Journal(tmp_path, State())
    journal.close()
    assert sorted(dataset.definition[:4] for dataset in journal.state.datasets.values()) == [b"kept", b"late"]


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="a process's limits can be set by others on Linux only")
def test_a_reader_waits_until_a_full_disk_has_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = dispatcher(tmp_path)
    _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    try:
        address = address_of(process)
        with ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=address)):
            shared = ps.service.distribute("distributed_epoch", address, job_name="shared")
            with iter(ps.Dataset.range(100_000).apply(shared)) as iterator:
                given = [int(next(iterator))]
                size = (tmp_path / f"{FILE}-wal").stat().st_size
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, most))
                caplog.clear()
                reading = threading.Thread(target=lambda: given.extend(map(int, iterator)))
                reading.start()
                wait_for(lambda: "waiting for the dispatcher" in caplog.text)
                assert "cannot write its journal" in caplog.text
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))
                reading.join()
        assert sorted(given) == list(range(100_000))
    finally:
        killed_at_once(process)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.slow
def test_sigterm_leaves_a_journal_to_go_on_from(tmp_path: Path) -> None:
    process = dispatcher(tmp_path)
    try:
        client = DispatcherClient(address_of(process))
        client.ask(RegisterDataset(definition=b"kept", info=INFO))
        client.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        killed_at_once(process)
    journal = Journal(tmp_path, State())
    journal.close()
    assert len(journal.state.datasets) == 1


def test_without_a_work_dir_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ps.service.DispatchServer():
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("value", "kind"), [("", ValueError), (5, TypeError)])
def test_a_work_dir_is_a_path(value: object, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"DispatcherConfig\(work_dir=\.\.\.\)"):
        DispatcherConfig(work_dir=value)  # type: ignore[arg-type]


def test_a_mark_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_mark.JournalMark, "write", full)
    with pytest.raises(ps.StorageError, match=r"cannot write .*journal\.mark: .*No space left on device"):
        Journal(tmp_path, State())


def test_what_is_written_holds_where_its_mark_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept(tmp_path)

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept.journal._mark, "write", full)
    kept.begin()
    kept.journal.close()
    assert "cannot note how far its journal has come: [Errno 28] No space left on device" in caplog.text
    assert found(tmp_path) == written(kept.machine.state)


def test_a_journal_that_cannot_be_opened_is_not_called_damaged(tmp_path: Path) -> None:
    config = DispatcherConfig(work_dir=tmp_path)
    ps.service.DispatchServer(config).stop()
    (tmp_path / f"{FILE}-wal").mkdir()  # no file can be written there, as on a read-only disk
    with pytest.raises(ps.StorageError, match=r"cannot use its journal .*read-only, full or broken") as refused:
        ps.service.DispatchServer(config)
    assert "damaged" not in str(refused.value)
    (tmp_path / f"{FILE}-wal").rmdir()
    ps.service.DispatchServer(config).stop()
