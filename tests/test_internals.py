"""What is private stays private, and names of classes and files say one thing each."""

import ast
import re
from functools import cache
from pathlib import Path

from syntax_trees import nodes_of

PACKAGE = Path(__file__).parent.parent / "src" / "penstock"


@cache
def own_names(path: Path) -> set[str]:
    """The attributes and methods that the classes of a file give themselves."""
    names = set()
    for kind in (node for node in nodes_of(path) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(kind):
            if isinstance(node, ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
                names.add(node.attr)
    return names


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_uses(path: Path) -> list[ast.Attribute]:
    """Where a file uses a private attribute that none of its own classes has."""
    own = own_names(path)
    return [
        node
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__")
        if not is_self(node.value) and node.attr not in own
    ]


def test_training_reaches_into_no_private_part_of_anything_else() -> None:
    """A file uses private attributes of its own classes only; what it takes of Keras's stands in `interface.py`."""
    reaches = []
    for path in sorted((PACKAGE / "training").rglob("*.py")):
        if path.name == "interface.py":
            continue
        reaches += [
            f"{path.relative_to(PACKAGE)}, line {node.lineno}: {ast.unparse(node)}" for node in private_uses(path)
        ]
    assert not reaches, "\n".join(reaches)


def test_nobody_uses_private_parts_of_another_room() -> None:
    """What a room offers the others has a name, such as `PositionedElements` and `blocks_of` in `data/iterator.py`."""
    owners: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for name in own_names(path):
            owners.setdefault(name, set()).add(path.relative_to(PACKAGE).parts[0])
    # Of iterators, which everybody holds, also what is named as something of the room's own.
    of_iterators = own_names(PACKAGE / "data" / "iterator.py")
    reaches = [
        f"{path.relative_to(PACKAGE)}, line {node.lineno}: {ast.unparse(node)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in private_uses(path)
        if path.relative_to(PACKAGE).parts[0] not in owners.get(node.attr, path.relative_to(PACKAGE).parts)
        or (node.attr in of_iterators and not path.is_relative_to(PACKAGE / "data"))
    ]
    assert not reaches, "\n".join(reaches)


# Outside of `data`, what is known of operators stands beside the code that asks for it, in these files alone.
KNOW_OPERATORS = {
    "distribute/feed/shards.py",
    "distribute/feed/inputs.py",
    "service/worker/cut.py",
    "service/worker/groups.py",
    "service/worker/pass_nodes.py",  # makes nodes, as the next one does
    "transform/passes.py",
}


def test_few_files_of_other_rooms_know_which_operators_there_are() -> None:
    """A new operator is added to what these files know; see `data/node.py` for what it says of itself."""
    known = {
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("penstock.data.operators")
        if not path.is_relative_to(PACKAGE / "data") and path != PACKAGE / "__init__.py"
    }
    assert known == KNOW_OPERATORS


def test_a_class_name_stands_once_in_the_package() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{path.relative_to(PACKAGE)}, line {node.lineno}")
    doubles = [f"{name}: {'; '.join(places)}" for name, places in found.items() if len(places) > 1]
    assert not doubles, "\n".join(doubles)


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    questions = re.compile(r"(What|Whether|How|Which|Where|Who|As `|Of )\b")
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = [
        f"{path.relative_to(PACKAGE)}, line {getattr(node, 'lineno', 1)}"
        for path in PACKAGE.rglob("*.py")
        for node in nodes_of(path)
        if isinstance(node, documented) and questions.match(ast.get_docstring(node) or "")
    ]
    assert not found


def test_no_two_files_of_a_folder_differ_by_a_plural_alone() -> None:
    paths = {path.with_suffix("") for path in PACKAGE.rglob("*.py")} | {path.parent for path in PACKAGE.rglob("*.py")}
    alike = [str(path.relative_to(PACKAGE)) for path in paths if path.with_name(f"{path.name}s") in paths]
    alike += [str(path.relative_to(PACKAGE)) for path in paths if path.with_name(f"{path.name}es") in paths]
    assert not alike, "\n".join(sorted(alike))


def test_one_registry_knows_what_ends_at_exit() -> None:
    asking = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in nodes_of(path)
        if isinstance(node, ast.Import) and "atexit" in {alias.name for alias in node.names}
    ]
    assert asking == ["runtime/at_exit.py"]
