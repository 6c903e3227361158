"""The values that a recipe states for model code: values of TOML, and the keys of vocabularies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from export.errors import UsageError
from export.recipe.schema import ExportJob
from export.tables.vocabularies import read_keys

VOCABULARY = "vocabulary"


def values_of(stated: Mapping[str, Any], key: str, job: ExportJob, base: Path) -> dict[str, Any]:
    """Returns values in the form that model code gets.

    Args:
      stated: Values of TOML, by name. `{ vocabulary = "NAME" }`, at any depth, stands for the keys
        of `[vocabularies.NAME]`: [size] int64, or [size] object holding str.
      key: The key of the recipe that states the values, for messages.
      job: The recipe.
      base: The recipe's folder.

    Raises:
      UsageError: There is no such vocabulary, or its file cannot be read.
    """
    return {name: _value(value, f"{key}.{name}", job, base) for name, value in stated.items()}


def named_vocabularies(job: ExportJob) -> set[str]:
    """Returns the names of the vocabularies that model code gets."""
    pending: list[Any] = [*job.code.arguments.values(), *job.code.names.values()]
    names = set()
    # The list grows while it is walked.
    for value in pending:
        if _is_vocabulary(value):
            names.add(value[VOCABULARY])
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return names


def _value(value: Any, key: str, job: ExportJob, base: Path) -> Any:
    if _is_vocabulary(value):
        name = value[VOCABULARY]
        section = job.vocabularies.get(name)
        if section is None:
            names = ", ".join(sorted(job.vocabularies)) or "none"
            raise UsageError(
                f"{key} names vocabulary {name!r}, which the recipe lacks; vocabularies: {names}"
            )
        return read_keys(base / section.file, section.dtype)
    if isinstance(value, dict):
        return {name: _value(inner, f"{key}.{name}", job, base) for name, inner in value.items()}
    if isinstance(value, list):
        return [_value(inner, key, job, base) for inner in value]
    return value


def _is_vocabulary(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {VOCABULARY}
        and isinstance(value[VOCABULARY], str)
    )
