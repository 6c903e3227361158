"""Compiled forms of towers that fail on values which the tower itself computes with.

LiteRT's converter may put an operation in the place of others that takes less: of the product of a
one-hot vector and a matrix it makes a lookup, which fails for an id outside of the matrix, where
the product is zeros. Such a form would fail requests, so the SavedModel is served instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from bundle.format.manifest import Precision, Tower, TowerForm, TowerPart
from export.errors import NotConvertible, VerificationFailed
from export.front_end.specs import DenseSpec
from export.verify.forms import OpenForm, Values, open_form, run
from export.verify.reference_inputs import Reference
from runtime.towers import find_form

_EXAMPLES = 2
"""The number of examples whose integers are replaced."""


def without_failing_forms(
    reference: Reference, root: Path, towers: Mapping[str, Tower], values: Values
) -> tuple[dict[str, Tower], list[str]]:
    """Leaves out the compiled forms that fail where the tower's SavedModel does not.

    They run on the examples, and on integers that no example holds where a tower takes integers as
    they are.

    Args:
      reference: The model and its examples.
      root: The directory of the staged bundle.
      towers: The towers' entries in the manifest.
      values: [n, ...] values of each feature of the examples.

    Returns:
      The entries, and a note about each form that is left out.

    Raises:
      NotConvertible: No form of the precision to be served remains.
    """
    working = {}
    notes = []
    for name, tower in towers.items():
        working[name] = tower
        compiled: list[Precision] = [
            form.precision for form in tower.forms if form.kind == "litert"
        ]
        for precision in compiled:
            failure = _reason_of_failure(reference, root, name, tower, precision, values)
            if not failure:
                continue
            working[name] = _without(working[name], precision)
            notes.append(f"tower {name!r} is not compiled for LiteRT ({precision}): {failure}")
        # In f32 the SavedModel remains; other precisions may have a compiled form alone.
        if tower.serve not in {form.precision for form in working[name].forms}:
            raise NotConvertible(
                f"tower {name!r} is to be served in {tower.serve}, and {notes[-1]}; set "
                f"towers.{name}.serve to 'f32'"
            )
    return working, notes


def _without(tower: Tower, precision: Precision) -> Tower:
    """Returns a tower and its parts without a compiled form."""

    def remaining(entry: Tower | TowerPart) -> tuple[TowerForm, ...]:
        return tuple(
            form for form in entry.forms if (form.kind, form.precision) != ("litert", precision)
        )

    parts = tuple(part.model_copy(update={"forms": remaining(part)}) for part in tower.parts)
    return tower.model_copy(update={"forms": remaining(tower), "parts": parts})


def _reason_of_failure(
    reference: Reference,
    root: Path,
    name: str,
    tower: Tower,
    precision: Precision,
    values: Values,
) -> str:
    """Returns why a compiled tower, or its compiled parts, cannot be served; "" if they can."""
    chains = _compiled_chains(reference, root, name, tower, precision)
    for description, batch in _batches(reference, name, values):
        n = len(next(iter(batch.values())))
        for chain in chains:
            problem = _failure(chain, batch, n)
            if not problem:
                continue
            # Where the SavedModel fails, too, the model itself does not take the value.
            if not _failure([_saved_model(reference, root, name, tower)], batch, n):
                return f"it fails on {description}, which the model takes: {problem}"
    return ""


def _compiled_chains(
    reference: Reference, root: Path, name: str, tower: Tower, precision: Precision
) -> list[list[OpenForm]]:
    """Returns the compiled tower, and the compiled parts that compute the same."""
    chains = []
    divisions: list[tuple[Tower | TowerPart, ...]] = [(tower,)]
    if tower.parts:
        divisions.append(tower.parts)
    for entries in divisions:
        chain = []
        for entry in entries:
            form = find_form(entry.forms, ("litert", precision))
            if form is not None:
                chain.append(open_form(reference, root, name, entry, form))
        # A part that is not compiled hands nothing on, so the parts behind it cannot run.
        if len(chain) == len(entries):
            chains.append(chain)
    return chains


def _saved_model(reference: Reference, root: Path, name: str, tower: Tower) -> OpenForm:
    form = find_form(tower.forms, ("saved_model", "f32"))
    assert form is not None  # noqa: S101 - every tower has one
    return open_form(reference, root, name, tower, form)


def _failure(chain: list[OpenForm], values: Values, n: int) -> str:
    """Returns why forms cannot compute with some values; "" if they can."""
    try:
        run(chain, values, n)
    except VerificationFailed as problem:
        return str(problem)
    return ""


def _batches(reference: Reference, name: str, values: Values) -> Iterator[tuple[str, Values]]:
    """Yields batches of values, each behind its description: the examples, then a few of them with
    integers that lie outside of any matrix.
    """
    yield "an example", values
    tower = reference.model.of(name)
    first = {key: array[:_EXAMPLES] for key, array in values.items()}
    for key, spec in tower.features.items():
        if not isinstance(spec, DenseSpec) or spec.entry.take != "values":
            continue
        if spec.entry.dtype not in ("int32", "int64") or _rejects(spec):
            continue
        (input_name,) = spec.reads
        for integer in (-1, np.iinfo(np.int32).max):
            replaced = np.full_like(first[key], integer)
            yield f"{integer} in input {input_name!r}", {**first, key: replaced}


def _rejects(spec: DenseSpec) -> bool:
    """Returns whether a service rejects integers that lie outside of the model's matrix."""
    return spec.entry.below is not None and spec.entry.outside == "refuse"
