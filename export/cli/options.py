"""What the command line says of a job: settings, recipe with its overrides, what is wanted, what tables are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from export.checkpoint.inventory.layout_file import read_layouts
from export.checkpoint.inventory.specs import Statements
from export.errors import UsageError
from export.recipe.settings import PREFIX, ExportSettings
from runtime.object_store import is_url

if TYPE_CHECKING:
    from export.recipe.schema import ExportJob

WAYS = ("copy", "link", "inline", "inline-link")
"""The words of `--tables` that say how tables are written; any other is a table's name."""


def read_settings(**given: Any) -> ExportSettings:
    """Returns how the job runs, by the options that were given, else by the environment.

    Raises:
      UsageError: a value, or a variable of the environment, that cannot be meant.
    """
    for variable in os.environ:
        if variable.startswith(PREFIX) and variable.removeprefix(PREFIX).lower() not in ExportSettings.model_fields:
            known = ", ".join(f"{PREFIX}{name.upper()}" for name in ExportSettings.model_fields)
            raise UsageError(f"the environment sets {variable}, which is no setting; they are {known}")
    try:
        return ExportSettings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as problem:
        from export.recipe.schema import explain

        raise UsageError(f"settings (options, or ROWCAST_EXPORT_ in the environment): {explain(problem)}") from problem


def overridden(
    job: ExportJob, checkpoint: str | None = None, root: str | None = None, tables: str | None = None
) -> ExportJob:
    """Returns the recipe with what options replace; paths are relative to where the user stands, not to the recipe."""
    if tables is not None:
        job = job.model_copy(update={"output": job.output.model_copy(update={"tables": tables})})
    if checkpoint is not None:
        path = _from_here(checkpoint)
        job = job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"path": path})})
    if root is not None:
        path = _from_here(root)
        job = job.model_copy(update={"output": job.output.model_copy(update={"root": path})})
    return job


def _from_here(text: str) -> str:
    return text if is_url(text) else str(Path(text).absolute())


def read_statements(named: list[str] | None, mod: list[str] | None, layout: Path | None) -> Statements:
    """Returns what `--table`, `--mod` and `--layout` say.

    Raises:
      UsageError: one of them cannot be meant.
    """
    layouts = read_layouts(layout) if layout is not None else ()
    return Statements(_names(named), tuple(mod or ()), layouts)


def _names(named: list[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in named or []:
        name, separator, key = text.partition("=")
        if not (name and separator and key):
            raise UsageError(f"--table {text!r} was given; NAME=KEY was expected")
        if pairs.get(name, key) != key:
            raise UsageError(f"--table names {name!r} twice, as {pairs[name]!r} and {key!r}; one of them was expected")
        pairs[name] = key
    return pairs


def read_chosen(values: list[str] | tuple[()]) -> tuple[str | None, tuple[str, ...]]:
    """Returns what `--tables` of `tables` says: how tables are written, None if it does not, and which; () is all.

    Raises:
      UsageError: two ways, or one that needs a recipe, or an empty name.
    """
    ways = {value for value in values if value in WAYS}
    if ways & {"inline", "inline-link"}:
        raise UsageError(f"--tables {max(ways)} makes a SavedModel of a model: give its recipe to `rowcast-export run`")
    if len(ways) > 1:
        raise UsageError("--tables copy and --tables link were given; one of them was expected")
    names = [name.strip() for value in values if value not in WAYS for name in value.split(",")]
    if not all(names):
        raise UsageError(f"--tables {','.join(values)!r} was given; names with commas between them were expected")
    return next(iter(ways), None), tuple(dict.fromkeys(names))
