"""Forms of towers as they were written -> what the parity check finds of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bundle.format.manifest import TowerForm
from export.graph.specs import WrittenForm
from export.towers.manifest_towers import describe_tower
from export.verify.parity import check_tower, feature_values
from export.verify.reference_model import Reference, Results


def check_forms(
    reference: Reference, root: Path, forms: Sequence[WrittenForm], expected: Results
) -> dict[str, tuple[TowerForm, ...]]:
    """Compares the towers that have forms with the reference model; returns the entries of the forms, by tower."""
    values = feature_values(reference, reference.features)
    found = {}
    for name in dict.fromkeys(form.tower for form in forms):
        own = [form for form in forms if form.tower == name]
        entries = tuple(
            TowerForm(kind=form.kind, precision=form.precision, path=form.path, max_abs_error={}) for form in own
        )
        tower = describe_tower(reference.model.towers[name], reference.job, entries)
        found[name] = check_tower(reference, root, name, tower, values, expected[name]).forms
    return found
