"""Syntax trees of the package's files, read once for all tests that look at them."""

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All of a file's tree: walking through it takes longer than reading it."""
    return tuple(ast.walk(tree_of(path)))
