"""Checks what parts of a recipe say of each other, before a model is built: to load TensorFlow and
to trace a model can take minutes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from bundle.errors import FormulaError
from bundle.format.formula import parse_formula
from export.errors import UsageError
from export.recipe.schema import ExportJob, TowerPart

_UNNAMED = "result"
"""The output of a call that returns one tensor."""


def check_references(job: ExportJob) -> None:
    """Checks that towers name inputs and outputs that the recipe has.

    Raises:
      UsageError: one names another; or a formula is none, or of a tower that does not rank.
    """
    for name, part in job.towers.items():
        for which in part.inputs:
            if which not in job.inputs:
                raise UsageError(
                    f"towers.{name}.inputs names {which!r}"
                    f"{_nearest(which, job.inputs)}; the recipe's inputs: {', '.join(job.inputs)}"
                )
        outputs = list(part.outputs) or [_UNNAMED]
        if part.result is not None and part.result not in outputs:
            raise UsageError(
                f"towers.{name}.result is {part.result!r}{_nearest(part.result, outputs)}; it must "
                f"be one of its outputs: {', '.join(outputs)}"
            )
        if part.formula is not None:
            _check_formula(f"towers.{name}.formula", part, part.formula, outputs)


def _check_formula(where: str, part: TowerPart, text: str, outputs: list[str]) -> None:
    if part.role != "ranking":
        raise UsageError(f"{where}: a {part.role} tower ranks nothing; leave it out")
    try:
        formula = parse_formula(text)
    except FormulaError as problem:
        raise UsageError(f"{where}: {problem}") from problem
    for output in formula.names:
        if output not in outputs:
            raise UsageError(
                f"{where} names {output!r}{_nearest(output, outputs)}; the tower has "
                f"{', '.join(outputs)}"
            )


def _nearest(wrong: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(wrong, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
