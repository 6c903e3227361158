"""Replaces what a library's function, or the call of a layer, does for the length of a `with`, under all its names."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from export.frameworks.loading import load_tensorflow

_HOOKS = "_rowcast_hooks"
_NUMBERS = itertools.count()


@contextlib.contextmanager
def hooked(function: Any, answer: Callable[..., Any]) -> Iterator[None]:
    """Lets `answer(original, **arguments)` answer a module's function.

    The function's *code* is replaced, not the name it is bound to: it is exported under several names, and the user's
    modules may have imported any of them before.

    Args:
      function: a function of a module, without a closure; decorators are looked through.
      answer: is given a function that does what the replaced one did, and the arguments by name.
    """
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = function.__code__
    original = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
    original.__kwdefaults__ = function.__kwdefaults__
    parameters = inspect.signature(original).parameters
    named_only = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
    taken = [name for name in parameters if name not in named_only] + (["*", *named_only] if named_only else [])
    hooks = function.__globals__.setdefault(_HOOKS, {})
    key = next(_NUMBERS)  # one of its own: a function may be replaced while it is
    given = ", ".join(f"{name}={name}" for name in parameters)
    space: dict[str, Any] = {}
    exec(f"def ask({', '.join(taken)}):\n    return {_HOOKS}[{key!r}]({given})", space)  # noqa: S102 - names of parameters only
    hooks[key] = lambda **arguments: answer(original, **arguments)
    function.__code__ = space["ask"].__code__
    try:
        yield
    finally:
        function.__code__ = code
        del hooks[key]


@contextlib.contextmanager
def calls_replaced(layer: str, module: str, made: Callable[[Any], Any]) -> Iterator[None]:
    """Lets `made(call)` be the call of a Keras layer, of both versions.

    Args:
      layer: name of its class.
      module: of Keras 3, that holds it; it is passed over where nobody imported it.
      made: is given the call that there was.
    """
    classes = [getattr(load_tensorflow().keras.layers, layer)]
    if module in sys.modules:
        classes.append(getattr(sys.modules[module], layer))
    calls = [each.call for each in classes]
    for each, call in zip(classes, calls, strict=True):
        each.call = made(call)
    try:
        yield
    finally:
        for each, call in zip(classes, calls, strict=True):
            each.call = call
