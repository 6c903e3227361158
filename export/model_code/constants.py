"""Distinguishes expressions that state a value from those that compute one.

Literals state a value, and so do names with a stated value, attributes of imported modules, and
calls of the few functions that depend on their arguments alone.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from export.model_code.effects import READS, root_name

MUTABLE_CALLS = {"OrderedDict", "defaultdict", "dict", "list", "set", "sorted"}
"""Functions that return a list, a dictionary or a set."""
_CONSTANT_BY_PARTS = (
    ast.Attribute,
    ast.BinOp,
    ast.BoolOp,
    ast.Compare,
    ast.Constant,
    ast.Dict,
    ast.FormattedValue,
    ast.IfExp,
    ast.JoinedStr,
    ast.List,
    ast.Set,
    ast.Slice,
    ast.Starred,
    ast.Subscript,
    ast.Tuple,
    ast.UnaryOp,
)
"""Expressions that are constant if all their parts are."""
_BUILT_IN_CALLS = MUTABLE_CALLS | {
    "abs",
    "bool",
    "enumerate",
    "float",
    "frozenset",
    "int",
    "len",
    "max",
    "min",
    "range",
    "reversed",
    "round",
    "str",
    "sum",
    "tuple",
    "zip",
}
_LIBRARY_CALLS = {
    "collections.OrderedDict",
    "collections.defaultdict",
    "collections.namedtuple",
    "functools.partial",
    "logging.getLogger",
    "typing.NamedTuple",
    "typing.NewType",
    "typing.ParamSpec",
    "typing.TypeVar",
    "typing.TypedDict",
    "typing_extensions.ParamSpec",
    "typing_extensions.TypeVar",
    "typing_extensions.TypedDict",
}
_PROCESS_STATE = {"os.environ", "sys.argv"}
"""Objects that have other values when the model is exported."""


@dataclass(frozen=True)
class Constants:
    """The names of a file, and which of them have constant values.

    Attributes:
      unknown: Names whose values the definitions do not contain.
      bound: All names that the file binds.
      imports: Dotted names of imported modules and objects, by the name that they have in the file.
    """

    unknown: Collection[str]
    bound: Collection[str]
    imports: Mapping[str, str]

    def contain(self, node: ast.expr) -> bool:
        """Returns whether an expression is constant."""
        if self.dotted(node) in _PROCESS_STATE:
            return False
        if isinstance(node, ast.Name):
            return node.id not in self.unknown
        if isinstance(node, ast.Call):
            return self._may_call(node.func) and self.contain_all(argument_values(node))
        if isinstance(node, ast.Lambda):
            # The body runs when the function is called; only defaults are computed now.
            defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            return self.contain_all(defaults)
        return isinstance(node, _CONSTANT_BY_PARTS) and self.contain_all(_parts(node))

    def contain_all(self, nodes: Collection[ast.expr]) -> bool:
        """Returns whether all expressions of a list are constant."""
        return all(map(self.contain, nodes))

    def _may_call(self, function: ast.expr) -> bool:
        dotted = self.dotted(function)
        if dotted in _LIBRARY_CALLS or dotted.startswith("math."):
            return True
        if isinstance(function, ast.Name):
            return function.id in _BUILT_IN_CALLS and function.id not in self.bound
        # A method of a constant object, such as `", ".join(names)`; functions of modules may have
        # the same names.
        if isinstance(function, ast.Attribute) and function.attr in READS:
            return root_name(function) not in self.imports and self.contain(function.value)
        return False

    def dotted(self, node: ast.expr) -> str:
        """Returns the dotted name of an imported module or object, such as `os.path` for `path`; ""
        for any other expression.
        """
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, "")
        if isinstance(node, ast.Attribute):
            owner = self.dotted(node.value)
            if owner:
                return f"{owner}.{node.attr}"
        return ""


def argument_values(call: ast.Call) -> list[ast.expr]:
    """Returns the arguments of a call, without their names."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _parts(node: ast.AST) -> list[ast.expr]:
    return [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
