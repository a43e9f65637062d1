"""A group of workers: all processes of a training job from one start to its end."""

import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.launch.cleanup_process import CleanupProcess
from penstock.launch.events import CheckpointWritten, Events, Signalled, WorkerEnded
from penstock.launch.worker import Output, WorkerProcess
from penstock.runtime.announcements import VARIABLE, Announcements
from penstock.runtime.ports import free_port

_DEVICES_FLAG: Final = "--xla_force_host_platform_device_count"

Cause = WorkerEnded | Signalled | CheckpointWritten


@dataclass(frozen=True)
class Group:
    """Runs groups of workers, one after the other, with the same command.

    Args:
        command: the program and its arguments.
        environment: that of the workers, without the variables about each other.
        outputs: where their standard output and their standard error go.
        events: reports of them.
        grace_seconds: how long workers have to end, before and after SIGTERM.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    devices_per_worker: int | None
    outputs: tuple[Output, Output]
    events: Events
    grace_seconds: float

    def run(self, num_workers: int, *, replaceable: bool, may_grow: bool) -> Cause | None:
        """Start the workers, and wait until all have ended; the first event that ended them, None if all gave 0.

        Args:
            num_workers: how many there are.
            replaceable: if it loses a worker, another group continues, and anything that the other workers still do is
                discarded.
            may_grow: the next checkpoint ends this group, so that a larger one resumes from there.
        """
        announcements = Announcements(lambda path: self.events.put(CheckpointWritten(path))) if may_grow else None
        variables = self._variables(num_workers)
        if announcements is not None:
            variables[VARIABLE] = str(announcements.path)
        workers: list[WorkerProcess] = []
        cleanup = CleanupProcess()
        try:
            for number in range(num_workers):
                own = variables | {"PENSTOCK_WORKER_INDEX": str(number)}
                workers.append(
                    WorkerProcess(self.command, own, number, self.outputs, cleanup, self._note_end, self.grace_seconds)
                )
            return self._until_all_ended(workers, replaceable)
        except BaseException:
            for worker in workers:
                worker.send(signal.SIGKILL)
            raise
        finally:
            for worker in workers:
                worker.join()
            cleanup.close()
            if announcements is not None:
                announcements.close()

    def _note_end(self, number: int, status: int) -> None:
        self.events.put(WorkerEnded(number, status))

    def _until_all_ended(self, workers: Sequence[WorkerProcess], replaceable: bool) -> Cause | None:
        """Wait for all workers; end them when one fails or the launcher has to end. Gives the first such event."""
        running = {worker.number: worker for worker in workers}
        cause: Cause | None = None
        steps: list[int] = []  # the signals that are still to come, one whenever the deadline has passed
        deadline = 0.0

        def send(signal_number: int) -> None:
            for worker in running.values():
                worker.send(signal_number)

        while running:
            event = self.events.get(timeout=max(0.0, deadline - time.monotonic()) if steps else None)
            if event is None:
                send(steps.pop(0))
                deadline = time.monotonic() + self.grace_seconds
                continue
            if isinstance(event, CheckpointWritten):
                if cause is None and len(running) == len(workers):  # a worker that has ended does not come back
                    cause = event
                    send(signal.SIGKILL)
                continue
            if isinstance(event, WorkerEnded):
                del running[event.number]
            if cause is None and event.exit_status:
                cause, deadline = event, time.monotonic() + self.grace_seconds
                steps = [signal.SIGTERM, signal.SIGKILL]
                if isinstance(event, Signalled):
                    send(signal.SIGTERM if event.signal_number == signal.SIGPIPE else event.signal_number)
                    steps = [signal.SIGKILL]
                elif replaceable:
                    send(signal.SIGKILL)
                    steps = []
            elif isinstance(event, Signalled):
                if replaceable or isinstance(cause, CheckpointWritten):
                    cause = event  # so that no other group starts
                if event.signal_number != signal.SIGPIPE:
                    send(signal.SIGKILL)
                    steps = []
        return cause

    def _variables(self, num_workers: int) -> dict[str, str]:
        """The environment variables of all workers."""
        variables = {
            "PYTHONUNBUFFERED": "1",  # Python would buffer its output to a pipe
            **self.environment,
            "PENSTOCK_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
            "PENSTOCK_NUM_WORKERS": str(num_workers),
        }
        if self.devices_per_worker is not None:
            others = re.sub(rf"{_DEVICES_FLAG}(=\S*)?(?!\S)", "", variables.get("XLA_FLAGS", "")).split()
            variables["XLA_FLAGS"] = " ".join([*others, f"{_DEVICES_FLAG}={self.devices_per_worker}"])
            variables["JAX_PLATFORMS"] = "cpu"
            variables.pop("JAX_NUM_CPU_DEVICES", None)  # it would count instead of the flag
        return variables
