"""Combines traced towers with the recipe into the manifest's tower entries."""

from __future__ import annotations

import json
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
      job: The recipe.
      model: The traced model.
      converted: Tables whose rows in the bundle are not the checkpoint's own.
    Raises:
      UsageError: A tower with a limit neither computes in half precision nor reads such a table.
    """
    for name, tower in model.towers.items():
        may_differ = tower.half or set(converted) & set(model.of(name).tables)
        if "f32" in job.towers[name].max_abs_error and not may_differ:
            raise UsageError(
                f"towers.{name}.max_abs_error.f32: the tower computes in float32, to which the "
                "parity rule applies"
            )


def check_rankings(model: ModelSpec, job: schema.ExportJob) -> None:
    """Checks that each output of a ranking tower is one number per candidate.

    Raises:
      NotConvertible: An output is several numbers.
    """
    for name, tower in model.towers.items():
        if tower.role != "ranking":
            continue
        for output in tower.outputs:
            count = _size(output)
            if count == 1:
                continue
            # The call may take the candidates of a request as one list.
            lists = [
                input_name
                for input_name in model.read_by(tower)
                if job.inputs[input_name].shape == (count,)
            ]
            path = tower.paths[output.name]
            first = [*path, 0] if path else 0
            raise NotConvertible(
                f"towers.{name}: output {output.name!r} is {count} numbers for each candidate, "
                f"but a ranking takes one; {_remedy_of_lists(lists, count)}name the "
                f"ones to use by their positions, as in towers.{name}.outputs = {{ {output.name} = "
                f"{json.dumps(first)} }}"
            )


def _remedy_of_lists(inputs: Sequence[str], count: int) -> str:
    """Returns the remedy for a call that scores each element of lists of `count` elements, as the
    beginning of a sentence; "" if there are no such lists.
    """
    if not inputs:
        return ""
    settings = " and ".join(
        f'inputs.{name}.shape = [1] with features.{name}.role = "candidate"' for name in inputs
    )
    names = ", ".join(repr(name) for name in inputs)
    return (
        f"{names} is a list of {count}, too: if the call scores each element of the list by "
        f"itself, write {settings}, so that each candidate is a list of one; otherwise "
    )


def check_vectors(model: ModelSpec, job: schema.ExportJob) -> None:
    """Checks that the towers of indexes return a vector for each example.

    Raises:
      NotConvertible: A result has several axes.
    """
    for index, section in job.indexes.items():
        for name in (section.query_tower, section.candidate_tower):
            problem = _matrix_problem(model, name)
            if problem:
                raise NotConvertible(f"index {index!r}: {problem}")


def note_matrices(model: ModelSpec, job: schema.ExportJob) -> tuple[str, ...]:
    """Returns notes on towers of queries and candidates whose result has several axes; no index
    searches them.
    """
    # `check_vectors` rejects those of indexes.
    indexed = set()
    for section in job.indexes.values():
        indexed |= {section.query_tower, section.candidate_tower}
    problems = [_matrix_problem(model, name) for name in model.towers if name not in indexed]
    return tuple(filter(None, problems))


def _matrix_problem(model: ModelSpec, name: str) -> str:
    """Returns why the result of a tower is no vector, and what to change; "" if it is a vector, or
    the tower ranks.
    """
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
    """Checks each tower's formula against the tower's outputs.

    Raises:
      UsageError: The text is no formula, names something other than an output of one number per
        candidate, or the tower does not rank.
    """
    for name, tower in model.towers.items():
        output_names = [output.name for output in tower.outputs]
        read_names = formula_names(name, job.towers[name], output_names)
        for output in tower.outputs:
            if output.name in read_names and _size(output) != 1:
                raise UsageError(
                    f"towers.{name}.formula: output {output.name!r} is not one number for each "
                    "candidate"
                )


def describe_tower(
    spec: TowerSpec,
    job: schema.ExportJob,
    forms: tuple[manifest.TowerForm, ...],
    parts: tuple[manifest.TowerPart, ...] = (),
    extension: manifest.TowerExtension | None = None,
) -> manifest.Tower:
    """Returns the manifest entry of a traced tower with its forms, its parts and what extends the
    state of a context.

    Raises:
      NotConvertible: The precision at which a service runs the tower has no form.
    """
    serve = job.towers[spec.name].serve
    # A service would have nothing to run: f32 always has a SavedModel, int8 has LiteRT alone.
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
        extension=extension,
    )
