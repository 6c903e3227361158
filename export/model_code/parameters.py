"""Compares the recipe's `code.arguments` with the parameters of the factory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from export.errors import UsageError

_EXTRA = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_arguments(
    reference: str, function: Callable[..., Any], arguments: Mapping[str, Any]
) -> None:
    """Checks that a function or class can be called with keyword arguments.

    Args:
      reference: The recipe's `code.factory`.
      function: The function or class.
      arguments: The recipe's `code.arguments`.

    Raises:
      UsageError: An argument does not exist or is missing; the message names it and the parameters.
    """
    parameters = _parameters(function)
    if parameters is None:
        return
    listed = ", ".join(map(_described, parameters.values())) or "none"
    kinds = {name: parameter.kind for name, parameter in parameters.items()}
    named = {name for name, kind in kinds.items() if kind not in _EXTRA}
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds.values()
    for name in arguments:
        if name not in named and not takes_any:
            hint = ""
            close = get_close_matches(name, named, n=1)
            if close:
                hint = f"; did you mean {close[0]!r}?"
            raise UsageError(
                f"code.arguments.{name}: {reference} has no such parameter; its parameters: "
                f"{listed}{hint}"
            )

    missing = []
    for name, parameter in parameters.items():
        is_required = name in named and parameter.default is inspect.Parameter.empty
        if is_required and name not in arguments:
            missing.append(name)
    if missing:
        raise UsageError(
            f"code.arguments: {reference} needs {', '.join(missing)}; its parameters: {listed}. "
            f"State them, as in code.arguments.{missing[0]} = ... (`init`: --set "
            f"code.arguments.{missing[0]}=...), or name a function that needs none"
        )


def extra_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> list[str]:
    """Returns the arguments that only the `**` of a function accepts, which passes them on."""
    parameters = _parameters(function)
    if parameters is None:
        return []
    return [name for name in arguments if name not in parameters]


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """Returns the parameters of a call; None if Python cannot know them, as of code in C."""
    called: Callable[..., Any] = function
    is_method = False
    if inspect.isclass(function):
        # Not inspect.signature of the class: Keras defines `__new__`, which accepts anything.
        is_method = True
        called = function.__init__
        if called is object.__init__:
            called = function.__new__
        if called is object.__new__:
            return {}
    try:
        parameters = dict(inspect.signature(called).parameters)
    except (TypeError, ValueError):
        return None
    # The first parameter of a method is its object.
    if is_method:
        del parameters[next(iter(parameters))]
    return parameters


def _described(parameter: inspect.Parameter) -> str:
    """Returns a parameter without its annotation: `units=32`."""
    return str(parameter.replace(annotation=inspect.Parameter.empty))
