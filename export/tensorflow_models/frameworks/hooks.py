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
from export.user_lines import at_line

_HOOKS = "_rowcast_hooks"
_NUMBERS = itertools.count()

Answer = Callable[..., Any]
"""(original, its arguments) -> result. Functions get their arguments by name, methods as passed."""


@dataclass(frozen=True)
class HookPoint:
    """A function or method of a library.

    Attributes:
      module: the module that defines it.
      name: `function` or `Class.method`.
      takes: the parameters that replacements rely on, separated by spaces.
    """

    module: str
    name: str
    takes: str = ""

    def find(self) -> tuple[Any, str, Any] | None:
        """Returns its owner, its name there and itself; None if the library is not imported.

        Raises:
          NotConvertible: this release of the library has moved it.
        """
        library = self.module.partition(".")[0]
        if library not in sys.modules:
            return None
        try:
            owner = functools.reduce(
                getattr,
                self.name.split(".")[:-1],
                importlib.import_module(self.module),
            )
            found = getattr(owner, self.name.rpartition(".")[2])
            taken = (
                set() if isinstance(found, property) else set(inspect.signature(found).parameters)
            )
        except (ImportError, AttributeError):
            taken = set()
            found = None
        if found is None or not set(self.takes.split()) <= taken:
            signature = f"{self.module}.{self.name}({', '.join(self.takes.split())})"
            raise moved(signature, library.replace("_", "-"))
        return owner, self.name.rpartition(".")[2], found


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
        ended = bool(super().__exit__(kind, problem, trace))
        if problem is not None and self._raised is not None:
            raise self._raised from problem
        return ended

    def replace(self, point: HookPoint, answer: Answer) -> None:
        """Replaces a function or method by `answer`, if the user's model has imported
        its library.
        """
        place = point.find()
        if place is None:
            return
        owner, name, found = place
        if isinstance(owner, types.ModuleType):
            self.replace_function(found, answer)
            return
        replacement: Any
        if isinstance(found, property):
            replacement = property(lambda owned: answer(found.fget, owned))
        else:
            replacement = self._method(found, answer)
        self.set_attribute(owner, name, replacement)

    def replace_function(self, function: Any, answer: Answer) -> None:
        """Replaces a module's function without a closure by `answer`, under all its names.

        Its *code* is replaced, not its name: libraries export it under several names, and the
        user's modules may have imported any of them. Decorators are unwrapped.
        """
        function = inspect.unwrap(function)
        original = copy_of(function)
        parameters = inspect.signature(original).parameters
        named_only = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
        taken = [name for name in parameters if name not in named_only] + (
            ["*", *named_only] if named_only else []
        )
        hooks = function.__globals__.setdefault(_HOOKS, {})
        key = next(_NUMBERS)  # unique: a replaced function may be replaced again
        given = ", ".join(f"{name}={name}" for name in parameters)
        space: dict[str, Any] = {}
        # names of parameters only
        exec(f"def answered({', '.join(taken)}):\n    return {_HOOKS}[{key!r}]({given})", space)  # noqa: S102
        hooks[key] = functools.partial(self.watched(answer), original)
        self.callback(hooks.pop, key)
        self.set_attribute(function, "__code__", space["answered"].__code__)

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute of an object or class."""
        inherited = isinstance(owner, type) and name not in vars(owner)
        if inherited:
            self.callback(delattr, owner, name)
        else:
            self.callback(
                setattr,
                owner,
                name,
                vars(owner)[name] if isinstance(owner, type) else getattr(owner, name),
            )
        setattr(owner, name, value)

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function whose ExportErrors leave the block unwrapped."""

        def watched(*arguments: Any, **how: Any) -> Any:
            try:
                return function(*arguments, **how)
            except ExportError as problem:
                line = current_line()
                self._raised = (
                    problem if line in str(problem) else type(problem)(f"{problem}{at_line(line)}")
                )
                raise self._raised from problem

        return watched

    def _method(self, original: Any, answer: Answer) -> Any:
        watched = self.watched(answer)

        def called(*arguments: Any, **how: Any) -> Any:
            return watched(original, *arguments, **how)

        apart = tf.autograph.experimental.do_not_convert(called)
        apart.__signature__ = inspect.signature(original)  # which Keras reads
        return apart


def copy_of(function: Any) -> Any:
    """Returns a copy of a function that is not affected by later replacements."""
    function = inspect.unwrap(function)
    code = function.__code__
    space = function.__globals__
    copy = types.FunctionType(code, space, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
