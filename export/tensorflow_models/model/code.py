"""Loads the user's model code: the recipe's `package.module:function` or `file.py:function`, and
calls it.

rowcast's own modules come first on the path. A user module with the name of a rowcast package is
hidden by it: its import would fail in confusing ways or return the wrong module, so each such case
has its own message.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

from export.errors import NotConvertible, UsageError
from export.graphs.loading import KERAS_BACKEND, other_backend
from export.user_lines import at_line, line_of_exception

RESERVED = ("bundle", "export", "object_store", "runtime", "service")
"""Top-level packages of rowcast."""

Factory = Callable[[], Any]


def load_factory(reference: str, base: Path) -> Factory:
    """Returns the factory of the user's model; calling it returns the built, untrained model.

    Args:
      reference: `package.module:function` or `file.py:function`, the recipe's `code.factory`.
      base: the recipe's folder: files are relative to it, and packages beside the recipe are found.
    Returns:
      A function without arguments. It raises NotConvertible where the user's function raises, and
      may be called again for another, independent instance of the model.
    Raises:
      UsageError: there is no such file, module or function, or its name is that of a rowcast
        package.
      NotConvertible: the module raises while it is imported.
    """
    source, separator, function_name = reference.rpartition(":")
    if not separator or not source or not function_name.isidentifier():
        raise UsageError(
            f"code.factory is {reference!r}; 'package.module:function' or 'file.py:function' was "
            "expected"
        )
    if source.endswith(".py"):
        path = (base / source).resolve()
        folder = path.parent
        _check_name(path.stem, f"the file {source!r}")
    else:
        folder = base.resolve()
        _check_name(source.partition(".")[0], f"the module {source!r}")
    with _on_python_path(folder), _user_errors(reference, folder, "importing it"):
        module = (
            _load_file(path, source) if source.endswith(".py") else _load_module(source, folder)
        )
    _check_backend(reference)
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [
            name
            for name, value in vars(module).items()
            if isfunction(value)
            and value.__module__ == module.__name__
            and not name.startswith("_")
        ]
        raise UsageError(
            f"code.factory: {source!r} has no function {function_name!r}; it has "
            f"{', '.join(sorted(known)) or 'none'}"
        )

    def build() -> Any:
        with _on_python_path(folder), _user_errors(reference, folder, "calling it"):
            model = function()
        if model is None:
            raise NotConvertible(
                f"factory {reference} returned None; it must return the built model"
            )
        return model

    return build


def _check_backend(reference: str) -> None:
    """Checks that Keras 3 runs on TensorFlow, whose graphs the exporter traces.

    Raises:
      NotConvertible: The model code chose another backend.
    """
    backend = other_backend()
    if backend:
        raise NotConvertible(
            f"factory {reference}: the model code makes Keras run on {backend}, but only a model "
            "that Keras builds with TensorFlow can be exported; write "
            f'os.environ.setdefault("{KERAS_BACKEND}", "{backend}") there, which the exporter '
            "overrides"
        )


def _check_name(name: str, what: str) -> None:
    if name in RESERVED:
        raise UsageError(
            f"code.factory names {what}, but {name!r} is a package of rowcast itself, which hides "
            "it; rename the user's file or package"
        )


def _load_file(path: Path, source: str) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"code.factory names the file {source!r}, and {path} does not exist")
    # One name for each content: loading a file twice must not run it twice (Keras registers classes
    # by name), and a file that was changed is another module.
    digest = hashlib.blake2b(str(path).encode() + path.read_bytes(), digest_size=8).hexdigest()
    name = f"rowcast_model_code_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    try:
        # Always compiled: Python's bytecode cache compares time (in seconds) and size, which a
        # changed file may share. the user's
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))  # noqa: S102
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_module(source: str, folder: Path) -> ModuleType:
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as problem:
        missing = problem.name or ""
        if source == missing or source.startswith(f"{missing}."):
            raise UsageError(
                f"code.factory names the module {source!r}: there is no module {missing!r}, "
                f"neither installed nor in {folder}"
            ) from problem
        raise


@contextlib.contextmanager
def _on_python_path(folder: Path) -> Iterator[None]:
    """Adds `folder` to the end of the import path, so that the user's modules never hide rowcast's
    own.
    """
    entry = str(folder)
    sys.path.append(entry)
    try:
        yield
    finally:
        # The last one: the folder may have been there already.
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index(entry)]


@contextlib.contextmanager
def _user_errors(reference: str, folder: Path, doing: str) -> Iterator[None]:
    """Converts errors of the user's code into one that names the factory and, if there is one, the
    hidden package.
    """
    try:
        yield
    except (UsageError, NotConvertible):
        raise
    except (
        Exception,
        SystemExit,
    ) as problem:  # a script that calls exit() must not end the export as if it had succeeded
        _check_backend(reference)
        missing = (problem.name or "").partition(".")[0] if isinstance(problem, ImportError) else ""
        hidden = (
            [missing]
            if missing in RESERVED
            else [name for name in RESERVED if _hides_package(folder, name)]
        )
        if hidden and isinstance(problem, ImportError | AttributeError):
            names = " and ".join(repr(name) for name in hidden)
            raise UsageError(
                f"factory {reference}: {doing} raised {type(problem).__name__}: {problem}. The "
                "model code imports "
                f"{names}, which is a package of rowcast itself and hides the user's own; rename "
                "the user's package"
            ) from problem
        raised = f"{type(problem).__name__}: {problem}{at_line(line_of_exception(problem))}"
        raise NotConvertible(f"factory {reference}: {doing} raised {raised}") from problem


def _hides_package(folder: Path, name: str) -> bool:
    own = Path(__file__).resolve().parents[3]  # in a checkout of rowcast these are its own packages
    return folder != own and ((folder / f"{name}.py").is_file() or (folder / name).is_dir())
