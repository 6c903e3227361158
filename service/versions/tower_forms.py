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
      precision: wanted; a tower without such a form, or None, runs what its bundle serves.
      device: gpu prefers SavedModels, cpu compiled forms.
    Raises:
      TowerUnreadable: no form can run.
    """
    whole = _form(tower.forms, precision, tower.serve, device)
    if whole is None:
        raise TowerUnreadable(
            f"a tower with outputs {[one.name for one in tower.outputs]} has no form that runs here"
        )
    found = [
        (part, _form(part.forms, whole.precision, whole.precision, device)) for part in tower.parts
    ]
    # In parts only where that takes no more than the whole does: its precision, and no TensorFlow
    # if it takes none.
    parts = [
        (part, form)
        for part, form in found
        if form and (form.precision, form.kind) == (whole.precision, whole.kind)
    ]
    if parts and len(parts) == len(tower.parts):
        return tuple(parts)
    entry = TowerPart(
        name=WHOLE, per="candidate", inputs=tower.inputs, outputs=tower.outputs, forms=tower.forms
    )
    return ((entry, whole),)


def _form(
    forms: Sequence[TowerForm], precision: Precision | None, serve: Precision, device: Device
) -> TowerForm | None:
    wanted = (serve,) if precision is None else (precision, serve)
    compiled_first = [(kind, each) for each in wanted for kind in ("litert", "saved_model")]
    if device == "gpu":
        saved_first = [("saved_model", each) for each in (*wanted, "f32")]
        return find_form(forms, *saved_first, *compiled_first)
    return find_form(forms, *compiled_first)
