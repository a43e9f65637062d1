"""`ClusterCoordinator`: schedules functions, and waits for their results."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import jax
import numpy as np

from penstock.errors import ClosedError, InvalidArgumentError, InvalidTypeError, StateMismatchError
from penstock.parameter_server.closures import dumps, loads
from penstock.parameter_server.commitments import Closure
from penstock.parameter_server.datasets import PerWorkerDataset, check_dataset
from penstock.parameter_server.dispatch import MOST_QUEUED, Dispatch
from penstock.parameter_server.frameworks import place_all
from penstock.parameter_server.functions import ScheduledFunctions
from penstock.parameter_server.strategy import ParameterServerStrategy
from penstock.parameter_server.variables import loading


class RemoteValue:
    """Result of a scheduled function, once it has run; from `ClusterCoordinator.schedule`.

    Example:
        >>> import penstock as ps
        >>> with ps.ParameterServerStrategy(num_workers=1) as strategy:
        ...     value = ps.ClusterCoordinator(strategy).schedule(max, args=(3, 4))
        ...     print(value.fetch())
        4
    """

    def __init__(self, value: "Future[bytes]") -> None:
        self._outcome = value

    def fetch(self) -> Any:
        """Wait for what the function returned, with arrays of JAX as NumPy's. Its pushes are applied by then.

        Raises:
            CancelledError: the function did not run, because another one had failed, or the coordinator was stopped.
            UnavailableError: a server is lost.
            WorkerError: the function has ended the processes of ten workers.
            Exception: what the function raised.
        """
        return loads(self._outcome.result())

    def __reduce__(self) -> Any:
        raise InvalidTypeError(
            "a ps.parameter_server.RemoteValue is no argument of a function on a worker: fetch it first"
        )


class ClusterCoordinator:
    """Runs functions on a strategy's workers: `schedule` queues them, and `join` waits for all.

    Each worker runs one function at a time. Gradients that a function pushes are applied once, when it has returned, on
    all servers or on none. If its worker is lost before, the function runs again on another one; what it does besides
    pushing may then be done twice. Where an optimizer raises on a server, nothing that the function pushed is applied.

    Args:
        strategy: its workers are started now, and end with it.
        watchdog_seconds: a worker whose function takes longer writes the stacks of its threads to standard error, and
            goes on; never if None.

    Raises:
        InvalidTypeError: not a ps.ParameterServerStrategy.
        InvalidArgumentError: the strategy has a coordinator already.

    Example:
        >>> import penstock as ps
        >>> with ps.ParameterServerStrategy(num_workers=1) as strategy:
        ...     coordinator = ps.ClusterCoordinator(strategy)
        ...     squares = coordinator.create_per_worker_dataset(ps.Dataset.range(1, 9).map(lambda x: x * x))
        ...     iterator = iter(squares)
        ...     values = [coordinator.schedule(lambda own: int(next(own)), args=(iterator,)) for _ in range(3)]
        ...     coordinator.join()
        ...     print(coordinator.fetch(values), coordinator.done())
        [1, 4, 9] True
    """

    def __init__(self, strategy: ParameterServerStrategy, watchdog_seconds: float | None = None) -> None:
        if not isinstance(strategy, ParameterServerStrategy):
            raise InvalidTypeError(
                f"ps.ClusterCoordinator: expected a ps.ParameterServerStrategy, got {type(strategy).__name__}"
            )
        if watchdog_seconds is not None and not watchdog_seconds > 0:
            raise InvalidArgumentError(f"watchdog_seconds: expected a time above 0, got {watchdog_seconds!r}")
        strategy.take_coordinator(self)
        self.strategy = strategy
        self._dispatch = Dispatch(strategy, watchdog_seconds)
        self._functions = ScheduledFunctions(strategy.pickled, self._dispatch.forget_function)
        self._closures = 0
        self._no_arguments = dumps("no arguments", ((), {}))

    def schedule(
        self, fn: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> RemoteValue:
        """Queue a call of a function on any worker; waits only while 262,144 of them are queued.

        Functions of the main program travel as code, with the values of its variables that they use, as these are when
        the function is scheduled first. An iterator over a per-worker dataset is its worker's own there.

        Args:
            fn: is called as `fn(*args, **kwargs)` in the worker's process.
            args: arrays, numbers and other values that can be sent; of a `RemoteValue` only the fetched value.
            kwargs: the same by name.

        Returns:
            A `RemoteValue`, whose `fetch()` waits for the result.

        Raises:
            InvalidTypeError: no function, or something in it or its arguments cannot be sent to another process.
            Exception: as `join`.
        """
        if not callable(fn):
            raise InvalidTypeError(f"schedule: expected a function, got {type(fn).__name__}")
        if not isinstance(args, (tuple, list)):
            raise InvalidTypeError(f"schedule: args is a tuple, got {type(args).__name__}")
        function = self._functions.get(fn)
        empty = not args and not kwargs
        arguments = self._no_arguments
        if not empty:
            arguments = self.strategy.pickled("an argument of the function", (tuple(args), kwargs or {}))
        dispatch = self._dispatch
        with dispatch.changed:
            self._raise_error()
            while len(dispatch.queue) >= MOST_QUEUED:
                dispatch.changed.wait()
                self._raise_error()
            self._functions.note_use(function)
            self._closures += 1
            closure = Closure(self._closures, function, arguments)
            dispatch.queue.append(closure)
            if dispatch.running < self.strategy.num_workers:
                dispatch.wake()
        return RemoteValue(closure.value)

    def join(self) -> None:
        """Wait until everything that was scheduled has run, and its pushes are applied.

        The first error of a function cancels all queued calls. It is kept until `join`, `done` or `schedule` raises it,
        when no function runs any more; then the coordinator takes new ones.

        Raises:
            Exception: what a function raised.
            UnavailableError: a server is lost.
            WorkerError: a function has ended the processes of ten workers, or workers cannot start.
            ClosedError: the strategy was stopped.
        """
        dispatch = self._dispatch
        with dispatch.changed:
            while dispatch.fatal is None and (dispatch.queue or dispatch.running):
                dispatch.changed.wait()
            self._raise_error()

    def done(self) -> bool:
        """Return whether everything that was scheduled has run; waits for nothing, unless a function has failed.

        Raises:
            Exception: as `join`.
        """
        with self._dispatch.changed:
            self._raise_error()
            return not (self._dispatch.queue or self._dispatch.running)

    def fetch(self, value: Any) -> Any:
        """Return a structure with each `RemoteValue` replaced by its value; all else passes through.

        Raises:
            Exception: as `RemoteValue.fetch`.
        """
        return jax.tree.map(lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf, value)

    def create_per_worker_dataset(self, dataset: Any) -> PerWorkerDataset:
        """A dataset that each worker reads by its own iterator; pass `iter(...)` of it to functions.

        Args:
            dataset: a `ps.Dataset`, which every worker reads whole; or a function that returns one, which may take a
                `ps.InputContext` with the worker's number, to shard it; or what the strategy has distributed.

        Raises:
            InvalidTypeError: neither, or it cannot be sent to another process.
        """
        check_dataset("create_per_worker_dataset", dataset)
        content = self.strategy.pickled("the dataset", dataset)

        return PerWorkerDataset(dataset, partial(self._dispatch.open_iterator, content), self._dispatch.forget_iterator)

    @property
    def worker_processes(self) -> list[int]:
        """The process id of each worker, such as for killing one in a test: another takes its place."""
        return self._dispatch.processes

    def _raise_error(self) -> None:
        """Raise the first error, once no function runs; with the lock held."""
        dispatch = self._dispatch
        if dispatch.error is not None:
            while dispatch.running and dispatch.fatal is None:
                dispatch.changed.wait()
            error, dispatch.error = dispatch.error, None
            raise error
        if dispatch.fatal is not None:
            if self.strategy.stopped:
                raise ClosedError("the strategy was stopped: make another one")
            raise dispatch.fatal

    def state_dict(self) -> dict[str, Any]:
        """Variables, optimizers and the workers' positions of one moment; functions continue to run.

        `ps.Checkpoint(coordinator=coordinator)` saves it.

        Raises:
            UnavailableError: a server is lost.
        """
        place_all(self.strategy)
        positions, arrays = self._dispatch.snapshot().result()
        return {
            "servers": self.strategy.num_ps,
            "arrays": [
                [server, number, *arrays[server, variables.layout.number]]
                for number, variables in enumerate(self.strategy.saved)
                for server in variables.layout.servers
            ],
            "positions": [[*key, loads(state)] for key, state in sorted(positions.items())],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state, before iterators are made and functions scheduled: they continue from it.

        The variables must have been created in the same order, with the same shapes, optimizers and `num_ps`.

        Raises:
            StateMismatchError: of other variables.
            InvalidArgumentError: an iterator was made already.
            UnavailableError: a server is lost.
        """
        if self._dispatch.opened:
            raise InvalidArgumentError("restore the coordinator before iterators over per-worker datasets are made")
        place_all(self.strategy)
        if state["servers"] != self.strategy.num_ps:
            raise StateMismatchError(
                f"the state is of {state['servers']} servers, and this strategy has {self.strategy.num_ps}: make it "
                f"with num_ps={state['servers']}"
            )
        variables = self.strategy.saved
        expected = [(server, number) for number, v in enumerate(variables) for server in v.layout.servers]
        if sorted(expected) != sorted((server, number) for server, number, _, _ in state["arrays"]):
            raise StateMismatchError(
                "the state is of other variables, or of a variable_partitioner of other shards: create the same ones "
                "in the same order, and build Keras's models and optimizers, before the state is restored"
            )
        requests = {}
        for server, number, values, leaves in state["arrays"]:
            held = variables[number].layout
            shapes = held.shapes_on(server)
            if shapes != [np.shape(value) for value in values]:
                raise StateMismatchError(
                    f"the state has variables of shapes {list(map(np.shape, values))}, not {shapes}"
                )
            requests[server, held.number] = (values, leaves)
        for (server, number), (values, leaves) in requests.items():
            self.strategy.server_lines.ask({server: loading(number, values, leaves)})
        with self._dispatch.changed:
            self._dispatch.positions.update(
                ((worker, number), dumps("a position", position)) for worker, number, position in state["positions"]
            )

    def stop(self) -> None:
        """End the workers; called by the strategy's `stop`."""
        self._dispatch.stop()
