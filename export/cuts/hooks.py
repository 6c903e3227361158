"""Replaces what a library's function does for the length of a `with`, under all the names that it is bound to."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

_HOOKS = "_rowcast_hooks"


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
    names = list(inspect.signature(original).parameters)
    hooks = function.__globals__.setdefault(_HOOKS, {})
    key = function.__qualname__
    given = ", ".join(f"{name}={name}" for name in names)
    space: dict[str, Any] = {}
    exec(f"def ask({', '.join(names)}):\n    return {_HOOKS}[{key!r}]({given})", space)  # noqa: S102 - names of parameters only
    before = hooks.get(key)
    hooks[key] = lambda **arguments: answer(original, **arguments)
    function.__code__ = space["ask"].__code__
    try:
        yield
    finally:
        function.__code__ = code
        if before is None:
            del hooks[key]
        else:
            hooks[key] = before
