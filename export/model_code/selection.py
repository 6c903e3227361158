"""Selects the definitions among the statements of a file: what it states, not what it computes.

A name is known if only definitions bind it and nothing else changes its object. A constant consists
of literals and known names. So definitions depend on the known names, and known names depend on the
definitions: both are found together.
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
      definitions: The definitions, in the order of the file.
      left_out: All other statements.
      unknown: Names whose values the definitions do not contain, with what the file does to them,
        as the part of a sentence about the file.
      settings: Statements among `left_out` that change what layers compute.
    """

    definitions: tuple[Statement, ...]
    left_out: tuple[Statement, ...]
    unknown: Mapping[str, str]
    settings: tuple[Statement, ...]


def select_definitions(
    statements: Sequence[Statement], user_names: Collection[str] = ()
) -> Selection:
    """Selects the definitions.

    Args:
      statements: The statements at the top level of a file.
      user_names: Names whose values the user states: they are known.
    """
    file = _File(statements, user_names)
    computed: dict[str, str] = {}
    uncertain: dict[str, str] = {}
    # Every round can only add unknown names, so that this ends.
    while True:
        unknown = {**computed, **uncertain}
        constants = Constants(unknown.keys(), file.bound, file.imports, user_names)
        definitions = tuple(
            statement for statement in statements if is_definition(statement.node, constants)
        )
        defining = frozenset(definitions)
        computed = file.computed_names(defining)
        # A name that is uncertain is left out, and then it is computed: the first reason counts.
        uncertain = {**file.uncertain_names(defining), **uncertain}
        if computed.keys() | uncertain.keys() <= unknown.keys():
            break
    left_out = tuple(statement for statement in statements if statement not in defining)
    settings = tuple(statement for statement in left_out if _has_setting(statement.node, constants))
    return Selection(definitions, left_out, {**computed, **uncertain}, settings)


def does_more_than_define(statements: Sequence[Statement]) -> bool:
    """Returns whether a file has statements at its top level that neither define nor assign, such
    as the calls and loops of a script that trains. Calls of the standard library, such as
    `os.environ.setdefault`, and settings of libraries are no such statements.
    """
    imports = _imported_names(statements)
    return any(_does_more(statement.node, imports) for statement in statements)


def _does_more(node: ast.stmt, imports: Mapping[str, str]) -> bool:
    if isinstance(node, ast.If):
        # `if __name__ == "__main__":` does not run when the file is imported.
        if "__name__" in _names_in(node.test):
            return False
        return any(_does_more(child, imports) for child in [*node.body, *node.orelse])
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
        has_constant_targets = all(map(constants.contain_target, node.targets))
        return has_constant_targets and constants.contain(node.value)
    if isinstance(node, ast.AnnAssign):
        is_stated = node.value is not None and constants.contain(node.value)
        return is_stated and constants.contain_target(node.target)
    if isinstance(node, ast.Expr):
        return _is_definite_expression(node.value, constants)
    if isinstance(node, ast.If | ast.Try):
        return _is_definite_block(node, constants)
    # A statement since Python 3.12.
    return type(node).__name__ == "TypeAlias"


def _is_definite_expression(node: ast.expr, constants: Constants) -> bool:
    """Returns whether an expression is a text, or a setting with known arguments."""
    if isinstance(node, ast.Constant):
        return True
    if not isinstance(node, ast.Call) or not _is_setting(node, constants):
        return False
    return constants.contain_all(argument_values(node))


def _is_definite_block(node: ast.If | ast.Try, constants: Constants) -> bool:
    """Returns whether a block holds only definitions, under a known condition, or with handlers of
    their errors.
    """
    body = [*node.body, *node.orelse]
    if isinstance(node, ast.If):
        if "__name__" in _names_in(node.test) or not constants.contain(node.test):
            return False
    else:
        # A handler may raise an error, as for an import that is missing.
        for handler in node.handlers:
            body += [child for child in handler.body if not isinstance(child, ast.Raise)]
        body += node.finalbody
    return all(is_definition(child, constants) for child in body)


def _names_in(node: ast.expr) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


class _File:
    """The names that the statements of a file bind and change.

    Attributes:
      bound: The names that the file binds.
      imports: Dotted names of imported modules and objects, by the name that they have in the file.
    """

    def __init__(self, statements: Sequence[Statement], user_names: Collection[str]) -> None:
        self._user_names = set(user_names)
        self._binders: dict[str, list[Statement]] = {}
        self._changes: list[tuple[Statement, Change]] = []
        for statement in statements:
            for name in bound_names(statement.node):
                self._binders.setdefault(name, []).append(statement)
            self._changes += [(statement, change) for change in changes(statement.node)]
        self.bound = frozenset(self._binders)
        self.imports = _imported_names(statements)

    def computed_names(self, definitions: Collection[Statement]) -> dict[str, str]:
        """Returns the names that a statement binds which is no definition, with its position."""
        computed = {}
        for name, binders in self._binders.items():
            left_out = [binder for binder in binders if binder not in definitions]
            if left_out and name not in self._user_names:
                computed[name] = f"computes it {_positions(left_out)}, which was left out"
        return computed

    def uncertain_names(self, definitions: Collection[Statement]) -> dict[str, str]:
        """Returns the names that definitions bind, but whose values are not known, with reasons."""
        uncertain = {}
        for name, binders in self._binders.items():
            if all(binder in definitions for binder in binders) and _differ(binders):
                uncertain[name] = f"gives it several values, {_positions(binders)}"
        for name, changing in self._changing(definitions).items():
            explanation = f"changes it {_positions(changing)}, so that its value is not known"
            # The object changes under all of its names.
            for alias in self._aliases(name):
                if all(binder in definitions for binder in self._binders[alias]):
                    uncertain.setdefault(alias, explanation)
        for name in self._user_names & uncertain.keys():
            del uncertain[name]
        return uncertain

    def _changing(self, definitions: Collection[Statement]) -> dict[str, list[Statement]]:
        """Returns the statements that change the object of a name, by name."""
        changing: dict[str, list[Statement]] = {}
        for statement, change in self._changes:
            # What a definition changes at once, it changes in the exporter, too. A function may be
            # called by a statement that was left out.
            is_lost = change.in_function or statement not in definitions
            if is_lost and self._is_changed(change):
                changing.setdefault(change.name, []).append(statement)
        return changing

    def _is_changed(self, change: Change) -> bool:
        binders = [binder.node for binder in self._binders.get(change.name, ())]
        # The name is of a library, or no name of the file.
        if all(isinstance(node, IMPORTS) for node in binders):
            return False
        if any(isinstance(node, CLASSES_AND_FUNCTIONS) for node in binders):
            # Methods that change their class change it in the exporter, too.
            return not change.in_function and not change.by_method
        return not change.by_method or self._is_mutable(change.name, set())

    def _is_mutable(self, name: str, visited: set[str]) -> bool:
        """Returns whether a constant holds a list, a dictionary or a set."""
        visited.add(name)
        nodes = [node for value in self._values(name) for node in ast.walk(value)]
        if any(isinstance(node, _MUTABLE) or _makes_mutable(node) for node in nodes):
            return True
        names = {node.id for node in nodes if isinstance(node, ast.Name)} & self.bound
        return any(self._is_mutable(inner, visited) for inner in names if inner not in visited)

    def _aliases(self, name: str) -> list[str]:
        """Returns a name, and the constants that are the same object or within it."""
        names = [name]
        # The list grows while it is walked.
        for alias in names:
            for value in self._values(alias):
                new_names = [root for root in _root_names(value) if root not in names]
                names += [root for root in new_names if self._is_mutable(root, set())]
        return names

    def _values(self, name: str) -> list[ast.expr]:
        nodes = [binder.node for binder in self._binders.get(name, ())]
        values = [node.value for node in nodes if isinstance(node, _ASSIGNMENTS)]
        return [value for value in values if value is not None]


def _root_names(value: ast.expr) -> list[str]:
    """Returns the names of objects that a value is or holds."""
    if isinstance(value, ast.List | ast.Tuple):
        objects = value.elts
    elif isinstance(value, ast.Dict):
        objects = value.values
    else:
        objects = [value]
    return list(dict.fromkeys(filter(None, map(root_name, objects))))


def _imported_names(statements: Sequence[Statement]) -> dict[str, str]:
    imports: dict[str, str] = {}
    for statement in statements:
        # Imports inside of these are names of theirs. Blocks such as `try` have names of the file.
        if isinstance(statement.node, CLASSES_AND_FUNCTIONS):
            continue
        for node in ast.walk(statement.node):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    # `import a.b` binds `a`, and `import a.b as c` binds `c`.
                    if alias.asname:
                        imports[alias.asname] = alias.name
                    else:
                        package = alias.name.partition(".")[0]
                        imports[package] = package
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
    """Returns the positions of statements, and an excerpt of the last one."""
    *earlier, last = dict.fromkeys(statements)
    if not earlier:
        return f"at {last.where}: `{last.excerpt}`"
    more = ""
    if len(earlier) > 1:
        more = f" and {len(earlier) - 1} more places"
    return f"at {earlier[0].where}{more}, and last at {last.where}: `{last.excerpt}`"
