"""The effects of a statement on the names of its file: it binds them, or changes their objects."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Scope = Function | ast.ClassDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

READS = {
    "copy",
    "count",
    "difference",
    "endswith",
    "format",
    "get",
    "index",
    "intersection",
    "isdisjoint",
    "issubset",
    "issuperset",
    "items",
    "join",
    "keys",
    "lower",
    "replace",
    "split",
    "startswith",
    "strip",
    "symmetric_difference",
    "union",
    "upper",
    "values",
}
"""Methods of lists, dictionaries, sets and texts that change nothing."""
_CHANGING_FUNCTIONS = {"delattr", "heapify", "heappop", "heappush", "insort", "setattr", "shuffle"}
"""Functions that change their first argument."""
_CHANGING_METHODS = {
    "add",
    "append",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "remove",
    "reverse",
    "setdefault",
    "sort",
    "update",
}
"""Methods that change a list, a dictionary or a set."""


@dataclass(frozen=True)
class Change:
    """A change of the object that a name of the file has.

    Attributes:
      name: The name.
      in_function: Whether the change happens when a function is called.
      by_method: Whether a method of the object is called, which changes the object if it is a list,
        a dictionary or a set.
    """

    name: str
    in_function: bool
    by_method: bool


def bound_names(statement: ast.stmt) -> list[str]:
    """Returns the names of the file that a statement binds or deletes when it runs."""
    names = []
    for node in _executed(statement):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.append(node.id)
        elif isinstance(node, _NAMED):
            names.append(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names += [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    return list(dict.fromkeys(names))


def changes(statement: ast.stmt) -> list[Change]:
    """Returns the changes that a statement makes when it runs, and those that the functions in it
    make when they are called.
    """
    finder = _ChangeFinder()
    finder.visit(statement)
    return finder.changes


def root_name(node: ast.expr) -> str | None:
    """Returns the name that attributes, subscripts and methods begin at: `a` of `a.b[0].get(c)`."""
    while True:
        match node:
            case ast.Name():
                return node.id
            case ast.Attribute() | ast.Subscript() | ast.Starred():
                node = node.value
            case ast.Call(func=ast.Attribute()):
                node = node.func
            case _:
                return None


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes that run with a statement, in the names of the file."""
    yield node
    if isinstance(node, _FUNCTIONS):
        children: list[ast.AST] = [*getattr(node, "decorator_list", ()), node.args]
    elif isinstance(node, ast.ClassDef):
        children = [*node.decorator_list, *node.bases, *node.keywords]
    elif isinstance(node, ast.comprehension):
        children = [node.iter, *node.ifs]
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _executed(child)


def _local_names(scope: Scope) -> set[str]:
    """Returns the names that a function or a class body binds for itself."""
    local_names: set[str] = set()
    if isinstance(scope, _FUNCTIONS):
        arguments = scope.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        parameters += [extra for extra in (arguments.vararg, arguments.kwarg) if extra]
        local_names.update(parameter.arg for parameter in parameters)
    # Names that a function declares as global are the file's, wherever the declaration stands.
    global_names: set[str] = set()
    for statement in _body(scope):
        for node in _executed(statement):
            if isinstance(node, ast.Global):
                global_names.update(node.names)
        if isinstance(statement, ast.stmt):
            local_names.update(bound_names(statement))
    return local_names - global_names


def _body(scope: Scope) -> list[ast.AST]:
    """Returns the statements of a function or a class, or the expression of a lambda."""
    if isinstance(scope, ast.Lambda):
        return [scope.body]
    return list(scope.body)


class _ChangeFinder(ast.NodeVisitor):
    """Collects changes.

    Attributes:
      changes: The changes of names of the file.
    """

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._local: list[set[str]] = []
        self._functions = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Visits the body in a scope of its own."""
        self._visit_scope(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Visits the body in a scope of its own."""
        self._visit_scope(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Visits the body in a scope of its own."""
        self._visit_scope(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Visits the body in a scope of its own."""
        self._visit_scope(node)

    def visit_Global(self, node: ast.Global) -> None:
        """A function declares names as global in order to bind them."""
        for name in node.names:
            self._add(name, by_method=False)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Finds `a.b = ...` and `del a.b`."""
        self._visit_target(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Finds `a[b] = ...` and `del a[b]`."""
        self._visit_target(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Finds `a += ...`, which changes a list in place."""
        self._add(root_name(node.target), by_method=False)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Finds `a.append(...)`, `a.b.append(...)` and `shuffle(a)`."""
        function = node.func
        name = root_name(function)
        if isinstance(function, ast.Attribute):
            name = function.attr
        if name in _CHANGING_FUNCTIONS and node.args:
            self._add(root_name(node.args[0]), by_method=False)
        # A method without a known effect may change its object.
        if isinstance(function, ast.Attribute) and function.attr not in READS:
            # `Model.names.append(...)` changes the class as `Model.names = ...` does.
            is_part = not isinstance(function.value, ast.Name)
            changes_part = is_part and function.attr in _CHANGING_METHODS
            self._add(root_name(function.value), by_method=not changes_part)
        self.generic_visit(node)

    def _visit_scope(self, node: Scope) -> None:
        # Decorators, bases and defaults run outside of the scope.
        outer_nodes: list[ast.AST] = list(getattr(node, "decorator_list", ()))
        if isinstance(node, ast.ClassDef):
            outer_nodes += [*node.bases, *node.keywords]
        else:
            outer_nodes.append(node.args)
        for child in outer_nodes:
            self.visit(child)

        # The body of a class runs at once, that of a function when it is called.
        is_function = isinstance(node, _FUNCTIONS)
        self._functions += is_function
        self._local.append(_local_names(node))
        for statement in _body(node):
            self.visit(statement)
        self._local.pop()
        self._functions -= is_function

    def _visit_target(self, node: ast.Attribute | ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._add(root_name(node), by_method=False)
        self.generic_visit(node)

    def _add(self, name: str | None, *, by_method: bool) -> None:
        if name is not None and not any(name in local for local in self._local):
            self.changes.append(Change(name, self._functions > 0, by_method))
