"""The definitions of a script or a notebook as a module: classes without the training around them.

Only definitions run: see `selection`. A name that is left out is not defined, and the error says
where the file computes it and how to give its value.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import pickle
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from export.errors import UsageError
from export.model_code.notes import add_note
from export.model_code.scopes import bound_names
from export.model_code.search_path import hidden_package, on_search_path
from export.model_code.selection import (
    CLASSES_AND_FUNCTIONS,
    IMPORTS,
    select_definitions,
)
from export.model_code.sources import Source, Statement, read_source
from export.model_code.summaries import summary
from export.user_lines import causes

_NOT_DEFINED = "is not defined: "
"""Between a name and why it was left out."""
_PLAIN = (type(None), bool, int, float, str, bytes, date, time, np.ndarray, np.generic)


@dataclass(frozen=True)
class Reason:
    """Why a name is not defined.

    Attributes:
      why: a sentence about the file.
      remedy: what to do, if the name is needed; "" if `why` says it.
      failed: whether a definition of the name raised an error.
    """

    why: str
    remedy: str
    failed: bool = False

    def __str__(self) -> str:
        return f"{self.why}; {self.remedy}" if self.remedy else self.why


@dataclass(frozen=True)
class Giving:
    """How a user gives the value of a name; with `{file}` and `{name}`.

    Attributes:
      key: what gives it.
      remedy: what to do if it is not given.
    """

    key: str
    remedy: str


IN_RECIPE = Giving(
    "code.names.{name}",
    "state its value as code.names.{name}, or, if TOML has no such value, write a factory file "
    'that calls definitions("{file}", {name}=...)',
)
IN_FACTORY = Giving(
    'definitions("{file}", {name}=...)', 'give its value as definitions("{file}", {name}=...)'
)


class Definitions(ModuleType):
    """The module of a file's definitions; it has their names alone."""

    def __getattr__(self, name: str) -> Any:
        taken = _TAKEN.get(self.__name__)
        reason = taken.reasons.get(name) if taken else None
        why = f"{_NOT_DEFINED}{reason}" if reason else "is no name of these definitions"
        raise AttributeError(f"{name!r} {why}", name=name, obj=self)


@dataclass(frozen=True)
class TakenDefinitions:
    """The definitions of a file.

    Attributes:
      module: has their names.
      note: what was taken and what was left, for the plan; "" if nothing was left.
      reasons: by name, why it is not defined, and the remedy.
      several: by name, where classes and functions of that name are, if there are several.
    """

    module: Definitions
    note: str
    reasons: Mapping[str, Reason]
    several: Mapping[str, str]


_TAKEN: dict[str, TakenDefinitions] = {}
"""By the name of the module."""


class _BuiltIns(dict[str, Any]):
    """Python's own names, where a module looks last for a name: explains those that were left out.

    Python defines that a module's `__builtins__` may be a dict of its own, and asks it as any
    mapping if it is of a derived class.

    Attributes:
      reasons: by name, why it is not defined.
    """

    def __init__(self) -> None:
        super().__init__(vars(builtins))
        self.reasons: dict[str, Reason] = {}

    def __missing__(self, name: str) -> Any:
        reason = self.reasons.get(name)
        if reason is not None:
            raise NameError(f"name {name!r} {_NOT_DEFINED}{reason}", name=name)
        raise KeyError(name)


def definitions(file: str | Path, /, **names: Any) -> Any:
    """Returns the definitions of a script or a notebook, for a factory of your own.

    Imports, classes, functions and constants are taken. Statements that compute something, such as
    those that load data and train, are left out; a note in the plan lists them. Call it at the top
    level of your file, so that classes are made once:

        from export.model_code import definitions

        published = definitions("basic_retrieval.ipynb", task=None)

        def build():
            return published.MovielensModel(user_model(), movie_model())

    Args:
      file: path of a `.py` or `.ipynb` file, relative to the file that calls this function.
      names: values of global names that the definitions need and the file computes.

    Returns:
      A module, whose attributes are the definitions.

    Raises:
      UsageError: there is no such file, it is no notebook of Python, or it does not use a name of
        `names`.
      NotConvertible: a cell is not valid Python.
      SyntaxError: the file is not valid Python.
    """
    frame = inspect.currentframe()
    caller = frame.f_back if frame is not None else None
    caller_file = caller.f_globals.get("__file__", "") if caller is not None else ""
    path = (Path(caller_file).parent / file).resolve()
    if not path.is_file():
        raise UsageError(f"definitions({str(file)!r}): {path} does not exist")
    taken = take_definitions(path, names, IN_FACTORY)
    add_note(taken.note)
    return taken.module


def take_definitions(path: Path, names: Mapping[str, Any], giving: Giving) -> TakenDefinitions:
    """Returns the definitions of a file, which run once for each content of the file.

    Args:
      path: absolute path of the file.
      names: values of global names that the user gives.
      giving: how the user gives them.

    Raises:
      What `definitions` raises.
    """
    content = path.read_bytes()
    source = read_source(path, content)
    _check_names(source, names, giving)
    key = str(path).encode() + content + _identity(names) + giving.key.encode()
    digest = hashlib.blake2b(key, digest_size=8).hexdigest()
    name = f"rowcast_definitions_{path.stem}_{digest}"
    if name in _TAKEN:
        return _TAKEN[name]
    module = Definitions(name)
    if path.suffix == ".py":
        module.__file__ = str(path)
    sys.modules[name] = module  # classes look up their module while they are made
    try:
        with on_search_path(path.parent):
            taken = _run(module, source, names, giving)
    except BaseException:
        del sys.modules[name]
        raise
    _TAKEN[name] = taken
    return taken


def explained(problem: BaseException) -> str:
    """Returns the error of code that needs a name that was left out; "" for another error."""
    explanation = ""
    for cause in causes(problem):
        if isinstance(cause, NameError | AttributeError) and _NOT_DEFINED in str(cause):
            # Keras and AutoGraph raise it again with more text: the first one is the last here.
            explanation = f"{type(cause).__name__}: {cause}"
    return explanation


def _identity(names: Mapping[str, Any]) -> bytes:
    """Returns what is equal for equal values of names; for objects of other kinds, never."""
    if not all(map(_is_plain, names.values())):
        return uuid.uuid4().bytes
    return pickle.dumps(sorted(names.items()))


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, [*value, *value.values()]))
    return isinstance(value, _PLAIN)


def _check_names(source: Source, names: Mapping[str, Any], giving: Giving) -> None:
    used: set[str] = set()
    for statement in source.statements:
        nodes = ast.walk(statement.node)
        used.update(node.id for node in nodes if isinstance(node, ast.Name))
        used.update(bound_names(statement.node))
    for name in names:
        if name not in used:
            close = get_close_matches(name, used, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            key = giving.key.format(file=source.name, name=name)
            raise UsageError(f"{key}: {source.name} does not use a name {name!r}{hint}")


def _run(
    module: Definitions, source: Source, names: Mapping[str, Any], giving: Giving
) -> TakenDefinitions:
    """Runs the definitions in the names of a module."""
    selection = select_definitions(source.statements, names)
    known_names = _BuiltIns()
    for name, why in selection.unknown.items():
        remedy = giving.remedy.format(file=source.name, name=name)
        known_names.reasons[name] = Reason(f"{source.name} {why}", remedy)
    namespace = vars(module)
    namespace["__builtins__"] = known_names
    namespace.update(names)
    failures: dict[Statement, BaseException] = {}
    for statement in selection.taken:
        block = ast.Module([statement.node], [])
        code = compile(block, statement.filename, "exec", flags=source.flags, dont_inherit=True)
        try:
            exec(code, namespace)  # noqa: S102 (the user's)
        except (Exception, SystemExit) as problem:
            if hidden_package(problem):
                raise
            # The model may not need it: raised again where the name is used.
            failures[statement] = problem
            known_names.reasons.update(_leave_out(statement, problem, source, namespace))
        for name in selection.unknown:
            # Bound by one of several definitions, or changed by a statement that was left out.
            namespace.pop(name, None)
        namespace.update(names)
    note = summary(source, selection, failures)
    several = _several(selection.taken, source)
    return TakenDefinitions(module, note, known_names.reasons, several)


def _several(statements: Sequence[Statement], source: Source) -> dict[str, str]:
    """Returns where a class or function is, if there are several of its name."""
    positions: dict[str, list[str]] = {}
    for statement in statements:
        if isinstance(statement.node, CLASSES_AND_FUNCTIONS):
            positions.setdefault(statement.node.name, []).append(statement.where)
    return {
        name: f"{source.name} defines {name} at {' and at '.join(where)}"
        for name, where in positions.items()
        if len(where) > 1
    }


def _leave_out(
    statement: Statement, problem: BaseException, source: Source, namespace: dict[str, Any]
) -> dict[str, Reason]:
    """Removes the names that a statement defines, because it raised an error; returns why."""
    is_import = isinstance(statement.node, IMPORTS)
    why = (
        f"{source.name} defines it at {statement.where}: `{statement.shown}`, which raised "
        f"{type(problem).__name__}: {problem}"
    )
    is_missing = isinstance(problem, ModuleNotFoundError)
    remedy = "install it, or put it beside the file" if is_missing else ""
    reasons = {}
    for name in bound_names(statement.node):
        if is_import and name in namespace:
            continue  # imported by the statement before the error, or by another one
        namespace.pop(name, None)
        reasons[name] = Reason(why, remedy, failed=True)
    return reasons
