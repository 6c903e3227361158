"""A call of the model: the function that a tower runs, and the arguments that the function gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from export.errors import UsageError
from export.recipe.schema import ExportJob, input_names, name_of_call


@dataclass(frozen=True)
class Call:
    """One call of the model.

    Attributes:
      path: Attribute path of the function; "" is the model itself.
      inputs: Names of the inputs that the function gets, in the order in which its dictionaries
        hold them.
      arguments: The recipe's `arguments` of the tower; None if the function gets one dictionary.
      is_ordered: Whether the order of the inputs is stated; otherwise, it is that of a table of the
        recipe, which has no meaning.
    """

    path: str = ""
    inputs: tuple[str, ...] = ()
    arguments: tuple[Any, ...] | Mapping[str, Any] | None = field(default=None, hash=False)
    is_ordered: bool = True

    def __str__(self) -> str:
        return name_of_call(self.path)

    def bind(self, values: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the positional and the keyword arguments of the function.

        Args:
          values: Values of the inputs, by their names.
        """
        positions = {name: position for position, name in enumerate(self.inputs)}
        names = sorted(values, key=lambda name: positions.get(name, len(positions)))
        ordered_values = {name: values[name] for name in names}
        if self.arguments is None:
            return (nested(ordered_values),), {}
        arguments = _with_values(self.arguments, ordered_values)
        if isinstance(self.arguments, Mapping):
            return (), arguments
        return tuple(arguments), {}

    def in_order(self, inputs: Iterable[str]) -> Call:
        """Returns the call with its inputs in another order."""
        return replace(self, inputs=tuple(inputs), is_ordered=True)


def call_of(name: str, job: ExportJob) -> Call:
    """Returns the call of a tower.

    Args:
      name: The tower's name.
      job: The recipe.

    Raises:
      UsageError: The call reads an input that the recipe does not declare.
    """
    section = job.towers[name]
    key = "inputs"
    inputs = section.inputs
    if not inputs and section.arguments is not None:
        key = "arguments"
        # Arguments may name an input more than once.
        inputs = tuple(dict.fromkeys(input_names(section.arguments)))
    elif not inputs:
        # A tower that names no inputs gets all of the recipe.
        inputs = tuple(job.inputs)
    for input_name in inputs:
        if input_name not in job.inputs:
            raise UsageError(
                f"towers.{name}.{key} names the input {input_name!r}, which the recipe does not "
                f"declare; it declares {', '.join(job.inputs)}"
            )
    return Call(section.call, inputs, section.arguments, is_ordered=bool(section.inputs))


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the dictionary that a call gets: a dot in the name of an input is a level of it."""
    levels: dict[str, Any] = {}
    for name, value in values.items():
        # The value of `a.b` becomes `{"a": {"b": value}}`.
        *outer, last = name.split(".")
        level = levels
        for step in outer:
            level = level.setdefault(step, {})
        level[last] = value
    return levels


def _with_values(argument: Any, values: Mapping[str, Any]) -> Any:
    """Returns an argument with the values of inputs in the place of their names, and with its
    dictionaries in the order of the values.
    """
    if isinstance(argument, str):
        return values[argument]
    if isinstance(argument, Mapping):
        names = list(values)

        def position_of(key: str) -> int:
            """Returns the first position of an input below a key; constants come last."""
            return min(map(names.index, input_names(argument[key])), default=len(names))

        keys = sorted(argument, key=position_of)
        return {key: _with_values(argument[key], values) for key in keys}
    if isinstance(argument, list | tuple):
        return [_with_values(part, values) for part in argument]
    return argument
