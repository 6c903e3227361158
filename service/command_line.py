"""The options of `rowcast-serve`, made from the settings: a setting is documented once, behind its field."""

from __future__ import annotations

import ast
import inspect
import typing
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic.fields import FieldInfo

from service.ctl_command import add_ctl
from service.pull_command import add_pull
from service.settings import PREFIX, ServiceSettings

PRINT_SETTINGS = "print_settings"


def command(run: Callable[[dict[str, Any], bool], int]) -> typer.Typer:
    """Returns the command line.

    Args:
      run: given the options by field name and whether only to print the settings; returns the exit code.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

    def serve(context: typer.Context, **options: Any) -> None:
        if context.invoked_subcommand is not None:
            return
        only_print = options.pop(PRINT_SETTINGS)
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
        raise typer.Exit(run(given, only_print))

    serve.__doc__ = (
        "Serves every model under --root over HTTP and gRPC, newest valid version first.\n\n"
        "Exit codes: 0 drained, 1 a bug, 2 usage or settings, 7 a required model could not be loaded at start, "
        "130 interrupted twice."
    )
    told = texts()
    parameters = [_option(name, field, told[name]) for name, field in ServiceSettings.model_fields.items()]
    shown = typer.Option("--print-settings", help="Print the effective settings as JSON and exit.")
    parameters.append(_parameter(PRINT_SETTINGS, Annotated[bool, shown], False))
    parameters.insert(0, _parameter("context", typer.Context, inspect.Parameter.empty))
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {each.name: each.annotation for each in parameters}
    app.callback(invoke_without_command=True)(serve)
    add_pull(app)
    add_ctl(app)
    return app


def texts() -> dict[str, str]:
    """Returns what each setting means: the string behind its field. Read where it is shown, not at each start."""
    (made,) = ast.parse(inspect.getsource(ServiceSettings)).body
    found = {}
    for field, text in pairwise(made.body if isinstance(made, ast.ClassDef) else ()):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            found[ast.unparse(field.target)] = inspect.cleandoc(ast.literal_eval(text.value))
    return found


def _option(name: str, field: FieldInfo, text: str) -> inspect.Parameter:
    default = "" if field.is_required() or field.default in (None, ()) else f" [default: {field.default}]"
    kind, metadata = _bare(field.annotation, field.metadata)
    limits = ", ".join(
        f"{word} {getattr(each, key)}"
        for each in metadata
        for key, word in (("ge", "at least"), ("gt", "above"), ("le", "at most"))
        if hasattr(each, key)
    )
    told = f"{text}{f' ({limits})' if limits else ''}{default} [env: {PREFIX}{name.upper()}]"
    flag = f"--{name.replace('_', '-')}"
    if kind is bool:
        option = typer.Option(f"{flag}/--no-{flag[2:]}", help=told, show_default=False)
        return _parameter(name, Annotated[bool | None, option], None)
    # As text: the settings read it, so that an option is refused in the same words as its variable.
    option = typer.Option(flag, help=told, show_default=False, metavar=_shown(kind))
    taken: Any = list[str] | None if name == "require" else str | None
    return _parameter(name, Annotated[taken, option], None)


def _bare(annotation: Any, metadata: list[Any]) -> tuple[Any, list[Any]]:
    """Returns the type of a setting that may be left out, and what limits it."""
    if type(None) in typing.get_args(annotation):
        annotation = next(each for each in typing.get_args(annotation) if each is not type(None))
    if typing.get_origin(annotation) is Annotated:
        annotation, *others = typing.get_args(annotation)
        metadata = [*metadata, *(each for field in others for each in field.metadata)]
    return annotation, metadata


def _shown(kind: Any) -> str:
    """Returns what stands for a value of a type in the help."""
    if typing.get_origin(kind) is Literal:
        return f"<{'|'.join(typing.get_args(kind))}>"
    return {int: "<int>", float: "<float>", Path: "<path>"}.get(kind, "<text>")


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
