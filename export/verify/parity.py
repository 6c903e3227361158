"""Replays examples through the original model and through every written form of every tower, and compares.

The original takes ids; a written tower takes activations from the bundle's own tables, by the service's own reader. So
what agrees here is the whole path of an answer: ids, rows, combiner, weights, compiled arithmetic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError
from bundle.features.reader import FeatureReader, open_features
from bundle.format import manifest
from export.errors import VerificationFailed
from export.graph.specs import TowerSpec, WrittenForm
from export.verify.head_effects import check_effects, order_effects
from export.verify.reference_model import Replay, Results
from runtime.litert import CompiledTower
from runtime.savedmodel import SavedModelTower
from runtime.tower_inputs import tower_inputs
from runtime.towers import Tower

Values = Mapping[str, NDArray[Any]]

ABSOLUTE, RELATIVE = 1e-5, 1e-5
TOLERANCE = f"|d| <= {ABSOLUTE:g} + {RELATIVE:g} * |y|"
"""The parity rule of float32 forms."""


@dataclass(frozen=True)
class OpenForm:
    """A form that is ready to run; `limit` is the recipe's, None where the parity rule holds."""

    form: WrittenForm
    spec: TowerSpec
    tower: Tower
    limit: float | None


def compare_forms(
    replay: Replay, root: Path, forms: Sequence[WrittenForm], expected: Results
) -> dict[str, tuple[manifest.TowerForm, ...]]:
    """Runs every form on all examples at once and on the first one alone, and compares with the original.

    Args:
      replay: the examples, and the bundle's own reader of their features.
      root: directory of the (staged) bundle.
      forms: what was written.
      expected: what the original model gives for these examples.
    Returns:
      By tower, its forms with the largest difference of each output.
    Raises:
      VerificationFailed: a form differs by more than its limit; names tower, form, output, example and values.
    """
    values = feature_values(replay, replay.features)
    verified: dict[str, tuple[manifest.TowerForm, ...]] = dict.fromkeys(replay.model.towers, ())
    for form in forms:
        if form.part:
            continue
        compared = compare(fed_from_bundle(replay, form, root), values, expected[form.tower])
        verified[form.tower] += (verified_form(replay, form, compared, expected[form.tower]),)
    return verified


def verified_form(replay: Replay, form: WrittenForm, compared: Compared, expected: Values) -> manifest.TowerForm:
    """Returns a form's page, with what its precision does to the order of the examples.

    Raises:
      VerificationFailed: it does more than the recipe allows.
    """
    effect = {}
    if form.precision != "f32":
        effect = order_effects(compared.results, expected, replay.examples.labels)
        check_effects(f"tower {form.tower!r}, {told_form(form)}", form.tower, form.precision, effect, replay.job)
    return manifest.TowerForm(
        kind=form.kind, precision=form.precision, path=form.path, max_abs_error=compared.errors, effect=effect
    )


def compare_page(replay: Replay, root: Path, page: manifest.Manifest, expected: Results) -> Values:
    """Runs every tower once more as the finished page tells it, on features that are opened by the page alone.

    Args:
      replay: the examples.
      root: directory of the (staged) bundle.
      page: its manifest.
      expected: what the original model gives for these examples.
    Returns:
      What the page's features give the towers for these examples.
    Raises:
      VerificationFailed: an answer differs by more than its limit: the page misleads a service.
    """
    examples = replay.examples
    features = open_features(root, page)
    taken = {each for tower in page.towers.values() for tensor in tower.inputs for each in tensor.sources}
    found = features.activations(sorted(taken), examples.columns, examples.n)
    values = {source: activation.values for source, activation in found.items()}
    for name, tower in page.towers.items():
        inputs = tower_inputs(tower.inputs, values, examples.n)
        for each in tower.forms:
            opened = fed_from_bundle(replay, WrittenForm(name, each.kind, each.precision, str(each.path)), root)
            results = opened.tower.run(inputs)
            for output in tower.outputs:
                check_output(opened, output.name, results[output.name], expected[name][output.name])
    features.close()
    return values


def allowed(values: NDArray[Any], limit: float | None) -> NDArray[Any]:
    """Returns how far the original model's values may be missed: by the recipe's limit, else by the parity rule."""
    return ABSOLUTE + RELATIVE * np.abs(values) if limit is None else np.full(values.shape, limit)


def feature_values(replay: Replay, features: FeatureReader) -> dict[str, NDArray[Any]]:
    """Returns what the towers take of each feature of the examples, read by `features`."""
    examples = replay.examples
    found = features.activations(replay.model.features, examples.columns, examples.n)
    return {name: activation.values for name, activation in found.items()}


def inputs_of(spec: TowerSpec, values: Mapping[str, NDArray[Any]], n: int) -> dict[str, NDArray[Any]]:
    """Lays out what a tower takes of the values of features."""
    return tower_inputs(spec.inputs, values, n)


def open_form(replay: Replay, form: WrittenForm, root: Path) -> OpenForm:
    """Opens a form to be fed with the checkpoint's own rows: the parity rule binds float32.

    Raises:
      VerificationFailed: it does not open.
    """
    spec = replay.model.towers[form.tower]
    limit = replay.job.towers[form.tower].max_abs_error.get(form.precision)
    try:
        tower: Tower = CompiledTower(root / form.path) if form.kind == "litert" else SavedModelTower(root / form.path)
    except BundleError as problem:
        raise VerificationFailed(f"tower {form.tower!r}, {told_form(form)}: {problem}") from problem
    return OpenForm(form, spec, tower, limit if form.precision != "f32" or spec.half else None)


def fed_from_bundle(replay: Replay, form: WrittenForm, root: Path) -> OpenForm:
    """Opens a form to be fed from the bundle's tables, for which the recipe's limit counts."""
    limit = replay.job.towers[form.tower].max_abs_error.get(form.precision)
    return dataclasses.replace(open_form(replay, form, root), limit=limit)


@dataclass(frozen=True)
class Compared:
    """What a form gave for all examples, and the largest difference of each output from what was expected."""

    results: Values
    errors: dict[str, float]


def compare(opened: OpenForm, values: Values, expected: Values) -> Compared:
    """Runs one form on all examples at once and on the first alone.

    Raises:
      VerificationFailed: one is beyond its limit.
    """
    form, spec = opened.form, opened.spec
    whole: Values = {}
    errors: dict[str, float] = {}
    n = len(next(iter(expected.values())))
    for count in dict.fromkeys((n, min(n, 1))):
        inputs = inputs_of(spec, {name: array[:count] for name, array in values.items()}, count)
        try:
            results = opened.tower.run(inputs)
        except BundleError as problem:
            raise VerificationFailed(
                f"tower {form.tower!r}, {told_form(form)}, batch of {count}: {problem}"
            ) from problem
        whole = whole or results
        for tensor in spec.outputs:
            name = tensor.name
            difference = check_output(opened, name, results[name], expected[name][:count])
            errors[name] = max(errors.get(name, 0.0), difference)
    return Compared(whole, errors)


def check_output(opened: OpenForm, output: str, got: NDArray[Any], expected: NDArray[Any]) -> float:
    """Returns the largest difference of one output from the original's.

    Raises:
      VerificationFailed: it is beyond the form's limit; names tower, form, output, example and values.
    """
    form, limit = opened.form, opened.limit
    where = f"tower {form.tower!r}, {told_form(form)}, output {output!r}"
    if got.shape != expected.shape:
        raise VerificationFailed(f"{where}: shape {got.shape}; the original model gives {expected.shape}")
    difference = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    wrong = ~(difference <= allowed(expected, limit))  # not a number is wrong too
    if not wrong.any():
        return float(difference.max(initial=0.0))
    excess = np.where(wrong, np.nan_to_num(difference, nan=np.inf), -1.0)
    at = tuple(int(place) for place in np.unravel_index(int(np.argmax(excess)), wrong.shape))
    element = f", element {list(at[1:])}," if len(at) > 1 else ""
    rule, cure = TOLERANCE, "it would not answer as the model does, so nothing is published"
    key = f"towers.{form.tower}.max_abs_error.{form.precision}"
    if limit is not None:
        less = f"leave {form.precision!r} out of the tower's precisions"
        if form.precision == "f32":
            less = "where its tables are converted, choose a dtype that loses less"
        rule, cure = f"{key} = {limit:g}", f"raise it, or {less}"
    if form.precision == "f32" and opened.spec.half:
        cure = f"nothing is published{opened.spec.half_cure}, or set {key} to what may differ"
    raise VerificationFailed(
        f"{where}: example {at[0]}{element} is {got[at]:.9g}, the original model gives {expected[at]:.9g}; "
        f"{int(wrong.sum())} of {wrong.size} values break {rule}: {cure}"
    )


def told_form(form: WrittenForm) -> str:
    """Names a form in a message."""
    part = f"part {form.part!r}, " if form.part else ""
    return f"{part}{'SavedModel' if form.kind == 'saved_model' else 'LiteRT'} {form.precision}"
