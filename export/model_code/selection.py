"""Chooses the definitions among the statements of a file: what it states, not what it computes.

A name is known if only definitions bind it and nothing else changes what it stands for. A constant
is made of literals and known names, so which statements are definitions depends on which names are
known, and the reverse: both are found together.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from export.model_code.constants import (
    MUTABLE_CALLS,
    Constants,
    argument_values,
    last_name,
)
from export.model_code.scopes import Change, bound_names, changes, root_name
from export.model_code.sources import Statement

IMPORTS = (ast.Import, ast.ImportFrom)
CLASSES_AND_FUNCTIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign)
_MUTABLE = (ast.Dict, ast.List, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp)
_SETTINGS = {
    "disable_eager_execution",
    "disable_v2_behavior",
    "enable_numpy_behavior",
    "experimental_enable_numpy_behavior",
    "set_dtype_policy",
    "set_floatx",
    "set_global_policy",
    "set_image_data_format",
}
"""Functions of libraries that change what layers compute."""


@dataclass(frozen=True)
class Selection:
    """The definitions among statements.

    Attributes:
      taken: the definitions, in the order of the file.
      left: the other statements.
      unknown: by name, what the file does to it that definitions do not contain, as the part of a
        sentence about the file.
      settings: statements among `left` that change what layers compute.
    """

    taken: tuple[Statement, ...]
    left: tuple[Statement, ...]
    unknown: Mapping[str, str]
    settings: tuple[Statement, ...]


def select_definitions(statements: Sequence[Statement], given: Collection[str] = ()) -> Selection:
    """Chooses the definitions.

    Args:
      statements: of the top level of a file.
      given: names whose values the user gives: they are known.
    """
    file = _File(statements, given)
    computed: dict[str, str] = {}
    uncertain: dict[str, str] = {}
    while True:
        unknown = {**computed, **uncertain}
        constants = Constants(unknown.keys(), file.bound, file.imports, given)
        taken = [item for item in statements if is_definition(item.node, constants)]
        definitions = frozenset(taken)
        computed = file.computed_names(definitions)
        # A name that is uncertain is left out, and then it is computed: the first reason counts.
        uncertain = {**file.uncertain_names(definitions), **uncertain}
        if computed.keys() | uncertain.keys() <= unknown.keys():
            break
    left = tuple(item for item in statements if item not in definitions)
    settings = tuple(item for item in left if _has_setting(item.node, constants))
    return Selection(tuple(taken), left, {**computed, **uncertain}, settings)


def does_more_than_define(statements: Sequence[Statement]) -> bool:
    """Returns whether a file has statements at its top level that neither define nor assign, such
    as calls and loops, as scripts have that train. Calls of the standard library, such as
    `os.environ.setdefault`, and settings of libraries are no such statements.
    """
    imports = _imported_names(statements)
    return any(_does_more(statement.node, imports) for statement in statements)


def _does_more(node: ast.stmt, imports: Mapping[str, str]) -> bool:
    if isinstance(node, ast.If):
        names = {part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)}
        body = [*node.body, *node.orelse]
        return "__name__" not in names and any(_does_more(child, imports) for child in body)
    if isinstance(node, ast.Try):
        handled = [child for handler in node.handlers for child in handler.body]
        body = [*node.body, *handled, *node.orelse, *node.finalbody]
        return any(_does_more(child, imports) for child in body)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        library = imports.get(root_name(node.value.func) or "", "").partition(".")[0]
        is_setting = last_name(node.value.func) in _SETTINGS
        return not is_setting and library not in sys.stdlib_module_names
    return isinstance(node, ast.For | ast.While | ast.With | ast.AugAssign | ast.Delete)


def is_definition(node: ast.stmt, constants: Constants) -> bool:
    """Returns whether a statement is a definition, if some names are known."""
    if isinstance(node, (*IMPORTS, *CLASSES_AND_FUNCTIONS, ast.Pass)):
        return True
    if isinstance(node, ast.Assign):
        targets = all(map(constants.contain_target, node.targets))
        return targets and constants.contain(node.value)
    if isinstance(node, ast.AnnAssign):
        is_stated = node.value is not None and constants.contain(node.value)
        return is_stated and constants.contain_target(node.target)
    if isinstance(node, ast.Expr):
        return _is_definite_expression(node.value, constants)
    if isinstance(node, ast.If | ast.Try):
        return _is_definite_block(node, constants)
    return type(node).__name__ == "TypeAlias"  # a statement since Python 3.12


def _is_definite_expression(node: ast.expr, constants: Constants) -> bool:
    """Returns whether an expression is a text, or a setting with known arguments."""
    if isinstance(node, ast.Constant):
        return True
    if not isinstance(node, ast.Call) or not _is_setting(node, constants):
        return False
    return constants.contain_all(argument_values(node))


def _is_definite_block(node: ast.If | ast.Try, constants: Constants) -> bool:
    """Returns whether definitions alone depend on a known condition, or on an error of others."""
    body = [*node.body, *node.orelse]
    if isinstance(node, ast.If):
        names = {part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)}
        if "__name__" in names or not constants.contain(node.test):
            return False
    else:
        handled = [child for handler in node.handlers for child in handler.body]
        body += [child for child in handled if not isinstance(child, ast.Raise)]
        body += node.finalbody
    return all(is_definition(child, constants) for child in body)


class _File:
    """What the statements of a file bind and change.

    Attributes:
      bound: the names that the file binds.
      imports: by name, the dotted name of what is imported.
    """

    def __init__(self, statements: Sequence[Statement], given: Collection[str]) -> None:
        self._given = set(given)
        self._binders: dict[str, list[Statement]] = {}
        for statement in statements:
            for name in bound_names(statement.node):
                self._binders.setdefault(name, []).append(statement)
        self._changes = [(item, change) for item in statements for change in changes(item.node)]
        self.bound = frozenset(self._binders)
        self.imports = _imported_names(statements)

    def computed_names(self, taken: Collection[Statement]) -> dict[str, str]:
        """Returns the names that other statements than definitions bind, and where."""
        computed = {}
        for name, binders in self._binders.items():
            left = [binder for binder in binders if binder not in taken]
            if left and name not in self._given:
                computed[name] = f"computes it {_positions(left)}, which was left out"
        return computed

    def uncertain_names(self, taken: Collection[Statement]) -> dict[str, str]:
        """Returns the names that definitions bind, but whose values are not known, and why."""
        uncertain = {}
        for name, binders in self._binders.items():
            if all(binder in taken for binder in binders) and _differ(binders):
                uncertain[name] = f"gives it several values, {_positions(binders)}"
        for name, changing in self._changing(taken).items():
            why = f"changes it {_positions(changing)}, so that its value is not known"
            for alias in self._aliases(name):
                if all(binder in taken for binder in self._binders[alias]):
                    uncertain.setdefault(alias, why)
        return {name: why for name, why in uncertain.items() if name not in self._given}

    def _changing(self, taken: Collection[Statement]) -> dict[str, list[Statement]]:
        """Returns the statements that change what a name stands for, by name."""
        changing: dict[str, list[Statement]] = {}
        for statement, change in self._changes:
            happens = change.in_function or statement not in taken
            if happens and self._is_changed(change):
                changing.setdefault(change.name, []).append(statement)
        return changing

    def _is_changed(self, change: Change) -> bool:
        binders = [binder.node for binder in self._binders.get(change.name, ())]
        if all(isinstance(node, IMPORTS) for node in binders):
            return False  # of a library, or no name of the file
        if any(isinstance(node, CLASSES_AND_FUNCTIONS) for node in binders):
            # What methods do to their class, they do in the exporter, too.
            return not change.in_function and not change.by_method
        return not change.by_method or self._is_mutable(change.name, set())

    def _is_mutable(self, name: str, seen: set[str]) -> bool:
        """Returns whether a constant holds a list, a dict or a set."""
        seen.add(name)
        parts = [part for value in self._values(name) for part in ast.walk(value)]
        if any(isinstance(part, _MUTABLE) or _makes_mutable(part) for part in parts):
            return True
        names = {part.id for part in parts if isinstance(part, ast.Name)} & self.bound
        return any(self._is_mutable(other, seen) for other in names if other not in seen)

    def _aliases(self, name: str) -> list[str]:
        """Returns a name, and the constants that are the same object or within it."""
        names = [name]
        for known_name in names:  # grows meanwhile
            for value in self._values(known_name):
                new = [alias for alias in _root_names(value) if alias not in names]
                names += [alias for alias in new if self._is_mutable(alias, set())]
        return names

    def _values(self, name: str) -> list[ast.expr]:
        nodes = [binder.node for binder in self._binders.get(name, ())]
        values = [node.value for node in nodes if isinstance(node, _ASSIGNMENTS)]
        return [value for value in values if value is not None]


def _root_names(value: ast.expr) -> list[str]:
    """Returns the names of objects that a value is or holds."""
    if isinstance(value, ast.List | ast.Tuple):
        parts = value.elts
    elif isinstance(value, ast.Dict):
        parts = value.values
    else:
        parts = [value]
    return list(dict.fromkeys(filter(None, map(root_name, parts))))


def _imported_names(statements: Sequence[Statement]) -> dict[str, str]:
    imports: dict[str, str] = {}
    for statement in statements:
        if isinstance(statement.node, CLASSES_AND_FUNCTIONS):
            continue
        for node in ast.walk(statement.node):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    imports[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return imports


def _has_setting(statement: ast.stmt, constants: Constants) -> bool:
    """Returns whether a part of a statement changes what the layers of a library compute."""
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(_is_setting(call, constants) for call in calls)


def _is_setting(call: ast.Call, constants: Constants) -> bool:
    is_of_jax = constants.dotted(call.func) == "jax.config.update"
    return is_of_jax or last_name(call.func) in _SETTINGS


def _makes_mutable(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in MUTABLE_CALLS


def _differ(binders: Sequence[Statement]) -> bool:
    """Returns whether a name has several values, at least one of them a constant: its value depends
    on when it is read.
    """
    nodes = [binder.node for binder in binders]
    is_assigned = any(isinstance(node, _ASSIGNMENTS) for node in nodes)
    return is_assigned and len(set(map(ast.dump, nodes))) > 1


def _positions(statements: Sequence[Statement]) -> str:
    """Returns where statements are, and what the last of them is."""
    *earlier, last = dict.fromkeys(statements)
    if not earlier:
        return f"at {last.where}: `{last.shown}`"
    more = f" and {len(earlier) - 1} more places" if len(earlier) > 1 else ""
    return f"at {earlier[0].where}{more}, and last at {last.where}: `{last.shown}`"
