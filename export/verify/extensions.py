"""Compares states of contexts that are extended by further events with those that are computed
anew: whoever ranks with either gets the same scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.features.input_lengths import value_counts
from bundle.format.input_lengths import InputLength
from bundle.format.manifest import Tower, TowerExtension, TowerForm
from export.bounds import allowed, differ, largest_at
from export.errors import VerificationFailed
from export.verify.examples import chosen_columns, chosen_values
from export.verify.forms import OpenForm, Values, open_form, run
from export.verify.parity import feature_values, form_chains
from export.verify.reference_inputs import Reference
from runtime.extended_states import extended_state
from runtime.tower_inputs import tower_inputs

_CONTEXTS_MAX = 6
"""The number of histories that are extended."""


def checked_extensions(
    reference: Reference, root: Path, towers: Mapping[str, Tower]
) -> tuple[dict[str, Tower], list[str]]:
    """Returns towers without the extensions whose states differ, and a note on each of these.

    Args:
      reference: The model, the examples and how a service reads them.
      root: The directory of the (staged) bundle.
      towers: The towers' entries in the manifest, compared.
    """
    checked = {}
    notes = []
    for name, tower in towers.items():
        try:
            checked[name] = check_extension(reference, root, name, tower)
        except VerificationFailed as problem:
            checked[name] = tower.model_copy(update={"extension": None})
            notes.append(f"the state of a context is not stored between requests: {problem}")
    return checked, notes


def check_extension(reference: Reference, root: Path, name: str, tower: Tower) -> Tower:
    """Extends histories of the examples, in each combination of forms in which a service may run
    parts.

    Args:
      reference: The model, the examples and how a service reads them.
      root: The directory of the (staged) bundle.
      name: The name of the tower.
      tower: Its entry in the manifest.

    Returns:
      The entry, each form of the extension with the largest differences of the tower's outputs.

    Raises:
      VerificationFailed: Scores differ by more than those of parts and whole towers may, or no
        example has a history that can be extended.
    """
    extension = tower.extension
    if extension is None:
        return tower
    lengths = _lengths_of_histories(reference, extension)
    examples = reference.examples
    counts = value_counts(examples.columns, lengths, examples.n)
    (rows,) = (counts >= 2).nonzero()
    rows = rows[:_CONTEXTS_MAX]
    if not rows.size:
        raise VerificationFailed(f"tower {name!r}: no example has a history of two events")
    columns = chosen_columns(examples.columns, rows, examples.n)
    # Padding behind the last event shows whether anybody reads what is computed of it.
    numbers = np.arange(rows.size)
    counts = np.where(numbers % 3, np.maximum(2 * counts[rows] // 3, 2), counts[rows])
    # Some lack one event, others more than are computed at once.
    missing = np.where(numbers % 2, 1, 2 * extension.events + 1)
    firsts = np.maximum(counts - missing, 1)
    whole, cut = (
        replace(
            reference,
            examples=replace(
                examples, n=rows.size, columns={**columns, **_cut(columns, lengths, events)}
            ),
        )
        for events in (counts, firsts)
    )

    values = feature_values(whole, reference.features)
    cut_values = feature_values(cut, reference.features)
    forms: dict[str, TowerForm] = {}
    for chain_forms in form_chains(tower.all_parts):
        chain = [
            open_form(reference, root, name, part, form)
            for part, form in zip(tower.all_parts, chain_forms, strict=True)
        ]
        differences = _differences(tower, chain, values, cut_values, firsts, counts)
        form = chain_forms[-1].model_copy(update={"max_abs_error": differences})
        forms.setdefault(form.path, form)
    part = extension.part.model_copy(update={"forms": tuple(forms.values())})
    return tower.model_copy(update={"extension": extension.model_copy(update={"part": part})})


def _lengths_of_histories(
    reference: Reference, extension: TowerExtension
) -> dict[str, InputLength]:
    """Returns the lengths of the inputs that hold the events, by input."""
    features = [
        entry.feature for entry in extension.part.inputs if entry.name in extension.sequences
    ]
    entries = reference.features.lengths.entries
    names = [name for feature in features for name in reference.model.features[feature].reads]
    return {name: entries[name] for name in names}


def _cut(
    columns: Mapping[str, Column], lengths: Mapping[str, InputLength], counts: NDArray[np.int64]
) -> dict[str, Column]:
    """Returns the columns of histories with the first events of each example alone."""
    shorter = {}
    for name, length in lengths.items():
        column = columns[name]
        is_gone = np.arange(length.values) >= counts[:, np.newaxis]
        values = column.values.reshape(counts.size, -1).copy()
        values[is_gone] = length.pad
        weights = column.weights
        if weights is not None:
            weights = np.where(is_gone.reshape(-1), np.float32(0), weights)
        shorter[name] = Column(values.reshape(-1), None, weights)
    return shorter


def _differences(
    tower: Tower,
    chain: Sequence[OpenForm],
    values: Values,
    cut_values: Values,
    firsts: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> dict[str, float]:
    """Returns the largest differences of the outputs of a tower behind extended states.

    Args:
      tower: The tower's entry in the manifest.
      chain: Its parts, and what extends the state of a context.
      values: [n, ...] values of each feature, of whole histories.
      cut_values: The same of their first events.
      firsts: [n] the number of these first events.
      counts: [n] the number of all events.
    """
    extension = tower.extension
    assert extension is not None  # noqa: S101 - `check_extension` has looked
    *others, extending = chain
    of_context = others.pop([part.name for part in tower.parts].index(extension.of))
    n = counts.size
    whole_states = run([of_context], values, n)
    cut_states = run([of_context], cut_values, n)
    names = [output.name for output in of_context.entry.outputs]
    extended: list[Values] = []
    for row in range(n):
        one = slice(row, row + 1)
        inputs = tower_inputs(of_context.entry.inputs, chosen_values(values, one), 1)
        state = {name: cut_states[name][one] for name in names}
        extended.append(
            extended_state(
                extension, extending.network.run, inputs, state, int(firsts[row]), int(counts[row])
            )
        )
    states = {name: np.concatenate([state[name] for state in extended]) for name in names}
    expected = run(others, {**values, **whole_states}, n)
    results = run(others, {**values, **states}, n)
    differences = {}
    for part in others:
        for output in part.entry.outputs:
            name = output.name
            limit = 2 * allowed(expected[name], part.own_limit)
            difference, _ = largest_at(results[name], expected[name])
            if differ(results[name], expected[name], limit).any():
                raise VerificationFailed(
                    f"{extending.label}: with events that were added to a stored state, output "
                    f"{name!r} lies {difference:.3g} from that of the whole history"
                )
            differences[name] = difference
    return differences
