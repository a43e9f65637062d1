"""Lets happen to the processes of a trial what its schedule says."""

import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import ForkServerProcess

from cast import Cast
from network import Machine
from roles import Trainer
from schedule import Damage, Fault, Schedule

_TERMINATION_SECONDS = 5.0
"""How long a process may take to end at SIGTERM, before it is killed."""
_LONG_LEASE_SECONDS = 5.0
"""Within this time all trainers of a shared job are back after the loss of a journal, also on a busy machine."""
_STRANGERS = 21
_GREETING = b"penstock rpc 1\r\n"
"""What somebody says first who wants to prove that he knows the secret."""
_AGAIN_SECONDS = 0.1
"""After which time what is to happen to a dispatcher is tried again, where there is none."""
_REMEDIES = {"copy": "from a copy", "anew": "choose another work_dir"}
"""What a dispatcher that refuses to go on says that can be done."""


class Breaking:
    """What goes wrong in a trial.

    Args:
        lock: held by whoever changes the cast.

    Attributes:
        happened: the kinds of what did go wrong, and of what the schedule asks of readers.
        begun: when the last fault happened.
        healed: when the last one was over.
        failure: what went wrong in another way than it should.
    """

    def __init__(self, schedule: Schedule, cast: Cast, lock: threading.Lock) -> None:
        self._schedule = schedule
        self._cast = cast
        self._lock = lock
        self._timers: list[threading.Timer] = []
        self._over = False
        self._repairs = 0
        self._strangers: list[socket.socket] = []
        self.begun = self.healed = 0.0
        self.failure: Exception | None = None
        self.happened: set[str] = set()
        if schedule.idle:
            self.happened.add("idle")
        if any(schedule.paces):
            self.happened.add("slow")
        if schedule.kind in ("forks", "refuses", "prints"):
            self.happened.add(schedule.kind)

    def begin(self) -> None:
        """Let it all happen at its time."""
        for fault in self._schedule.faults:
            self._later(fault.at, lambda fault=fault: self._do(fault))

    def end(self) -> None:
        """Let nothing happen any more."""
        with self._lock:
            self._over = True
        for timer in self._timers:
            timer.cancel()
            timer.join()
        self._leave()

    @property
    def repairs(self) -> bool:
        """Whether a dispatcher is away that may refuse to come back, or another version is in its place."""
        return self._repairs > 0

    def restore(self, trainer: Trainer) -> None:
        """Let a trainer go on from its checkpoint."""
        if trainer.older:
            self.happened.add("older")
        self._cast.start_trainer(trainer)

    def replace(self, trainer: Trainer) -> None:
        """A trainer that has ended comes back: from its checkpoint, or as another one."""
        if trainer.checkpoints:
            self.restore(trainer)
            return
        self._cast.bury(trainer)
        self._cast.start_another_trainer()

    # When

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        def locked() -> None:
            with self._lock:
                if self._over:
                    return
                try:
                    act()
                except Exception as error:
                    self.failure = error

        timer = threading.Timer(seconds, locked)
        self._timers.append(timer)
        timer.start()

    def _heal(self, seconds: float, act: Callable[[], None]) -> None:
        def healed() -> None:
            act()
            self.healed = time.monotonic()

        self._later(seconds, healed)

    def _repair(self, seconds: float, act: Callable[[], None]) -> None:
        """Heal what the trial waits for, also where all have read to their end."""

        def repaired() -> None:
            act()
            self._repairs -= 1

        self._repairs += 1
        self._heal(seconds, repaired)

    # What

    def _do(self, fault: Fault) -> None:
        if fault.role == "dispatcher" and not self._cast.dispatcher.is_alive():
            self._later(_AGAIN_SECONDS, lambda: self._do(fault))  # another fault has it
            return
        self.begun = time.monotonic()
        if fault.what == "add":
            self._add()
        elif fault.what in ("cut", "lose"):
            self._part(fault)
        elif fault.what == "roll":
            self._roll()
        elif fault.what == "knock":
            self._knock(fault)
        elif fault.what == "fill":
            self._fill_disk(fault)
        elif fault.what == "damage":
            self._damage(fault)
        elif fault.what == "version":
            self._send_another_version(fault)
        else:
            self._hit(fault)

    def _add(self) -> None:
        if self._schedule.mode != "static":  # it has a place for each worker, and no more
            self.happened.add("add")
            self._cast.start_worker(self._cast.machine())

    def _part(self, fault: Fault) -> None:
        """Cut a machine off, or let trainers lose one of the workers."""
        cast = self._cast
        machines = {
            "worker": [machine for machine, _ in cast.workers],
            "trainer": cast.trainer_machines,
            "dispatcher": [cast.dispatchers],
        }[fault.role]
        machine = machines[fault.index % len(machines)]
        self.happened.add(fault.what)
        if fault.what == "cut":
            machine.cut()
            self._heal(fault.seconds, machine.mend)
            return
        for trainer in cast.trainer_machines:
            trainer.lose(machine)
            self._heal(fault.seconds, lambda trainer=trainer: trainer.find(machine))

    def _roll(self) -> None:
        """Let all workers leave in turn, and others take their places."""

        def replace(machine: Machine, process: ForkServerProcess) -> None:
            if process.is_alive():
                self.happened.add("roll")
                process.terminate()
                self._cast.start_worker(machine)

        for number, (machine, process) in enumerate(list(self._cast.workers)):
            self._later(0.3 * number, lambda machine=machine, process=process: replace(machine, process))

    def _knock(self, fault: Fault) -> None:
        """Let strangers connect; some say nothing, some half of what they should, the others a byte now and then."""
        cast = self._cast
        port = cast.port if fault.role == "dispatcher" else cast.worker_port(fault.index)
        with suppress(OSError):  # another fault may have ended it by now
            self._strangers += [socket.create_connection(("localhost", port)) for _ in range(_STRANGERS)]
            self.happened.add(f"knock {fault.role}")
        for stranger in self._strangers[1::3]:
            _say(stranger, 2 * _GREETING)
        dripping = self._strangers[::3]
        for number in range(int(fault.seconds / _AGAIN_SECONDS)):
            self._later(
                number * _AGAIN_SECONDS, lambda said=_GREETING[number : number + 1] or b"\0": _drip(dripping, said)
            )
        self._heal(fault.seconds, self._leave)

    def _leave(self) -> None:
        while self._strangers:
            self._strangers.pop().close()

    def _fill_disk(self, fault: Fault) -> None:
        """Let the dispatcher write no more than its journal holds now."""
        process = self._cast.dispatcher
        assert process.pid is not None
        self.happened.add("fill")
        size = max(file.stat().st_size for file in self._cast.journal.path.iterdir())
        _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, most))
        self._heal(fault.seconds, lambda: _give_room(process, most))

    def _hit(self, fault: Fault) -> None:
        """Kill, terminate or stop a process."""
        cast = self._cast
        if fault.role == "worker":
            machine, process = cast.workers[fault.index % len(cast.workers)]
            self._hit_process(fault, process, lambda: cast.start_worker(machine))
        elif fault.role == "dispatcher":
            self._hit_process(fault, cast.dispatcher, cast.start_dispatcher)
        elif cast.trainers:
            trainer, process = list(cast.trainers.values())[fault.index % len(cast.trainers)]
            self._hit_process(fault, process, lambda: self._continue(trainer, process))

    def _continue(self, trainer: Trainer, process: ForkServerProcess) -> None:
        if self._cast.trainers.get(trainer.name) == (trainer, process):  # otherwise it is back, or was buried
            self.replace(trainer)

    def _hit_process(self, fault: Fault, process: ForkServerProcess, restart: Callable[[], None]) -> None:
        if not process.is_alive():
            return
        assert process.pid is not None
        self.happened.add(fault.what)
        if fault.what in ("kill", "terminate"):
            self._cast.kill(process) if fault.what == "kill" else process.terminate()
            process.join(_TERMINATION_SECONDS)
            process.kill()
            process.join()
            self._heal(fault.seconds, restart)
        else:
            os.kill(process.pid, signal.SIGSTOP)
            self._heal(fault.seconds, lambda: _go_on(process))

    # A damaged journal

    def _damage(self, fault: Fault) -> None:
        """Spoil the journal of a dispatcher that is killed and started again."""
        damage = fault.damage
        assert damage is not None
        self._kill_dispatcher()
        if self._cast.journal.spoil(damage):
            self.happened.add("damage")
        self._repair(fault.seconds, lambda: self._start_from_damaged(damage))

    def _start_from_damaged(self, damage: Damage) -> None:
        """Where the dispatcher refuses to go on from its journal, do what it says that can be done."""
        refusal = self._cast.try_dispatcher()
        if not refusal:  # it must have lost nothing: what the readers get says so
            return
        self.happened.add("damage, refused")
        assert _REMEDIES[damage.remedy] in refusal, f"a dispatcher does not say what to do: {refusal}"
        if damage.remedy == "copy":
            self._cast.journal.bring_back()
            self._cast.start_dispatcher()
            return
        self._cast.journal.begin_anew()
        if self._schedule.mode == "shared":
            self._cast.begin_again(_LONG_LEASE_SECONDS)
        else:  # who reads alone or in step goes on by itself
            self._cast.start_dispatcher()

    # Another version

    def _send_another_version(self, fault: Fault) -> None:
        cast = self._cast
        self.happened.add("version")
        if fault.role == "worker":
            cast.start_foreign_worker(fault.newer)
        elif fault.role == "trainer":
            cast.start_foreign_trainer(fault.index, fault.newer)
        else:
            self._kill_dispatcher()
            cast.start_dispatcher(fault.newer)
            foreign = cast.dispatcher
            self._repair(fault.seconds, lambda: self._bring_right_version_back(foreign))

    def _bring_right_version_back(self, foreign: ForkServerProcess) -> None:
        if foreign is self._cast.dispatcher and foreign.is_alive():  # otherwise another fault ends it, or has done so
            self._kill_dispatcher()
            self._cast.start_dispatcher()

    def _kill_dispatcher(self) -> None:
        self._cast.dispatcher.kill()
        self._cast.dispatcher.join()


def _drip(strangers: list[socket.socket], said: bytes) -> None:
    for stranger in strangers:
        _say(stranger, said)


def _say(stranger: socket.socket, said: bytes) -> None:
    with suppress(OSError):  # it was turned away
        stranger.send(said)


def _go_on(process: ForkServerProcess) -> None:
    with suppress(ProcessLookupError):
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGCONT)


def _give_room(process: ForkServerProcess, most: int) -> None:
    with suppress(ProcessLookupError):
        if process.is_alive() and process.pid is not None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))
