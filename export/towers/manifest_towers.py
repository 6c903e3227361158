"""Combines traced towers with the recipe into the manifest's tower entries."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

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


def check_rankings(model: ModelSpec, job: schema.ExportJob) -> None:
    """Checks that each output of a ranking tower is one number per candidate.

    Raises:
      NotConvertible: an output is several numbers.
    """
    for name, tower in model.towers.items():
        for output in tower.outputs:
            count = _size(output)
            if tower.role == "ranking" and count != 1:
                listed = [
                    read for read in model.read_by(tower) if job.inputs[read].shape == (count,)
                ]
                raise NotConvertible(
                    f"towers.{name}: output {output.name!r} is {count} numbers for each candidate, "
                    f"but a ranking takes one; {_cure_of_lists(listed, count)}let the call return "
                    "the ones to use under separate names, as {'first': scores[:, 0], 'second': "
                    "scores[:, 1]}"
                )


def _cure_of_lists(inputs: Sequence[str], count: int) -> str:
    """Returns what to write if a call scores the elements of lists of so many, as the beginning of
    a sentence; "" if there are no such lists.
    """
    if not inputs:
        return ""
    written = " and ".join(
        f'inputs.{name}.shape = [1] with features.{name}.role = "candidate"' for name in inputs
    )
    names = ", ".join(repr(name) for name in inputs)
    return (
        f"{names} is a list of {count}, too: if the call scores each element of the list by "
        f"itself, write {written}, so that each candidate is a list of one; otherwise "
    )


def check_vectors(model: ModelSpec, job: schema.ExportJob) -> None:
    """Checks that the towers of indexes give a vector for each example.

    Raises:
      NotConvertible: a result has several axes.
    """
    for index, part in job.indexes.items():
        for name in (part.query_tower, part.candidate_tower):
            matrix = _matrix_of(model, name)
            if matrix:
                raise NotConvertible(f"index {index!r}: {matrix}")


def note_matrices(model: ModelSpec, job: schema.ExportJob) -> tuple[str, ...]:
    """Returns notes on towers of queries and candidates whose result has several axes; no index
    searches them.
    """
    indexed = {
        name for part in job.indexes.values() for name in (part.query_tower, part.candidate_tower)
    }
    names = [name for name in model.towers if name not in indexed]
    return tuple(matrix for name in names if (matrix := _matrix_of(model, name)))


def _matrix_of(model: ModelSpec, name: str) -> str:
    """Returns why the result of a tower is no vector, and what to change; "" if it is one."""
    tower = model.towers[name]
    result = next(output for output in tower.outputs if output.name == tower.result)
    if tower.role == "ranking" or len(result.shape) <= 2:
        return ""
    axes = list(result.shape[1:])
    return (
        f"tower {name!r}: {result.name!r} is {axes} for each {tower.role}, and a "
        "retrieval compares vectors of one axis: let the call return one of them, such as the last "
        "position, vectors[:, -1]"
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
