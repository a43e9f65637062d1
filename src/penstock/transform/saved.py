"""Learned values in the files of a working directory: JSON, and vocabularies as text. Reading them runs no code.

transform.json      the graph, the learned values, and the specification of the results; it appears when all is done
passes.json         what the finished passes of an analysis have learned, until then
assets/             vocabularies, one token per line; copies of those that were given
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from typing import Any

from penstock.errors import InvalidArgumentError, InvalidTypeError, StateMismatchError, StorageError
from penstock.paths import appearing, within_directory
from penstock.transform.constants import constant_value, plain_array
from penstock.transform.graph import Graph
from penstock.transform.vocabularies import Vocabulary, digest_of, name_of_copy, read_vocabulary

Learned = dict[int, tuple[Any, ...]]

DONE, PASSES, ASSETS = "transform.json", "passes.json", "assets"


def plain_value(value: Any) -> dict[str, Any]:
    """Return what an analyzer has learned, for JSON."""
    if isinstance(value, Vocabulary):
        entry = {"vocabulary": Path(value.path).name, "size": value.size, "with_frequency": value.with_frequency}
        entry |= {"records": True} if value.records else {}
        return entry | {"digest": digest_of(value.path)}
    return plain_array(value)


def value_of(plain: Mapping[str, Any], assets: Path) -> Any:
    """Return what `plain_value` described."""
    if "vocabulary" in plain:
        path, records = Path(within_directory(assets, plain["vocabulary"])), plain.get("records", False)
        return read_vocabulary(path, plain["size"], plain["with_frequency"], records, plain["digest"])
    return constant_value(**plain)


def plain_learned(learned: Learned) -> dict[str, Any]:
    """Everything that was learned, for JSON."""
    return {str(number): [plain_value(value) for value in values] for number, values in learned.items()}


def learned_of(plain: Mapping[str, Any], assets: Path) -> Learned:
    """Return what `plain_learned` described."""
    return {int(number): tuple(value_of(value, assets) for value in values) for number, values in plain.items()}


def write_json(path: Path, data: Any) -> None:
    """Write a file that appears when it is complete."""
    with _written(path) as part:
        part.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n")


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    try:
        with appearing(path) as part:
            yield part
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error


def read_json(path: Path) -> dict[str, Any] | None:
    """The data of a file; None if there is none.

    Raises:
        StorageError: it is no JSON.
    """
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} is damaged: {error}; delete it, and analyze again") from error
    if not isinstance(found, dict):
        raise StorageError(f"{path} is damaged: expected an object; delete it, and analyze again")
    return found


class WorkingDirectory:
    """The directory of one transform.

    Args:
        path: the directory, on this machine.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise InvalidTypeError(f"working_dir: expected a path, got {path!r:.100}")
        self.path = Path(path)
        self.assets = self.path / ASSETS

    def read(self) -> dict[str, Any]:
        """Read the files of a finished analysis.

        Raises:
            InvalidArgumentError: there is no finished analysis.
        """
        found = read_json(self.path / DONE)
        if found is None:
            raise InvalidArgumentError(
                f"{str(self.path)!r} holds no transform: ps.transform.analyze(dataset, preprocessing_fn, working_dir) "
                "writes one there"
            )
        return found

    def earlier(self, graph: Graph, data: str) -> dict[str, Any]:
        """Read the files of earlier passes of the same analysis; nothing, if there are none.

        Raises:
            StateMismatchError: the directory belongs to another function, other data or another version, or a file with
                a vocabulary of the user's has changed.
        """
        found = read_json(self.path / DONE) or read_json(
            self.path / PASSES
        )  # in this order: the latter may be left over
        if found is None:
            return {}
        before = Graph.of(found["graph"], str(self.path))
        for path in _changed_vocabularies(before, graph):
            raise self.another(f"state of the vocabulary file {path!r}")
        for name, mine, what in (("function", graph.fingerprint(), "function"), ("data", data, "dataset")):
            if found[name] != mine:
                raise self.another(what)
        return found

    def another(self, what: str) -> StateMismatchError:
        """The error that says that the directory belongs to another `what`."""
        return StateMismatchError(
            f"working_dir {str(self.path)!r} holds the analysis of another {what}: give an empty directory, or "
            "delete this one"
        )

    def prepare(self) -> None:
        """Make the directory, if there is none."""
        try:
            self.assets.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"working_dir {str(self.path)!r} cannot be made: {error.strerror or error}") from error

    def copy_vocabularies(self, graph: Graph) -> None:
        """Keep the user's vocabulary files with the learned values, so that the directory can be moved."""
        for node in graph.nodes:
            if node.operation == "given_vocabulary":
                with _written(self.assets / name_of_copy(**node.arguments)) as part:
                    copyfile(node.arguments["path"], part)

    def with_copies(self, graph: Graph) -> Graph:
        """The graph that takes vocabularies from this directory only."""
        nodes = [
            replace(node, arguments={**node.arguments, "path": str(self.assets / name_of_copy(**node.arguments))})
            if node.operation == "given_vocabulary"
            else node
            for node in graph.nodes
        ]
        return Graph(tuple(nodes), graph.outputs)

    def write(self, graph: Graph, data: str, learned: Learned, **more: Any) -> None:
        """Write the learned values and `more` entries, of which "finished" means that no passes are left."""
        entries = {"function": graph.fingerprint(), "data": data, **more, "learned": plain_learned(learned)}
        finished = more.get("finished", False)
        write_json(self.path / (DONE if finished else PASSES), {**entries, "graph": graph.plain()})
        if finished:
            (self.path / PASSES).unlink(missing_ok=True)


def _changed_vocabularies(before: Graph, now: Graph) -> list[str]:
    """The vocabularies in files of the user's that have changed between two analyses by one function."""
    pairs = list(zip(before.nodes, now.nodes))
    given = [pair for pair in pairs if pair[0].operation == pair[1].operation == "given_vocabulary"]
    same_path = [(one, other) for one, other in given if one.arguments["path"] == other.arguments["path"]]
    return [one.arguments["path"] for one, other in same_path if one != other]
