"""Forms of towers on hostile numbers: the compiled ones must compute what the SavedModel in f32
does.

The examples of a recipe lie where training's numbers lay, and callers send others: a Unix time, an
id of 64 bits, a count that is a square. LiteRT computes some operations otherwise there, or cannot
compute them. A form that gives other numbers is left out, and the SavedModel is served.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.format.manifest import Precision, Tower, TowerForm, TowerPart
from export.errors import NotConvertible, VerificationFailed
from export.front_end.interface import TracedTower
from export.graphs.number_keys import keys_of, numbers_of
from export.verify.differing_operations import differing_operation
from export.verify.form_differences import ComparedOutputs, RoundedTower, typical_magnitudes
from export.verify.forms import OpenForm, Values, open_form, run
from export.verify.hostile_examples import (
    HostileExamples,
    NumberInput,
    batches,
    completed,
    find_accepted,
    hostile_examples,
    number_inputs,
    number_text,
)
from export.verify.hostile_numbers import MEANINGFUL_MAX, grid, numbers_around
from export.verify.reference_inputs import Reference
from export.verify.step_search import find_steps
from runtime.tower_inputs import tower_inputs
from runtime.towers import find_form

FormKey = tuple[Literal["saved_model", "litert"], Precision]
"""Kind and precision of a form."""
_REFERENCE: FormKey = ("saved_model", "f32")
"""The form that others are compared with. Every tower has it."""
_GRID_SIZE = 1 << 10
"""The number of numbers, over all inputs of a tower, between which steps are looked for."""
_GRID_MIN = 16
"""The number of numbers of one input that are enough to look for steps."""
_BLATANT = 0.01
"""The difference, as a share of the size of an output, that shows well that a form is wrong."""
_CONFIRMED_MAX = 64
"""The number of examples that differ and are computed alone, too."""


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
        comparison = _Comparison(reference, root, traced_tower, towers[name], values)
        findings = comparison.findings(forms)
        counts[name] = comparison.count
        for key, finding in zip(forms, findings, strict=True):
            _, precision = key
            label = f"LiteRT ({precision})"
            if precision == "bf16":
                label = "TensorFlow (bf16)"
            problem = comparison.problem_of(finding, precision)
            if not problem:
                notes += [f"tower {name!r}, {label}: {note}" for note in finding.notes()]
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

    parts = tuple(part.model_copy(update={"forms": remaining(part)}) for part in tower.parts)
    return tower.model_copy(update={"forms": remaining(tower), "parts": parts})


Rank = tuple[bool, bool, float]
"""How well an example shows that a form is wrong, best first: whether the difference is small,
whether the numbers are fractions, and their magnitude.
"""


@dataclass
class _Finding:
    """What is known of one form.

    Attributes:
      failure: The error of the form for an example that the SavedModel takes; "": there is none.
      difference: The outputs for an example that differ; None: there are none.
      rank: The rank of the example that fails or differs.
      lacks: Numbers for which the form gives none and the SavedModel does, where no caller means
        such numbers: a clause, and their magnitude.
      invents: Numbers for which it gives one and the SavedModel does not: likewise.
    """

    failure: str = ""
    difference: ComparedOutputs | None = None
    rank: Rank = (True, True, np.inf)
    lacks: tuple[str, float] = ("", np.inf)
    invents: tuple[str, float] = ("", np.inf)

    def note_not_finite(self, compared: ComparedOutputs) -> None:
        """Notes the smallest numbers of which only one of two forms makes NaN or an infinity."""
        examples = compared.examples
        lacks, invents = compared.without_number()
        self.lacks = _smaller(self.lacks, examples, lacks)
        invents &= examples.magnitudes <= MEANINGFUL_MAX
        self.invents = _smaller(self.invents, examples, invents)

    def notes(self) -> list[str]:
        """Returns notes on a form that is served."""
        notes = []
        text, _ = self.lacks
        if text:
            notes.append(
                f"it makes NaN or an infinity of {text}, where the trained model gives a number: "
                "such requests are rejected"
            )
        text, _ = self.invents
        if text:
            notes.append(
                f"it gives a number for {text}, of which the trained model makes NaN or an "
                "infinity: let callers send no such numbers, or clip them in the model"
            )
        return notes


def _smaller(
    smallest: tuple[str, float], examples: HostileExamples, rows: NDArray[np.bool_]
) -> tuple[str, float]:
    """Returns the text and the magnitude of the smallest of some examples, if it is smaller than
    the smallest so far, which is returned otherwise.
    """
    if not rows.any():
        return smallest
    # The examples are in the order of their magnitudes.
    row = int(rows.argmax())
    magnitude = float(examples.magnitudes[row])
    if magnitude >= smallest[1]:
        return smallest
    return examples.text(row), magnitude


class _Comparison:
    """Compares the forms of one tower with its SavedModel in f32.

    Attributes:
      count: The number of examples with hostile numbers that were compared.
    """

    def __init__(
        self,
        reference: Reference,
        root: Path,
        traced: TracedTower,
        tower: Tower,
        values: Values,
    ) -> None:
        self.count = 0
        self._reference = reference
        self._root = root
        self._traced = traced
        self._tower = tower
        features = {source for tensor in tower.inputs for source in tensor.sources}
        self._values = {name: array for name, array in values.items() if name in features}
        self._inputs = number_inputs(reference, traced.spec)
        self._saved_model = self._chain((tower,), _REFERENCE)
        self._rounded: dict[Precision, RoundedTower] = {}
        self._examples = self._ordered(HostileExamples(self._values, {}))
        _, outputs = self._accepted(self._examples)
        self._typical = typical_magnitudes(outputs)

    def findings(self, forms: Sequence[FormKey]) -> list[_Finding]:
        """Returns what is known of each form after all examples."""
        findings = [_Finding() for _ in forms]
        divisions: list[tuple[Tower | TowerPart, ...]] = [(self._tower,)]
        if self._tower.parts:
            divisions.append(self._tower.parts)
        compared_chains = []
        for form, finding in zip(forms, findings, strict=True):
            for entries in divisions:
                chain = self._chain(entries, form)
                if chain:
                    compared_chains.append((chain, finding))

        for batch in self._batches():
            examples, expected = self._accepted(self._ordered(batch))
            if not examples.n:
                continue
            if examples.numbers:
                self.count += examples.n
            for chain, finding in compared_chains:
                self._compare(chain, examples, expected, finding)
        return findings

    def problem_of(self, finding: _Finding, precision: Precision) -> str:
        """Returns why a form must not be served, a clause; "": nothing speaks against it."""
        difference = finding.difference
        if difference is None:
            return finding.failure
        numbers = difference.examples.text(0)
        inputs = tower_inputs(self._tower.inputs, difference.examples.values, 1)
        operation = ""
        if precision != "bf16":
            operation = differing_operation(self._traced, precision, inputs)
        if operation:
            return f"for {numbers}, {operation}"
        output, result, expected = difference.worst()
        return (
            f"for {numbers}, output {output!r} is {number_text(result)}, and the trained model's "
            f"is {number_text(expected)}"
        )

    def _chain(self, entries: Sequence[Tower | TowerPart], form: FormKey) -> list[OpenForm]:
        """Returns the tower, or its parts as a service runs them: in a form, or as SavedModels
        where they lack it; [] if that form is not among them.
        """
        name = self._traced.spec.name
        _, precision = form
        chain = []
        for entry in entries:
            entry_form = find_form(entry.forms, form, ("saved_model", precision))
            if entry_form is None:
                # It hands nothing on, so the parts behind it cannot run.
                return []
            chain.append(open_form(self._reference, self._root, name, entry, entry_form))
        if not any((opened.form.kind, precision) == form for opened in chain):
            return []
        return chain

    def _batches(self) -> Iterator[HostileExamples]:
        """Yields the recipe's examples, and then those with hostile numbers."""
        yield self._examples
        yield from hostile_examples(self._traced.spec, self._inputs, self._values)
        grid_size = _GRID_SIZE // max(1, len(self._inputs))
        for number_input in self._inputs:
            # Lists of several lengths have no step that all of them share.
            if number_input.size is not None and grid_size >= _GRID_MIN:
                yield from self._around_steps(number_input, grid_size)

    def _around_steps(self, number_input: NumberInput, grid_size: int) -> Iterator[HostileExamples]:
        """Yields examples with numbers around the steps of the tower in one input, which are looked
        for between the numbers of a grid of this size.
        """
        dtype = number_input.dtype
        numbers = number_input.accepted(grid(dtype, grid_size))

        def outputs_of(keys: NDArray[np.int64]) -> NDArray[np.float64]:
            return self._outputs_of_numbers(number_input, numbers_of(keys, dtype))

        try:
            low, high = find_steps(outputs_of, keys_of(numbers))
        except (FeatureError, VerificationFailed):
            # Numbers between two that are accepted are not.
            return
        around = number_input.accepted(numbers_around(dtype, low, high))
        for rows in batches(len(around), self._values):
            yield completed(number_input.examples(around[rows, np.newaxis]), self._values)

    def _outputs_of_numbers(
        self, number_input: NumberInput, numbers: NDArray[np.generic]
    ) -> NDArray[np.float64]:
        """Returns [m, d] all outputs of the SavedModel for the first example with other numbers,
        zeros for what is not finite.
        """
        first = {name: array[:1] for name, array in self._values.items()}
        output_count = sum(values.size for values in self._typical.values())
        outputs = np.zeros((len(numbers), output_count))
        for rows in batches(len(numbers), self._values):
            batch = completed(number_input.examples(numbers[rows, np.newaxis]), first)
            columns = [
                values.reshape(batch.n, -1)
                for values in self._outputs(self._saved_model, batch).values()
            ]
            outputs[rows] = np.concatenate(columns, axis=1)
        return np.nan_to_num(outputs, posinf=0.0, neginf=0.0)

    def _ordered(self, examples: HostileExamples) -> HostileExamples:
        """Returns examples in the order of their magnitudes."""
        return examples.chosen(np.argsort(examples.magnitudes, kind="stable"))

    def _accepted(self, examples: HostileExamples) -> tuple[HostileExamples, Values]:
        """Returns the examples that the SavedModel takes, and its outputs."""
        try:
            return examples, self._outputs(self._saved_model, examples)
        except VerificationFailed:
            is_accepted = find_accepted(
                examples.n,
                lambda rows: not self._failure(self._saved_model, examples.chosen(rows)),
            )
        accepted = examples.chosen(is_accepted)
        if not accepted.n:
            return accepted, {}
        return accepted, self._outputs(self._saved_model, accepted)

    def _outputs(self, chain: Sequence[OpenForm], examples: HostileExamples) -> Values:
        """Returns the outputs of the tower that forms compute.

        Raises:
          VerificationFailed: A form cannot compute with the examples.
        """
        tensors = run(chain, examples.values, examples.n)
        return {output.name: tensors[output.name] for output in self._tower.outputs}

    def _failure(self, chain: Sequence[OpenForm], examples: HostileExamples) -> str:
        """Returns why forms cannot compute with examples; "" if they can."""
        try:
            self._outputs(chain, examples)
        except VerificationFailed as problem:
            return str(problem)
        return ""

    def _compare(
        self,
        chain: Sequence[OpenForm],
        examples: HostileExamples,
        expected: Values,
        finding: _Finding,
    ) -> None:
        """Compares forms on examples that the SavedModel takes, and adds to what is known."""
        try:
            results = self._outputs(chain, examples)
        except VerificationFailed:
            self._add_failure(chain, examples, finding)
            return
        compared = ComparedOutputs(examples, expected, results)
        differences = self._differences(compared, chain[0])
        (differing,) = differences.nonzero()
        ranks = {
            row: (bool(differences[row] < _BLATANT), *examples.rank(row))
            for row in differing.tolist()
        }
        for row in sorted(ranks, key=ranks.__getitem__)[:_CONFIRMED_MAX]:
            if ranks[row] >= finding.rank:
                break
            # TensorFlow itself may compute an example otherwise among others.
            alone = examples.chosen(slice(row, row + 1))
            outputs = self._outputs(self._saved_model, alone)
            difference = ComparedOutputs(alone, outputs, self._outputs(chain, alone))
            if self._differences(difference, chain[0]).any():
                finding.failure = ""
                finding.difference = difference
                finding.rank = ranks[row]
                break
        finding.note_not_finite(compared)

    def _add_failure(
        self, chain: Sequence[OpenForm], examples: HostileExamples, finding: _Finding
    ) -> None:
        """Adds the first example on which forms fail that fail on some."""
        while examples.n > 1:
            middle = examples.n // 2
            first = examples.chosen(slice(middle))
            if self._failure(chain, first):
                examples = first
            else:
                examples = examples.chosen(slice(middle, None))
        rank = (False, *examples.rank(0))
        problem = self._failure(chain, examples)
        if problem and rank < finding.rank:
            finding.failure = f"it fails on {examples.text(0)}, which the model takes: {problem}"
            finding.difference = None
            finding.rank = rank

    def _differences(self, compared: ComparedOutputs, opened: OpenForm) -> NDArray[np.float64]:
        """Returns [n] the largest difference of each example, as a share of the size of the output,
        0 where all of them are due to rounding.
        """
        limit = opened.own_limit
        if limit is not None and not compared.examples.numbers:
            # What a precision may lose on the recipe's examples is the recipe's to say.
            return np.zeros(compared.examples.n)
        differences = compared.differences(self._typical, limit)
        (suspects,) = differences.nonzero()
        if suspects.size:
            precision = opened.form.precision
            rounded = self._rounded.setdefault(precision, RoundedTower(self._traced, precision))
            suspected = compared.chosen(suspects)
            spreads = rounded.spreads(suspected.examples)
            differences[suspects] = suspected.differences(self._typical, limit, spreads)
        return differences
