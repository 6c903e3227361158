"""The effects of a statement on the names of its file: it binds them, or changes their objects."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
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


class Change(NamedTuple):
    """A change of the object that a name of the file has.

    Attributes:
      name: The name.
      by_method: Whether a method of the object is called, which changes the object if it is a list,
        a dictionary or a set.
    """

    name: str
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


def global_names(statement: ast.stmt) -> set[str]:
    """Returns the names of the file that functions bind when they are called."""
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Global):
            names.update(node.names)
    return names


def changes(node: ast.AST, local_names: frozenset[str] = frozenset()) -> Iterator[Change]:
    """Yields the changes that a statement makes when it runs, and those that the functions in it
    make when they are called.

    Args:
      node: The statement, or a part of it.
      local_names: Names that the functions around the node bind for themselves.
    """
    if isinstance(node, _FUNCTIONS):
        local_names |= _local_names(node)
    changed: list[str | None] = []
    by_method = False
    match node:
        case (
            ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del())
        ):
            changed.append(root_name(node))
        case ast.AugAssign(target=target):
            # `a += ...` changes a list in place.
            changed.append(root_name(target))
        case ast.Call(func=called, args=[first, *_]) if last_name(called) in _CHANGING_FUNCTIONS:
            changed.append(root_name(first))
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method not in READS:
            # A method without a known effect may change its object. `Model.names.append(...)`
            # changes the class as `Model.names = ...` does.
            changed.append(root_name(owner))
            by_method = isinstance(owner, ast.Name) or method not in _CHANGING_METHODS
    for name in changed:
        if name is not None and name not in local_names:
            yield Change(name, by_method)
    for child in ast.iter_child_nodes(node):
        yield from changes(child, local_names)


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


def last_name(function: ast.expr) -> str:
    """Returns `c` for `a.b.c`; "" for an expression without a name."""
    if isinstance(function, ast.Attribute):
        return function.attr
    if isinstance(function, ast.Name):
        return function.id
    return ""


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


def _local_names(function: Function) -> set[str]:
    """Returns the names that a function binds for itself."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
    return names
