"""The source of our packages, parsed once per test process."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def parse_source(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def list_nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parse_source(path)))


@functools.cache
def list_calls(path: Path) -> tuple[tuple[str, ast.Call], ...]:
    """Every call in a file, with what is called as it is written."""
    return tuple(
        (ast.unparse(node.func), node) for node in list_nodes(path) if isinstance(node, ast.Call)
    )
