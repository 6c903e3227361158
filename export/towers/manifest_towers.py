"""Combines traced towers with the recipe into the manifest's tower entries."""

from __future__ import annotations

import math
from collections.abc import Collection

from bundle.format import manifest
from export.errors import NotConvertible, UsageError
from export.front_end.specs import ModelSpec, TowerSpec
from export.recipe import schema
from export.recipe.references import formula_names


def check_limits(job: schema.ExportJob, model: ModelSpec, converted: Collection[str] = ()) -> None:
    """Rejects limits for float32 towers, to which the parity rule applies.

    Args:
      job: the recipe.
      model: the traced model.
      converted: tables whose rows in the bundle are not the checkpoint's own.
    Raises:
      UsageError: a tower neither computes in half precision nor reads such a table.
    """
    for name, tower in model.towers.items():
        free = tower.half or set(converted) & set(model.of(name).tables)
        if "f32" in job.towers[name].max_abs_error and not free:
            raise UsageError(
                f"towers.{name}.max_abs_error.f32: the tower computes in float32, to which the "
                "parity rule applies"
            )


def check_rankings(model: ModelSpec) -> None:
    """Checks that each output of a ranking tower is one number per candidate.

    Raises:
      NotConvertible: an output is several numbers.
    """
    for name, tower in model.towers.items():
        for output in tower.outputs:
            count = _size(output)
            if tower.role == "ranking" and count != 1:
                raise NotConvertible(
                    f"towers.{name}: output {output.name!r} is {count} numbers for each candidate, "
                    "but a ranking takes "
                    "one; let the call return the ones to use under separate names, as "
                    "{'first': scores[:, 0], 'second': scores[:, 1]}"
                )


def _size(output: manifest.TowerOutput) -> int:
    return math.prod(size or 1 for size in output.shape)


def check_formulas(job: schema.ExportJob, model: ModelSpec) -> None:
    """Checks each tower's formula against the outputs that it has.

    Raises:
      UsageError: it is not a formula, names something other than an output of one number per
        candidate, or its tower does not rank.
    """
    for name, tower in model.towers.items():
        read = formula_names(name, job.towers[name], [output.name for output in tower.outputs])
        for output in tower.outputs:
            if output.name in read and _size(output) != 1:
                raise UsageError(
                    f"towers.{name}.formula: output {output.name!r} is not one number for each "
                    "candidate"
                )


def describe_tower(
    spec: TowerSpec,
    job: schema.ExportJob,
    forms: tuple[manifest.TowerForm, ...],
    parts: tuple[manifest.TowerPart, ...] = (),
) -> manifest.Tower:
    """Returns the manifest entry of a traced tower with its forms and parts.

    Raises:
      NotConvertible: the precision to be served has no form.
    """
    serve = job.towers[spec.name].serve
    if serve not in {form.precision for form in forms}:
        raise NotConvertible(
            f"tower {spec.name!r} is to be served in {serve}, and LiteRT cannot run it; set "
            f"towers.{spec.name}.serve to 'f32'"
        )
    return manifest.Tower(
        role=spec.role,
        inputs=spec.inputs,
        outputs=spec.outputs,
        result=spec.result,
        forms=forms,
        serve=serve,
        formula=job.towers[spec.name].formula,
        parts=parts,
    )
