"""Tells expressions that state a value from those that compute one: literals, names that are known,
attributes of what is imported, and the few functions that depend on their arguments alone.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from export.model_code.scopes import READS, root_name

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
MUTABLE_CALLS = {"OrderedDict", "defaultdict", "dict", "list", "set", "sorted"}
"""Functions that return a list, a dict or a set."""
_OF_CONSTANT_PARTS = (
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
_OF_THE_PROCESS = {"os.environ", "sys.argv"}
"""What has other values when the model is exported."""


@dataclass(frozen=True)
class Constants:
    """What is known of the names of a file.

    Attributes:
      unknown: names whose values the definitions do not contain.
      bound: all names that the file binds.
      imports: by name, the dotted name of what is imported.
      given: names whose values the user gives.
    """

    unknown: Collection[str]
    bound: Collection[str]
    imports: Mapping[str, str]
    given: Collection[str] = ()

    def contain(self, node: ast.expr) -> bool:
        """Returns whether an expression is constant."""
        if self.dotted(node) in _OF_THE_PROCESS:
            return False
        if isinstance(node, ast.Name):
            return node.id not in self.unknown
        if isinstance(node, ast.Call):
            return self._may_call(node.func) and self.contain_all(argument_values(node))
        if isinstance(node, COMPREHENSIONS):
            return self._contain_comprehension(node)
        if isinstance(node, ast.Lambda):
            defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            return self.contain_all(defaults)
        return isinstance(node, _OF_CONSTANT_PARTS) and self.contain_all(_parts(node))

    def contain_all(self, nodes: Collection[ast.expr]) -> bool:
        """Returns whether all of some expressions are constant."""
        return all(map(self.contain, nodes))

    def contain_target(self, target: ast.expr) -> bool:
        """Returns whether a definition may assign to a target: to names, and to parts of objects
        that the file itself defines.
        """
        if isinstance(target, ast.Name):
            return target.id not in self.unknown
        if isinstance(target, ast.Tuple | ast.List):
            return all(map(self.contain_target, target.elts))
        name = root_name(target)
        is_own = name in self.bound and name not in self.imports and name not in self.given
        return is_own and self.contain(target)

    def _contain_comprehension(self, node: ast.expr) -> bool:
        generators = [part for part in ast.walk(node) if isinstance(part, ast.comprehension)]
        targets = [part for generator in generators for part in ast.walk(generator.target)]
        own_names = {part.id for part in targets if isinstance(part, ast.Name)}
        inside = replace(self, unknown=set(self.unknown) - own_names)
        parts = _parts(node)
        for generator in generators:
            parts += [generator.iter, *generator.ifs]
        return inside.contain_all(parts)

    def _may_call(self, function: ast.expr) -> bool:
        dotted = self.dotted(function)
        if dotted in _LIBRARY_CALLS or dotted.startswith("math."):
            return True
        if isinstance(function, ast.Name):
            return function.id in _BUILT_IN_CALLS and function.id not in self.bound
        if isinstance(function, ast.Attribute) and function.attr in READS:
            return root_name(function) not in self.imports and self.contain(function.value)
        return False

    def dotted(self, node: ast.expr) -> str:
        """Returns the dotted name of what is imported, such as `os.path` of `path`; else ""."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, "")
        if isinstance(node, ast.Attribute):
            owner = self.dotted(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        return ""


def argument_values(call: ast.Call) -> list[ast.expr]:
    """Returns the arguments of a call, without their names."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def last_name(function: ast.expr) -> str:
    """Returns `c` of `a.b.c`; "" for what has no name."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _parts(node: ast.AST) -> list[ast.expr]:
    return [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
