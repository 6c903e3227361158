"""What the command line says of a job: settings, the recipe with its overrides, what tables are.

The recipe's schema is imported where one is read: it takes as long as all of `--help`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from export.errors import UsageError
from runtime.object_store import is_url

if TYPE_CHECKING:
    from export.checkpoint.inventory.specs import Statements
    from export.recipe.schema import ExportJob
    from export.recipe.settings import ExportSettings

INLINE = ("inline", "inline-link")
"""Of `output.tables`: what makes a self-contained SavedModel."""
_HOW = ("copy", "link", *INLINE)


def read_settings(**given: Any) -> ExportSettings:
    """Returns how the job runs, by the options that were given, else by the environment.

    Raises:
      UsageError: a value, or a variable of the environment, that cannot be meant.
    """
    from pydantic import ValidationError

    from export.recipe.schema import explain
    from export.recipe.settings import PREFIX, ExportSettings

    known = [f"{PREFIX}{name.upper()}" for name in ExportSettings.model_fields]
    for variable in os.environ:
        if variable.startswith(PREFIX) and variable.upper() not in known:
            raise UsageError(
                f"the environment sets {variable}, which is no setting; they are {', '.join(known)}"
            )
    try:
        return ExportSettings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as problem:
        raise UsageError(
            f"settings (options, or ROWCAST_EXPORT_ in the environment): {explain(problem)}"
        ) from problem


def read_job(
    recipe: Path, checkpoint: str | None = None, root: str | None = None, how: str | None = None
) -> ExportJob:
    """Returns a recipe with what options replace; paths are relative to where the user stands, not to the recipe."""
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
    """Returns what `--table`, `--mod` and `--layout` say.

    Raises:
      UsageError: one of them cannot be meant.
    """
    from export.checkpoint.inventory.layout_file import read_layouts
    from export.checkpoint.inventory.specs import Statements

    pairs: dict[str, str] = {}
    for text in named or ():
        name, separator, key = text.partition("=")
        if not (name and separator and key):
            raise UsageError(f"--table {text!r} was given; NAME=KEY was expected")
        if pairs.setdefault(name, key) != key:
            raise UsageError(
                f"--table names {name!r} twice, as {pairs[name]!r} and {key!r}; one of them was expected"
            )
    return Statements(pairs, tuple(mod or ()), read_layouts(layout) if layout is not None else {})


def read_chosen(values: Sequence[str]) -> tuple[bool, tuple[str, ...]]:
    """Returns what `--tables` of `tables` says: whether tables are linked, and which are exported; () is all.

    Raises:
      UsageError: two ways, or one that needs a recipe, or an empty name.
    """
    ways = {value for value in values if value in _HOW}
    if ways & set(INLINE):
        raise UsageError(
            f"--tables {max(ways)} makes a SavedModel of a model: give its recipe to `rowcast-export run`"
        )
    if len(ways) > 1:
        raise UsageError("--tables copy and --tables link were given; one of them was expected")
    names = [name.strip() for value in values if value not in _HOW for name in value.split(",")]
    if not all(names):
        raise UsageError(
            f"--tables {','.join(values)!r} was given; names with commas between them were expected"
        )
    return "link" in ways, tuple(dict.fromkeys(names))
