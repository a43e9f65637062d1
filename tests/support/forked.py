"""Processes that are forked from one which has penstock loaded: they start in 0.04 s, where Python takes a second.

With `training=True` that one has JAX, Keras and Orbax loaded too, which takes three seconds of processor time; it has
not started JAX's backend, whose threads do not survive a fork, and JAX will see the CPU alone.

`Forked(...)` runs what `python -m NAME ...`, `python -c CODE ...` or `python FILE ...` would, in this directory and
with this environment, and is used as a `subprocess.Popen` in text mode is. Tests that are about how an interpreter
starts or ends, such as which packages it imports, start their own. `popen` starts the processes that penstock itself
starts in a process of the tests: workers of `ps.service.local`, workers and servers of `ps.ParameterServerStrategy`.
Programs that tests start are without it: there these processes are penstock's own.

As a program this is the process that forks, one for all processes of a test run: the first that needs it starts it.
What it has forked for a process ends when that process does, and it ends with the last of them.
"""

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

# What the commands and programs of the tests need, and the functions of tests that run in them.
PRELOADED = (
    "penstock",
    "penstock.cli",
    "penstock.service",
    "penstock.service.transport.dispatcher_client",
    "penstock.service.dispatcher.server",
    "penstock.service.worker.server",
    "penstock.service.transport.block_server",
    "penstock.service.transport.in_process",
    "cloudpickle",
    "pytest",
)
# Imported alone: a thread that JAX runs once it is used does not survive a fork.
PRELOADED_FOR_TRAINING = (
    "penstock.cli",
    "jax",
    "keras",
    "optax",
    "orbax.checkpoint",
    "penstock.demo.train",
    "penstock.parameter_server.server",
    "penstock.parameter_server.worker",
)

_MOST_DESCRIPTORS = 32  # of one process, its standard ones among them


class Forked:
    """A process that was forked for a command line.

    Args:
        arguments: "-m" and a module's name, "-c" and a program, or a file; and its arguments.
        pipes: which of "stdin", "stdout" and "stderr" are pipes to this process, open in text mode; the others are
            this process's own.
        env: its environment; None is this process's own.
        directory: where it runs; None is where this process is.
        training: whether it trains, with JAX or Keras.
        descriptors: open files of this process that it gets, under the same numbers.
        text: whether the pipes are open in text mode here.
        session: whether it leads a session, so that Ctrl-C at a terminal does not reach it.
    """

    def __init__(
        self,
        *arguments: str,
        pipes: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        directory: Path | None = None,
        training: bool = False,
        descriptors: Sequence[int] = (),
        text: bool = True,
        session: bool = False,
    ) -> None:
        self.returncode: int | None = None
        self._reports, reports = os.pipe()
        theirs, ends = [], dict[str, IO[Any] | None](stdin=None, stdout=None, stderr=None)
        for number, name in enumerate(ends):
            if name in pipes:
                mine, other = os.pipe() if number else reversed(os.pipe())
                ends[name] = os.fdopen(mine, ("r" if number else "w") + ("" if text else "b"), -1 if text else 0)
                theirs.append(other)
            else:
                theirs.append(os.dup(number))
        request = {
            "arguments": arguments,
            "directory": str(directory or Path.cwd()),
            "environment": dict(env or os.environ),
            "descriptors": descriptors,
            "session": session,
        }
        given = [*theirs, reports, *descriptors]
        socket.send_fds(_forking(training), [json.dumps(request).encode() + b"\n"], given)
        for descriptor in (*theirs, reports):
            os.close(descriptor)
        self.stdin, self.stdout, self.stderr = ends.values()
        self._buffered = b""
        self._waiting = threading.Lock()
        self.pid = int(self._report(None).split()[1])

    def _report(self, timeout: float | None) -> str:
        """The next line about the process: "started PID", "stopped" or "ended STATUS"."""
        until = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._buffered:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self._reports], [], [], left)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            read = os.read(self._reports, 4096)
            assert read, "the process that forks has ended"
            self._buffered += read
        line, _, self._buffered = self._buffered.partition(b"\n")
        return line.decode()

    def wait(self, timeout: float | None = None) -> int:
        """The status with which it has ended, negative for a signal."""
        with self._waiting:
            while self.returncode is None:
                what, _, value = self._report(timeout).partition(" ")
                if what == "ended":
                    self.returncode = int(value)
                    os.close(self._reports)
            return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended, and nobody has said so yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def pause(self) -> None:
        """Stop it until it gets SIGCONT; it has stopped when this returns, which the signal alone does not say."""
        self.send_signal(signal.SIGSTOP)
        assert self._report(60) == "stopped"

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it still writes to its pipes, once it has ended."""
        if self.stdin is not None:
            self.stdin.close()
        with ThreadPoolExecutor(2) as pool:
            written = list(pool.map(_rest, (self.stdout, self.stderr)))
        self.wait(timeout)
        return written[0], written[1]


def popen(
    command: list[str],
    env: dict[str, str],
    stdin: int,
    stdout: int | None,
    pass_fds: Sequence[int],
    start_new_session: bool,
) -> Forked:
    """What stands for `subprocess.Popen` in `penstock.runtime.child_process`."""
    python, *arguments = command
    assert python == sys.executable
    pipes = [name for name, end in (("stdin", stdin), ("stdout", stdout)) if end == subprocess.PIPE]
    return Forked(
        *arguments,
        pipes=tuple(pipes),
        env=env,
        training="penstock.parameter_server.process" in command,  # with JAX
        descriptors=pass_fds,
        text=False,
        session=start_new_session,
    )


def _rest(pipe: IO[str] | None) -> str:
    if pipe is None or pipe.closed:
        return ""
    with pipe:
        return pipe.read()


def run(*arguments: str, timeout: float = 60, **more: Any) -> "subprocess.CompletedProcess[str]":
    """As `subprocess.run` does, with its output captured."""
    process = Forked(*arguments, pipes=("stdin", "stdout", "stderr"), **more)
    output, errors = process.communicate(timeout)
    return subprocess.CompletedProcess(arguments, process.wait(), output, errors)


@cache
def _forking(training: bool) -> socket.socket:
    """The way to the process that forks, which another process of this test run may have started."""
    address = Path(os.environ["FORKING_DIRECTORY"], "training" if training else "plain")
    connection = socket.socket(socket.AF_UNIX)
    atexit.register(connection.close)
    with address.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(str(address))
        except (FileNotFoundError, ConnectionRefusedError):  # nobody needed it before, or only who has ended
            address.unlink(missing_ok=True)
            _start_forking(address, training)
            connection.connect(str(address))
    return connection


def _start_forking(address: Path, training: bool) -> None:
    names = PRELOADED_FOR_TRAINING if training else PRELOADED
    environment = os.environ | ({"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"} if training else {})
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        listening.listen()
        listening.set_inheritable(True)
        # Not waited for: it may outlive the process of the tests that has started it.
        command = [sys.executable, __file__, str(listening.fileno()), *names]
        os.posix_spawn(sys.executable, command, environment, setsid=True)


# The process that forks


class Forking:
    """Forks for every request, and reports what becomes of each process that it has forked."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._children: dict[socket.socket, set[int]] = {}
        self._reports: dict[int, int] = {}
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno())

    def serve(self) -> None:
        """Until all who have asked it for processes have ended."""
        self._accept()
        while self._children:
            ready = select.select([self._listening, self._woken, *self._children], [], [])[0]
            if self._woken in ready:
                self._woken.recv(4096)
                self._report_children()
            if self._listening in ready:
                self._accept()
            for connection in self._children.keys() & set(ready):
                request, descriptors = _request(connection)
                if request:
                    self._fork(json.loads(request), descriptors, connection)
                else:
                    self._leave(connection)

    def _accept(self) -> None:
        self._children[self._listening.accept()[0]] = set()

    def _leave(self, connection: socket.socket) -> None:
        connection.close()
        for child in self._children.pop(connection) & self._reports.keys():
            os.kill(child, signal.SIGKILL)

    def _report_children(self) -> None:
        while self._reports:
            child, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if not child:
                return
            if os.WIFSTOPPED(status):
                self._report(child, "stopped")
            else:
                self._report(child, f"ended {os.waitstatus_to_exitcode(status)}")
                os.close(self._reports.pop(child))

    def _report(self, child: int, what: str) -> None:
        try:
            os.write(self._reports[child], f"{what}\n".encode())
        except BrokenPipeError:  # nobody waits for it
            return

    def _fork(self, request: dict[str, Any], descriptors: list[int], connection: socket.socket) -> None:
        child = os.fork()
        if child == 0:
            self._close()
            _become(request, descriptors)
        self._children[connection].add(child)
        self._reports[child] = descriptors.pop(3)
        for descriptor in descriptors:
            os.close(descriptor)
        self._report(child, f"started {child}")

    def _close(self) -> None:
        """Leave what only the process that forks needs."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self._listening, self._woken, self._wake, *self._children):
            end.close()
        for report in self._reports.values():
            os.close(report)


def _request(connection: socket.socket) -> tuple[bytes, list[int]]:
    request, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, _MOST_DESCRIPTORS)
    while request and not request.endswith(b"\n"):
        request += connection.recv(1 << 16)
    return request, descriptors


def _become(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Run what was asked for, as the interpreter does."""
    os.close(descriptors.pop(3))
    # Out of the way of the numbers that they are to have.
    least = max([2, *request["descriptors"]]) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for number, descriptor in zip((0, 1, 2, *request["descriptors"]), moved, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if request["session"]:
        os.setsid()
    # As a process in the foreground of a shell has them, however the tests were started.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path += [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry not in sys.path]
    program, *arguments = request["arguments"]
    if program == "-m":
        module, *arguments = arguments
        sys.argv = [module, *arguments]
        sys.path.insert(0, request["directory"])
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif program == "-c":
        code, *arguments = arguments
        sys.argv = ["-c", *arguments]
        sys.path.insert(0, request["directory"])
        sys.modules["__main__"] = main_module = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(main_module))
    else:
        sys.argv = [program, *arguments]
        sys.path.insert(0, str(Path(program).parent))
        runpy.run_path(program, run_name="__main__")
    sys.exit()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those that it has forked
    listening = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    # What is loaded stays: looking for garbage in it, at the end of each process too, would copy it all.
    gc.collect()
    gc.freeze()
    Forking(listening).serve()


if __name__ == "__main__":
    main()
