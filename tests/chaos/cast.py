"""The processes of a trial: who is there, and how each of them is started."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from damage import JournalFolder
from network import HERE, Machine, Network
from roles import Trainer, run_dispatcher, run_foreign_worker, run_trainer, run_worker
from schedule import Schedule

from penstock.service.security.credentials import client_credentials
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import GetStatus

_processes = get_context("forkserver")
_processes.set_forkserver_preload(["roles", "penstock.service"])


@dataclass(frozen=True)
class Foreigner:
    """A worker or a trainer of another version.

    Attributes:
        newer: by how much its protocol's number is higher.
        result: the file in which it says how it has ended.
    """

    newer: int
    process: ForkServerProcess
    result: Path


class Cast:
    """The processes of one schedule, which all end with it.

    Args:
        folder: where they write what they get and what they say.

    Attributes:
        dispatcher: the newest one.
        newer: by how much its protocol's number is higher than that of the others.
        journal: where it keeps what it must remember.
        workers: all that were ever started.
        trainers: those that read, or have read to their end.
        dead: trainers that died and were not continued.
        foreigners: those who came, and are to be refused.
    """

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self._schedule = schedule
        self._folder = folder
        self.all: list[ForkServerProcess] = []
        self.workers: list[tuple[Machine, ForkServerProcess]] = []
        self.trainers: dict[str, tuple[Trainer, ForkServerProcess]] = {}
        self.dead: list[Trainer] = []
        self.foreigners: list[Foreigner] = []
        self.journal = JournalFolder(folder)
        self.newer = 0
        self._times = dict(schedule.times)
        self._port = 0
        self._network = Network(schedule.seed, folder / "keys") if schedule.network else None
        try:
            self.dispatchers = self.machine()
            self.places = [self.machine() for _ in range(schedule.workers)]
            self.trainer_machines = [self.machine() for _ in range(schedule.trainers)]
            self.start_dispatcher()
        except BaseException:
            self.end()
            raise

    def machine(self) -> Machine:
        """One more."""
        return HERE if self._network is None else self._network.machine()

    @property
    def port(self) -> int:
        """The dispatcher's."""
        return self._port

    @property
    def _service(self) -> str:
        return self.dispatchers.home.service(self._port)

    def start_dispatcher(self, newer: int = 0) -> None:
        """Start one that must come up."""
        refusal = self.try_dispatcher(newer)
        assert not refusal, f"the dispatcher did not start: {refusal}"

    def try_dispatcher(self, newer: int = 0) -> str:
        """Start one, which waits until it listens; gives why it refuses to, or ""."""
        here, there = _processes.Pipe()
        static = self._schedule.mode == "static"
        places = [machine.home.name for machine in self.places] if static else []
        home, journal = self.dispatchers.home, self.journal.path
        self.dispatcher = self._start(
            run_dispatcher, self._folder, home, self._port, places, self._times, journal, newer, there
        )
        self.newer = newer
        there.close()
        port_or_refusal = here.recv()
        if isinstance(port_or_refusal, str):
            return port_or_refusal
        self._port = port_or_refusal
        return ""

    def _start(self, target: Callable[..., None], *arguments: object) -> ForkServerProcess:
        process = _processes.Process(target=target, args=arguments, daemon=True)
        process.start()
        self.all.append(process)
        return process

    # Workers

    def start_worker(self, machine: Machine) -> None:
        """One more, there."""
        prints = self._schedule.kind == "prints"
        process = self._start(run_worker, self._folder, machine.home, self._service, prints)
        self.workers.append((machine, process))

    def worker_port(self, index: int) -> int:
        """Where a worker listens; 0 while it does not yet."""
        _, process = self.workers[index % len(self.workers)]
        return int(self._said(process).rpartition(":")[2])

    def kill(self, process: ForkServerProcess) -> None:
        """Kill a process, and before it the worker whose output it passes on."""
        pid = int(self._said(process).partition(" ")[0])
        if pid not in (0, process.pid):
            os.kill(pid, signal.SIGKILL)
        process.kill()

    def _said(self, process: ForkServerProcess) -> str:
        """The number of a worker's process, and where it listens."""
        address = self._folder / f"worker-{process.pid}.address"
        return address.read_text() if address.exists() else "0 :0"

    def await_workers(self, count: int) -> None:
        """Wait until the dispatcher knows so many."""
        keys = self.dispatchers.home.keys
        known = None
        if keys is not None:
            known = client_credentials(token_file=str(keys / "token"), roots=str(keys / "crt"))
        client = DispatcherClient(self._service, credentials=known)
        try:
            while len(client.ask(GetStatus()).workers) < count:
                time.sleep(0.01)
        finally:
            client.close()

    # Trainers

    def trainer(self, index: int) -> Trainer:
        """As the schedule wants the trainer of that index."""
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
            home=self.trainer_machines[index].home,
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
            manner=schedule.kind,
        )

    def start_trainer(self, trainer: Trainer) -> None:
        """Let it read, for the first time or again."""
        trainer.result.unlink(missing_ok=True)
        self.trainers[trainer.name] = trainer, self._start(run_trainer, trainer)

    def start_another_trainer(self) -> None:
        """One that was not there before."""
        number = len(self.dead) + len(self.trainers)
        self.start_trainer(replace(self.trainer(0), name=f"trainer-{number}"))

    def bury(self, trainer: Trainer) -> None:
        """It has died, and is not continued."""
        self.dead.append(self.trainers.pop(trainer.name)[0])

    def begin_again(self, lease_seconds: float) -> None:
        """A dispatcher that knows nothing takes the place of the last one, and all trainers of a shared job come back.

        Where one of them had nothing to save yet, they begin a new run: a dispatcher that knows nothing may take it for
        the first reader of a new job, and give it what others will say is theirs.

        Args:
            lease_seconds: of the dispatchers from now on; all trainers must be there within this time.
        """
        for _, process in self.trainers.values():
            process.kill()
            process.join()
        checkpoints = [trainer.saved() for trainer, _ in self.trainers.values()]
        if not all(saved and saved[0]["given"] for saved in checkpoints):
            for trainer, _ in self.trainers.values():
                trainer.log.unlink(missing_ok=True)
                trainer.checkpoint.unlink(missing_ok=True)
        self.dead.clear()
        self._times["lease_seconds"] = lease_seconds
        self.start_dispatcher()
        for trainer, _ in list(self.trainers.values()):
            self.start_trainer(trainer)

    # Others

    def start_foreign_worker(self, newer: int) -> None:
        """A worker of another version comes."""
        result = self._folder / f"foreigner-{len(self.foreigners)}.result"
        home = self.places[0].home
        process = self._start(run_foreign_worker, self._folder, home, self._service, newer, result)
        self.foreigners.append(Foreigner(newer, process, result))

    def start_foreign_trainer(self, index: int, newer: int) -> None:
        """A trainer of another version comes, which wants to read the same."""
        trainer = self.trainer(index % self._schedule.trainers)
        trainer = replace(trainer, name=f"foreigner-{len(self.foreigners)}", newer=newer)
        self.foreigners.append(Foreigner(newer, self._start(run_trainer, trainer), trainer.result))

    def end(self) -> None:
        """End all of them."""
        for process in self.all:
            process.kill()
        for process in self.all:
            process.join()
            process.close()
        if self._network is not None:
            self._network.close()
