"""Checks what parts of a recipe say of each other, before a model is built: to load TensorFlow and
to trace a model can take minutes.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from bundle.errors import FormulaError
from bundle.format.formula import parse_formula
from export.errors import UsageError
from export.recipe.schema import ExportJob, TowerSection


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
        outputs = list(part.outputs)  # {}: the model names them
        if outputs and part.result is not None and part.result not in outputs:
            raise UsageError(
                f"towers.{name}.result is {part.result!r}{_nearest(part.result, outputs)}; it must "
                f"be one of its outputs: {', '.join(outputs)}"
            )
        formula_names(name, part, outputs)
    _check_stages(job)


def _check_stages(job: ExportJob) -> None:
    """Checks the towers of stages."""
    ranking = [name for name, part in job.towers.items() if part.role == "ranking"]
    for name, part in job.stages.items():
        for where, tower in ((f"stages.{name}", name), (f"stages.{name}.tower", part.tower)):
            if tower not in ranking:
                raise UsageError(
                    f"{where} names {tower!r}{_nearest(tower, ranking)}; the recipe's towers with "
                    f"role = 'ranking': {', '.join(ranking) or 'none'}"
                )
        if part.tower == name:
            raise UsageError(
                f"stages.{name}.tower names {name!r} itself; a cheaper ranking tower was expected"
            )
        if part.tower in job.stages:
            raise UsageError(
                f"stages.{name}.tower names {part.tower!r}, and stages.{part.tower} comes before "
                "it; a tower without a stage of its own was expected, since one stage comes before "
                "a ranking"
            )
        if not job.corpora:
            raise UsageError(
                f"stages.{name}: the recipe has no corpora, whose candidates the stage chooses; "
                "leave it out, or add a corpus"
            )
        if part.recall.value is not None and job.verify.examples is None:
            raise UsageError(
                f"stages.{name}.recall.value is a limit, which needs real contexts: name a file of "
                "raw examples as verify.examples, or leave the limit out"
            )


def formula_names(tower: str, part: TowerSection, outputs: Collection[str]) -> frozenset[str]:
    """Returns the outputs that a tower's formula reads; none if it has no formula.

    Args:
      tower: its name.
      part: its part of the recipe.
      outputs: those that it has; empty: they are not known.

    Raises:
      UsageError: it is no formula, names another output, or its tower does not rank.
    """
    if part.formula is None:
        return frozenset()
    where = f"towers.{tower}.formula"
    if part.role != "ranking":
        raise UsageError(f"{where}: a {part.role} tower ranks nothing; leave it out")
    try:
        names = frozenset(parse_formula(part.formula).names)
    except FormulaError as problem:
        raise UsageError(f"{where}: {problem}") from problem
    for output in sorted(names):
        if outputs and output not in outputs:
            raise UsageError(
                f"{where} names {output!r}{_nearest(output, outputs)}; the tower has "
                f"{', '.join(outputs)}"
            )
    return names


def _nearest(wrong: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.7)
    return f" (did you mean {close[0]!r}?)" if close else ""
