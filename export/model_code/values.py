"""The values that a recipe gives model code: those of TOML, and the keys of vocabularies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from export.errors import UsageError
from export.recipe.schema import ExportJob
from export.tables.vocabularies import read_keys

VOCABULARY = "vocabulary"


def values_of(stated: Mapping[str, Any], key: str, job: ExportJob, base: Path) -> dict[str, Any]:
    """Returns values as model code takes them.

    Args:
      stated: values of TOML, by name. `{ vocabulary = "NAME" }`, at any depth, stands for the keys
        of `[vocabularies.NAME]`: [size] int64, or [size] object holding str.
      key: the key of the recipe that states them, for messages.
      job: the recipe.
      base: its folder.

    Raises:
      UsageError: there is no such vocabulary, or its file cannot be read.
    """
    return {name: _value(value, f"{key}.{name}", job, base) for name, value in stated.items()}


def named_vocabularies(job: ExportJob) -> set[str]:
    """Returns the vocabularies that are given to model code."""
    pending: list[Any] = [*job.code.arguments.values(), *job.code.names.values()]
    named = set()
    for value in pending:
        if _is_vocabulary(value):
            named.add(value[VOCABULARY])
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return named


def _value(value: Any, key: str, job: ExportJob, base: Path) -> Any:
    if _is_vocabulary(value):
        name = value[VOCABULARY]
        part = job.vocabularies.get(name)
        if part is None:
            known = ", ".join(sorted(job.vocabularies)) or "none"
            raise UsageError(
                f"{key} names vocabulary {name!r}, which the recipe lacks; vocabularies: {known}"
            )
        return read_keys(base / part.file, part.dtype)
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
