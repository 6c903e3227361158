"""The target of a call in a model of Python objects, and how it is called for inference."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import reduce
from typing import Any

from export.errors import UsageError
from export.front_end.calls import Call


def target_of(root: Any, call: Call) -> Any:
    """Returns the target of a call: the model, or an attribute or layer below it."""
    if not call.path:
        return root
    return reduce(_step_into(call), call.path.split("."), root)


def _step_into(call: Call) -> Callable[[Any, str], Any]:
    """Returns a function that takes one step of a call's path: to an attribute, or to a layer of a
    Keras model by its name.
    """

    def step_into(owner: Any, step: str) -> Any:
        if hasattr(owner, step):
            return getattr(owner, step)
        layers = {layer.name: layer for layer in getattr(owner, "layers", ())}
        if step in layers:
            return layers[step]
        choices = ""
        if layers:
            choices = f"; its layers are {', '.join(layers)}"
        raise UsageError(f"{call}: {type(owner).__name__} has no attribute {step!r}{choices}")

    return step_into


def inference_arguments(target: Any, call: Call) -> dict[str, Any]:
    """Returns the keyword arguments that put a call in inference mode.

    Raises:
      UsageError: The function cannot be called with the arguments of the recipe.
    """
    try:
        signature = inspect.signature(getattr(target, "call", target))
    except (TypeError, ValueError):
        # A function that is not written in Python has no signature.
        return {}

    positional, by_name = call.bind(dict.fromkeys(call.inputs))
    if by_name.get("training", False) is not False:
        raise UsageError(
            f"{call} is given 'training' by the tower's 'arguments'; a tower is exported in "
            "inference mode: leave it out"
        )
    constants = {}
    if "training" in signature.parameters and "training" not in by_name:
        constants["training"] = False

    # Bound before the call, so that a wrong recipe is not reported as an error of the model.
    try:
        signature.bind(*positional, **by_name, **constants)
    except TypeError as problem:
        names = ", ".join(signature.parameters)
        passed = "what 'arguments' names"
        if call.arguments is None:
            passed = "one dict of inputs"
        raise UsageError(
            f"{call} takes {names}, and is given {passed}: {problem}. Write as the tower's "
            '\'arguments\' what it is given, as in arguments = ["user_id", "movie_id"] or '
            'arguments = { x = "user_id" }'
        ) from problem
    return constants
