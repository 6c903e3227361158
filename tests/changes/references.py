"""What of the repository a test file can execute, read from the sources."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
_IMPORT_ROOTS = (REPOSITORY, REPOSITORY / "client")

_CALLERS_OF_THE_PRODUCT = ("tests", "examples", "benchmarks", "scripts")

_PROGRAMS = {"rowcast-export": "export", "rowcast-serve": "service", "rowcast": "client"}
_PACKAGES = {
    "benchmarks": "benchmarks",
    "examples": "examples",
    "export": "export",
    "rowcast_client": "client",
    "service": "service",
}
_TERM = re.compile(r"\b(rowcast-export|rowcast-serve|rowcast|docs|scripts|make)\b|\.md\b")
_MODULE_OR_PATH = re.compile(rf"(?<![\w.])({'|'.join(_PACKAGES)})(?=[./]\w|$)")


@dataclass(frozen=True)
class References:
    """What a file and all that it imports refer to.

    Attributes:
      files: The Python files, itself included, relative to the repository; of the product, only
        those that they import themselves.
      folders: The top folders of these files, and of the programs, modules and paths that the texts
        of tests name, since they start processes, too. `docs` stands for any page.
    """

    files: frozenset[str]
    folders: frozenset[str]


def references_of(path: Path) -> References:
    """Returns what a test file, the `conftest.py` files above it and all their imports refer to."""
    pending = [path, *_conftests_of(path)]
    files: set[Path] = set()
    folders: set[str] = set()
    while pending:
        file = pending.pop()
        if file in files:
            continue
        files.add(file)
        # What the product imports in turn need not be followed: by the import contracts, no program
        # imports another.
        if file.relative_to(REPOSITORY).parts[0] in _CALLERS_OF_THE_PRODUCT:
            imported, named = _direct_references(file)
            pending += imported
            folders |= named
    names = {file.relative_to(REPOSITORY).as_posix() for file in files}
    folders |= {name.partition("/")[0] for name in names}
    return References(frozenset(names), frozenset(folders))


def _conftests_of(path: Path) -> Iterator[Path]:
    for folder in path.parents:
        if folder == REPOSITORY:
            return
        conftest = folder / "conftest.py"
        if conftest.exists():
            yield conftest


@functools.cache
def _direct_references(file: Path) -> tuple[list[Path], set[str]]:
    """Returns the files that a file imports, anywhere in it, and the folders that it names."""
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:  # pytest reports the line, if it collects the file
        return [], set(_PACKAGES.values())
    documentation = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    imported: list[Path] = []
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                imported += _files_of(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                imported += _files_of(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Constant) and node not in documentation:
            named |= _folders_named(str(node.value))
    return imported, named


def _files_of(module: str) -> list[Path]:
    """Returns the file of a module, or of the name that is imported from it, and its packages'."""
    parts = module.split(".")
    locations = [
        root.joinpath(*parts[:count])
        for root in _IMPORT_ROOTS
        for count in range(1, len(parts) + 1)
    ]
    files = [location.with_suffix(".py") for location in locations]
    files += [location / "__init__.py" for location in locations]
    return [file for file in files if file.exists()]


def _folders_named(text: str) -> set[str]:
    folders = {_PACKAGES[match[1]] for match in _MODULE_OR_PATH.finditer(text)}
    for match in _TERM.finditer(text):
        term = match[0]
        folders.add("docs" if term == ".md" else _PROGRAMS.get(term, term))
    return folders
