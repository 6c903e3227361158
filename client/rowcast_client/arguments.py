"""What a TypeError says of arguments that a client or a call does not take."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args, get_type_hints

from rowcast_client.similar_names import nearest_name


@functools.cache
def argument_names(function: Callable[..., Any]) -> Mapping[str, None]:
    """Returns the names of the arguments of a function, with those of the TypedDict of its
    `**options`, if it has them.
    """
    names: dict[str, None] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            (typed_options,) = get_args(get_type_hints(function)[parameter.name])
            names |= dict.fromkeys(typed_options.__annotations__)
        elif parameter.name != "self":
            names[parameter.name] = None
    return names


def check_arguments(
    name: str, function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]
) -> None:
    """Checks the arguments of a function.

    Args:
      name: The name by which users call the function.
      function: The function.
      arguments: The positional arguments.
      options: The keyword arguments.

    Raises:
      TypeError: The function does not take them; the message lists those that it takes.
    """
    names = list(argument_names(function))
    unknown = [option for option in options if option not in names]
    if unknown:
        reason = f"got an unexpected keyword argument {unknown[0]!r}"
        meant = nearest_name(unknown[0], names)
        if meant is not None:
            reason += f", did you mean {meant!r}?"
    else:
        try:
            inspect.signature(function).bind(*arguments, **options)
        except TypeError as problem:
            reason = str(problem)
        else:
            return
    raise TypeError(f"{name}: {reason}; its arguments are {', '.join(names)}") from None
