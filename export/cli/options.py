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

if TYPE_CHECKING:
    from export.checkpoint.inventory.specs import Statements
    from export.recipe.schema import ExportJob
    from export.recipe.settings import ExportSettings

INLINE = ("inline", "inline-link")
"""The values of `output.tables` that make a self-contained SavedModel."""


def read_settings(**options: Any) -> ExportSettings:
    """Returns the settings of a job, from the options of the command and the environment.

    Args:
      options: The values of options by name. None, and False for a setting that is off by default,
        mean that the command line does not have the option.

    Raises:
      UsageError: A value, or a variable of the environment, is invalid.
    """
    from pydantic import ValidationError

    from export.recipe.schema import explain
    from export.recipe.settings import PREFIX, ExportSettings

    setting_names = [f"{PREFIX}{name.upper()}" for name in ExportSettings.model_fields]
    values: dict[str, Any] = {}
    for variable, value in os.environ.items():
        # Kubernetes sets variables for a service called rowcast-export, too.
        if not variable.startswith(PREFIX) or is_service_link(variable, value):
            continue
        if variable not in setting_names:
            raise UsageError(
                f"the environment sets {variable}, which is not a setting; the settings are "
                f"{', '.join(setting_names)}"
            )
        values[variable.removeprefix(PREFIX).lower()] = value

    # An option that is not given leaves the setting to the environment.
    fields = ExportSettings.model_fields
    flags = {name for name, field in fields.items() if field.default is False}
    for name, value in options.items():
        is_absent = value is None or (name in flags and value is False)
        if not is_absent:
            values[name] = value
    try:
        return ExportSettings(**values)
    except ValidationError as problem:
        raise UsageError(
            f"settings (options, or ROWCAST_EXPORT_ in the environment): {explain(problem)}"
        ) from problem


def read_job(
    recipe: Path,
    checkpoint: str | None = None,
    root: str | None = None,
    table_mode: str | None = None,
) -> ExportJob:
    """Returns a recipe with the values that options override. The paths in options are relative to
    the working directory, not to the recipe.
    """
    from export.recipe.schema import read_recipe

    job = read_recipe(recipe)
    # Sections are frozen, so an override makes a copy.
    checkpoint_section = job.checkpoint
    if checkpoint is not None:
        path = _absolute(checkpoint)
        checkpoint_section = checkpoint_section.model_copy(update={"path": path})
    output_section = job.output
    if root is not None:
        # An empty root is no path relative to the working directory.
        output_section = output_section.model_copy(update={"root": root and _absolute(root)})
    if table_mode is not None:
        output_section = output_section.model_copy(update={"tables": table_mode})
    return job.model_copy(update={"checkpoint": checkpoint_section, "output": output_section})


def _absolute(text: str) -> str:
    """Returns a path relative to the working directory as an absolute one; a URL as it is."""
    from object_store.locations import is_url

    if is_url(text):
        return text
    return str(Path(text).absolute())


def read_statements(
    named: Sequence[str] | None, mod: Sequence[str] | None, layout: Path | None
) -> Statements:
    """Returns the statements about tables in `--table`, `--mod` and `--layout`.

    Raises:
      UsageError: One of them is invalid.
    """
    from export.checkpoint.inventory.layout_file import read_layouts
    from export.checkpoint.inventory.specs import Statements

    pairs: dict[str, str] = {}
    for text in named or ():
        name, key = _pair("--table", text, "KEY")
        # The same statement twice is no mistake.
        if pairs.setdefault(name, key) != key:
            raise UsageError(
                f"--table names {name!r} twice, as {pairs[name]!r} and {key!r}; one of them was "
                "expected"
            )
    if layout is None:
        return Statements(pairs, tuple(mod or ()), {})
    return Statements(pairs, tuple(mod or ()), read_layouts(layout))


def read_trained_ids(values: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """Returns the tables and files that `--trained-ids` names.

    Raises:
      UsageError: One of them is invalid.
    """
    return tuple(_pair("--trained-ids", text, "FILE") for text in values or ())


def _pair(option: str, text: str, placeholder: str) -> tuple[str, str]:
    """Returns the name and the value of an option such as `--table NAME=KEY`."""
    name, separator, value = text.partition("=")
    if not (name and separator and value):
        raise UsageError(f"{option} {text!r} was given; NAME={placeholder} was expected")
    return name, value


def read_names(option: str, values: Sequence[str]) -> tuple[str, ...]:
    """Returns the names that an option such as `--only` lists; () without any.

    Raises:
      UsageError: A name is empty.
    """
    names = [name.strip() for value in values for name in value.split(",")]
    if not all(names):
        raise UsageError(
            f"{option} {','.join(values)!r} was given; names with commas between them were expected"
        )
    # Each once, in the order of the options.
    return tuple(dict.fromkeys(names))
