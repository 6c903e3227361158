"""Replaces functions and methods of libraries inside a `with` block; nothing else patches
libraries.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import itertools
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from export.errors import ExportError
from export.graphs.internals import current_line
from export.graphs.loading import moved, tf
from export.raised_errors import call_model
from export.user_lines import at_line

_HOOKS = "_rowcast_hooks"
"""The global of a module by which its replaced functions find their replacements."""
_NUMBERS = itertools.count()

Replacement = Callable[..., Any]
"""(original, its arguments) -> result. Functions get their arguments by name, methods as passed."""


@dataclass(frozen=True)
class HookPoint:
    """A function or method of a library.

    Attributes:
      module: The module that defines it.
      name: Its name, `function` or `Class.method`.
      parameters: The parameters that replacements rely on, separated by spaces.
    """

    module: str
    name: str
    parameters: str = ""

    def find(self) -> tuple[Any, str, Any] | None:
        """Returns the owner of the function, its name there, and the function itself; None if the
        library is not imported.

        Raises:
          NotConvertible: This release of the library has moved it.
        """
        # A library that nothing imported is not used by the model.
        library = self.module.partition(".")[0]
        if library not in sys.modules:
            return None

        *classes, name = self.name.split(".")
        expected = self.parameters.split()
        actual: set[str] = set()
        original = None
        owner = None
        with contextlib.suppress(ImportError, AttributeError):
            owner = functools.reduce(getattr, classes, importlib.import_module(self.module))
            original = getattr(owner, name)
            if not isinstance(original, property):
                actual = set(inspect.signature(original).parameters)
        if original is None or not actual.issuperset(expected):
            signature = f"{self.module}.{self.name}({', '.join(expected)})"
            raise moved(signature, library.replace("_", "-"))
        return owner, name, original


class Hooks(contextlib.ExitStack):
    """Functions and methods that are replaced until the `with` block ends.

    An ExportError of a replacement leaves the block with the user's line that was running, and
    without the call stacks that Keras and AutoGraph add.
    """

    def __init__(self) -> None:
        """Replaces nothing yet."""
        super().__init__()
        self._raised: ExportError | None = None

    def __exit__(self, kind: Any, problem: Any, trace: Any) -> bool:
        """Restores everything."""
        is_suppressed = bool(super().__exit__(kind, problem, trace))
        if problem is not None and self._raised is not None:
            raise self._raised from problem
        return is_suppressed

    def replace(self, point: HookPoint, replacement: Replacement) -> None:
        """Replaces a function, method or property, if the user's model has imported its library."""
        target = point.find()
        if target is None:
            return
        owner, name, original = target
        if isinstance(owner, types.ModuleType):
            self.replace_function(original, replacement)
        elif isinstance(original, property):
            getter = property(lambda instance: replacement(original.fget, instance))
            self.set_attribute(owner, name, getter)
        else:
            self.set_attribute(owner, name, self._method(original, replacement))

    def replace_function(self, function: Any, replacement: Replacement) -> None:
        """Replaces a module's function without a closure, under all its names.

        Its *code* is replaced, not its name: libraries export it under several names, and the
        user's modules may have imported any of them. Decorators are unwrapped.
        """
        function = inspect.unwrap(function)
        original = copy_of(function)

        # Code can only be replaced by the code of a function with the same parameters. The new code
        # passes them on by name, in whatever way the caller passed them.
        names: list[str] = []
        for name, parameter in inspect.signature(original).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY and "*" not in names:
                names.append("*")
            names.append(name)
        arguments = ", ".join(f"{name}={name}" for name in names if name != "*")
        key = next(_NUMBERS)  # unique: a replaced function may be replaced again
        code = f"def replaced({', '.join(names)}):\n    return {_HOOKS}[{key!r}]({arguments})"
        namespace: dict[str, Any] = {}
        exec(code, namespace)  # noqa: S102 - it has names of parameters only

        hooks = function.__globals__.setdefault(_HOOKS, {})
        # What a library raises in the original is an error of the model that called it: libraries
        # may leave their own frames out.
        raising = functools.partial(call_model, original)
        hooks[key] = functools.partial(self.watched(replacement), raising)
        self.callback(hooks.pop, key)
        self.set_attribute(function, "__code__", namespace["replaced"].__code__)

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute of an object or class."""
        if not isinstance(owner, type):
            self.callback(setattr, owner, name, getattr(owner, name))
        elif name in vars(owner):
            # Not by `getattr`, which calls descriptors such as static methods.
            self.callback(setattr, owner, name, vars(owner)[name])
        else:
            # The attribute is inherited, and is so again once this one is deleted.
            self.callback(delattr, owner, name)
        setattr(owner, name, value)

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function whose ExportErrors leave the block unwrapped."""

        def watched(*arguments: Any, **options: Any) -> Any:
            try:
                return function(*arguments, **options)
            except ExportError as problem:
                line = current_line()
                self._raised = problem
                if line not in str(problem):
                    self._raised = type(problem)(f"{problem}{at_line(line)}")
                raise self._raised from problem

        return watched

    def _method(self, original: Any, replacement: Replacement) -> Any:
        watched = self.watched(replacement)
        # As in `replace_function`.
        raising = functools.partial(call_model, original)

        def call(*arguments: Any, **options: Any) -> Any:
            return watched(raising, *arguments, **options)

        method = tf.autograph.experimental.do_not_convert(call)
        # Keras reads the signature of a layer's call.
        method.__signature__ = inspect.signature(original)
        return method


def copy_of(function: Any) -> Any:
    """Returns a copy of a function that is not affected by later replacements."""
    function = inspect.unwrap(function)
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
