"""The calls that a model offers: by its own inputs, or by the methods of its class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from export.front_end.interface import OfferedCall
from export.recipe.schema import INPUT_DTYPES, InputSection

_OWN_CALL = {"call", "__call__"}
"""The methods by which a model itself is called."""
_LIBRARIES = (
    *("keras", "tf_keras", "keras_rs", "tensorflow", "tensorflow_recommenders", "builtins"),
    # The objects that run graphs and functions of TF1.
    "export",
)
"""The packages whose classes are no model code."""


def offered_calls(root: Any) -> Iterator[OfferedCall]:
    """Yields the calls that a model offers."""
    if getattr(root, "output_names", None):
        inputs, open_inputs = _inputs_of(root)
        yield OfferedCall("", inputs, open_inputs)
        return
    methods = dict(_methods(root))
    if not methods or methods.keys() & _OWN_CALL:
        yield OfferedCall(parameters=_parameters(root))
    for name, method in methods.items():
        if name not in _OWN_CALL:
            yield OfferedCall(name, parameters=_parameters(method), is_method=True)


def _methods(root: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields the public methods that the user's classes add to those of a library, and the model's
    own call.
    """
    for owner in type(root).__mro__:
        if owner.__module__.partition(".")[0] in _LIBRARIES:
            return
        inherited = {name for base in owner.__mro__ for name in _library_names(base)} - _OWN_CALL
        if any(base.__module__.startswith("tensorflow_recommenders") for base in owner.__mro__):
            # The method that runs the towers in training; such a model has no call.
            inherited.discard("compute_loss")
        for name, value in vars(owner).items():
            is_public = name in _OWN_CALL or not name.startswith("_")
            function = getattr(value, "python_function", value)
            if inspect.isfunction(function) and is_public and name not in inherited:
                yield name, getattr(root, name)


def _library_names(owner: type) -> Iterable[str]:
    if owner.__module__.partition(".")[0] in _LIBRARIES:
        return vars(owner)
    return ()


def _parameters(function: Any) -> tuple[str, ...]:
    """Returns the names of the parameters that a call needs."""
    function = getattr(function, "python_function", function)
    try:
        parameters = inspect.signature(getattr(function, "call", function)).parameters
    except (TypeError, ValueError):
        return ()
    return tuple(
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        and name not in ("training", "self")
    )


def _inputs_of(root: Any) -> tuple[dict[str, InputSection], tuple[str, ...]]:
    """Returns the inputs of a functional model, and those whose length it leaves open; no inputs if
    one is of a type that no request has.
    """
    inputs = {}
    open_inputs = []
    for tensor in root.inputs:
        dtype = getattr(tensor.dtype, "name", tensor.dtype)
        sizes = tuple(tensor.shape)[1:]
        if dtype not in INPUT_DTYPES:
            return {}, ()
        name = str(tensor.name)
        if getattr(tensor, "ragged", False):
            inputs[name] = InputSection(dtype=dtype, kind="ragged")
        elif None in sizes:
            inputs[name] = InputSection(dtype=dtype)
            open_inputs.append(name)
        else:
            inputs[name] = InputSection(dtype=dtype, shape=sizes)
    return inputs, tuple(open_inputs)
