"""The job that a command line specifies: settings, the recipe with its overrides, tables.

The schema of the recipe is imported where it is used: the import takes as long as all of `--help`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.service_links import is_service_link
from export.errors import UsageError
from object_store.locations import is_url

if TYPE_CHECKING:
    from export.checkpoint.inventory.specs import Statements
    from export.recipe.schema import ExportJob
    from export.recipe.settings import ExportSettings

INLINE = ("inline", "inline-link")
"""The values of `output.tables` that make a self-contained SavedModel."""


def read_settings(**given: Any) -> ExportSettings:
    """Returns how the job runs, by the options that were given, else by the environment.

    Args:
      given: the options by name. None, and False of a setting that is off by default, mean that it
        was not given.

    Raises:
      UsageError: A value, or a variable of the environment, is invalid.
    """
    from pydantic import ValidationError

    from export.recipe.schema import explain
    from export.recipe.settings import PREFIX, ExportSettings

    known = [f"{PREFIX}{name.upper()}" for name in ExportSettings.model_fields]
    for variable, value in os.environ.items():
        if is_service_link(variable.upper(), value):
            continue
        if variable.startswith(PREFIX) and variable.upper() not in known:
            raise UsageError(
                f"the environment sets {variable}, which is not a setting; the settings are "
                f"{', '.join(known)}"
            )
    flags = {name for name, field in ExportSettings.model_fields.items() if field.default is False}
    chosen = {
        name: value
        for name, value in given.items()
        if value is not None and not (name in flags and value is False)
    }
    try:
        return ExportSettings(**chosen)
    except ValidationError as problem:
        raise UsageError(
            f"settings (options, or ROWCAST_EXPORT_ in the environment): {explain(problem)}"
        ) from problem


def read_job(
    recipe: Path, checkpoint: str | None = None, root: str | None = None, how: str | None = None
) -> ExportJob:
    """Returns a recipe with the values that options override. The paths in options are relative to
    the working directory, not to the recipe.
    """
    from export.recipe.schema import read_recipe

    job = read_recipe(recipe)
    if checkpoint is not None:
        job = job.model_copy(
            update={
                "checkpoint": job.checkpoint.model_copy(update={"path": _from_here(checkpoint)})
            }
        )
    replaced = {"root": root and _from_here(root), "tables": how}
    output = job.output.model_copy(
        update={key: value for key, value in replaced.items() if value is not None}
    )
    return job.model_copy(update={"output": output})


def _from_here(text: str) -> str:
    return text if is_url(text) else str(Path(text).absolute())


def read_statements(
    named: Sequence[str] | None, mod: Sequence[str] | None, layout: Path | None
) -> Statements:
    """Returns what `--table`, `--mod` and `--layout` state about tables.

    Raises:
      UsageError: One of them is invalid.
    """
    from export.checkpoint.inventory.layout_file import read_layouts
    from export.checkpoint.inventory.specs import Statements

    pairs: dict[str, str] = {}
    for text in named or ():
        name, key = _pair("--table", text, "KEY")
        if pairs.setdefault(name, key) != key:
            raise UsageError(
                f"--table names {name!r} twice, as {pairs[name]!r} and {key!r}; one of them was "
                "expected"
            )
    return Statements(pairs, tuple(mod or ()), read_layouts(layout) if layout is not None else {})


def read_trained_ids(values: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """Returns the tables and files that `--trained-ids` names.

    Raises:
      UsageError: One of them is invalid.
    """
    return tuple(_pair("--trained-ids", text, "FILE") for text in values or ())


def _pair(option: str, text: str, value: str) -> tuple[str, str]:
    name, separator, given = text.partition("=")
    if not (name and separator and given):
        raise UsageError(f"{option} {text!r} was given; NAME={value} was expected")
    return name, given


def read_names(values: Sequence[str]) -> tuple[str, ...]:
    """Returns the tables that `--only` names; () is all tables.

    Raises:
      UsageError: A name is empty.
    """
    names = [name.strip() for value in values for name in value.split(",")]
    if not all(names):
        raise UsageError(
            f"--only {','.join(values)!r} was given; table names with commas between them were "
            "expected"
        )
    return tuple(dict.fromkeys(names))
