"""Finds how the code of training fills up and cuts lists: in the file of the model, and in the
files of Python beside it, which are read and not run.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bundle.format.input_lengths import Keep, PadSide
from export.errors import ExportError
from export.model_code.sources import NOTEBOOK, read_source

_FILES_MAX = 64
"""The maximum number of files that are read."""
_FILE_BYTES_MAX = 4 << 20
"""The maximum size of a file that is read, in bytes."""
_SIDES: Mapping[object, PadSide] = {"pre": "start", "post": "end"}
_KEPT: Mapping[object, Keep] = {"pre": "last", "post": "first"}


@dataclass(frozen=True)
class TrainedPadding:
    """How the code of training makes lists of one length.

    Attributes:
      length: Their length; None: that of the longest list.
      value: What fills up shorter lists; None: the code does not show it.
      side: Where it stands.
      keep: Which values of a longer list stay; None: the code shows none.
      where: The file and the line.
    """

    length: int | None
    value: int | float | str | None
    side: PadSide
    keep: Keep | None
    where: str


def paddings_of_training(
    model_file: Path, names: Collection[str]
) -> dict[str | None, TrainedPadding]:
    """Returns how the code pads the inputs of a model, as far as it is written out.

    Args:
      model_file: The file that builds the model.
      names: The inputs that are lists.

    Returns:
      By the name of the input; by None what pads lists whose names do not show. What is padded in
      two ways is left out.
    """
    trees = {name: list(nodes) for name, nodes in _trees(model_file)}
    constants_of_all = _constants(node for nodes in trees.values() for node in nodes)
    paddings: dict[str | None, list[TrainedPadding]] = {}
    for file_name, nodes in trees.items():
        reader = _Reader(file_name, constants_of_all | _constants(nodes), names)
        for node in nodes:
            reader.visit(node)
        for name, padding in reader.paddings:
            paddings.setdefault(name, []).append(padding)
    return {
        name: paddings_of_name[0]
        for name, paddings_of_name in paddings.items()
        if len({replace(padding, where="") for padding in paddings_of_name}) == 1
    }


def _trees(model_file: Path) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Yields the name of each file, and its statements."""
    paths = [model_file]
    for suffix in ("*.py", f"*{NOTEBOOK}"):
        paths += sorted(model_file.parent.glob(suffix))
    for path in list(dict.fromkeys(paths))[:_FILES_MAX]:
        # What cannot be read shows nothing; if it is the model's file, its import says why.
        with suppress(ExportError, SyntaxError, ValueError, OSError):
            if path.stat().st_size <= _FILE_BYTES_MAX:
                source = read_source(path, path.read_bytes())
                yield path.name, [statement.node for statement in source.statements]


def _constants(statements: Iterable[ast.stmt]) -> dict[str, Any]:
    """Returns the values of names that are assigned one constant in all files."""
    values: dict[str, list[Any]] = {}
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
            elif isinstance(node, ast.AnnAssign):
                target = node.target
            else:
                continue
            # Attributes, too: `config.length` is found by `length`.
            name = getattr(target, "id", None) or getattr(target, "attr", None)
            if name is not None:
                values.setdefault(name, []).append(_literal(node.value))
    return {
        name: assigned[0]
        for name, assigned in values.items()
        if assigned[0] is not None and assigned.count(assigned[0]) == len(assigned)
    }


def _literal(node: ast.expr | None) -> Any:
    """Returns the value of a number or a text; None: the expression is another one."""
    with suppress(ValueError, TypeError, SyntaxError):
        value = ast.literal_eval(node)  # type: ignore[arg-type]
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            return value
    return None


class _Reader(ast.NodeVisitor):
    """Collects the expressions of a file that pad lists.

    Attributes:
      paddings: How they do, each with the input that it seems to make; None: no name shows.
    """

    def __init__(
        self, file_name: str, constants: Mapping[str, Any], names: Collection[str]
    ) -> None:
        """Takes the name of the file, the values of constants by their names, and the inputs."""
        self.paddings: list[tuple[str | None, TrainedPadding]] = []
        self._file_name = file_name
        self._constants = constants
        self._names = names
        self._targets: list[list[str]] = []
        """The names that outer nodes give to what they hold, the outermost first."""

    def visit_Assign(self, node: ast.Assign) -> None:
        self._within(_names_in(node.targets), node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._within(_names_in([node.target]), node.value)

    def visit_keyword(self, node: ast.keyword) -> None:
        self._within([node.arg or ""], node.value)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            self._within(_names_in([key]), value)

    def _within(self, names: list[str], value: ast.expr) -> None:
        self._targets.append(names)
        self.visit(value)
        self._targets.pop()

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        if name == "pad_sequences":
            self._add_pad_sequences(node, keywords)
        elif name == "padded_batch":
            self._add_padded_batch(node, keywords)
        elif name == "to_tensor" and "shape" in keywords:
            self._add_to_tensor(node, keywords)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Reads `values[:8] + [0] * (8 - len(values))`, and the same from the other side."""
        if isinstance(node.op, ast.Add):
            sides: tuple[tuple[ast.expr, ast.expr, PadSide], ...] = (
                (node.right, node.left, "end"),
                (node.left, node.right, "start"),
            )
            for fill, values, side in sides:
                filling = self._filling(fill)
                if filling is not None:
                    value, length = filling
                    keep = _keep_of(values)
                    self._add(node, [values], length, value, side, keep)
                    break
        self.generic_visit(node)

    def _add_pad_sequences(self, node: ast.Call, keywords: Mapping[str | None, ast.expr]) -> None:
        order = ("sequences", "maxlen", "dtype", "padding", "truncating", "value")
        arguments = dict(zip(order, node.args, strict=False)) | dict(keywords)
        length = self._value(arguments.get("maxlen"))
        if "maxlen" in arguments and length is None and not _is_none(arguments["maxlen"]):
            # The length is computed.
            return
        side = _SIDES.get(self._value(arguments.get("padding"), "pre"))
        keep = _KEPT.get(self._value(arguments.get("truncating"), "pre"))
        value = self._value(arguments.get("value"), 0)
        if side is not None and keep is not None:
            if length is None:
                keep = None
            self._add(node, list(node.args[:1]), length, value, side, keep)

    def _add_padded_batch(self, node: ast.Call, keywords: Mapping[str | None, ast.expr]) -> None:
        # The second argument, where it has no name.
        shapes = keywords.get("padded_shapes")
        if shapes is None and len(node.args) > 1:
            shapes = node.args[1]
        for part in ast.walk(shapes) if shapes is not None else ():
            if not isinstance(part, ast.Dict):
                continue
            for key, sizes in zip(part.keys, part.values, strict=True):
                name = self._value(key)
                elements = getattr(sizes, "elts", [])
                if name in self._names and len(elements) == 1:
                    length = self._value(elements[0])
                    value = self._padding_value(keywords.get("padding_values"), name)
                    where = f"{self._file_name}:{node.lineno}"
                    padding = TrainedPadding(length, value, "end", None, where)
                    self.paddings.append((name, padding))

    def _padding_value(self, values: ast.expr | None, name: str) -> Any:
        """Returns the padding of an input; None: the usual one of its type."""
        if isinstance(values, ast.Dict):
            for key, value in zip(values.keys, values.values, strict=True):
                if self._value(key) == name:
                    return self._value(value)
            return None
        return self._value(values)

    def _add_to_tensor(self, node: ast.Call, keywords: Mapping[str | None, ast.expr]) -> None:
        sizes = getattr(keywords["shape"], "elts", [])
        length = self._value(sizes[1]) if len(sizes) == 2 else None
        default = keywords.get("default_value") or next(iter(node.args), None)
        if length is not None:
            self._add(node, [node.func], length, self._value(default), "end", "first")

    def _filling(self, node: ast.expr) -> tuple[Any, int] | None:
        """Returns the value and the length of `[value] * (length - len(values))`."""
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
            return None
        fill, count = node.left, node.right
        if not isinstance(fill, ast.List):
            fill, count = count, fill
        # The difference may stand inside of a maximum with 0.
        if isinstance(count, ast.Call) and getattr(count.func, "id", "") == "max":
            count = next((part for part in count.args if isinstance(part, ast.BinOp)), count)
        if not isinstance(fill, ast.List) or len(fill.elts) != 1:
            return None
        if not isinstance(count, ast.BinOp) or not isinstance(count.op, ast.Sub):
            return None
        is_len = isinstance(count.right, ast.Call) and getattr(count.right.func, "id", "") == "len"
        value = self._value(fill.elts[0])
        length = self._value(count.left)
        if not is_len or value is None or not isinstance(length, int):
            return None
        return value, length

    def _add(
        self,
        node: ast.expr,
        sources: list[ast.expr],
        length: Any,
        value: Any,
        side: PadSide,
        keep: Keep | None,
    ) -> None:
        if length is not None and (not isinstance(length, int) or length < 1):
            return
        # The innermost name that is an input: of the target, else of what is padded.
        hints = [*reversed(self._targets), _names_in(sources)]
        named: list[str] = []
        for hint in hints:
            named = [name for name in dict.fromkeys(hint) if name in self._names]
            if named:
                break
        where = f"{self._file_name}:{node.lineno}"
        padding = TrainedPadding(length, value, side, keep, where)
        self.paddings += [(name, padding) for name in named or (None,)]

    def _value(self, node: ast.expr | None, default: Any = None) -> Any:
        """Returns the value of a constant or of a name of one; None: it is not known."""
        if node is None:
            return default
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        if name is not None:
            return self._constants.get(name)
        return _literal(node)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _keep_of(values: ast.expr) -> Keep | None:
    """Returns which values of a list stay: `values[:8]` has the first ones, `values[-8:]` the last
    ones.
    """
    if not isinstance(values, ast.Subscript) or not isinstance(values.slice, ast.Slice):
        return None
    if values.slice.lower is None and values.slice.upper is not None:
        return "first"
    if isinstance(values.slice.lower, ast.UnaryOp) and values.slice.upper is None:
        return "last"
    return None


def _names_in(nodes: Iterable[ast.expr | None]) -> list[str]:
    """Returns the names in expressions: of variables, attributes, and texts."""
    names = []
    for node in nodes:
        for part in ast.walk(node) if node is not None else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                names.append(part.value)
            name = getattr(part, "id", None) or getattr(part, "attr", None)
            if isinstance(name, str):
                names.append(name)
    return names
