"""What the processes of a trial run."""

import faulthandler
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from network import Home
from pipelines import pipeline

import penstock as ps
from penstock.service.local_worker import LocalWorker
from penstock.service.security.credentials import client_credentials, worker_token
from penstock.service.wire import envelope

FOREIGN_VERSION = "9.9"
"""That of the penstock of those who speak another protocol."""


def run_dispatcher(
    folder: Path,
    home: Home,
    port: int,
    places: Sequence[str],
    times: dict[str, float],
    journal: Path,
    newer: int,
    ready: Connection,
) -> None:
    """A dispatcher; tells its port when it listens, or why it does not go on from what is in its journal."""
    _write_to(folder / "dispatcher.log")
    _speak(newer)
    home.enter()
    config = ps.service.DispatcherConfig(
        port=port, work_dir=journal, worker_addresses=places, **times, **home.as_server()
    )
    try:
        server = ps.service.DispatchServer(config)
    except ps.StorageError as error:
        ready.send(str(error))
        return
    _drain_at_sigterm(server)
    ready.send(server.port)
    server.join()


def run_worker(folder: Path, home: Home, service: str, prints: bool) -> None:
    """A worker. One that finds all places taken tries again: the lost one whose place it takes is still missed.

    Args:
        prints: whether it is one of `ps.service.local`, whose output this process passes on, if it listens.
    """
    name = f"worker-{os.getpid()}"
    _write_to(folder / f"{name}.log")
    address = folder / f"{name}.address"
    home.enter()
    while True:
        with suppress(ps.errors.ServiceError):
            if prints and home.keys is None:
                _join_local_worker(service, address)
                return
            server = ps.service.WorkerServer(_worker_config(home, service))
            address.write_text(f"{os.getpid()} {server.target}")
            _drain_at_sigterm(server)
            server.join()
            return
        time.sleep(0.1)


def _join_local_worker(service: str, address: Path) -> None:
    worker = LocalWorker(service, worker_token(client_credentials().token))
    signal.signal(signal.SIGTERM, lambda *_: worker.finish())
    worker.wait_until_ready()
    address.write_text(f"{worker.pid} {worker.address}")
    while worker.status is None:
        time.sleep(0.1)
    if worker.status:  # a dispatcher of another version has refused it
        raise ps.errors.ServiceError(f"the worker has ended with status {worker.status}")


def run_foreign_worker(folder: Path, home: Home, service: str, newer: int, result: Path) -> None:
    """A worker of another version; writes how it has ended."""
    _write_to(folder / f"worker-{os.getpid()}.log")
    _speak(newer)
    home.enter()
    try:
        ps.service.WorkerServer(_worker_config(home, service)).join()
        result.write_text("done")
    except ps.errors.ServiceError as error:
        result.write_text(_said(error))


def _worker_config(home: Home, service: str) -> ps.service.WorkerConfig:
    return ps.service.WorkerConfig(dispatcher_address=service, worker_address=f"{home.name}:%port%", **home.as_server())


def _speak(newer: int) -> None:
    """Let this process be of a version whose protocol's number is so much higher."""
    if newer:
        vars(envelope).update(PROTOCOL=envelope.PROTOCOL + newer, VERSION=FOREIGN_VERSION)


def _said(error: ps.PenstockError) -> str:
    return f"{type(error).__name__}: {error}"


def _drain_at_sigterm(server: ps.service.DispatchServer | ps.service.WorkerServer) -> None:
    """As the commands do; in a thread, because the main one may be in the middle of anything."""
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.stop, kwargs={"drain": True}).start())


@dataclass(frozen=True)
class Trainer:
    """What a trainer reads, and where it writes what it got.

    Attributes:
        name: of its files.
        home: where it runs.
        count: after how many elements it stops; None at the end.
        checkpoints: whether it goes on from a checkpoint where there is one.
        older: whether from the one before the newest, as if that had been damaged.
        pace: how long it takes for a row.
        idle: for how long it does nothing after its first element.
        newer: by how much its protocol's number is higher than that of the others.
        manner: that of its pipeline.
    """

    name: str
    folder: Path
    home: Home
    target: str
    shape: str
    elements: int
    mode: str
    arguments: dict[str, Any]
    count: int | None = None
    checkpoints: bool = True
    older: bool = False
    pace: float = 0.0
    idle: float = 0.0
    newer: int = 0
    manner: str = ""

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.ids"

    @property
    def times(self) -> Path:
        return self.folder / f"{self.name}.times"

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"{self.name}.json"

    @property
    def opened(self) -> Path:
        """When it was ready to read for the first time."""
        return self.folder / f"{self.name}.opened"

    @property
    def result(self) -> Path:
        return self.folder / f"{self.name}.result"

    def saved(self) -> list[dict[str, Any]]:
        """The checkpoint from which it goes on; none where it begins."""
        if not self.checkpoints or not self.checkpoint.exists():
            return []
        found = json.loads(self.checkpoint.read_text())
        return list(found[:1] if self.older else found[-1:])

    def dataset(self) -> ps.Dataset:
        dataset = pipeline(self.shape, self.elements, manner=self.manner)
        if self.count is not None:
            dataset = dataset.repeat()
        cache = self.arguments.get("cross_trainer_cache")
        arguments = dict(self.arguments)
        if cache is not None:
            arguments["cross_trainer_cache"] = ps.service.CrossTrainerCache(cache)
        mode = ps.service.ShardingPolicy.DATA if self.mode == "static" else self.mode
        return dataset.apply(ps.service.distribute(mode, self.target, **arguments))


def run_trainer(trainer: Trainer) -> None:
    """Read to the end, and note every element at once; a checkpoint is taken every now and then."""
    _write_to(trainer.folder / f"{trainer.name}.log")
    _speak(trainer.newer)
    trainer.home.enter()
    try:
        while not _read(trainer):
            time.sleep(0.1)
        trainer.result.write_text("done")
    except ps.PenstockError as error:
        logging.exception("failed")
        trainer.result.write_text(_said(error))


def _read(trainer: Trainer) -> bool:
    """Whether it could be read; not while the dispatcher has not missed the consumer whose index this one takes."""
    try:
        _read_once(trainer)
    except ps.errors.ServiceError as error:
        if "s of silence" in str(error):
            return False
        raise
    return True


def _read_once(trainer: Trainer) -> None:
    log, times = (os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND) for file in (trainer.log, trainer.times))
    given, saved = 0, trainer.saved()
    with iter(trainer.dataset()) as iterator:
        if saved:
            given = saved[-1]["given"]
            iterator.load_state_dict(saved[-1]["state"])
        elif trainer.checkpoints:  # one that dies before its first element begins anew too
            saved = _save(trainer, saved, given, iterator.state_dict())
        os.truncate(trainer.log, 8 * given)
        if not trainer.opened.exists():
            trainer.opened.write_text(str(time.monotonic()))
        for number, element in enumerate(iterator):
            ids = np.ravel(element).astype(np.int64)
            os.write(log, ids.tobytes())
            os.write(times, np.float64(time.monotonic()).tobytes())
            time.sleep(trainer.pace * len(ids) + (trainer.idle if number == 0 else 0.0))
            given += len(ids)
            if trainer.checkpoints and number % 23 == 0:
                saved = _save(trainer, saved, given, iterator.state_dict())
            if trainer.count is not None and given >= trainer.count:
                return


def _save(trainer: Trainer, saved: list[dict[str, Any]], given: int, state: Any) -> list[dict[str, Any]]:
    """Put a checkpoint on disk, with the one before it; gives both."""
    both = [*saved[-1:], {"given": given, "state": state}]
    new = trainer.checkpoint.with_suffix(".new")
    new.write_text(json.dumps(both))
    new.replace(trainer.checkpoint)
    return both


def _write_to(log: Path) -> None:
    file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(file, sys.stderr.fileno())
    os.close(file)
    faulthandler.register(signal.SIGUSR1)  # says where every thread is
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
