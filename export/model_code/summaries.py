"""The note in the plan about the definitions of a file, and about what was left out."""

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
    """Returns the note; "" if nothing was left out.

    Args:
      source: The file.
      selection: The definitions of the file.
      failures: Definitions that raised an error, with the error.
    """
    left_out = selection.left_out
    if not (left_out or failures or source.other_cells):
        return ""
    definitions = [statement for statement in selection.definitions if statement not in failures]
    parts = [f"{source.name}: took {_kinds_of(definitions)}"]
    if left_out:
        first = f"the first at {left_out[0].where}: `{left_out[0].excerpt}`"
        parts.append(f"left {_counted(len(left_out), 'statement')}, {first}")
    for magic, count in source.other_cells.items():
        parts.append(f"left {_counted(count, 'cell')} of %%{magic}")
    if failures:
        listed = (
            f"`{statement.excerpt}` ({statement.where}: {_cause(problem)})"
            for statement, problem in failures.items()
        )
        parts.append(f"without {', '.join(listed)}")
    parts += [
        f"`{statement.excerpt}` ({statement.where}) changes what layers compute and was left: if "
        "training ran it, call it in a factory file of your own"
        for statement in selection.settings
    ]
    return "; ".join(parts)


def _kinds_of(statements: Sequence[Statement]) -> str:
    """Returns `3 classes, 2 functions and 11 imports`."""
    counts = Counter(_kind(statement.node) for statement in statements)
    parts = [_counted(counts[kind], kind) for kind in _PLURALS if counts[kind]]
    *earlier, last = parts or ["nothing"]
    if not earlier:
        return last
    return f"{', '.join(earlier)} and {last}"


def _kind(node: ast.stmt) -> str:
    if isinstance(node, ast.ClassDef):
        return "class"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return "function"
    if isinstance(node, IMPORTS):
        return "import"
    # Settings and conditional definitions are rare: they count as constants, too.
    return "constant"


def _counted(count: int, noun: str) -> str:
    if count != 1:
        noun = _PLURALS[noun]
    return f"{count} {noun}"


def _cause(problem: BaseException) -> str:
    if isinstance(problem, ModuleNotFoundError):
        return "not installed"
    return type(problem).__name__
