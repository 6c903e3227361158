"""Compares the recipe's `code.arguments` with what the factory takes."""

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
      reference: the recipe's `code.factory`.
      function: the function or class.
      arguments: the recipe's `code.arguments`.

    Raises:
      UsageError: an argument does not exist or is missing; names it and the parameters.
    """
    parameters = _parameters(function)
    if parameters is None:
        return
    listed = ", ".join(map(_shown, parameters.values())) or "none"
    kinds = {name: parameter.kind for name, parameter in parameters.items()}
    named = {name for name, kind in kinds.items() if kind not in _EXTRA}
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds.values()
    for name in arguments:
        if name not in named and not takes_any:
            close = get_close_matches(name, named, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UsageError(
                f"code.arguments.{name}: {reference} has no such parameter; its parameters: "
                f"{listed}{hint}"
            )
    missing = [
        name
        for name in parameters
        if name in named and parameters[name].default is inspect.Parameter.empty
        if name not in arguments
    ]
    if missing:
        raise UsageError(
            f"code.arguments: {reference} needs {', '.join(missing)}; its parameters: {listed}. "
            f"State them, as in code.arguments.{missing[0]} = ..., or name a function that needs "
            "none"
        )


def extra_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> list[str]:
    """Returns the arguments that only the `**` of a function takes, who passes them on."""
    parameters = _parameters(function)
    return [] if parameters is None else [name for name in arguments if name not in parameters]


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """Returns the parameters of a call; None if Python cannot know them."""
    called: Callable[..., Any] = function
    is_method = False
    if inspect.isclass(function):
        # Not inspect.signature of the class: Keras defines `__new__`, which takes anything.
        is_method = True
        called = function.__init__ if function.__init__ is not object.__init__ else function.__new__
        if called is object.__new__:
            return {}
    try:
        parameters = dict(inspect.signature(called).parameters)
    except (TypeError, ValueError):
        return None
    if is_method:
        del parameters[next(iter(parameters))]
    return parameters


def _shown(parameter: inspect.Parameter) -> str:
    """Returns a parameter without its annotation: `units=32`."""
    return str(parameter.replace(annotation=inspect.Parameter.empty))
