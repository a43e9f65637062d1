"""Variables on servers, as the program and its workers see them: read, and pushed to."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import msgspec
import numpy as np

from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError, UnavailableError
from penstock.parameter_server.messages import (
    Answer,
    LoadVariables,
    Message,
    ProcessLine,
    ReadRows,
    ReadState,
    ReadVariables,
)
from penstock.rpc.line import SECONDS, Array


class VariableShard(msgspec.Struct, frozen=True):
    """Rows `begin` to `end` of a leaf, and the server that holds them."""

    leaf: int
    begin: int
    end: int
    server: int

    def cut(self, leaf: Array) -> Array:
        """The shard's part of the whole leaf."""
        return leaf[self.begin : self.end] if leaf.ndim else leaf


class VariablesLayout(msgspec.Struct, frozen=True):
    """Location of variables: pickled with every handle of them.

    Attributes:
        number: of the variables, on every server.
        tree: their structure, with the number of its leaf instead of each.
        shapes, dtypes: of the leaves.
    """

    number: int
    tree: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    shards: tuple[VariableShard, ...]

    def on(self, server: int) -> list[VariableShard]:
        """The shards on a server, in the order in which it holds them."""
        return [shard for shard in self.shards if shard.server == server]

    def shapes_on(self, server: int) -> list[tuple[int, ...]]:
        """The shapes of these shards."""
        return [shard.cut(np.broadcast_to(0, self.shapes[shard.leaf])).shape for shard in self.on(server)]

    @property
    def servers(self) -> list[int]:
        """The servers that hold any of them."""
        return sorted({shard.server for shard in self.shards})


TakePush = Callable[[int, int, list[Array]], None]


class ServerLines:
    """Connection of this process to the servers: on a worker, or in the program that made the strategy.

    Attributes:
        push: takes gradients for a server, by the number of their variables; None where nothing can be pushed.
        closures: how many closures this worker has begun.
        worker: the number of the worker; 0 in the program.
        broken: whether a line has ended, or another machine cannot be reached; it does not come back.
        before_end: called when the function that runs has returned; their pushes are the function's too.
    """

    def __init__(self, lines: Sequence[ProcessLine], push: TakePush | None = None, worker: int = 0) -> None:
        self.lines = list(lines)
        self.worker = worker
        self.push = push
        self.closures = 0
        self.broken = False
        self.before_end: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)

    def next_number(self) -> int:
        """The number of a new request."""
        return next(self._numbers)

    def ask(self, requests: dict[int, Callable[[ProcessLine], Message]]) -> dict[int, list[Array]]:
        """Send each server its request, and then wait for all answers.

        Raises:
            UnavailableError: a server is lost.
            InvalidArgumentError: a server refuses the request; the message says why.
        """
        with self._lock:
            return self._ask(requests)

    def _ask(self, requests: dict[int, Callable[[ProcessLine], Message]]) -> dict[int, list[Array]]:
        number, begun = self.next_number(), time.monotonic()
        try:
            for server, request in requests.items():
                self.lines[server].take_back()
                self.lines[server].send(request(self.lines[server]), number=number)
        except OSError as error:
            self.broken = True
            raise lost(server) from error
        answers: dict[int, list[Array]] = {}
        refused = ""
        for server in requests:
            line = self.lines[server]
            answer = line.answer_to(number)
            if not isinstance(answer, Answer):
                self.broken = True
                waited = time.monotonic() - begun
                raise lost(server) if waited < SECONDS else silent(server, waited)
            refused = refused or answer.error
            answers[server] = [line.array(part) for part in answer.values]
        if refused:
            raise InvalidArgumentError(f"a parameter server refused the request: {refused}")
        return answers


def lost(server: int, status: str = "") -> UnavailableError:
    """The error of a server that no longer answers, with how it has ended, if that is known."""
    return _without(server, f"has ended{status and f' with {status}'}")


def silent(server: int, seconds: float) -> UnavailableError:
    """The error of a server that has given no answer and no sign of life for so long."""
    return _without(server, f"has not answered for {seconds:.0f} s and is given up")


def _without(server: int, why: str) -> UnavailableError:
    return UnavailableError(
        f"parameter server {server} {why}, and its variables with it: make the strategy again, and restore a "
        "checkpoint of its coordinator"
    )


_of_worker: list[ServerLines] = []
"""Of a worker's process: where handles that are sent to it find the servers."""


def enter(servers: ServerLines) -> None:
    """Make this process a worker."""
    _of_worker.append(servers)


def lines_of_worker() -> ServerLines | None:
    """Return how this worker reaches the servers; None in any other process."""
    return _of_worker[0] if _of_worker else None


def _on_worker(kind: "type[ServerVariables]", layout: VariablesLayout) -> "ServerVariables":
    if not _of_worker:
        raise InvalidArgumentError(
            "variables on parameter servers can be used by functions that a ps.ClusterCoordinator runs, and in the "
            "program that has made them, not in other processes"
        )
    return kind(layout, _of_worker[0])


def loading(
    number: int, values: Sequence[Array | None] = (), state: Sequence[Array | None] = ()
) -> Callable[[ProcessLine], Message]:
    """The request that a server takes values of its shards, and arrays of the optimizer's state; None stays."""

    def request(line: ProcessLine) -> Message:
        both = ([None if one is None else line.part(np.asarray(one)) for one in own] for own in (values, state))
        return LoadVariables(number, *map(tuple, both))

    return request


class ServerVariables:
    """A pytree of variables on servers; from `strategy.create_variables`.

    Functions that a coordinator runs may use it as any other of their variables.

    Example:
        >>> import numpy as np, optax
        >>> import penstock as ps
        >>> with ps.ParameterServerStrategy(num_workers=1) as strategy:
        ...     weights = strategy.create_variables({"w": np.zeros(2), "b": 1.0}, optax.sgd(0.5))
        ...     push = lambda: weights.push({"w": np.ones(2), "b": 2.0})
        ...     ps.ClusterCoordinator(strategy).schedule(push).fetch()
        ...     print(weights.read()["w"], weights.read()["b"])
        [-0.5 -0.5] 0.0
    """

    def __init__(self, layout: VariablesLayout, servers: ServerLines) -> None:
        self.layout = layout
        self._servers = servers
        self._structure: Any = jax.tree.structure(layout.tree)

    def __reduce__(self) -> Any:
        return _on_worker, (type(self), self.layout)

    def read(self) -> Any:
        """The newest values: a pytree of read-only NumPy arrays, which no later push changes.

        Leaves of one shard are shown in the server's shared memory, without a copy. Values of several servers may
        differ by the updates that arrive meanwhile.

        Raises:
            UnavailableError: a server is lost.
        """
        number = self.layout.number
        answers = self._servers.ask({server: lambda _: ReadVariables(number) for server in self.layout.servers})
        return jax.tree.unflatten(self._structure, self._leaves(answers))

    def _leaves(self, answers: dict[int, list[Array]]) -> list[Array]:
        parts: list[list[Array]] = [[] for _ in self.layout.shapes]
        values = {server: iter(arrays) for server, arrays in answers.items()}
        for shard in self.layout.shards:
            parts[shard.leaf].append(next(values[shard.server]))
        leaves = [leaf[0] if len(leaf) == 1 else np.concatenate(leaf) for leaf in parts]
        for leaf in leaves:
            leaf.flags.writeable = False
        return leaves

    def assign(self, values: Any) -> None:
        """Replace all values; the optimizer's state stays.

        Raises:
            InvalidTypeError, ElementError: of another structure, or with leaves of another shape.
            UnavailableError: a server is lost.
        """
        parts = self._parts("assign", values)
        self._servers.ask({server: loading(self.layout.number, own) for server, own in parts.items()})

    def assign_leaf(self, number: int, value: Any) -> None:
        """Replace one leaf, which has the shape that it should have; what workers push meanwhile to others stays."""
        array = np.asarray(value, self.layout.dtypes[number])

        servers = {shard.server for shard in self.layout.shards if shard.leaf == number}
        parts = {
            server: [shard.cut(array) if shard.leaf == number else None for shard in self.layout.on(server)]
            for server in servers
        }
        self._servers.ask({server: loading(self.layout.number, own) for server, own in parts.items()})

    def read_state(self) -> dict[int, list[Array]]:
        """The arrays of the optimizer's state, by server.

        Raises:
            UnavailableError: a server is lost.
        """
        number = self.layout.number
        return self._servers.ask({server: lambda _: ReadState(number) for server in self.layout.servers})

    def assign_state(self, arrays: dict[int, dict[int, Array]]) -> None:
        """Replace some arrays of the optimizer's state, given by their server and their place there."""
        states = {server: [own.get(place) for place in range(max(own) + 1)] for server, own in arrays.items()}
        self._servers.ask({server: loading(self.layout.number, state=own) for server, own in states.items()})

    def push(self, gradients: Any) -> None:
        """Have the optimizer on the servers apply gradients, when the function that calls this has succeeded.

        Several pushes of a function are applied one after the other; its reads do not show them yet.

        Args:
            gradients: a pytree of the variables' structure and shapes.

        Raises:
            InvalidTypeError, ElementError: of another structure, or with leaves of another shape.
            InvalidArgumentError: called elsewhere than in a function that a coordinator runs.
        """
        stage = self._stage()
        for server, arrays in self._parts("push", gradients).items():
            stage(server, self.layout.number, arrays)

    def _stage(self) -> TakePush:
        if self._servers.push is None:
            raise InvalidArgumentError(
                "push is for functions that ps.ClusterCoordinator.schedule runs on a worker: here use assign, or "
                "schedule a function that pushes"
            )
        return self._servers.push

    def _parts(self, call: str, tree: Any) -> dict[int, list[Array]]:
        """The leaves of a pytree, by server, cut as the variables are."""
        leaves, structure = jax.tree.flatten(tree)
        if structure != self._structure:
            raise InvalidTypeError(
                f"{call}: expected a pytree like the variables' ({self._structure}), got {structure}"
            )
        arrays = [np.asarray(leaf, dtype) for leaf, dtype in zip(leaves, self.layout.dtypes, strict=True)]
        wrong = [number for number, array in enumerate(arrays) if array.shape != self.layout.shapes[number]]
        if wrong:
            path = jax.tree_util.keystr(jax.tree.leaves_with_path(tree)[wrong[0]][0])
            raise ElementError(
                f"{call}: the variable at {path or 'the root'} has shape {self.layout.shapes[wrong[0]]}, "
                f"got {arrays[wrong[0]].shape}"
            )
        parts: dict[int, list[Array]] = {server: [] for server in self.layout.servers}
        for shard in self.layout.shards:
            array = arrays[shard.leaf]
            parts[shard.server].append(shard.cut(array))
        return parts


class ServerTable(ServerVariables):
    """A table on servers, of which rows are read and pushed; from `strategy.create_table`. `read` gives all of it.

    Example:
        >>> import numpy as np, optax
        >>> import penstock as ps
        >>> with ps.ParameterServerStrategy(num_workers=1) as strategy:
        ...     table = strategy.create_table(np.zeros((1000, 2), np.float32), optax.sgd(0.5))
        ...     push = lambda: table.push_rows([3, 7], np.ones((2, 2), np.float32))
        ...     ps.ClusterCoordinator(strategy).schedule(push).fetch()
        ...     print(table.read_rows([3, 4]).tolist())
        [[-0.5, -0.5], [0.0, 0.0]]
    """

    def read_rows(self, rows: Any) -> Array:
        """Some rows, by their numbers: an array of shape `(len(rows), ...)`, at the cost of these rows.

        Raises:
            InvalidArgumentError: no one-dimensional array of integers, or a row that the table does not have.
            UnavailableError: a server is lost.
        """
        rows = self._checked(rows)
        chosen = {shard: np.flatnonzero((rows >= shard.begin) & (rows < shard.end)) for shard in self.layout.shards}

        def request(server: int) -> Callable[[ProcessLine], Message]:
            own = [rows[chosen[shard]] - shard.begin for shard in self.layout.on(server)]
            return lambda line: ReadRows(self.layout.number, tuple(line.part(indices) for indices in own))

        answers = self._servers.ask({server: request(server) for server in self.layout.servers})
        found = np.empty((len(rows), *self.layout.shapes[0][1:]), self.layout.dtypes[0])
        for server, arrays in answers.items():
            for shard, array in zip(self.layout.on(server), arrays, strict=True):
                found[chosen[shard]] = array
        return found

    def push_rows(self, rows: Any, gradients: Any) -> None:
        """Have the optimizer apply gradients of some rows, as `push` does; those of a row that comes twice are added.

        Args:
            rows: their numbers.
            gradients: an array of shape `(len(rows), ...)`.

        Raises:
            InvalidArgumentError: rows as for `read_rows`, or called elsewhere than `push` may be.
            ElementError: gradients of another shape.
        """
        stage = self._stage()
        rows = self._checked(rows)
        gradients = np.asarray(gradients, self.layout.dtypes[0])
        expected = (len(rows), *self.layout.shapes[0][1:])
        if gradients.shape != expected:
            raise ElementError(f"push_rows: {len(rows)} rows have gradients of shape {expected}, got {gradients.shape}")
        unique, positions = np.unique(rows, return_inverse=True)
        if len(unique) < len(rows):
            added = np.zeros((len(unique), *expected[1:]), gradients.dtype)
            np.add.at(added, positions, gradients)
        else:
            added = gradients[np.argsort(rows)]
        for server in self.layout.servers:
            arrays: list[Array] = []
            for shard in self.layout.on(server):
                begin, end = np.searchsorted(unique, (shard.begin, shard.end))
                arrays += [unique[begin:end] - shard.begin, added[begin:end]]
            stage(server, self.layout.number, arrays)

    def _checked(self, rows: Any) -> Array:
        rows = np.asarray(rows)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise InvalidArgumentError(f"rows are a one-dimensional array of integers, got {rows.dtype} {rows.shape}")
        numbers: Array = rows.astype(np.int64)
        length = self.layout.shapes[0][0]
        if len(rows) and (numbers.min() < 0 or numbers.max() >= length):
            raise InvalidArgumentError(f"the table has rows 0 to {length - 1}, got {numbers.min()} to {numbers.max()}")
        return numbers
