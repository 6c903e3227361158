"""Selects the definitions among the statements of a file: what it states, not what it computes.

One pass takes imports, classes, functions, and assignments of literals and of names that are known
by then. A name is not known if the file gives it several values, or computes or changes its value.
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
)
from export.model_code.effects import (
    Change,
    bound_names,
    changes,
    global_names,
    last_name,
    root_name,
)
from export.model_code.sources import Statement

IMPORTS = (ast.Import, ast.ImportFrom)
CLASSES_AND_FUNCTIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_MUTABLE = (ast.Dict, ast.List, ast.Set)
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
    definitions = []
    left_out = []
    for statement in statements:
        if file.takes(statement):
            definitions.append(statement)
        else:
            left_out.append(statement)
    settings = [statement for statement in left_out if _has_setting(statement.node, file.constants)]
    return Selection(tuple(definitions), tuple(left_out), file.unknown, tuple(settings))


class _File:
    """The names of a file, as far as its statements were seen.

    Attributes:
      unknown: Names whose values are not known, with the reason.
      constants: Which expressions are constant.
    """

    def __init__(self, statements: Sequence[Statement], user_names: Collection[str]) -> None:
        self._user_names = user_names
        self._mutable: set[str] = set()
        self._changes: dict[str, list[tuple[Statement, Change]]] = {}
        binders: dict[str, list[Statement]] = {}
        rebinders: dict[str, list[Statement]] = {}
        for statement in statements:
            for name in bound_names(statement.node):
                binders.setdefault(name, []).append(statement)
            for name in global_names(statement.node):
                rebinders.setdefault(name, []).append(statement)
            for change in changes(statement.node):
                self._changes.setdefault(change.name, []).append((statement, change))
        self.unknown: dict[str, str] = {}
        for name, binding in binders.items():
            if name not in user_names and _differ(binding):
                self.unknown[name] = f"gives it several values, {_positions(binding)}"
        for name, changers in rebinders.items():
            if name not in user_names:
                self._note_changes([name], changers)
        self.constants = Constants(self.unknown, binders.keys(), _imported_names(statements))

    def takes(self, statement: Statement) -> bool:
        """Returns whether the next statement of the file is a definition."""
        node = statement.node
        names = [name for name in bound_names(node) if name not in self._user_names]
        if not is_definition(node, self.constants):
            explanation = f"computes it {_positions([statement])}, which was left out"
            for name in names:
                self.unknown.setdefault(name, explanation)
            return False
        if not isinstance(node, IMPORTS):
            self._note_objects(node, names)
        return True

    def _note_objects(self, node: ast.stmt, names: Sequence[str]) -> None:
        """Notes which names of a definition are not known, as the file changes their objects."""
        is_value = not isinstance(node, CLASSES_AND_FUNCTIONS)
        parts = list(ast.walk(node))
        sources = {part.id for part in parts if isinstance(part, ast.Name)} & self._mutable
        is_mutable = is_value and (bool(sources) or any(map(_is_mutable, parts)))
        for name in names:
            changers = []
            for statement, change in self._changes.get(name, ()):
                # Functions that change their class change it in the exporter, too.
                in_function = isinstance(statement.node, CLASSES_AND_FUNCTIONS)
                if (is_mutable or not change.by_method) and (is_value or not in_function):
                    changers.append(statement)
            # What the name was assigned from may be the same object, or a part of it.
            self._note_changes([name, *sources], changers)
            if is_mutable or isinstance(node, ast.ClassDef):
                self._mutable.add(name)

    def _note_changes(self, names: Sequence[str], changers: Sequence[Statement]) -> None:
        if changers:
            explanation = f"changes it {_positions(changers)}, so that its value is not known"
            for name in names:
                self.unknown.setdefault(name, explanation)


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
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        # Other targets change a part of an object.
        binds_names = all(map(_is_name, targets))
        is_known = not any(name in constants.unknown for name in bound_names(node))
        is_constant = node.value is not None and constants.contain(node.value)
        return binds_names and is_known and is_constant
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


def _is_name(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return all(map(_is_name, target.elts))
    return isinstance(target, ast.Name)


def _names_in(node: ast.expr) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


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


def _is_mutable(node: ast.AST) -> bool:
    """Returns whether an expression makes a list, a dictionary or a set."""
    if isinstance(node, ast.Call):
        return last_name(node.func) in MUTABLE_CALLS
    return isinstance(node, _MUTABLE)


def _differ(binders: Sequence[Statement]) -> bool:
    """Returns whether a name has several values that are not all classes, functions or imports: its
    value depends on when it is read.
    """
    nodes = [binder.node for binder in binders]
    if all(isinstance(node, (*IMPORTS, *CLASSES_AND_FUNCTIONS)) for node in nodes):
        return False
    return len(set(map(ast.dump, nodes))) > 1


def _positions(statements: Sequence[Statement]) -> str:
    """Returns the positions of statements, and an excerpt of the last one."""
    *earlier, last = dict.fromkeys(statements)
    if not earlier:
        return f"at {last.where}: `{last.excerpt}`"
    more = ""
    if len(earlier) > 1:
        more = f" and {len(earlier) - 1} more places"
    return f"at {earlier[0].where}{more}, and last at {last.where}: `{last.excerpt}`"
