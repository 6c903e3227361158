"""What the command line says of a job: settings, recipe with its overrides, what is wanted, what tables are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from export.checkpoint.inventory.layout_file import read_layouts
from export.checkpoint.inventory.specs import Statements
from export.errors import UsageError
from export.model.subset import Wanted, read_tables_option, split_names
from export.recipe.settings import PREFIX, ExportSettings
from runtime.object_store import is_url

if TYPE_CHECKING:
    from export.recipe.schema import ExportJob


def asked(job: ExportJob, chosen: list[str] | None, towers: str | None) -> tuple[ExportJob, Wanted]:
    """Returns the recipe with what `--tables` says of writing, and what it and `--towers` say is wanted."""
    how, names = read_tables_option(chosen or ())
    if how is not None:
        job = job.model_copy(update={"output": job.output.model_copy(update={"tables": how})})
    return job, Wanted(tuple(split_names("--towers", towers)) if towers is not None else (), names)


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


def overridden(job: ExportJob, checkpoint: str | None, root: str | None) -> ExportJob:
    """Returns the recipe with another checkpoint or root, relative to where the user stands, not to the recipe."""
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
