"""Towers on hostile numbers: the SavedModel in f32 beside the compiled forms, and beside the model
in the framework that trained it.

The examples of a recipe lie where training's numbers lay, and callers send others: a Unix time, an
id of 64 bits, a count that is a square. LiteRT computes some operations otherwise there, or cannot
compute them. A form that gives other numbers is left out, and the SavedModel is served.

TensorFlow computes some numbers otherwise than JAX does: logarithms differ by a bit, which a step
makes a whole number, and casts of large numbers end at other integers. A tower that gives another
number than the model gave in training must not be published.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bundle.features.reader import FeatureReader
from bundle.format.manifest import Precision, Tower, TowerForm, TowerPart
from export.errors import NotConvertible, VerificationFailed
from export.front_end.interface import ForeignModel, TracedTower
from export.front_end.specs import FeatureSpec
from export.verify.differing_operations import compiled_operations, first_differing
from export.verify.examples import Examples, chosen_columns, chosen_values, joined
from export.verify.form_differences import ComparedOutputs, Tolerated
from export.verify.forms import OpenForm, Values, open_form
from export.verify.hostile_examples import HostileExamples, number_text
from export.verify.reference_form import ReferenceForm
from export.verify.reference_inputs import Reference
from export.verify.reference_model import model_inputs, reference_results
from runtime.tower_inputs import tower_inputs
from runtime.towers import find_form

FormKey = tuple[Literal["saved_model", "litert"], Precision]
"""Kind and precision of a form."""
_REFERENCE: FormKey = ("saved_model", "f32")
"""The form that others are compared with. Every tower has it."""
_BLATANT = 0.01
"""The difference, as a share of the size of an output, that shows well that a form is wrong."""
_CONFIRMED_MAX = 64
"""The number of examples that differ and are computed alone, too."""
_TRAINED_ROWS_MAX = 1 << 12
"""The number of examples that hold hostile numbers in one input, over all inputs of a tower, where
another framework computes them, too.
"""
_COPIES = 16
"""The number of times that an example is computed together to find what differs."""
_REMEDY = (
    "clip numbers in the model to those that callers mean, compute a step of a number by "
    "comparisons, such as jnp.searchsorted of its limits, or compute it before the model and pass "
    "it as an input"
)


@dataclass(frozen=True)
class ComparedForms:
    """The result of the comparison.

    Attributes:
      towers: The towers' entries in the manifest, without the forms that differ.
      notes: A note about each form that is left out, and about numbers of which only one of two
        forms makes NaN or an infinity.
      examples: The number of examples with hostile numbers of each tower with several forms.
    """

    towers: dict[str, Tower]
    notes: list[str]
    examples: dict[str, int]


def compare_on_hostile_numbers(
    reference: Reference,
    root: Path,
    towers: Mapping[str, Tower],
    values: Values,
    traced: Sequence[TracedTower],
) -> ComparedForms:
    """Leaves out the forms that differ from the tower's SavedModel in f32, or fail where it does
    not, on the examples or on hostile numbers that a service accepts.

    Args:
      reference: The model, its examples and how a service reads them.
      root: The directory of the staged bundle.
      towers: The towers' entries in the manifest.
      values: [n, ...] values of each feature of the examples.
      traced: The towers, whose variables have their values.

    Raises:
      NotConvertible: No form of the precision to be served remains.
    """
    remaining = dict(towers)
    notes = []
    counts = {}
    for traced_tower in traced:
        name = traced_tower.spec.name
        forms = _forms_of(towers[name])
        if not forms:
            continue
        form = ReferenceForm(reference, root, traced_tower, towers[name], values)
        findings = {key: _Finding(form) for key in forms}
        counts[name] = _compare_forms(reference, root, form, findings)
        for key, finding in findings.items():
            _, precision = key
            label = f"LiteRT ({precision})"
            if precision == "bf16":
                label = "TensorFlow (bf16)"
            problem = finding.problem(precision)
            if not problem:
                notes += [f"tower {name!r}, {label}: {note}" for note in finding.tolerated.notes()]
                continue
            remaining[name] = _without(remaining[name], key)
            notes.append(f"tower {name!r} is not compiled for {label}: {problem}")
            # In f32 the SavedModel remains; other precisions may have a compiled form alone.
            serve = towers[name].serve
            if serve not in {form.precision for form in remaining[name].forms}:
                raise NotConvertible(
                    f"tower {name!r} is to be served in {serve}, and {notes[-1]}; set "
                    f"towers.{name}.serve to 'f32'"
                )
    return ComparedForms(remaining, notes, counts)


def _forms_of(tower: Tower) -> list[FormKey]:
    """Returns the forms of a tower and of its parts, but the one that others are compared with."""
    entries: list[Tower | TowerPart] = [tower, *tower.parts]
    # A dictionary as an ordered set.
    keys = {(form.kind, form.precision): None for entry in entries for form in entry.forms}
    return [key for key in keys if key != _REFERENCE]


def _without(tower: Tower, left_out: FormKey) -> Tower:
    """Returns a tower and its parts without the forms of a kind and precision."""

    def remaining(entry: Tower | TowerPart) -> tuple[TowerForm, ...]:
        return tuple(form for form in entry.forms if (form.kind, form.precision) != left_out)

    def without(part: TowerPart) -> TowerPart:
        return part.model_copy(update={"forms": remaining(part)})

    extension = tower.extension
    if extension is not None:
        extension = extension.model_copy(update={"part": without(extension.part)})
    return tower.model_copy(
        update={
            "forms": remaining(tower),
            "parts": tuple(map(without, tower.parts)),
            "extension": extension,
        }
    )


Rank = tuple[bool, bool, float]
"""How well an example shows that a form is wrong, best first: whether the difference is small,
whether the numbers are fractions, and their magnitude.
"""


class _Finding:
    """What is known of one form of a tower, beside its SavedModel in f32.

    Attributes:
      failure: The error of the form for an example that the SavedModel takes; "": there is none.
      difference: The outputs for an example that differ; None: there are none.
      rank: The rank of the example that fails or differs.
      tolerated: The differences for which it is served all the same.
    """

    def __init__(self, saved_model: ReferenceForm) -> None:
        self.saved_model = saved_model
        self.failure = ""
        self.difference: ComparedOutputs | None = None
        self.rank: Rank = (True, True, np.inf)
        self.tolerated = Tolerated()

    def problem(self, precision: Precision) -> str:
        """Returns why the form must not be served, a clause; "": nothing speaks against it."""
        difference = self.difference
        if difference is None:
            return self.failure
        found = None
        if precision != "bf16":
            inputs = tower_inputs(self.saved_model.tower.inputs, difference.examples.values, 1)
            found = first_differing(compiled_operations(self.saved_model.traced, precision, inputs))
        if found is None:
            output, result, expected = difference.worst()
            found = f"output {output!r}", number_text(expected), number_text(result)
        subject, trained, served = found
        return (
            f"for {difference.examples.text(0)}, {subject} is {served}, and the trained model's is "
            f"{trained}"
        )

    def compare(
        self, chain: Sequence[OpenForm], examples: HostileExamples, expected: Values
    ) -> None:
        """Compares the form, or the forms of parts, on examples that the SavedModel takes."""
        saved_model = self.saved_model
        try:
            results = saved_model.outputs_of(chain, examples)
        except VerificationFailed:
            self._add_failure(chain, examples)
            return
        compared = ComparedOutputs(examples, expected, results)
        differences = self.tolerated.add(compared, self._differences(compared, chain[0]))
        (differing,) = differences.nonzero()
        ranks = {
            row: (bool(differences[row] < _BLATANT), *examples.rank(row))
            for row in differing.tolist()
        }
        for row in sorted(ranks, key=ranks.__getitem__)[:_CONFIRMED_MAX]:
            if ranks[row] >= self.rank:
                break
            # TensorFlow itself may compute an example otherwise among others.
            alone = examples.chosen(slice(row, row + 1))
            outputs = saved_model.outputs_of(saved_model.chain, alone)
            difference = ComparedOutputs(alone, outputs, saved_model.outputs_of(chain, alone))
            if self._differences(difference, chain[0]).any():
                self.failure = ""
                self.difference = difference
                self.rank = ranks[row]
                break

    def _differences(self, compared: ComparedOutputs, opened: OpenForm) -> NDArray[np.float64]:
        limit = opened.own_limit
        if limit is not None and not compared.examples.numbers:
            # What a precision may lose on the recipe's examples is the recipe's to say.
            return np.zeros(compared.examples.n)
        return self.saved_model.differences(compared, opened.form.precision, limit)

    def _add_failure(self, chain: Sequence[OpenForm], examples: HostileExamples) -> None:
        """Adds the first example on which forms fail that fail on some."""
        while examples.n > 1:
            middle = examples.n // 2
            first = examples.chosen(slice(middle))
            if self.saved_model.failure_of(chain, first):
                examples = first
            else:
                examples = examples.chosen(slice(middle, None))
        rank = (False, *examples.rank(0))
        problem = self.saved_model.failure_of(chain, examples)
        if problem and rank < self.rank:
            self.failure = f"it fails on {examples.text(0)}, which the model takes: {problem}"
            self.difference = None
            self.rank = rank


def _compare_forms(
    reference: Reference,
    root: Path,
    saved_model: ReferenceForm,
    findings: Mapping[FormKey, _Finding],
) -> int:
    """Compares the forms of one tower with its SavedModel in f32, on the recipe's examples and on
    those with hostile numbers; returns the number of the latter.
    """
    tower = saved_model.tower
    name = saved_model.traced.spec.name
    divisions: list[tuple[Tower | TowerPart, ...]] = [(tower,)]
    if tower.parts:
        divisions.append(tower.parts)
    chains = [
        (_open_chain(reference, root, name, entries, key), finding)
        for key, finding in findings.items()
        for entries in divisions
    ]
    count = 0
    hostile = saved_model.hostile_batches(saved_model.inputs)
    for batch in itertools.chain([saved_model.examples], hostile):
        rows, expected = saved_model.accepted(batch)
        if not rows.size:
            continue
        examples = batch.chosen(rows)
        if examples.numbers:
            count += examples.n
        for chain, finding in chains:
            if chain:
                finding.compare(chain, examples, expected)
    return count


def _open_chain(
    reference: Reference,
    root: Path,
    name: str,
    entries: Sequence[Tower | TowerPart],
    key: FormKey,
) -> list[OpenForm]:
    """Returns a tower, or its parts as a service runs them: in a form, or as SavedModels where they
    lack it; [] if that form is not among them.
    """
    _, precision = key
    forms = [find_form(entry.forms, key, ("saved_model", precision)) for entry in entries]
    chain = [
        open_form(reference, root, name, entry, form)
        for entry, form in zip(entries, forms, strict=True)
        if form is not None
    ]
    # One that is missing hands nothing on, so the parts behind it cannot run.
    if len(chain) < len(entries):
        return []
    if not any((opened.form.kind, precision) == key for opened in chain):
        return []
    return chain


def compare_with_training(
    reference: Reference,
    trained: FeatureReader,
    root: Path,
    towers: Mapping[str, Tower],
    values: Values,
    traced: Sequence[TracedTower],
) -> list[str]:
    """Compares each tower's SavedModel in f32 with the original model on hostile numbers, where
    another framework than TensorFlow runs that. Ids are those of the examples.

    Args:
      reference: The model, its examples and how a service reads them.
      trained: Reads features, with rows as they were trained.
      root: The directory of the staged bundle.
      towers: The towers' entries in the manifest.
      values: [n, ...] values of each feature of the examples.
      traced: The towers, whose variables have their values.

    Returns:
      Notes about numbers of which only one of the two makes NaN or an infinity, and about towers
      that are not compared.

    Raises:
      VerificationFailed: They differ; names the tower, the number and both results.
    """
    original = reference.original
    if not isinstance(original, ForeignModel):
        return []
    notes = []
    for tower in traced:
        name = tower.spec.name
        if tower.spec.half:
            notes.append(
                f"tower {name!r} computes in half precision, so it is compared with "
                f"{original.framework} on the examples alone, and not on hostile numbers"
            )
            continue
        form = ReferenceForm(reference, root, tower, towers[name], values)
        notes += _compare_with_original(reference, original, trained, form)
    return notes


def _compare_with_original(
    reference: Reference, original: ForeignModel, trained: FeatureReader, form: ReferenceForm
) -> list[str]:
    """Compares one tower."""
    name = form.traced.spec.name
    # Neither ids nor their weights.
    inputs = [
        number_input
        for number_input in form.inputs
        if not number_input.are_weights
        and number_input.name in reference.examples.columns
        and not any(
            isinstance(spec, FeatureSpec) for spec in reference.model.inputs[number_input.name]
        )
    ]
    batches = [
        _with_all_columns(reference.examples, batch)
        for batch in form.hostile_batches(inputs, _TRAINED_ROWS_MAX)
        if batch.n
    ]
    if not batches:
        return []
    counts = [batch.n for batch in batches]
    columns = {
        input_name: joined([batch.columns[input_name] for batch in batches], counts)
        for input_name in reference.examples.columns
    }
    examples = Examples(sum(counts), columns)
    expected = reference_results(replace(reference, examples=examples), only=name)[name]
    activations = trained.activations(sorted(form.values), examples.columns, examples.n)

    tolerated = Tolerated()
    differing: list[ComparedOutputs] = []
    first = 0
    for batch in batches:
        positions = np.arange(first, first + batch.n)
        first += batch.n
        values = {key: activation.values[positions] for key, activation in activations.items()}
        hostile = replace(batch, values=values)
        rows, results = form.accepted(hostile)
        if not rows.size:
            continue
        expected_rows = chosen_values(expected, positions[rows])
        # A service responds with an error where the SavedModel has no number.
        finite = {
            output: np.where(np.isfinite(array), array, expected_rows[output])
            for output, array in results.items()
        }
        compared = ComparedOutputs(hostile.chosen(rows), expected_rows, results)
        responses = replace(compared, results=finite)
        differences = tolerated.add(compared, form.differences(responses, "f32", None))
        (wrong,) = differences.nonzero()
        differing += [responses.chosen(wrong[[position]]) for position in range(wrong.size)]
    if differing:
        clearest = min(differing, key=lambda compared: compared.examples.rank(0))
        output, result, trained_result = clearest.worst()
        framework = original.framework
        # TensorFlow computes a single number otherwise than several.
        copies = clearest.chosen(np.zeros(_COPIES, np.int64)).examples
        example = replace(
            reference, model=reference.model.of(name), examples=Examples(_COPIES, copies.columns)
        )
        cause = ""
        tower = example.model.towers[name]
        found = first_differing(original.operations(tower, model_inputs(example)))
        if found is not None:
            operation, trained_text, served = found
            cause = f" ({operation} is {trained_text} in {framework} and {served} in TensorFlow)"
        raise VerificationFailed(
            f"tower {name!r}, output {output!r}: for {clearest.examples.text(0)}, {framework}, "
            f"which trained the model, gives {number_text(trained_result)}, and TensorFlow, which "
            f"computes the tower, {number_text(result)}{cause}; {len(differing)} of {examples.n} "
            f"examples with hostile numbers differ: {_REMEDY}"
        )
    return [f"tower {name!r}, in TensorFlow: {note}" for note in tolerated.notes()]


def _with_all_columns(base: Examples, batch: HostileExamples) -> HostileExamples:
    """Returns examples with the columns of all inputs, the recipe's examples in turn, and without
    values: those of many examples are large, and are computed from the columns again.
    """
    rows = np.arange(batch.n) % base.n
    columns = chosen_columns(base.columns, rows, base.n)
    return replace(batch, values={}, columns={**columns, **batch.columns})
