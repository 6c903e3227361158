"""The parity check: every form of every tower, and of its parts, must return what the reference
model returns.

The reference model takes ids; a written tower takes activations from the bundle's own tables, by
the service's own reader. So what agrees here is the whole path of a response: ids, rows, combiner,
weights, compiled arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.format.manifest import Tower, TowerForm, TowerPart
from export.bounds import allowed, differ, largest_at
from export.errors import VerificationFailed
from export.front_end.interface import Results
from export.front_end.specs import DenseSpec
from export.recipe.schema import FeatureSection
from export.verify.examples import chosen_values
from export.verify.forms import OpenForm, Values, compare, open_form, run
from export.verify.rankings import check_effects, order_effects
from export.verify.reference_inputs import Reference
from export.verify.repeated_runs import self_contradiction
from runtime.tower_inputs import tower_inputs
from runtime.towers import find_form, open_tower

_CANDIDATES = 4
"""The number of candidates that share a context where parts are compared with the whole tower."""


def feature_values(reference: Reference, features: FeatureReader) -> dict[str, NDArray[Any]]:
    """Returns the values of each feature of the examples that towers take, read by `features`."""
    examples = reference.examples
    activations = features.activations(reference.model.features, examples.columns, examples.n)
    return {name: activation.values for name, activation in activations.items()}


def query_vectors(
    reference: Reference, root: Path, tower: Tower, features: FeatureReader
) -> NDArray[np.float32]:
    """Returns [n, dim] vectors that a query tower of the bundle gives in f32 for the examples, read
    by `features`.
    """
    inputs = tower_inputs(tower.inputs, feature_values(reference, features), reference.examples.n)
    return open_tower(root, tower, "f32").run(inputs)[tower.result]


def with_empty_bags(reference: Reference, tower: str) -> Reference | None:
    """Returns the examples of users who have no history yet: with empty bags.

    Args:
      reference: The model and its examples.
      tower: The query tower, whose bags are emptied.

    Returns:
      The model with these examples; None: the tower has no bags that may be empty.
    """
    examples = reference.examples
    inputs = reference.model.read_by(reference.model.towers[tower])
    no_values = np.zeros(examples.n + 1, np.int64)
    emptied = {}
    for name in inputs:
        column = examples.columns.get(name)
        if column is None or column.offsets is None:
            continue
        if not _may_be_empty(reference, name):
            continue
        weights = None if column.weights is None else column.weights[:0]
        emptied[name] = Column(column.values[:0], no_values, weights)
    if not emptied:
        return None
    cold_start = replace(examples, columns={**examples.columns, **emptied})
    return replace(reference, examples=cold_start)


def _may_be_empty(reference: Reference, name: str) -> bool:
    """Returns whether a request may send nothing in an input: not where each example has a fixed
    number of values, which nothing pads, and there is no default.
    """
    length = reference.features.length_of(name)
    if length is not None and length.pad is not None:
        return True
    as_sent = any(
        isinstance(spec, DenseSpec) and spec.entry.take == "values"
        for spec in reference.model.inputs[name]
    )
    is_fixed = as_sent or length is not None
    section = reference.job.features.get(name, FeatureSection())
    return not is_fixed or section.default is not None


def check_towers(
    reference: Reference, root: Path, towers: Mapping[str, Tower], expected: Results
) -> dict[str, Tower]:
    """Compares towers and their parts, in all their forms, with the reference model.

    Args:
      reference: The model, the examples and how a service reads them.
      root: The directory of the (staged) bundle.
      towers: The towers' entries in the manifest.
      expected: The outputs of the reference model.

    Returns:
      The entries, each form with the largest difference of its outputs and its effect on their
      order. An output of a part that is no output of its tower is compared with that of the part's
      SavedModel.

    Raises:
      VerificationFailed: A form differs by more than its limit; the message names tower, form,
        output, example and values.
    """
    values = feature_values(reference, reference.features)
    checked_towers = {}
    for name, tower in towers.items():
        try:
            checked_towers[name] = _check_tower(
                reference, root, name, tower, values, expected[name]
            )
        except VerificationFailed as problem:
            # A difference may come from the model's own code, or from its treatment of unknown
            # ids: a message that names the cause is worth the further runs.
            cause = self_contradiction(reference)
            if cause:
                raise VerificationFailed(cause) from problem
            suspects = _unknown_ids_at_fault(reference, root, name, tower, values, expected[name])
            if suspects:
                raise VerificationFailed(f"{problem}; {suspects}") from problem
            raise
    return checked_towers


def _unknown_ids_at_fault(
    reference: Reference, root: Path, name: str, tower: Tower, values: Values, expected: Values
) -> str:
    """Returns a clause about the inputs whose unknown ids make a tower differ; "" if it differs
    without them, too.
    """
    model = reference.model
    inputs = model.read_by(model.towers[name])
    has_unknown = {input_name: reference.has_unknown_ids(input_name) for input_name in inputs}
    without_unknown = ~np.any(list(has_unknown.values()), axis=0)
    if without_unknown.all() or not without_unknown.any():
        return ""

    # The towers take values, not columns, so only the number of examples has to fit.
    count = int(without_unknown.sum())
    examples = replace(reference.examples, n=count, labels={})
    try:
        _check_tower(
            replace(reference, examples=examples),
            root,
            name,
            tower,
            chosen_values(values, without_unknown),
            chosen_values(expected, without_unknown),
        )
    except VerificationFailed:
        return ""
    suspects = [input_name for input_name in inputs if has_unknown[input_name].any()]
    clause = (
        "examples without ids that no table has agree, so that these are treated otherwise than "
        f"in training: compare features.NAME.ids and .unknown of {', '.join(suspects)}"
    )
    numbers = [
        input_name
        for input_name in suspects
        if any(isinstance(spec, DenseSpec) for spec in model.inputs[input_name])
    ]
    if numbers:
        clause += f"; the model also reads {', '.join(numbers)} as numbers"
    return clause


def _check_tower(
    reference: Reference, root: Path, name: str, tower: Tower, values: Values, expected: Values
) -> Tower:
    """Returns the entry of a tower with the differences of its forms, and of those of its parts."""
    forms = []
    for form in tower.forms:
        opened = open_form(reference, root, name, tower, form)
        results, errors = compare([opened], values, expected)
        forms.append(_form_entry(reference, opened, results, errors, expected))
    parts: tuple[TowerPart, ...] = ()
    if tower.parts:
        parts = _check_parts(reference, root, name, tower, values, expected)
    return tower.model_copy(update={"forms": tuple(forms), "parts": parts})


def _form_entry(
    reference: Reference,
    opened: OpenForm,
    results: Values,
    errors: dict[str, float],
    expected: Values,
) -> TowerForm:
    """Returns the entry of a form with its largest differences and its effect on the order."""
    form = opened.form
    outputs = [output.name for output in opened.entry.outputs]
    effect = {}
    # Forms in f32 must meet the parity rule instead, which bounds every value.
    if form.precision != "f32":
        original = {name: expected[name] for name in outputs if name in expected}
        effect = order_effects(results, original, reference.examples.labels)
        check_effects(opened.label, opened.spec.name, form.precision, effect, reference.job)
    differences = {name: errors[name] for name in outputs if name in errors}
    return form.model_copy(update={"max_abs_error": differences, "effect": effect})


def _check_parts(
    reference: Reference, root: Path, name: str, tower: Tower, values: Values, expected: Values
) -> tuple[TowerPart, ...]:
    """Runs parts one after the other, as a service does, in each combination of forms.

    First, each example is a context with one candidate. Then candidates share contexts, whose parts
    run once for each context. If the outputs are those of the whole tower, a context's row is
    computed from that context alone.
    """
    n = reference.examples.n // _CANDIDATES * _CANDIDATES
    shared = _with_shared_contexts(tower, values, n)
    saved = find_form(tower.forms, ("saved_model", "f32"))
    whole: Values = {}
    if n and saved is not None:
        whole = run([open_form(reference, root, name, tower, saved)], shared, n)

    measured: dict[str, dict[str, TowerForm]] = {part.name: {} for part in tower.parts}
    first: Values = {}
    for forms in form_chains(tower.parts):
        chain = [
            open_form(reference, root, name, part, form)
            for part, form in zip(tower.parts, forms, strict=True)
        ]
        results, errors = compare(chain, values, expected)
        if whole:
            _check_shared(chain, run(chain, shared, n, _CANDIDATES), whole)
        for opened, part in zip(chain, tower.parts, strict=True):
            # The original model does not return what one part hands to the next: the first chain,
            # of SavedModels, is the reference for it.
            if first:
                for inner in {output.name for output in part.outputs} - set(expected):
                    errors[inner], _ = largest_at(results[inner], first[inner])
            form = _form_entry(reference, opened, results, errors, expected)
            measured[part.name].setdefault(opened.form.path, form)
        first = first or results
    return tuple(
        part.model_copy(update={"forms": tuple(measured[part.name].values())})
        for part in tower.parts
    )


def _with_shared_contexts(tower: Tower, values: Values, n: int) -> Values:
    """Returns [n, ...] values in which groups of candidates have the context of their first."""
    shared = chosen_values(values, slice(n))
    for part in tower.parts:
        for tensor in part.inputs:
            if part.per != "context" and not tensor.is_of_context:
                continue
            for key in tensor.sources:
                contexts = values[key][:n:_CANDIDATES]
                shared[key] = contexts.repeat(_CANDIDATES, axis=0)
    return shared


def _check_shared(chain: Sequence[OpenForm], results: Values, whole: Values) -> None:
    for opened in chain:
        for name in [output.name for output in opened.entry.outputs if output.name in whole]:
            # Both, the parts and the whole tower, may miss the original by the limit.
            limit = 2 * allowed(whole[name], opened.own_limit)
            if differ(results[name], whole[name], limit).any():
                difference, _ = largest_at(results[name], whole[name])
                raise VerificationFailed(
                    f"{opened.label}: with contexts computed once and each shared by {_CANDIDATES} "
                    f"candidates, output {name!r} lies {difference:.3g} from the whole "
                    f"tower's; set towers.{opened.spec.name}.split = false, and report it"
                )


def form_chains(parts: Sequence[TowerPart]) -> list[tuple[TowerForm, ...]]:
    """Returns the combinations of forms in which a service may run parts, each once: by
    SavedModels, or compiled where it can.
    """
    chains: dict[tuple[str, ...], tuple[TowerForm, ...]] = {}
    precisions = {form.precision for part in parts for form in part.forms}
    # SavedModels in f32 come first: they are the reference for what parts hand on.
    for precision in sorted(precisions, key=lambda precision: precision != "f32"):
        for kinds in (("saved_model", "litert"), ("litert", "saved_model")):
            preferred = [(kind, precision) for kind in kinds]
            forms = [find_form(part.forms, *preferred) for part in parts]
            chain = tuple(form for form in forms if form is not None)
            if len(chain) == len(parts):
                chains.setdefault(tuple(form.path for form in chain), chain)
    return list(chains.values())
