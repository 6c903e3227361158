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
"""The number of examples whose integers are replaced by others."""


def without_failing_forms(
    reference: Reference, root: Path, towers: Mapping[str, Tower], values: Values
) -> tuple[dict[str, Tower], list[str]]:
    """Leaves out the compiled forms that fail where the tower's SavedModel does not.

    They run on the examples, and on integers that no example holds where a tower takes integers as
    they are.

    Args:
      reference: The model and its examples.
      root: The directory of the staged bundle.
      towers: Their entries in the manifest.
      values: [n, ...] of each feature of the examples.

    Returns:
      The entries, and a note about each form that is left out.

    Raises:
      NotConvertible: No form of the precision to be served remains.
    """
    kept = {}
    notes = []
    for name, tower in towers.items():
        kept[name] = tower
        compiled: list[Precision] = [
            form.precision for form in tower.forms if form.kind == "litert"
        ]
        for precision in compiled:
            why = _why_it_fails(reference, root, name, tower, precision, values)
            if not why:
                continue
            kept[name] = _without(kept[name], precision)
            notes.append(f"tower {name!r} is not compiled for LiteRT ({precision}): {why}")
        if tower.serve not in {form.precision for form in kept[name].forms}:
            raise NotConvertible(
                f"tower {name!r} is to be served in {tower.serve}, and {notes[-1]}; set "
                f"towers.{name}.serve to 'f32'"
            )
    return kept, notes


def _without(tower: Tower, precision: Precision) -> Tower:
    """Returns a tower and its parts without a compiled form."""

    def others(entry: Tower | TowerPart) -> tuple[TowerForm, ...]:
        return tuple(
            form for form in entry.forms if (form.kind, form.precision) != ("litert", precision)
        )

    parts = tuple(part.model_copy(update={"forms": others(part)}) for part in tower.parts)
    return tower.model_copy(update={"forms": others(tower), "parts": parts})


def _why_it_fails(
    reference: Reference,
    root: Path,
    name: str,
    tower: Tower,
    precision: Precision,
    values: Values,
) -> str:
    """Returns why a compiled tower, or its compiled parts, cannot be served; "" if they can."""
    chains = _compiled_chains(reference, root, name, tower, precision)
    for what, given in _batches(reference, name, values):
        n = len(next(iter(given.values())))
        for chain in chains:
            problem = _failure(chain, given, n)
            if problem and not _failure([_saved(reference, root, name, tower)], given, n):
                return f"it fails on {what}, which the model takes: {problem}"
    return ""


def _compiled_chains(
    reference: Reference, root: Path, name: str, tower: Tower, precision: Precision
) -> list[list[OpenForm]]:
    """Returns the compiled tower, and the compiled parts that compute the same."""
    chains = []
    entries: list[tuple[Tower | TowerPart, ...]] = [(tower,)]
    if tower.parts:
        entries.append(tower.parts)
    for chain in entries:
        forms = [find_form(entry.forms, ("litert", precision)) for entry in chain]
        chains.append(
            [
                open_form(reference, root, name, entry, form)
                for entry, form in zip(chain, forms, strict=True)
                if form is not None
            ]
        )
    return [chain for chain, entry in zip(chains, entries, strict=True) if len(chain) == len(entry)]


def _saved(reference: Reference, root: Path, name: str, tower: Tower) -> OpenForm:
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
    """Yields batches of values with their description: the examples, then some of them with other
    integers.
    """
    yield "an example", values
    tower = reference.model.of(name)
    first = {key: array[:_EXAMPLES] for key, array in values.items()}
    for key, spec in tower.features.items():
        if not isinstance(spec, DenseSpec) or spec.entry.take != "values":
            continue
        if spec.entry.dtype not in ("int32", "int64") or _rejects(spec):
            continue
        for integer in (-1, np.iinfo(np.int32).max):
            (read,) = spec.reads
            yield f"{integer} in input {read!r}", {**first, key: np.full_like(first[key], integer)}


def _rejects(spec: DenseSpec) -> bool:
    return spec.entry.below is not None and spec.entry.outside == "refuse"
