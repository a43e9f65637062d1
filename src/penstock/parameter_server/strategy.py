"""`ParameterServerStrategy`: server processes that hold variables, and how variables are divided among them."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal, Self

import jax
import numpy as np

from penstock.data.dataset import Dataset
from penstock.distribute.contexts import InputContext, strategy_scope
from penstock.distribute.framework import frameworks_scope
from penstock.errors import ClosedError, InvalidArgumentError, InvalidTypeError, UnavailableError
from penstock.options import check_integer
from penstock.parameter_server.closures import dumps
from penstock.parameter_server.engine import Engine, engine_of
from penstock.parameter_server.frameworks import reduced_by_any, take_all_back
from penstock.parameter_server.messages import Create, Message, ProcessLine
from penstock.parameter_server.partitioners import Partitioner, row_bounds
from penstock.parameter_server.rules import OptaxRule, Rule
from penstock.parameter_server.variables import (
    ServerLines,
    ServerTable,
    ServerVariables,
    VariableShard,
    VariablesLayout,
    lost,
)
from penstock.runtime.at_exit import end_before_libraries, forget
from penstock.runtime.shared_memory import Arena


class ParameterServerStrategy:
    """Variables on servers, for workers that come and go; a `ps.ClusterCoordinator` runs functions on these.

    Servers end with the strategy. JAX computes their updates on the processor.

    Args:
        num_workers: how many worker processes a coordinator starts.
        num_ps: how many servers hold the variables.
        engine: "local", the processes of this machine; "ray", actors of the Ray cluster that this program is in, with
            one CPU each; or a `ps.ray.ParameterServers(...)`, which says what the actors need and where they run.
        variable_partitioner: into how many shards a variable is divided along its first axis, such as
            `ps.parameter_server.MinSizePartitioner()`; a variable is one shard if None. The shards go to the servers in
            turn.

    Raises:
        InvalidArgumentError: a number below 1, or another engine; a Ray cluster of several machines, unencrypted.
        UnavailableError: a server did not start; there is no Ray cluster, or no place in it.
        MissingExtraError: Ray is not installed.

    Example:
        >>> import numpy as np, optax
        >>> import penstock as ps
        >>> with ps.ParameterServerStrategy(num_workers=1, num_ps=1) as strategy:
        ...     weights = strategy.create_variables({"w": np.zeros(2, np.float32)}, optax.sgd(0.5))
        ...     coordinator = ps.ClusterCoordinator(strategy)
        ...     for _ in range(3):
        ...         _ = coordinator.schedule(lambda: weights.push({"w": np.ones(2, np.float32)}))
        ...     coordinator.join()
        ...     print(weights.read()["w"])
        [-1.5 -1.5]
    """

    def __init__(
        self,
        num_workers: int,
        num_ps: int = 1,
        engine: Literal["local", "ray"] | Engine = "local",
        variable_partitioner: Partitioner | None = None,
    ) -> None:
        self.num_workers = check_integer("ps.ParameterServerStrategy", "num_workers", num_workers, minimum=1)
        self.num_ps = check_integer("ps.ParameterServerStrategy", "num_ps", num_ps, minimum=1)
        if variable_partitioner is not None and not callable(variable_partitioner):
            raise InvalidTypeError(
                "ps.ParameterServerStrategy(variable_partitioner=...) takes a function such as "
                f"ps.parameter_server.FixedShardsPartitioner(2), got {variable_partitioner!r}"
            )
        self._partitioner = variable_partitioner
        self._arena = Arena()
        self.started_processes = engine_of(engine).start()
        started = self.started_processes.start_servers(self.num_ps, self._arena)
        self.servers = [server.process for server in started]
        self.controls = [server.control for server in started]
        self._server_lines = ServerLines([server.reader for server in started])
        self.variables: list[ServerVariables] = []
        self.saved: list[ServerVariables] = []
        self._next_server = itertools.cycle(range(self.num_ps))
        self.stopped = False
        self.coordinator: Any = None
        end_before_libraries(self, ParameterServerStrategy.stop)
        for server, control in enumerate(self.controls):
            if control.receive() is None:
                self.stop()
                raise lost(server)

    def create_variables(self, values: Any, optimizer: Any) -> ServerVariables:
        """Create variables on the servers, which pushed gradients change by their own optimizer.

        Args:
            values: their first values: a pytree of arrays and numbers.
            optimizer: an optax.GradientTransformation. Each server applies it to the shards that it holds: what it
                computes over all leaves, such as a global norm, is over those.

        Raises:
            InvalidTypeError: leaves that are no arrays of numbers, or no optimizer.
            InvalidArgumentError: no leaf at all.
            UnavailableError: a server is lost.
        """
        return self.create_by_rule(values, _rule_of(optimizer))

    def create_by_rule(self, values: Any, rule: Rule, *, saved: bool = True) -> ServerVariables:
        """Variant of `create_variables` for any rule of applying pushes; checkpoints may omit them."""
        variables = ServerVariables(self._create(values, rule, table=False), self._server_lines)
        self.variables.append(variables)
        if saved:
            self.saved.append(variables)
        return variables

    def create_table(self, values: Any, optimizer: Any) -> ServerTable:
        """A table, such as of embeddings. Functions read and push single rows of it, and pay only for these.

        The optimizer changes only pushed rows, and of its state only their part: of Adam that is its lazy form.

        Args:
            values: its first rows: an array with a leading axis.
            optimizer: an optax.GradientTransformation.

        Raises:
            InvalidTypeError, InvalidArgumentError, UnavailableError: as `create_variables`; or an array without rows.
        """
        values = np.asarray(values)
        if values.ndim == 0 or len(values) == 0:
            raise InvalidArgumentError(f"create_table: expected an array with rows, got one of shape {values.shape}")
        table = ServerTable(self._create(values, _rule_of(optimizer), table=True), self._server_lines)
        self.variables.append(table)
        self.saved.append(table)
        return table

    def _create(self, values: Any, rule: Rule, *, table: bool) -> VariablesLayout:
        self._check_open()
        leaves, structure = jax.tree.flatten(values)
        arrays = [np.asarray(leaf, np.float32 if isinstance(leaf, float) else None) for leaf in leaves]
        if not arrays:
            raise InvalidArgumentError("create_variables: expected a pytree with an array at least, got none")
        if odd := [array.dtype for array in arrays if array.dtype.kind in "OUSMm"]:
            raise InvalidTypeError(f"create_variables: expected arrays of numbers, got one of {odd[0]}")
        tree = jax.tree.unflatten(structure, range(len(arrays)))
        shards = tuple(
            VariableShard(leaf, begin, stop, next(self._next_server))
            for leaf, array in enumerate(arrays)
            for begin, stop in row_bounds(array.shape, array.dtype, self._partitioner)
        )
        layout = VariablesLayout(
            len(self.variables), tree, tuple(a.shape for a in arrays), tuple(a.dtype for a in arrays), shards
        )

        def request(server: int) -> Callable[[ProcessLine], Message]:
            shards = layout.on(server)
            parts = [shard.cut(arrays[shard.leaf]) for shard in shards]
            content = dumps("the optimizer", rule.for_shards([shard.leaf for shard in shards]))
            return lambda line: Create(layout.number, content, table, tuple(map(line.part, parts)))

        self._server_lines.ask({server: request(server) for server in layout.servers})
        return layout

    @contextmanager
    def scope(self) -> Iterator[Self]:
        """A context in which Keras's models, optimizers and metrics are made whose variables live on the servers.

        They are moved there when a function that uses them is scheduled first, or a checkpoint is taken. From then on
        their values here are the newest ones, and assigning to them changes those.

        Raises:
            InvalidArgumentError: on entry, inside the scope of another strategy.
        """
        self._check_open()
        with strategy_scope(self), frameworks_scope():
            yield self

    def distribute_dataset(self, dataset: Any) -> Any:
        """A dataset that every worker reads whole: nothing is sharded, as in TensorFlow.

        Give it to `create_per_worker_dataset`, or return it from the function that this gets.

        Raises:
            InvalidTypeError: no dataset.
        """
        if not isinstance(dataset, Dataset):
            raise InvalidTypeError(f"distribute_dataset: expected a ps.Dataset, got {type(dataset).__name__}")
        return dataset

    def distribute_datasets_from_function(self, dataset_fn: Callable[[InputContext], Any]) -> Any:
        """A dataset for each worker, which a function makes there from its `ps.InputContext`.

        Give it to `create_per_worker_dataset`, or return it from the function that this gets.

        Raises:
            InvalidTypeError: no function.
        """
        if not callable(dataset_fn):
            raise InvalidTypeError(
                f"distribute_datasets_from_function: expected a function, got {type(dataset_fn).__name__}"
            )
        return dataset_fn

    def pickled(self, what: str, value: Any) -> bytes:
        """Return what goes to a worker as bytes; variables that were made in the scope stay on the servers.

        Raises:
            InvalidTypeError: something in it exists in this process only.
            InvalidArgumentError: a variable that was made outside the scope.
        """
        return dumps(what, value, partial(reduced_by_any, self))

    def __reduce__(self) -> Any:
        return OnWorker, (self.num_workers, self.num_ps)

    def take_coordinator(self, coordinator: Any) -> None:
        """Note the coordinator, which is stopped before the servers.

        Raises:
            InvalidArgumentError: there is one already.
        """
        self._check_open()
        if self.coordinator is not None:
            raise InvalidArgumentError(
                "this strategy has a ps.ClusterCoordinator already: it takes one, which schedules everything"
            )
        self.coordinator = coordinator

    @property
    def server_lines(self) -> ServerLines:
        """Return how this process reaches the servers."""
        return self._server_lines

    def _check_open(self) -> None:
        if self.stopped:
            raise ClosedError("this strategy was stopped, and its variables with it: make another one")

    def stop(self) -> None:
        """End its coordinator, the workers and the servers. A second call does nothing.

        Variables of Keras have their newest values in this process from then on, unless a server is lost.
        """
        if self.stopped:
            return
        self.stopped = True
        forget(self)
        if self.coordinator is not None:
            self.coordinator.stop()
        with suppress(UnavailableError):
            if self.variables:
                take_all_back(self)
        for line in (*self.controls, *self._server_lines.lines):
            line.close()
        for process in self.servers:
            process.end()
        self._arena.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class OnWorker:
    """The strategy as functions on workers see it: it makes their datasets."""

    def __init__(self, num_workers: int, num_ps: int) -> None:
        self.num_workers = num_workers
        self.num_ps = num_ps

    distribute_dataset = ParameterServerStrategy.distribute_dataset
    distribute_datasets_from_function = ParameterServerStrategy.distribute_datasets_from_function


def _rule_of(optimizer: Any) -> Rule:
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise InvalidTypeError(f"optimizer: expected an optax.GradientTransformation, got {optimizer!r:.80}")
    return OptaxRule(optimizer)
