"""Checks the names by which sections of a recipe refer to each other, before a model is built: to
load TensorFlow and to trace a model can take minutes.
"""

from __future__ import annotations

from collections.abc import Collection

from bundle.errors import FormulaError
from bundle.format.formula import parse_formula
from bundle.shown_values import similar_name
from export.errors import UsageError
from export.recipe.schema import ExportJob, TowerSection


def check_references(job: ExportJob) -> None:
    """Checks that towers name inputs and outputs that the recipe has.

    Raises:
      UsageError: A tower names another input or output; or a formula cannot be read, or is of a
        tower that does not rank.
    """
    for name, tower in job.towers.items():
        for input_name in tower.inputs:
            if input_name not in job.inputs:
                raise UsageError(
                    f"towers.{name}.inputs names {input_name!r}"
                    f"{similar_name(input_name, job.inputs)}; the recipe's inputs: "
                    f"{', '.join(job.inputs)}"
                )
        # Without outputs in the recipe, the model names them, and they are checked when it is
        # traced.
        outputs = list(tower.outputs)
        if outputs and tower.result is not None and tower.result not in outputs:
            raise UsageError(
                f"towers.{name}.result is {tower.result!r}{similar_name(tower.result, outputs)}; "
                f"it must be one of its outputs: {', '.join(outputs)}"
            )
        # Called for its errors: the names are read again when the outputs are known.
        formula_names(name, tower, outputs)
    _check_stages(job)


def _check_stages(job: ExportJob) -> None:
    """Checks the towers of stages.

    Raises:
      UsageError: A stage names a tower that cannot have a stage or be one, has no candidates, or
        states a limit without real contexts.
    """
    ranking = [name for name, tower in job.towers.items() if tower.role == "ranking"]
    for name, stage in job.stages.items():
        # A stage and the tower after it score the same candidates, so both must rank.
        for key, tower in ((f"stages.{name}", name), (f"stages.{name}.tower", stage.tower)):
            if tower not in ranking:
                raise UsageError(
                    f"{key} names {tower!r}{similar_name(tower, ranking)}; the recipe's towers "
                    f"with role = 'ranking': {', '.join(ranking) or 'none'}"
                )
        if stage.tower == name:
            raise UsageError(
                f"stages.{name}.tower names {name!r} itself; a cheaper ranking tower was expected"
            )
        if stage.tower in job.stages:
            raise UsageError(
                f"stages.{name}.tower names {stage.tower!r}, and stages.{stage.tower} comes before "
                "it; a tower without a stage of its own was expected, since one stage comes before "
                "a ranking"
            )
        if not job.corpora:
            raise UsageError(
                f"stages.{name}: the recipe has no corpora, whose candidates the stage chooses; "
                "leave it out, or add a corpus"
            )
        # What a stage loses on synthetic contexts says little about real ones.
        if stage.recall.value is not None and job.verify.examples is None:
            raise UsageError(
                f"stages.{name}.recall.value is a limit, which needs real contexts: name a file of "
                "raw examples as verify.examples, or leave the limit out"
            )


def formula_names(tower: str, section: TowerSection, outputs: Collection[str]) -> frozenset[str]:
    """Returns the outputs that a tower's formula reads; none if it has no formula.

    Args:
      tower: The name of the tower.
      section: The section of the recipe for the tower.
      outputs: The outputs of the tower; empty: they are not known.

    Raises:
      UsageError: It is no formula, names another output, or its tower does not rank.
    """
    if section.formula is None:
        return frozenset()
    key = f"towers.{tower}.formula"
    if section.role != "ranking":
        raise UsageError(f"{key}: a {section.role} tower ranks nothing; leave it out")
    try:
        names = frozenset(parse_formula(section.formula).names)
    except FormulaError as problem:
        raise UsageError(f"{key}: {problem}") from problem
    # Sorted, so that the message names the same output in every run.
    for output in sorted(names):
        if outputs and output not in outputs:
            raise UsageError(
                f"{key} names {output!r}{similar_name(output, outputs)}; the tower has "
                f"{', '.join(outputs)}"
            )
    return names
