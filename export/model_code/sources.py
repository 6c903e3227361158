"""The statements of a user's file, with their positions."""

from __future__ import annotations
import __future__

import ast
import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import decode_source
from pathlib import Path

from export.model_code.notebooks import read_cells
from export.raised_errors import call_model
from export.user_lines import name_of_cell

_EXCERPT_MAX = 70
"""Characters of a statement that messages show."""
NOTEBOOK = ".ipynb"


@dataclass(frozen=True)
class Statement:
    """A statement at the top level of a file, or of a cell.

    Attributes:
      node: The statement.
      filename: The name of the file in the compiled code.
      where: The position, such as `line 57`, or `cell 12, line 3`.
      excerpt: The statement's first line, for messages.
    """

    node: ast.stmt
    filename: str
    where: str
    excerpt: str


@dataclass(frozen=True)
class Source:
    """A file of Python, or a notebook.

    Attributes:
      name: The file's name, for messages.
      statements: The statements in the order of the file, without docstrings and other bare texts.
      flags: The features that the file imports from `__future__`, for `compile`.
      other_cells: The number of cells that are not Python, such as those of `%%bash`, by magic.
    """

    name: str
    statements: tuple[Statement, ...]
    flags: int
    other_cells: dict[str, int]


def read_source(path: Path, content: bytes) -> Source:
    """Reads the statements of a file.

    Args:
      path: The path of the file; its suffix says whether it is a notebook.
      content: The content of the file.

    Raises:
      SyntaxError: The file of Python has an error.
      UsageError: The file is no notebook of Python.
      NotConvertible: A cell is not valid Python.
    """
    if path.suffix != NOTEBOOK:
        tree = call_model(ast.parse, content, str(path))
        lines = decode_source(content).splitlines()
        statements = _statements(tree, str(path), "line ", lines)
        return Source(path.name, tuple(statements), _future_flags(statements), {})
    statements = []
    other_cells: dict[str, int] = {}
    for cell in read_cells(path, content):
        if cell.magic:
            other_cells[cell.magic] = other_cells.get(cell.magic, 0) + 1
            continue
        filename = name_of_cell(path, cell.number)
        # TensorFlow's AutoGraph reads functions as text, which it finds by the name of their file.
        text = [f"{line}\n" for line in cell.python]
        linecache.cache[filename] = (sum(map(len, text)), None, text, filename)
        where = f"cell {cell.number}, line "
        statements += _statements(cell.tree, filename, where, cell.lines)
    return Source(path.name, tuple(statements), _future_flags(statements), other_cells)


def _statements(
    tree: ast.Module, filename: str, where: str, lines: Sequence[str]
) -> list[Statement]:
    statements = []
    for node in tree.body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Pass):
            continue
        first = lines[node.lineno - 1].strip()
        if len(first) > _EXCERPT_MAX:
            first = f"{first[:_EXCERPT_MAX]}..."
        elif node.end_lineno != node.lineno:
            first = f"{first} ..."
        statements.append(Statement(node, filename, f"{where}{node.lineno}", first))
    return statements


def _future_flags(statements: Sequence[Statement]) -> int:
    flags = 0
    for statement in statements:
        node = statement.node
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                flags |= getattr(__future__, alias.name).compiler_flag
    return flags
