"""Loads the user's model code: the recipe's `package.module:function`, `file.py:function`,
`file.py:Class` or `notebook.ipynb:Class`, and calls it.

A function's file runs as a whole. Of a notebook, and of the file of a class, only the definitions
run: published scripts train while they run.

rowcast's own modules come first on the path. A user module with the name of a rowcast package is
hidden by it: its import would fail in confusing ways or return the wrong module, so each such case
has its own message.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import isclass, isfunction
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from bundle.shown_values import similar_file
from bundle.storage.regular_files import read_regular
from export.errors import NotConvertible, UsageError
from export.graphs.loading import KERAS_BACKEND, other_backend
from export.graphs.placeholders import read_without_value
from export.model_code.definition_modules import IN_RECIPE, explained, load_definitions
from export.model_code.notes import add_note, notes, notes_of
from export.model_code.parameters import check_arguments, extra_arguments
from export.model_code.search_path import RESERVED, hidden_package, on_search_path
from export.model_code.selection import CLASSES_AND_FUNCTIONS, does_more_than_define
from export.model_code.sources import NOTEBOOK, Statement, read_source
from export.model_code.values import values_of
from export.raised_errors import call_model, is_own, one_line
from export.recipe.schema import ExportJob
from export.user_lines import at_line, line_of_exception

_EXPECTED = "'package.module:function', 'file.py:function' or 'notebook.ipynb:Class'"
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Factory:
    """Builds the user's model; every call returns a new, independent instance.

    Attributes:
      reference: The recipe's `code.factory`.
      folder: The folder of the modules that the model code imports.
      module: The name of the model code's module.
      function: The function or class that is called.
      arguments: Its keyword arguments.
    """

    reference: str
    folder: Path
    module: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]

    def __call__(self) -> Any:
        """Returns the built, untrained model.

        Raises:
          NotConvertible: The user's function raises an error, or returns None.
          UsageError: The user's function needs a name that was left out.
        """
        hint = ""
        extra = extra_arguments(self.function, self.arguments)
        if extra:
            hint = f"; {', '.join(extra)} of code.arguments is taken by ** alone"
        with (
            notes_of(self.module),
            on_search_path(self.folder),
            _user_errors(self.reference, "calling it", hint),
        ):
            # Copied: a model may change a list that it gets, and the next call builds another one.
            model = call_model(self.function, **copy.deepcopy(dict(self.arguments)))
        if model is None:
            raise NotConvertible(
                f"factory {self.reference} returned None; it must return the built model"
            )
        return model

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the model code for the user; complete once the factory was called."""
        return notes(self.module)


def factory_of(job: ExportJob, base: Path) -> Factory:
    """Returns the factory of a recipe's model.

    Args:
      job: The recipe.
      base: The recipe's folder.

    Raises:
      UsageError: See `load_factory`; or a vocabulary of the arguments cannot be read.
      NotConvertible: See `load_factory`.
    """
    code = job.code
    return load_factory(
        code.factory,
        base,
        only_definitions=code.definitions,
        arguments=values_of(code.arguments, "code.arguments", job, base),
        names=values_of(code.names, "code.names", job, base),
    )


def load_factory(
    reference: str,
    base: Path,
    *,
    only_definitions: bool | None = None,
    arguments: Mapping[str, Any] = _NOTHING,
    names: Mapping[str, Any] = _NOTHING,
) -> Factory:
    """Returns the factory of the user's model; calling it returns the built, untrained model.

    Args:
      reference: The recipe's `code.factory`.
      base: The recipe's folder: files are relative to it, and packages in it can be imported.
      only_definitions: Whether only the definitions of the file run. None: only those of a
        notebook, and of the file of a class that does more than define or needs `names`.
      arguments: Keyword arguments of the function or class.
      names: Values of global names that the definitions need.

    Raises:
      UsageError: There is no such file, module or function, or it has the name of a rowcast
        package; or it lacks a parameter for an argument, or does not use the names.
      NotConvertible: The module raises an error while it is imported.
    """
    location = locate_factory(reference, base)
    if only_definitions is None:
        only_definitions = _names_definitions(location, has_names=bool(names))
    if only_definitions:
        module, function = _load_definitions(location, names)
    else:
        module, function = _import(location, names)
    check_arguments(reference, function, arguments)
    return Factory(reference, location.folder, module.__name__, function, arguments)


def code_notes(job: ExportJob, base: Path) -> tuple[str, ...]:
    """Returns notes for the user on a recipe's model code, once the model was built.

    Args:
      job: The recipe.
      base: The recipe's folder.
    """
    source = job.code.factory.rpartition(":")[0]
    # The model was built without the file: its front end needs no model code.
    if source.endswith((".py", NOTEBOOK)) and not (base / source).is_file():
        return ()
    return factory_of(job, base).notes


@dataclass(frozen=True)
class FactoryLocation:
    """The location of a factory.

    Attributes:
      reference: The recipe's `code.factory`.
      source: The part before the name: a file, or a module.
      name: The name of the function or class.
      path: The path of the file; None for a module.
      folder: The folder of the modules that the model code imports.
    """

    reference: str
    source: str
    name: str
    path: Path | None
    folder: Path


def locate_factory(reference: str, base: Path) -> FactoryLocation:
    """Returns where a factory is, without running its file.

    Args:
      reference: The recipe's `code.factory`.
      base: The recipe's folder.

    Raises:
      UsageError: The reference is misspelt, or its file does not exist.
    """
    source, separator, name = reference.rpartition(":")
    if not separator or not source or not name.isidentifier():
        raise UsageError(f"code.factory is {reference!r}; {_EXPECTED} was expected")
    if not source.endswith((".py", NOTEBOOK)):
        _check_name(source.partition(".")[0], f"the module {source!r}")
        return FactoryLocation(reference, source, name, None, base.resolve())
    path = (base / source).resolve()
    if path.suffix != NOTEBOOK:
        _check_name(path.stem, f"the file {source!r}")
    if not path.is_file():
        raise UsageError(
            f"code.factory names the file {source!r}, and {path} does not exist{similar_file(path)}"
        )
    return FactoryLocation(reference, source, name, path, path.parent)


def _names_definitions(location: FactoryLocation, *, has_names: bool) -> bool:
    """Returns whether only definitions run if the recipe does not state it.

    They do for a notebook, and for a class whose file does more than define, as a script that
    trains, or for whose names the recipe states values.
    """
    if location.path is None:
        return False
    if location.source.endswith(NOTEBOOK):
        return True
    is_class = _defined_names(location).get(location.name) is ast.ClassDef
    if not is_class or has_names:
        return is_class
    return does_more_than_define(_statements(location.path, location.reference))


def _defined_names(location: FactoryLocation) -> dict[str, type[ast.stmt]]:
    """Returns the kind of statement that defines each name at the top level of a file; of a module,
    none.
    """
    if location.path is None:
        return {}
    nodes = (statement.node for statement in _statements(location.path, location.reference))
    return {node.name: type(node) for node in nodes if isinstance(node, CLASSES_AND_FUNCTIONS)}


def _statements(path: Path, reference: str) -> tuple[Statement, ...]:
    with _user_errors(reference, "importing it"):
        return read_source(path, read_regular(path)).statements


def _load_definitions(
    location: FactoryLocation, names: Mapping[str, Any]
) -> tuple[ModuleType, Callable[..., Any]]:
    """Runs the definitions of a file; returns their module and the function or class."""
    if location.path is None:
        raise UsageError(
            f"code.definitions is true, but the module {location.source!r} is imported as a whole; "
            'name its file, as in code.factory = "package/module.py:function"'
        )
    with on_search_path(location.folder), _user_errors(location.reference, "importing it"):
        loaded = load_definitions(location.path, names, IN_RECIPE)
    _check_backend(location.reference)
    name = location.name
    with notes_of(loaded.module.__name__):
        add_note(loaded.note)
        if name in loaded.duplicates:
            add_note(f"{loaded.duplicates[name]}: the last one is used")
    function: Callable[..., Any] | None = vars(loaded.module).get(name)
    if callable(function):
        return loaded.module, function

    listed = _listed(loaded.module, lambda value: isfunction(value) or isclass(value))
    reason = loaded.reasons.get(name)
    if reason is None:
        raise UsageError(
            f"code.factory: {location.source!r} has no class or function {name!r}; it has {listed}"
        )
    if reason.failed:
        raise UsageError(f"code.factory: {name!r} is not defined: {reason}")
    raise UsageError(
        f"code.factory: {name!r} is not defined: {reason.explanation}; name a class or a "
        f"function: the definitions have {listed}"
    )


def _import(
    location: FactoryLocation, names: Mapping[str, Any]
) -> tuple[ModuleType, Callable[..., Any]]:
    """Runs a file or module as a whole; returns its module and the function."""
    source = location.source
    path = location.path
    if source.endswith(NOTEBOOK):
        raise UsageError(
            f"code.definitions is false, but of a notebook ({source}) only the definitions run; "
            "leave it out, or save the notebook as a script and name that"
        )
    if names:
        remedy = "write code.definitions = true"
        if path is None:
            remedy = "name its file"
        raise UsageError(
            f"code.names gives values to definitions, but {source!r} runs as a whole and computes "
            f"its own; {remedy}, or leave code.names out"
        )
    hint = ""
    if location.name in _defined_names(location):
        hint = (
            ". If the file does more than define the model, write code.definitions = true: then "
            "only its definitions run"
        )
    with on_search_path(location.folder), _user_errors(location.reference, "importing it", hint):
        if path is None:
            module = _load_module(source, location.folder)
        else:
            module = _load_file(path)
    _check_backend(location.reference)
    function: Callable[..., Any] | None = getattr(module, location.name, None)
    if callable(function):
        return module, function
    raise UsageError(
        f"code.factory: {source!r} has no function {location.name!r}; it has "
        f"{_listed(module, isfunction)}"
    )


def _listed(module: ModuleType, is_factory: Callable[[Any], bool]) -> str:
    """Returns the public functions, or classes, that a module itself defines."""
    names = [
        name
        for name, value in vars(module).items()
        if is_factory(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]
    return ", ".join(sorted(names)) or "none"


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


def _check_name(name: str, described: str) -> None:
    if name in RESERVED:
        raise UsageError(
            f"code.factory names {described}, but {name!r} is a package of rowcast itself, which "
            "hides it; rename the user's file or package"
        )


def _load_file(path: Path) -> ModuleType:
    # One name for each content: loading a file twice must not run it twice (Keras registers classes
    # by name), and a file that was changed is another module.
    content = read_regular(path)
    digest = hashlib.blake2b(str(path).encode() + content, digest_size=8).hexdigest()
    name = f"rowcast_model_code_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    # Always compiled: Python's bytecode cache compares time (in seconds) and size, which a changed
    # file may share.
    code = call_model(compile, content, str(path), "exec", dont_inherit=True)
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    try:
        with notes_of(name):
            call_model(exec, code, vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_module(source: str, folder: Path) -> ModuleType:
    try:
        with notes_of(source):
            return call_model(importlib.import_module, source)
    except ModuleNotFoundError as problem:
        missing = problem.name or ""
        if source == missing or source.startswith(f"{missing}."):
            raise UsageError(
                f"code.factory names the module {source!r}: there is no module {missing!r}, "
                f"neither installed nor in {folder}"
            ) from problem
        raise


@contextlib.contextmanager
def _user_errors(reference: str, doing: str, hint: str = "") -> Iterator[None]:
    """Converts errors of the user's code into one that names the factory and, if there is one, the
    hidden package.

    Args:
      reference: The recipe's `code.factory`.
      doing: What the exporter does with the factory, as a part of a sentence.
      hint: A text for the end of the message, if the cause of the error is not known.
    """
    try:
        yield
    except (UsageError, NotConvertible):
        raise
    # A script that calls exit() must not end the export as if it had succeeded.
    except (Exception, SystemExit) as problem:
        # Hooks of the exporter's run while the model is imported and built. That it cannot read the
        # user's file is no bug.
        if is_own(problem) and not isinstance(problem, OSError):
            raise
        # Code that fails may have chosen another backend before: that is the cause then.
        _check_backend(reference)
        hidden = hidden_package(problem)
        if hidden:
            raise UsageError(
                f"factory {reference}: {doing} raised {type(problem).__name__}: {problem}. The "
                f"model code imports {hidden!r}, which is a package of rowcast itself and hides "
                "the user's own; rename the user's package"
            ) from problem
        line = at_line(line_of_exception(problem))
        explanation = explained(problem)
        if explanation:
            raise UsageError(
                f"factory {reference}: {doing} raised {explanation}{line}"
            ) from problem
        reason = read_without_value(problem)
        if reason:
            raise NotConvertible(f"factory {reference}: {reason}") from problem
        raised = f"{one_line(problem)}{line}"
        raise NotConvertible(f"factory {reference}: {doing} raised {raised}{hint}") from problem
