"""Carries out one schedule with real processes, and checks what came of it."""

import os
import signal
import threading
import time
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
from breaking import Breaking
from cast import Cast, Foreigner
from ledger import check
from roles import FOREIGN_VERSION, Trainer
from schedule import Schedule
from waits import Wait, longest

from penstock.service.wire.envelope import PROTOCOL

_LEASES = 60
"""After how many leases a trial has failed that has not ended."""


class Trial:
    """The processes of one schedule, which all end with it.

    Args:
        folder: where they write what they get and what they say.

    Attributes:
        happened: the kinds of what went wrong.
    """

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self._schedule = schedule
        self._lock = threading.Lock()
        self._cast = Cast(schedule, folder)
        self._breaking = Breaking(schedule, self._cast, self._lock)
        self.happened = self._breaking.happened

    def run(self) -> list[Wait]:
        """Let it happen; gives how long each reader waited, where there was one fault.

        Raises:
            AssertionError: what the readers got is not what they must get.
        """
        cast = self._cast
        try:
            for machine in cast.places:
                cast.start_worker(machine)
            cast.await_workers(self._schedule.workers)
            for index in range(self._schedule.trainers):
                cast.start_trainer(cast.trainer(index))
            self._await_opened()
            self._breaking.begin()
            self._await_trainers()
            if cast.dead:
                self._glean()
            finished = [_read(trainer) for trainer, _ in cast.trainers.values()]
            check(self._schedule, finished, [_read(trainer) for trainer in cast.dead], self._least_passes())
            return self._waits()
        finally:
            self._breaking.end()
            cast.end()

    def _waits(self) -> list[Wait]:
        begun, healed = self._breaking.begun, self._breaking.healed
        if len(self._schedule.faults) > 1 or not begun:
            return []
        (fault,) = self._schedule.faults
        readers = [trainer for trainer, _ in self._cast.trainers.values()] + self._cast.dead
        found = [longest(_times(trainer), begun, healed or begun) for trainer in readers]
        only = "the only " if fault.role == "worker" and self._schedule.workers == 1 else ""
        what = f"{fault.what} {only}{fault.role}"
        return [Wait(what, self._schedule.mode, *wait) for wait in found if wait is not None]

    def _await_opened(self) -> None:
        """Wait until all trainers are ready to read, or have ended: on a busy machine, their processes start late."""
        until = time.monotonic() + self._limit()
        while going := [
            trainer.name
            for trainer, process in self._cast.trainers.values()
            if process.is_alive() and not trainer.opened.exists()
        ]:
            assert time.monotonic() < until, f"not ready to read: {', '.join(going)}"
            time.sleep(0.01)

    def _limit(self) -> float:
        """After how many seconds a trial has failed that has not ended."""
        return _LEASES * self._schedule.times["lease_seconds"]

    def _await_trainers(self) -> None:
        """Wait until all have read to their end, all who are to be refused are, and no repair is under way."""
        limit = self._limit()
        until = time.monotonic() + limit
        while True:
            with self._lock:
                if self._breaking.failure is not None:
                    raise self._breaking.failure
                for name, (trainer, process) in list(self._cast.trainers.items()):
                    self._check_trainer(name, trainer, process)
                going = [
                    name for name, (trainer, _) in self._cast.trainers.items() if _result(trainer.result) != "done"
                ]
                going += [foreigner.result.stem for foreigner in self._cast.foreigners if not _is_refused(foreigner)]
                going += ["whoever repairs the dispatcher"] if self._breaking.repairs else []
            if not going:
                return
            if time.monotonic() > until:
                self._ask_where()
            assert time.monotonic() < until, f"still at it after {limit:.0f} s: {', '.join(going)}"
            time.sleep(0.02)

    def _ask_where(self) -> None:
        """Let every process write where its threads are."""
        for process in self._cast.all:
            with suppress(ProcessLookupError):
                if process.is_alive() and process.pid is not None:
                    os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.5)

    def _check_trainer(self, name: str, trainer: Trainer, process: ForkServerProcess) -> None:
        if not trainer.result.exists():
            lost_track = 255  # what the fork server says of a process that it has told of before
            expected = (None, -signal.SIGKILL, lost_track)
            assert process.exitcode in expected, f"{name} ended with status {process.exitcode}"
            return
        result = _result(trainer.result)
        if result.startswith("LostLeaseError") and self._may_be_silent():  # it was silent for longer than its lease
            if trainer.checkpoints:
                self._breaking.restore(trainer)
            else:
                self._cast.bury(trainer)
        elif result.startswith("ProtocolError") and self._has(("version", "dispatcher")):
            assert _names_versions(result), f"{name} does not name both versions: {result}"
            if not self._cast.newer:  # the right dispatcher is back
                self._breaking.replace(trainer)
        else:
            assert result in ("done", ""), f"{name}: {result}"

    def _least_passes(self) -> int:
        """Of "parallel_epochs": one for each worker, where none can have left before the reader came."""
        fewer = self._cast.journal.begun_anew or self._has(("terminate", "worker"), ("roll", "worker"))
        return 1 if fewer else self._schedule.workers

    def _has(self, *kinds: tuple[str, str]) -> bool:
        return any((fault.what, fault.role) in kinds for fault in self._schedule.faults)

    def _may_be_silent(self) -> bool:
        """Whether the dispatcher may have missed a reader of a shared job that is there."""
        return self._schedule.mode == "shared" and self._has(
            ("stop", "trainer"), ("cut", "trainer"), ("cut", "dispatcher"), ("version", "dispatcher")
        )

    def _glean(self) -> None:
        """Where readers died that nobody continued, one that comes after their lease gets what they had left."""
        time.sleep(1.5 * self._schedule.times["lease_seconds"])
        with self._lock:
            self._cast.start_another_trainer()
        self._await_trainers()


def _result(file: Path) -> str:
    """What somebody says of its end; "" while it has said nothing."""
    return file.read_text() if file.exists() else ""


def _is_refused(foreigner: Foreigner) -> bool:
    """Whether somebody of another version has been turned away; the error must say why."""
    result = _result(foreigner.result)
    assert not result or _names_versions(result), f"{foreigner.result.stem} does not name both versions: {result}"
    return bool(result)


def _names_versions(result: str) -> bool:
    named = sum(f"protocol {PROTOCOL + newer}" in result for newer in range(-2, 3))
    wanted = (f"penstock {FOREIGN_VERSION}", "install the same version on both")
    return result.startswith("ProtocolError") and named == 2 and all(words in result for words in wanted)


def _read(trainer: Trainer) -> list[int]:
    if not trainer.log.exists():
        return []
    return [int(number) for number in np.fromfile(trainer.log, np.int64)]


def _times(trainer: Trainer) -> list[float]:
    """When its elements came."""
    return [] if not trainer.times.exists() else [float(at) for at in np.fromfile(trainer.times, np.float64)]
