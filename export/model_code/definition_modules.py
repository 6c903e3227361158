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

from bundle.shown_values import similar_file
from bundle.storage.regular_files import read_regular
from export.errors import UsageError
from export.model_code.effects import bound_names
from export.model_code.notes import add_note
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
"""The text of a message between a name and the reason why it was left out."""
_PLAIN = (type(None), bool, int, float, str, bytes, date, time, np.ndarray, np.generic)


@dataclass(frozen=True)
class Reason:
    """The reason why a name is not defined.

    Attributes:
      explanation: A sentence about the file.
      remedy: A remedy if the name is needed; "" if the explanation is one.
      failed: Whether a definition of the name raised an error.
    """

    explanation: str
    remedy: str
    failed: bool = False

    def __str__(self) -> str:
        if not self.remedy:
            return self.explanation
        return f"{self.explanation}; {self.remedy}"


@dataclass(frozen=True)
class ValueSource:
    """The way in which a user states the value of a name, as texts with `{file}` and `{name}`.

    Attributes:
      key: The key or the call that states the value.
      remedy: The remedy if no value is stated.
    """

    key: str
    remedy: str


IN_RECIPE = ValueSource(
    "code.names.{name}",
    "state its value as code.names.{name}, or, if TOML has no such value, write a factory file "
    'that calls definitions("{file}", {name}=...)',
)
IN_FACTORY = ValueSource(
    'definitions("{file}", {name}=...)', 'give its value as definitions("{file}", {name}=...)'
)


class Definitions(ModuleType):
    """The module of a file's definitions; it has only their names."""

    def __getattr__(self, name: str) -> Any:
        explanation = "is no name of these definitions"
        # A module has no entry yet while its definitions run.
        loaded = _LOADED.get(self.__name__)
        if loaded is not None and name in loaded.reasons:
            explanation = f"{_NOT_DEFINED}{loaded.reasons[name]}"
        raise AttributeError(f"{name!r} {explanation}", name=name, obj=self)


@dataclass(frozen=True)
class LoadedDefinitions:
    """The definitions of a file.

    Attributes:
      module: The module that has their names.
      note: A note on what was left out, for the plan; "" if nothing was.
      reasons: Reasons why names are not defined, by name.
      duplicates: Positions of classes and functions of one name, by name, if there are several.
    """

    module: Definitions
    note: str
    reasons: Mapping[str, Reason]
    duplicates: Mapping[str, str]


_LOADED: dict[str, LoadedDefinitions] = {}
"""By the name of the module."""


class _BuiltIns(dict[str, Any]):
    """Python's own names, where a module looks last for a name: explains those that were left out.

    Python defines that a module's `__builtins__` may be a dict of its own, and asks it as any
    mapping if it is of a derived class.

    Attributes:
      reasons: Reasons why names are not defined, by name.
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

        from rowcast.model_code import definitions

        published = definitions("basic_retrieval.ipynb", task=None)

        def build():
            return published.MovielensModel(user_model(), movie_model())

    Args:
      file: Path of a `.py` or `.ipynb` file, relative to the file that calls this function.
      names: Values of global names that the definitions need and the file computes.

    Returns:
      A module, whose attributes are the definitions.

    Raises:
      UsageError: There is no such file, it is no notebook of Python, or it does not use a name of
        `names`.
      NotConvertible: A cell is not valid Python.
      SyntaxError: The file is not valid Python.
    """
    # An implementation of Python may have no frames.
    caller_file = ""
    frame = inspect.currentframe()
    if frame is not None and frame.f_back is not None:
        caller_file = frame.f_back.f_globals.get("__file__", "")
    path = (Path(caller_file).parent / file).resolve()
    if not path.is_file():
        raise UsageError(f"definitions({str(file)!r}): {path} does not exist{similar_file(path)}")
    loaded = load_definitions(path, names, IN_FACTORY)
    add_note(loaded.note)
    return loaded.module


def load_definitions(
    path: Path, names: Mapping[str, Any], value_source: ValueSource
) -> LoadedDefinitions:
    """Returns the definitions of a file, which run once for each content of the file.

    Args:
      path: Absolute path of the file.
      names: Values of global names that the user states.
      value_source: The way in which the user states them.

    Raises:
      UsageError: See `definitions`.
      NotConvertible: See `definitions`.
      SyntaxError: See `definitions`.
    """
    content = read_regular(path)
    source = read_source(path, content)
    _check_names(source, names, value_source)
    key = str(path).encode() + content + _identity(names) + value_source.key.encode()
    digest = hashlib.blake2b(key, digest_size=8).hexdigest()
    name = f"rowcast_definitions_{path.stem}_{digest}"
    if name in _LOADED:
        return _LOADED[name]

    module = Definitions(name)
    if path.suffix == ".py":
        module.__file__ = str(path)
    # Classes look up their module while they are created.
    sys.modules[name] = module
    try:
        with on_search_path(path.parent):
            loaded = _run(module, source, names, value_source)
    except BaseException:
        del sys.modules[name]
        raise
    _LOADED[name] = loaded
    return loaded


def explained(problem: BaseException) -> str:
    """Returns the error of code that needs a name that was left out; "" for another error."""
    explanation = ""
    for cause in causes(problem):
        if isinstance(cause, NameError | AttributeError) and _NOT_DEFINED in str(cause):
            # Keras and AutoGraph raise it again with more text: the first error is the last here.
            explanation = f"{type(cause).__name__}: {cause}"
    return explanation


def _identity(names: Mapping[str, Any]) -> bytes:
    """Returns bytes that are equal for equal plain values of names, and never for other objects."""
    if not all(map(_is_plain, names.values())):
        return uuid.uuid4().bytes
    return pickle.dumps(sorted(names.items()))


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, [*value, *value.values()]))
    return isinstance(value, _PLAIN)


def _check_names(source: Source, names: Mapping[str, Any], value_source: ValueSource) -> None:
    """Checks that a file uses all names whose values the user states."""
    used: set[str] = set()
    for statement in source.statements:
        nodes = ast.walk(statement.node)
        used.update(node.id for node in nodes if isinstance(node, ast.Name))
        used.update(bound_names(statement.node))
    for name in names:
        if name not in used:
            hint = ""
            close = get_close_matches(name, used, n=1)
            if close:
                hint = f"; did you mean {close[0]!r}?"
            key = value_source.key.format(file=source.name, name=name)
            raise UsageError(f"{key}: {source.name} does not use a name {name!r}{hint}")


def _run(
    module: Definitions, source: Source, names: Mapping[str, Any], value_source: ValueSource
) -> LoadedDefinitions:
    """Runs the definitions in the names of a module."""
    selection = select_definitions(source.statements, names)
    # A name that is not defined is looked up among the built-in ones, which report the reason.
    built_ins = _BuiltIns()
    for name, explanation in selection.unknown.items():
        remedy = value_source.remedy.format(file=source.name, name=name)
        built_ins.reasons[name] = Reason(f"{source.name} {explanation}", remedy)
    namespace = vars(module)
    namespace["__builtins__"] = built_ins
    namespace.update(names)

    failures: dict[Statement, BaseException] = {}
    for statement in selection.definitions:
        # Statement by statement: one that fails leaves out its own names only.
        block = ast.Module([statement.node], [])
        code = compile(block, statement.filename, "exec", flags=source.flags, dont_inherit=True)
        try:
            exec(code, namespace)  # noqa: S102 (the user's)
        except (Exception, SystemExit) as problem:
            # A package of rowcast hides the user's: no remedy about this statement helps.
            if hidden_package(problem):
                raise
            # The model may not need it: raised again where the name is used.
            failures[statement] = problem
            built_ins.reasons.update(_leave_out(statement, problem, source, namespace))
        # An unknown name is bound by one of several definitions, or changed by a statement that
        # was left out.
        for name in selection.unknown:
            namespace.pop(name, None)
        # The user's values replace those of the file.
        namespace.update(names)
    note = summary(source, selection, failures)
    duplicates = _duplicates(selection.definitions, source)
    return LoadedDefinitions(module, note, built_ins.reasons, duplicates)


def _duplicates(statements: Sequence[Statement], source: Source) -> dict[str, str]:
    """Returns the positions of a class or function, if there are several of its name."""
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
    """Removes the names that a statement defines, because it raised an error; returns the reasons,
    by name.
    """
    is_import = isinstance(statement.node, IMPORTS)
    explanation = (
        f"{source.name} defines it at {statement.where}: `{statement.excerpt}`, which raised "
        f"{type(problem).__name__}: {problem}"
    )
    remedy = ""
    if isinstance(problem, ModuleNotFoundError):
        remedy = "install it, or put it beside the file"
    reasons = {}
    for name in bound_names(statement.node):
        # The statement imported it before the error, or another statement did.
        if is_import and name in namespace:
            continue
        namespace.pop(name, None)
        reasons[name] = Reason(explanation, remedy, failed=True)
    return reasons
