"""What takes bytes from others, as functions of bytes: damaged ones raise what is said, or nothing.

`test_fuzzing.py` runs them with Hypothesis; as a program, `make fuzz`, one of them runs until it is stopped or the time
is over: with atheris, or where that is not installed with bytes that are changed at random:

    python tests/service/fuzzing.py [TARGET] [options of libFuzzer]
"""

import faulthandler
import functools
import importlib.util
import os
import random
import shutil
import socket
import sqlite3
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from penstock.data.block import Block
from penstock.errors import PenstockError, ServiceError, StorageError
from penstock.rpc.line import Line
from penstock.service.config import DispatcherConfig
from penstock.service.dispatcher.journal import FILE, Journal
from penstock.service.dispatcher.machine.machine import Machine
from penstock.service.dispatcher.machine.state import State
from penstock.service.dispatcher.machine.updates import DatasetKept
from penstock.service.security.credentials import read_token
from penstock.service.transport.worker_connection import block_of
from penstock.service.wire import definitions as definition
from penstock.service.wire.block_messages import BlockFrame, Credit, FromReader, FromWorker, StopFetch
from penstock.service.wire.blocks import pack, spec_of_data, spec_to_data
from penstock.service.wire.compression import CODECS, compress
from penstock.service.wire.dispatcher_messages import (
    GetStatus,
    Lease,
    OpenEpoch,
    RegisterDataset,
    ToDispatcher,
    WorkerHello,
)
from penstock.service.wire.failures import to_exception
from penstock.service.wire.refusals import raise_refused
from penstock.service.wire.subjects import UNDECODABLE, DatasetInfo, Endpoint, JobParameters, PassInfo, Refused, Span
from penstock.service.wire.worker_messages import Chunk, End, Failed, Fetch, Making
from penstock.spec import TensorSpec
from penstock.structure import flatten

sys.path.insert(0, str(Path(__file__).parent))

import fuzzing_files

_MOST_SECONDS = 10
"""No input takes as long."""
_encode = msgspec.msgpack.encode
_to_dispatcher = msgspec.msgpack.Decoder(ToDispatcher)
_span = Span(pass_number=0, start=0, stop=3)
_info = DatasetInfo(kind="rows", length=10, cardinality=10)


def dispatcher_messages(content: bytes) -> None:
    """A message to the dispatcher, which knows a dataset, a job and a worker; it always has an answer."""
    machine = Machine(DispatcherConfig(), 0.0)
    for message in _messages():
        machine.answer(message, 0.0)
    with suppress(*UNDECODABLE):
        message = _to_dispatcher.decode(content)
        machine.answer(message, 1.0)
        machine.answer(message, 2.0)
        machine.pass_time(1000.0)
        _encode(machine.answer(GetStatus(), 1000.0))


def reader_messages(content: bytes) -> None:
    """What a reader sends over its line."""
    with _line(content, FromReader) as line:
        while line.receive(0) is not None:
            pass


def worker_messages(content: bytes) -> None:
    """What a worker sends over its line."""
    with _line(content, FromWorker) as line:
        while (message := line.receive(0)) is not None:
            if isinstance(message, Failed):
                to_exception(message)
            with suppress(PenstockError, ConnectionError):
                if isinstance(message, Refused):
                    raise_refused(message)
                if isinstance(message, BlockFrame):
                    block_of(line, message)


def specifications(content: bytes) -> None:
    """The specification of a dataset's elements."""
    with suppress(*UNDECODABLE, ServiceError):
        spec_of_data(msgspec.msgpack.decode(content))


def definitions(content: bytes) -> None:
    """The header of a dataset's definition; the pickle behind it is the user's own program."""
    with suppress(ServiceError):
        definition._header(content)


def journal_files(content: bytes) -> None:
    """The file of a dispatcher's journal."""
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as directory:
        Path(directory, FILE).write_bytes(content)
        with suppress(StorageError):
            Journal(directory, State()).close()


def journal_entries(content: bytes) -> None:
    """An entry of a journal that is whole, but for what it says."""
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as directory:
        Journal(directory, State()).close()
        connection = sqlite3.connect(Path(directory, FILE))
        connection.execute("INSERT INTO entries VALUES (1, ?, ?)", (content, zlib.crc32(content)))
        connection.commit()
        connection.close()
        with suppress(StorageError):
            Journal(directory, State()).close()


def token_files(content: bytes) -> None:
    """A file that should hold a token."""
    path = _scratch()
    path.write_bytes(content)
    with suppress(ServiceError):
        assert read_token(str(path)).encode() == content.strip()


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        dispatcher_messages, reader_messages, worker_messages, specifications, definitions, journal_files,
        journal_entries, token_files,
    )
} | fuzzing_files.TARGETS  # fmt: skip


def seeds(target: str) -> list[bytes]:
    """Whole inputs, from which damaged ones are made."""
    if target in fuzzing_files.TARGETS:
        return fuzzing_files.seeds(target)
    if target == "dispatcher_messages":
        return [_encode(message) for message in _messages()]
    if target == "reader_messages":
        return [_sent([_fetch(), Credit(1), StopFetch()])]
    if target == "worker_messages":
        others = [End(length=1), Making(), _failed(), Refused(kind="ServiceError", reason="x")]
        return [_sent([block]) for block in _blocks()] + [_sent([message]) for message in others]
    if target == "specifications":
        spec = {"a": TensorSpec((None, 3), np.dtype(np.float32)), "b": (TensorSpec((), np.dtype("T")),)}
        return [_encode(spec_to_data(spec))]
    if target == "definitions":
        header = _encode(definition._Header({"Python": "3.11"}, [3, 5]))
        return [definition._MAGIC + len(header).to_bytes(8, "little") + header + b"abc"]
    if target == "journal_files":
        return [_journal()]
    if target == "journal_entries":
        return [_encode([DatasetKept(dataset_id="d", definition=b"", info=_info, named=False)])]
    return [b"a-secret-that-is-long-enough\n"]


def _messages() -> list[ToDispatcher]:
    parameters = JobParameters(dataset_id="d", policy=1)
    return [
        RegisterDataset(definition=b"x", info=_info, dataset_id="d"),
        WorkerHello(endpoint=Endpoint(address="localhost:1")),
        OpenEpoch(job_name="j", parameters=parameters, epoch=0, seed=0, consumer="c", resumed=[_span]),
        Lease(consumer_id=1, positions=3, number=1, consumed=[_span], returned=[_span], ended=[_span]),
        GetStatus(),
    ]


def _journal() -> bytes:
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as directory:
        Journal(directory, State()).close()
        return Path(directory, FILE).read_bytes()


def _fetch() -> Fetch:
    return Fetch(dataset_id="d", epoch=0, seed=0, policy=1, pass_info=PassInfo(number=0), span=_span)


def _failed() -> Failed:
    return Failed(next=_span, module="builtins", name="KeyError", arguments=["x", 1], notes=["in map"])


def _block(times: int = 1) -> Block:
    value = {"a": np.arange(6).reshape(3, 2), "b": np.array(["x" * times, "yy", ""], np.dtypes.StringDType())}
    leaves, structure = flatten(value)
    return Block(tuple(leaves), structure, 3)


Send = Callable[["Line[Any]"], Any]


def _blocks() -> Iterator[Send]:
    for times, codec in ((1, ""), *((3000, codec) for codec in CODECS)):
        header, buffers = pack(_block(times))
        sizes = tuple(buffer.size for buffer in buffers)

        def block(
            line: "Line[Any]", header: Any = header, buffers: Any = buffers, sizes: Any = sizes, codec: str = codec
        ) -> BlockFrame:
            places = tuple(map(line.place, compress(codec, buffers)))
            return BlockFrame(Chunk(position=0, skip=0, rows=3), header, places, sizes, codec)

        yield block


def _sent(messages: Sequence[Any]) -> bytes:
    """The bytes of messages on a line."""
    ours, theirs = socket.socketpair()
    with theirs, closing(Line(ours, Any, None)) as line:
        for number, message in enumerate(messages):
            line.send(message(line) if callable(message) else message, number=number, seconds=0)
        return theirs.recv(1 << 18)


@contextmanager
def _line(content: bytes, kind: Any) -> Iterator["Line[Any]"]:
    """A line over which these bytes have come."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(content[: 1 << 16])
    line: Line[Any] = Line(ours, kind, None, most_bytes=1 << 26)
    with closing(line):
        yield line


@functools.cache
def _scratch() -> Path:
    path = Path(tempfile.mkdtemp(prefix="penstock-fuzz-")) / "token"
    path.touch(0o600)
    return path


def _fuzz(target: str, options: Sequence[str]) -> None:
    import atheris  # noqa: PLC0415  # not there in the tests

    corpus = Path(tempfile.mkdtemp(prefix=f"penstock-fuzz-{target}-"))
    for number, seed in enumerate(seeds(target)):
        (corpus / str(number)).write_bytes(seed)
    atheris.instrument_all()
    atheris.Setup(
        [sys.argv[0], f"-artifact_prefix={corpus}/", "-rss_limit_mb=2048", "-timeout=10", *options, str(corpus)],
        TARGETS[target],
    )
    atheris.Fuzz()


def _fuzz_at_random(target: str, options: Sequence[str]) -> None:
    """The target with whole inputs that are changed at random. The last one stays in a file, also if it ends us."""
    seconds = next((float(one.partition("=")[2]) for one in options if one.startswith("-max_total_time=")), 0.0)
    last = Path(tempfile.mkdtemp(prefix=f"penstock-fuzz-{target}-")) / "last"
    whole, chance, until, runs = seeds(target), random.Random(), time.monotonic() + seconds, 0
    print(f"its last input is in {last}", flush=True)  # noqa: T201
    while not seconds or time.monotonic() < until:
        content = _changed(chance.choice(whole), whole, chance)
        last.write_bytes(content)
        faulthandler.dump_traceback_later(_MOST_SECONDS, exit=True)
        TARGETS[target](content)
        faulthandler.cancel_dump_traceback_later()
        runs += 1
    print(f"{runs} inputs", flush=True)  # noqa: T201
    shutil.rmtree(last.parent)


def _changed(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """An input of which one to four pieces are replaced, repeated, cut off, or taken from another one."""
    for _ in range(chance.randint(1, 4)):
        at, length = chance.randint(0, len(content)), chance.choice([0, 1, 1, 2, 4, 8, 40, 400])
        other = chance.choice(others)
        begin = chance.randint(0, len(other))
        piece = chance.choice([
            chance.randbytes(length),
            chance.choice([b"\0", b"\xff", b"\x7f", b"\x80"]) * length,
            chance.randint(0, 1 << 16).to_bytes(4, chance.choice(["big", "little"])),
            other[begin : begin + length],
            b"",
        ])  # fmt: skip
        content = content[:at] + piece + content[at + chance.choice([len(piece), len(piece), length, 0]) :]
    return content[: chance.choice([len(content), len(content), len(content), chance.randint(0, len(content))])]


def main(arguments: Sequence[str]) -> int:
    """Fuzz one target, or all of them one after the other."""
    if arguments and arguments[0] in TARGETS:
        (_fuzz if importlib.util.find_spec("atheris") else _fuzz_at_random)(arguments[0], arguments[1:])
        return 0
    failed = []
    for target in TARGETS:
        print(f"{target}: {' '.join(arguments)}", flush=True)  # noqa: T201
        if os.spawnv(os.P_WAIT, sys.executable, [sys.executable, __file__, target, *arguments]):
            failed.append(target)
    print("failed: " + ", ".join(failed) if failed else "nothing was found")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
