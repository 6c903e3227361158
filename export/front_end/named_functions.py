"""Functions by name that a factory returns, and the towers of the recipe that call them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from export.errors import UsageError
from export.recipe.schema import ExportJob

Function = TypeVar("Function")


def functions_called(
    functions: Mapping[str, Function], job: ExportJob, noun: str
) -> dict[str, Function]:
    """Returns functions by the `call` of towers: a single function needs none.

    Args:
      functions: What the factory returned: functions, or files of towers, by their names.
      job: The recipe.
      noun: What they are, in the plural.

    Raises:
      UsageError: The factory returned nothing that a tower calls.
    """
    by_call = dict(functions)
    if len(functions) == 1:
        (by_call[""],) = functions.values()
    names = ", ".join(map(repr, functions))
    for tower, section in job.towers.items():
        if section.call in by_call:
            continue
        stated = "not stated"
        if section.call:
            stated = repr(section.call)
        raise UsageError(
            f"towers.{tower}.call is {stated}; factory {job.code.factory} returned the {noun} "
            f"{names}"
        )
    return by_call
