"""Reads a notebook as Python: the cells of code, without the magics of IPython."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from bundle.format.key_paths import key_path
from export.errors import NotConvertible, UsageError

_CELL_MAGIC = re.compile(r"%%(\S+)")
_PYTHON_CELLS = {"capture", "prun", "time"}
"""Cell magics that run the rest of their cell in the names of the notebook."""
_LINE_MAGIC = re.compile(r"\s*[!%?]|.*\?\s*$")
_ASSIGNED_MAGIC = re.compile(r"(\s*[A-Za-z_][\w ,]*=)\s*[!%]")
_RESULT_OF_MAGIC = "get_ipython()"
"""The Python that replaces a magic with a result: a call, whose value is not known."""


@dataclass(frozen=True)
class Cell:
    """A cell of code.

    Attributes:
      number: The cell's number among the cells of code, from 1.
      lines: The lines as the user wrote them.
      python: The same lines, with magics replaced by Python of one line each.
      tree: The Python code, empty for a cell with a `magic`.
      magic: The cell magic that makes the cell something else than the notebook's Python, such as
        `writefile`; "" for Python.
    """

    number: int
    lines: tuple[str, ...]
    python: tuple[str, ...]
    tree: ast.Module
    magic: str = ""


class _Kernel(BaseModel):
    language: str | None = None


class _Language(BaseModel):
    name: str | None = None


class _Metadata(BaseModel):
    kernelspec: _Kernel = _Kernel()
    language_info: _Language = _Language()


class _Cell(BaseModel):
    cell_type: str
    source: str | list[str] = ""


class _Notebook(BaseModel):
    """The fields of a notebook of nbformat 4 that are read."""

    cells: list[_Cell]
    metadata: _Metadata = _Metadata()


def read_cells(path: Path, content: bytes) -> list[Cell]:
    """Reads the cells of code of a notebook.

    Raises:
      UsageError: The file is no notebook of Python.
      NotConvertible: A cell is not valid Python; the message names the cell and the line.
    """
    return [
        _parsed(path, number, source)
        for number, source in enumerate(_sources(path, content), start=1)
    ]


def _sources(path: Path, content: bytes) -> list[str]:
    """Returns the text of each cell of code."""
    try:
        notebook = _Notebook.model_validate_json(content)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        reason = first["msg"]
        where = str(key_path(_Notebook, first["loc"]))
        if where:
            reason = f"{where}: {reason}"
        raise UsageError(
            f"{path.name} is no notebook of nbformat 4, which is an object of JSON with a list "
            f"'cells': {reason}; open it in Jupyter and save it"
        ) from problem
    metadata = notebook.metadata
    language = metadata.language_info.name or metadata.kernelspec.language or "python"
    if "python" not in language.lower():
        raise UsageError(
            f"{path.name} is a notebook of {language}; one of Python was expected: name the file "
            "that defines the model in Python"
        )
    return ["".join(cell.source) for cell in notebook.cells if cell.cell_type == "code"]


def _parsed(path: Path, number: int, source: str) -> Cell:
    """Parses a cell of code; magics are found as the lines that Python rejects."""
    lines = source.splitlines()
    python = list(lines)
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        # A cell magic can only be the first line of its cell.
        cell_magic = _CELL_MAGIC.match(line)
        if cell_magic is not None:
            magic = cell_magic[1]
            if magic not in _PYTHON_CELLS:
                return Cell(number, tuple(lines), (), ast.Module([], []), magic)
            python[index] = "pass"
        break
    while True:
        try:
            tree = ast.parse("\n".join(python))
            return Cell(number, tuple(lines), tuple(python), tree)
        except SyntaxError as problem:
            index = (problem.lineno or 1) - 1
            if _replace_magic(python, index):
                continue
            # Python reports the end of a cell as a line of its own.
            excerpt = "".join(lines[index : index + 1]).strip()
            raise NotConvertible(
                f"{path.name}, cell {number}, line {index + 1}: {problem.msg}: `{excerpt}`; "
                "correct the cell, or delete it if the model does not need it"
            ) from problem


def _replace_magic(python: list[str], index: int) -> bool:
    """Replaces a line that begins or assigns a magic or a shell command; returns whether it is one.

    Only lines that Python rejects are passed: `%` may also begin the second line of an expression.
    """
    if index >= len(python):
        return False
    line = python[index]
    assignment = _ASSIGNED_MAGIC.match(line)
    if assignment is not None:
        replacement = f"{assignment[1]} {_RESULT_OF_MAGIC}"
    elif _LINE_MAGIC.match(line):
        indent = line[: len(line) - len(line.lstrip())]
        replacement = f"{indent}pass"
    else:
        return False
    python[index] = replacement
    # The lines that continue the magic stay, empty, so that line numbers are those of the user.
    while line.endswith("\\") and index + 1 < len(python):
        index += 1
        line = python[index]
        python[index] = ""
    return True
