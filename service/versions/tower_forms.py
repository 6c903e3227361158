"""Which form of a tower runs here, and whether it runs in parts. Pure: manifest entries in, a
choice out.
"""

from __future__ import annotations

from collections.abc import Sequence

from bundle.format.manifest import Precision, Tower, TowerForm, TowerPart
from runtime.errors import TowerUnreadable
from runtime.tower import Device
from runtime.towers import find_form

WHOLE = "whole"
"""The part name of a tower that runs as a whole."""


def choose_forms(
    tower: Tower, precision: Precision | None, device: Device
) -> tuple[tuple[TowerPart, TowerForm], ...]:
    """Chooses the parts of a tower that run, in their order, and the form of each; a whole tower is
    one part.

    Args:
      tower: The manifest entry of the tower.
      precision: The precision that the settings name. A tower without such a form runs the
        precision that its bundle serves, as all towers do with None.
      device: The device that the settings name: gpu prefers SavedModels, cpu compiled forms.

    Raises:
      TowerUnreadable: No form can run.
    """
    whole = _form(tower.forms, precision, tower.serve, device)
    if whole is None:
        raise TowerUnreadable(
            f"a tower with outputs {[output.name for output in tower.outputs]} has no form that "
            "runs here"
        )

    # In parts only where that takes no more than the whole does: its precision, and no TensorFlow
    # if it takes none.
    parts = []
    for part in tower.parts:
        form = _form(part.forms, whole.precision, whole.precision, device)
        if form and (form.precision, form.kind) == (whole.precision, whole.kind):
            parts.append((part, form))
    if parts and len(parts) == len(tower.parts):
        return tuple(parts)
    entry = TowerPart(
        name=WHOLE, per="candidate", inputs=tower.inputs, outputs=tower.outputs, forms=tower.forms
    )
    return ((entry, whole),)


def _form(
    forms: Sequence[TowerForm], precision: Precision | None, serve: Precision, device: Device
) -> TowerForm | None:
    precisions = [serve]
    if precision is not None:
        precisions.insert(0, precision)
    compiled_first = []
    for wanted_precision in precisions:
        compiled_first += [("litert", wanted_precision), ("saved_model", wanted_precision)]
    if device != "gpu":
        return find_form(forms, *compiled_first)

    # LiteRT computes on the CPU: a SavedModel of full precision is preferred to it.
    saved_models = [("saved_model", saved_precision) for saved_precision in (*precisions, "f32")]
    return find_form(forms, *saved_models, *compiled_first)
