"""The layers of the design, held by a walk over every import of every file.

A file imports only files of lower levels, or files of its own level in its own folder, in no circle. There is one way
around: the `__getattr__` of an `__init__.py` may import what the package offers when it is first asked for (PEP 562).
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from syntax_trees import tree_of

SOURCES = Path(__file__).parent.parent / "src"

# From the lowest to the highest. A room is named with a stroke at its end, and stands for every file in it that is not
# named by itself; its `__init__.py` is named without one where it offers what the room holds.
LEVELS = (
    "errors version other_names other_libraries optional options extras structure spec positions rng row_generators "
    "paths printing addresses runtime/memory_thresholds",
    "statistics/",  # all that runs counts by it
    "report/",  # reads statistics alone, so that every iterator has a report
    "sharding runtime/ formats/file_errors",
    "formats/remote/",
    "formats/",
    "formats/records/",
    "formats/tables/",
    "formats/media/ formats/registry",
    "formats/writing/",
    "data/block data/axes data/skipped data/column_builder data/layout data/output_signature",
    "data/streams/",
    "data/node",
    "data/origins",
    "data/functions/",
    "data/",
    "data/operators/",
    "data/batches/ data/mixtures/",
    "data/skip_guards data/remixing data/iterator data/plan data/randomness data/sample",
    "data/contents data/folder_datasets data/listed_names data/saving/",
    "data data/dataset data/file_datasets data/shards data/archive_datasets data/table_datasets",
    "rpc/",
    "distribute/",
    "distribute/cluster/ distribute/control/",
    "distribute/feed/",
    "distribute/strategy",
    "distribute/host/ distribute/jax/",
    "distribute",
    "service/wire/",
    "service/security/",
    "service/background service/config service/transport/",
    "service/dispatcher/machine/",
    "service/dispatcher/",
    "service/worker/",
    "service/reader/",
    "service/ service",
    "parameter_server/",
    "accumulators/",
    "preprocessing/convert/",
    "preprocessing/ preprocessing",
    "training/",
    "training/keras/",
    "training/checkpoint/",
    "training",
    "transform/keras/",
    "transform/ transform",
    "audio/ audio files image/ image jax/ jax keras ray/ ray testing/ testing text/ text tfrecord torch/ torch types",
    "video/ video",
    "penstock",
    "demo/ launch/ dashboard/",  # the outside, which uses the package as its users do
    "cli/",
    "__main__",
)

# Heavy packages, and the only parts of penstock that may import them.
HEAVY = {
    "jax": (
        "penstock.distribute.",
        "penstock.jax.",
        "penstock.parameter_server.",
        "penstock.training.",
        "penstock.demo.",
    ),
    "optax": (),
    "sklearn": ("penstock.demo.",),
    "tqdm": ("penstock.demo.",),
    "keras": ("penstock.training.", "penstock.preprocessing.convert.", "penstock.transform.keras.", "penstock.demo."),
    "orbax": ("penstock.training.",),
    "tensorstore": ("penstock.training.",),
    "torch": ("penstock.torch.",),
    "fsspec": ("penstock.formats.",),
    "obstore": ("penstock.formats.",),
    "array_record": ("penstock.formats.records.",),
    "PIL": ("penstock.formats.",),
    "simplejpeg": ("penstock.formats.",),
    "cv2": ("penstock.formats.",),
    "soundfile": ("penstock.formats.",),
    "av": ("penstock.formats.",),
    "ray": ("penstock.ray", "penstock.demo.on_ray"),
    "tensorflow": (),
}


@dataclass(frozen=True)
class Import:
    """One import of a file: what it imports, on which line, and inside which function."""

    target: str
    line: int
    function: str | None
    for_types: bool


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def called(call: ast.Call) -> str:
    """The last part of the name of what is called, if it has one."""
    function = call.func
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


MODULES = {name_of(path): path for path in sorted(SOURCES.rglob("*.py"))}


@cache
def imports_of(module: str) -> list[Import]:
    found = []
    left: list[tuple[ast.AST, str | None, bool]] = [(tree_of(MODULES[module]), None, False)]
    while left:
        node, function, for_types = left.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        for_types = for_types or (
            isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        )
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno, function, for_types) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}, line {node.lineno}: a relative import"
            source = str(node.module)
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                found.append(Import(inner if inner in MODULES else source, node.lineno, function, for_types))
        elif isinstance(node, ast.Call) and called(node).endswith(("import_module", "__import__")):
            # A name that is only known when the program runs, such as that of a user's class, is nothing to hold here.
            names = [argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)]
            found += [Import(str(name), node.lineno, function, for_types) for name in names]
        left += [(child, function, for_types) for child in ast.iter_child_nodes(node)]
    return sorted(found, key=lambda one: one.line)


def at_import(module: str) -> Iterator[Import]:
    """The imports that run when the file is imported."""
    return (found for found in imports_of(module) if found.function is None)


def level_of(module: str) -> int:
    """The place in LEVELS of a file: by its own name, otherwise by that of its room."""
    name = module.removeprefix("penstock.").replace(".", "/")
    room = name if MODULES[module].name == "__init__.py" else name.rpartition("/")[0]
    for known in (name, f"{room}/"):
        for level, names in enumerate(LEVELS):
            if known in names.split():
                return level
    raise AssertionError(f"{module} has no level: add its room to LEVELS and to the table in CONTRIBUTING.md")


def folder_of(module: str) -> Path:
    return MODULES[module].parent


def penstocks_imports() -> Iterator[tuple[str, Import]]:
    """What every file imports of penstock when it is imported."""
    for module in MODULES:
        yield from ((module, found) for found in at_import(module) if found.target.partition(".")[0] == "penstock")


def test_a_file_imports_only_lower_levels_or_its_own_folder() -> None:
    wrong = []
    for module, found in penstocks_imports():
        assert found.target in MODULES, f"{module}, line {found.line}: there is no {found.target}"
        mine, other = level_of(module), level_of(found.target)
        neighbours = mine == other and folder_of(module) == folder_of(found.target)
        if not (other < mine or neighbours):
            wrong.append(f"{module} (level {mine}), line {found.line}, must not import {found.target} (level {other})")
    assert not wrong, "\n".join(wrong)


def test_no_imports_go_in_a_circle() -> None:
    graph = {module: {found.target for found in at_import(module)} & MODULES.keys() for module in MODULES}
    TopologicalSorter(graph).prepare()


def test_no_function_imports_anything() -> None:
    inside = []
    for module, path in MODULES.items():
        lazy_exports = "__getattr__" if path.name == "__init__.py" else None
        inside += [(module, found) for found in imports_of(module) if found.function not in (None, lazy_exports)]
    assert not inside, "\n".join(map(str, inside))


def test_operators_do_not_import_each_other() -> None:
    folder = "penstock.data.operators"
    siblings = [
        (module, found)
        for module, found in penstocks_imports()
        if module.startswith(f"{folder}.") and found.target.startswith(folder)
    ]
    assert not siblings, "\n".join(map(str, siblings))


def test_heavy_packages_stay_where_they_belong() -> None:
    wrong = []
    for module in MODULES:
        for found in imports_of(module):
            package = found.target.partition(".")[0]
            if package in HEAVY and not module.startswith(HEAVY[package]):
                wrong.append(f"{module}, line {found.line}, must not import {package}")
    assert not wrong, "\n".join(wrong)


def test_only_the_definitions_of_the_service_pickle() -> None:
    packages = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    found = {(module, name.target) for module in MODULES for name in imports_of(module) if name.target in packages}
    assert found == {
        ("penstock.service.wire.definitions", "pickle"),
        ("penstock.service.wire.unpicklable", "cloudpickle"),  # tries what can be sent
        ("penstock.parameter_server.closures", "pickle"),  # between processes that one program has started for itself
        ("penstock.data.functions.in_processes", "pickle"),  # likewise
        ("penstock.data.functions.in_processes", "cloudpickle"),
        ("penstock.runtime.sending", "pickle"),  # how the others send what users made
        ("penstock.runtime.sending", "cloudpickle"),
        ("penstock.data.fingerprint", "cloudpickle"),  # takes a digest of what is sent, and keeps nothing
    }


def test_level_0_knows_numpy_and_the_standard_library_only() -> None:
    allowed = sys.stdlib_module_names | {"numpy", "penstock"}
    lowest = [module for module in MODULES if level_of(module) == 0]
    packages = {(module, found.target.partition(".")[0]) for module in lowest for found in imports_of(module)}
    assert {(module, package) for module, package in packages if package not in allowed} == set()


IMPORT_PENSTOCK = """
import json, sys, threading
import numpy
before = set(sys.modules)
import penstock
print(json.dumps([sorted(set(sys.modules) - before), threading.active_count()]))
"""
MOST_MODULES = 300


def test_importing_penstock_loads_few_modules_and_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_PENSTOCK], capture_output=True, text=True, check=True)
    loaded, threads = json.loads(done.stdout)
    assert HEAVY.keys() & set(loaded) == set()
    assert [name for name in loaded if name.startswith(("pyarrow", "penstock.distribute"))] == []
    assert threads == 1
    assert len(loaded) <= MOST_MODULES  # about as long to import as NumPy
