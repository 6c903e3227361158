"""The note in the plan about the definitions of a file: what was taken, and what was left."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence

from export.model_code.selection import IMPORTS, Selection
from export.model_code.sources import Source, Statement

_PLURALS = {
    "class": "classes",
    "function": "functions",
    "import": "imports",
    "constant": "constants",
    "statement": "statements",
    "cell": "cells",
}


def summary(
    source: Source, selection: Selection, failures: Mapping[Statement, BaseException]
) -> str:
    """Returns the note; "" if nothing was left.

    Args:
      source: the file.
      selection: its definitions.
      failures: the definitions that raised an error, and the error.
    """
    left = selection.left
    if not (left or failures or source.other_cells):
        return ""
    taken = [statement for statement in selection.taken if statement not in failures]
    parts = [f"{source.name}: took {_kinds_of(taken)}"]
    if left:
        first = f"the first at {left[0].where}: `{left[0].shown}`"
        parts.append(f"left {_counted(len(left), 'statement')}, {first}")
    for magic, count in source.other_cells.items():
        parts.append(f"left {_counted(count, 'cell')} of %%{magic}")
    if failures:
        listed = (
            f"`{statement.shown}` ({statement.where}: {_cause(problem)})"
            for statement, problem in failures.items()
        )
        parts.append(f"without {', '.join(listed)}")
    parts += [
        f"`{statement.shown}` ({statement.where}) changes what layers compute and was left: if "
        "training ran it, call it in a factory file of your own"
        for statement in selection.settings
    ]
    return "; ".join(parts)


def _kinds_of(statements: Sequence[Statement]) -> str:
    """Returns `3 classes, 2 functions and 11 imports`."""
    counts = Counter(_kind(statement.node) for statement in statements)
    parts = [_counted(counts[kind], kind) for kind in _PLURALS if counts[kind]]
    *others, last = parts or ["nothing"]
    return f"{', '.join(others)} and {last}" if others else last


def _kind(node: ast.stmt) -> str:
    if isinstance(node, ast.ClassDef):
        return "class"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return "function"
    return "import" if isinstance(node, IMPORTS) else "constant"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun if count == 1 else _PLURALS[noun]}"


def _cause(problem: BaseException) -> str:
    is_missing = isinstance(problem, ModuleNotFoundError)
    return "not installed" if is_missing else type(problem).__name__
