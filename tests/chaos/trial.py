"""Carries out one schedule with real processes, and checks what came of it."""

import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
from ledger import check
from network import HERE, Machine, Network
from roles import Trainer, run_dispatcher, run_trainer, run_worker
from schedule import Fault, Schedule
from waits import Wait, longest

from penstock.service.credentials import client_credentials
from penstock.service.dispatcher_client import DispatcherClient
from penstock.service.messages import GetStatus

_LEASES = 27
"""After how many leases a trial has failed that has not ended."""
_TERMINATION_SECONDS = 5.0
"""How long a process may take to end at SIGTERM, before it is killed."""
_processes = get_context("forkserver")
_processes.set_forkserver_preload(["roles", "penstock.service"])


class Trial:
    """The processes of one schedule, which all end with it.

    Args:
        folder: where they write what they get and what they say.
    """

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self._schedule = schedule
        self._folder = folder
        self._lock = threading.Lock()
        self._all: list[ForkServerProcess] = []
        self._workers: list[tuple[Machine, ForkServerProcess]] = []
        self._trainers: dict[str, tuple[Trainer, ForkServerProcess]] = {}
        self._dead: list[Trainer] = []
        self._timers: list[threading.Timer] = []
        self._over = False
        self._begun = self._healed = 0.0  # the last fault
        self._port = 0
        self._network = Network(schedule.seed, folder / "keys") if schedule.network else None
        try:
            self._dispatchers = self._machine()
            self._places = [self._machine() for _ in range(schedule.workers)]
            self._trainer_machines = [self._machine() for _ in range(schedule.trainers)]
            self._dispatcher = self._start_dispatcher()
        except BaseException:
            self._end()
            raise

    def run(self) -> list[Wait]:
        """Let it happen; gives how long each reader waited, where there was one fault.

        Raises:
            AssertionError: what the readers got is not what they must get.
        """
        try:
            for machine in self._places:
                self._start_worker(machine)
            self._await_workers(self._schedule.workers)
            for index in range(self._schedule.trainers):
                self._start_trainer(self._trainer(index))
            for fault in self._schedule.faults:
                self._later(fault.at, lambda fault=fault: self._do(fault))
            self._await_trainers()
            if self._dead:
                self._glean()
            finished = [_read(trainer) for trainer, _ in self._trainers.values()]
            check(self._schedule, finished, [_read(trainer) for trainer in self._dead], self._schedule.workers)
            return self._waits()
        finally:
            self._end()

    def _waits(self) -> list[Wait]:
        if len(self._schedule.faults) > 1 or not self._begun:
            return []
        (fault,) = self._schedule.faults
        readers = [trainer for trainer, _ in self._trainers.values()] + self._dead
        found = [longest(_times(trainer), self._begun, self._healed or self._begun) for trainer in readers]
        only = "the only " if fault.role == "worker" and self._schedule.workers == 1 else ""
        what = f"{fault.what} {only}{fault.role}"
        return [Wait(what, self._schedule.mode, *wait) for wait in found if wait is not None]

    # Starting

    def _machine(self) -> Machine:
        return HERE if self._network is None else self._network.machine()

    def _start_dispatcher(self) -> ForkServerProcess:
        here, there = _processes.Pipe()
        static = self._schedule.mode == "static"
        places = [machine.home.name for machine in self._places] if static else []
        process = self._start(
            run_dispatcher, self._folder, self._dispatchers.home, self._port, places, self._schedule.times, there
        )
        there.close()
        self._port = here.recv()
        return process

    @property
    def _service(self) -> str:
        return self._dispatchers.home.service(self._port)

    def _start(self, target: Callable[..., None], *arguments: object) -> ForkServerProcess:
        process = _processes.Process(target=target, args=arguments, daemon=True)
        process.start()
        self._all.append(process)
        return process

    def _start_worker(self, machine: Machine) -> None:
        self._workers.append((machine, self._start(run_worker, self._folder, machine.home, self._service)))

    def _await_workers(self, count: int) -> None:
        keys = self._dispatchers.home.keys
        known = None
        if keys is not None:
            known = client_credentials(token_file=str(keys / "token"), roots=str(keys / "crt"))
        client = DispatcherClient(self._service, credentials=known)
        try:
            while len(client.ask(GetStatus()).workers) < count:
                time.sleep(0.01)
        finally:
            client.close()

    def _trainer(self, index: int) -> Trainer:
        schedule, mode = self._schedule, self._schedule.mode
        arguments: dict[str, object] = {"data_transfer_protocol": schedule.protocol}
        if mode in ("ordered", "unordered"):
            arguments["ordered"] = mode == "ordered"
        elif mode in ("shared", "coordinated", "cross_trainer"):
            arguments["job_name"] = "chaos"
        if mode == "coordinated":
            arguments.update(consumer_index=index, num_consumers=schedule.trainers)
        elif mode == "cross_trainer":
            arguments["cross_trainer_cache"] = f"trainer {index}"
        return Trainer(
            name=f"trainer-{index}",
            folder=self._folder,
            home=self._trainer_machines[index].home,
            target=self._service,
            shape=schedule.shape,
            elements=schedule.elements,
            mode=mode if mode in ("parallel_epochs", "static") else "distributed_epoch",
            arguments=arguments,
            count=schedule.elements if mode == "cross_trainer" else None,
            checkpoints=schedule.returns != "anew",
            older=schedule.returns == "older",
            pace=schedule.paces[index],
            idle=schedule.idle if index == 0 else 0.0,
        )

    def _start_trainer(self, trainer: Trainer) -> None:
        self._trainers[trainer.name] = trainer, self._start(run_trainer, trainer)

    # Breaking

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        def locked() -> None:
            with self._lock:
                if not self._over:
                    act()

        timer = threading.Timer(seconds, locked)
        self._timers.append(timer)
        timer.start()

    def _heal(self, seconds: float, act: Callable[[], None]) -> None:
        def healed() -> None:
            act()
            self._healed = time.monotonic()

        self._later(seconds, healed)

    def _do(self, fault: Fault) -> None:
        self._begun = time.monotonic()
        if fault.what == "add":
            if self._schedule.mode != "static":  # it has a place for each worker, and no more
                self._start_worker(self._machine())
        elif fault.what in ("cut", "lose"):
            self._part(fault)
        elif fault.what == "roll":
            for number, (machine, process) in enumerate(list(self._workers)):
                self._later(0.3 * number, lambda machine=machine, process=process: self._replace(machine, process))
        elif fault.what == "fill":
            self._fill_disk(fault)
        elif fault.role == "worker":
            machine, process = self._workers[fault.index % len(self._workers)]
            self._hit(fault, process, lambda: self._start_worker(machine))
        elif fault.role == "trainer":
            name = list(self._trainers)[fault.index % len(self._trainers)]
            trainer, process = self._trainers[name]
            if process.is_alive():
                self._hit(fault, process, lambda: self._continue(trainer))
        else:
            self._hit(fault, self._dispatcher, self._restart_dispatcher)

    def _part(self, fault: Fault) -> None:
        """Cut a machine off, or let trainers lose one of the workers."""
        machines = {
            "worker": [machine for machine, _ in self._workers],
            "trainer": self._trainer_machines,
            "dispatcher": [self._dispatchers],
        }[fault.role]
        machine = machines[fault.index % len(machines)]
        if fault.what == "cut":
            machine.cut()
            self._heal(fault.seconds, machine.mend)
            return
        for trainer in self._trainer_machines:
            trainer.lose(machine)
            self._heal(fault.seconds, lambda trainer=trainer: trainer.find(machine))

    def _replace(self, machine: Machine, process: ForkServerProcess) -> None:
        """Let a worker leave, and another one take its place."""
        if process.is_alive():
            process.terminate()
            self._start_worker(machine)

    def _fill_disk(self, fault: Fault) -> None:
        """Let the dispatcher write no more than its journal holds now."""
        process = self._dispatcher
        if not process.is_alive():
            return
        assert process.pid is not None
        size = max(file.stat().st_size for file in (self._folder / "journal").iterdir())
        _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, most))
        self._heal(fault.seconds, lambda: _give_room(process, most))

    def _hit(self, fault: Fault, process: ForkServerProcess, restart: Callable[[], None]) -> None:
        if not process.is_alive():
            return
        assert process.pid is not None
        if fault.what in ("kill", "terminate"):
            process.kill() if fault.what == "kill" else process.terminate()
            process.join(_TERMINATION_SECONDS)
            process.kill()
            process.join()
            self._heal(fault.seconds, restart)
        else:
            os.kill(process.pid, signal.SIGSTOP)
            self._heal(fault.seconds, lambda: _go_on(process))

    def _continue(self, trainer: Trainer) -> None:
        """A trainer that was killed comes back: from its checkpoint, or as another one."""
        if trainer.checkpoints:
            self._restore(trainer)
            return
        self._dead.append(self._trainers.pop(trainer.name)[0])
        self._start_trainer(self._another())

    def _restore(self, trainer: Trainer) -> None:
        trainer.result.unlink(missing_ok=True)
        self._start_trainer(trainer)

    def _another(self) -> Trainer:
        number = len(self._dead) + len(self._trainers)
        return replace(self._trainer(0), name=f"trainer-{number}")

    def _restart_dispatcher(self) -> None:
        self._dispatcher = self._start_dispatcher()

    # Ending

    def _await_trainers(self) -> None:
        limit = _LEASES * self._schedule.times["lease_seconds"]
        until = time.monotonic() + limit
        while True:
            with self._lock:
                going = [name for name, (trainer, _) in self._trainers.items() if not trainer.result.exists()]
                for name, (trainer, process) in list(self._trainers.items()):
                    self._check_trainer(name, trainer, process)
            if not going and all(trainer.result.exists() for trainer, _ in self._trainers.values()):
                return
            if time.monotonic() > until:
                self._ask_where()
            assert time.monotonic() < until, f"still reading after {limit:.0f} s: {', '.join(going)}"
            time.sleep(0.02)

    def _ask_where(self) -> None:
        """Let every process write where its threads are."""
        for process in self._all:
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
        result = trainer.result.read_text()
        if result.startswith("LostLeaseError") and self._may_be_silent():  # it was silent for longer than its lease
            if trainer.checkpoints:
                self._restore(trainer)
            else:
                self._dead.append(self._trainers.pop(name)[0])
            return
        assert result in ("done", ""), f"{name}: {result}"

    def _may_be_silent(self) -> bool:
        """Whether the dispatcher may have missed a reader of a shared job that is there."""
        silencing = {("stop", "trainer"), ("cut", "trainer"), ("cut", "dispatcher")}
        return self._schedule.mode == "shared" and any(
            (fault.what, fault.role) in silencing for fault in self._schedule.faults
        )

    def _glean(self) -> None:
        """Where readers died that nobody continued, one that comes after their lease gets what they had left."""
        time.sleep(1.5 * self._schedule.times["lease_seconds"])
        with self._lock:
            trainer = self._another()
            self._start_trainer(trainer)
        self._await_trainers()

    def _end(self) -> None:
        with self._lock:
            self._over = True
        for timer in self._timers:
            timer.cancel()
            timer.join()
        for process in self._all:
            process.kill()
        for process in self._all:
            process.join()
            process.close()
        if self._network is not None:
            self._network.close()


def _go_on(process: ForkServerProcess) -> None:
    with suppress(ProcessLookupError):
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGCONT)


def _give_room(process: ForkServerProcess, most: int) -> None:
    with suppress(ProcessLookupError):
        if process.is_alive() and process.pid is not None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))


def _read(trainer: Trainer) -> list[int]:
    if not trainer.log.exists():
        return []
    return [int(number) for number in np.fromfile(trainer.log, np.int64)]


def _times(trainer: Trainer) -> list[float]:
    """When its elements came."""
    return [] if not trainer.times.exists() else [float(at) for at in np.fromfile(trainer.times, np.float64)]
