"""Forms of towers on hostile numbers: the compiled ones must compute what the SavedModel in f32
does.

The examples of a recipe lie where training's numbers lay, and callers send others: a Unix time, an
id of 64 bits, a count that is a square. LiteRT computes some operations otherwise there, or cannot
compute them. A form that gives other numbers is left out, and the SavedModel is served.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import Precision, Tower, TowerForm, TowerPart
from export.errors import NotConvertible, VerificationFailed
from export.front_end.interface import TracedTower
from export.verify.differing_operations import differing_operation
from export.verify.form_differences import ComparedOutputs, NotFinite, RoundedTower
from export.verify.forms import OpenForm, Values, open_form
from export.verify.hostile_examples import (
    HostileExamples,
    batches,
    completed,
    hostile_examples,
    number_text,
)
from export.verify.reference_form import ReferenceForm
from export.verify.reference_inputs import Reference
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
                notes += [f"tower {name!r}, {label}: {note}" for note in finding.not_finite.notes()]
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
      not_finite: Numbers of which only one of the form and the SavedModel makes a number.
    """

    failure: str = ""
    difference: ComparedOutputs | None = None
    rank: Rank = (True, True, np.inf)
    not_finite: NotFinite = field(default_factory=NotFinite)


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
        self._saved_model = ReferenceForm(reference, root, traced.spec, tower, values)
        self._rounded: dict[Precision, RoundedTower] = {}

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
            examples, expected = self._saved_model.accepted(batch.ordered())
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
        values = self._saved_model.values
        yield self._saved_model.examples
        yield from hostile_examples(self._traced.spec, self._saved_model.inputs, values)
        for number_input in self._saved_model.inputs:
            around = self._saved_model.numbers_around_steps(number_input)
            for rows in batches(len(around), values):
                yield completed(number_input.examples(around[rows, np.newaxis]), values)

    def _compare(
        self,
        chain: Sequence[OpenForm],
        examples: HostileExamples,
        expected: Values,
        finding: _Finding,
    ) -> None:
        """Compares forms on examples that the SavedModel takes, and adds to what is known."""
        try:
            results = self._saved_model.outputs_of(chain, examples)
        except VerificationFailed:
            self._add_failure(chain, examples, finding)
            return
        compared = ComparedOutputs(examples, expected, results)
        differences = finding.not_finite.without_meaningless(
            compared, self._differences(compared, chain[0])
        )
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
            outputs = self._saved_model.outputs_of(self._saved_model.chain, alone)
            difference = ComparedOutputs(alone, outputs, self._saved_model.outputs_of(chain, alone))
            if self._differences(difference, chain[0]).any():
                finding.failure = ""
                finding.difference = difference
                finding.rank = ranks[row]
                break
        finding.not_finite.add(compared)

    def _add_failure(
        self, chain: Sequence[OpenForm], examples: HostileExamples, finding: _Finding
    ) -> None:
        """Adds the first example on which forms fail that fail on some."""
        while examples.n > 1:
            middle = examples.n // 2
            first = examples.chosen(slice(middle))
            if self._saved_model.failure_of(chain, first):
                examples = first
            else:
                examples = examples.chosen(slice(middle, None))
        rank = (False, *examples.rank(0))
        problem = self._saved_model.failure_of(chain, examples)
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
        differences = compared.differences(self._saved_model.typical, limit)
        (suspects,) = differences.nonzero()
        if suspects.size:
            precision = opened.form.precision
            rounded = self._rounded.setdefault(precision, RoundedTower(self._traced, precision))
            suspected = compared.chosen(suspects)
            spreads = rounded.spreads(suspected.examples)
            differences[suspects] = suspected.differences(self._saved_model.typical, limit, spreads)
        return differences
