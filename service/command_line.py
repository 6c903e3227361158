"""The options of `rowcast-serve`, made from the settings: a setting is documented once, in its field."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any

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
    parameters = [_option(name, field) for name, field in ServiceSettings.model_fields.items()]
    shown = typer.Option("--print-settings", help="Print the effective settings as JSON and exit.")
    parameters.append(_parameter(PRINT_SETTINGS, Annotated[bool, shown], False))
    parameters.insert(0, _parameter("context", typer.Context, inspect.Parameter.empty))
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {each.name: each.annotation for each in parameters}
    app.callback(invoke_without_command=True)(serve)
    add_pull(app)
    add_ctl(app)
    return app


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    default = "" if field.is_required() or field.default in (None, ()) else f" [default: {field.default}]"
    limits = "".join(
        f" {word} {getattr(each, key)}"
        for each in field.metadata
        for key, word in (("ge", "at least"), ("gt", "above"), ("le", "at most"))
        if hasattr(each, key)
    )
    told = f"{field.description}{f' ({limits.strip()})' if limits else ''}{default} [env: {PREFIX}{name.upper()}]"
    flag = f"--{name.replace('_', '-')}"
    if field.annotation is bool:
        flag = f"{flag}/--no-{flag[2:]}"
    option = typer.Option(flag, help=told, show_default=False)
    if name == "require":
        return _parameter(name, Annotated[list[str] | None, option], None)
    annotation = field.annotation
    if isinstance(annotation, types.UnionType):
        annotation = next(each for each in typing.get_args(annotation) if each is not type(None))
    return _parameter(name, Annotated[annotation | None, option], None)  # type: ignore[operator]


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
