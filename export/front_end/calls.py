"""A call of the model: the function that a tower runs, and the arguments that the function gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from export.errors import UsageError
from export.recipe.schema import ExportJob, input_names, name_of_call


@dataclass(frozen=True)
class Call:
    """One call of the model.

    Attributes:
      path: Attribute path of the function; "" is the model itself.
      inputs: Names of the inputs that the function gets.
      arguments: The recipe's `arguments` of the tower; None if the function gets one dictionary.
    """

    path: str = ""
    inputs: tuple[str, ...] = ()
    arguments: tuple[Any, ...] | Mapping[str, Any] | None = field(default=None, hash=False)

    def __str__(self) -> str:
        return name_of_call(self.path)

    def bind(self, values: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the positional and the keyword arguments of the function.

        Args:
          values: Values of the inputs, by their names.
        """
        if self.arguments is None:
            return (nested(values),), {}
        if isinstance(self.arguments, Mapping):
            return (), _with_values(self.arguments, values)
        return tuple(_with_values(self.arguments, values)), {}


def call_of(name: str, job: ExportJob) -> Call:
    """Returns the call of a tower.

    Args:
      name: The tower's name.
      job: The recipe.

    Raises:
      UsageError: The call reads an input that the recipe does not declare.
    """
    section = job.towers[name]
    if section.arguments is None:
        key = "inputs"
        # A tower that names no inputs gets all of the recipe.
        inputs = section.inputs or tuple(job.inputs)
    else:
        key = "arguments"
        # Arguments may name an input more than once.
        inputs = tuple(dict.fromkeys(input_names(section.arguments)))
    for input_name in inputs:
        if input_name not in job.inputs:
            raise UsageError(
                f"towers.{name}.{key} names the input {input_name!r}, which the recipe does not "
                f"declare; it declares {', '.join(job.inputs)}"
            )
    return Call(section.call, inputs, section.arguments)


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
    """Returns an argument with the values of inputs in the place of their names."""
    if isinstance(argument, str):
        return values[argument]
    if isinstance(argument, Mapping):
        return {key: _with_values(part, values) for key, part in argument.items()}
    if isinstance(argument, list | tuple):
        return [_with_values(part, values) for part in argument]
    return argument
