"""Which form of a tower runs here, and whether it runs in parts. Pure: pages in, a choice out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bundle.manifest import Precision, Tower, TowerForm, TowerPart
from runtime.errors import TowerUnreadable
from runtime.towers import Device, find_form

WHOLE = "whole"
"""The name that a tower goes by as its own only part."""


@dataclass(frozen=True)
class Chosen:
    """What runs of a tower: its parts in their order, the form of each; a whole tower is one part."""

    parts: tuple[tuple[TowerPart, TowerForm], ...]

    def device(self, wanted: Device) -> Device:
        """Returns where it runs: compiled forms know the CPU only."""
        return wanted if all(form.kind == "saved_model" for _, form in self.parts) else "cpu"


def choose(tower: Tower, precision: Precision | None, device: Device) -> Chosen:
    """Chooses the forms of a tower.

    Args:
      precision: asked for; a tower without such a form, or None, runs what its bundle serves.
      device: gpu takes SavedModels, cpu compiled forms where there are any.
    Raises:
      TowerUnreadable: there is no form that could run.
    """
    whole = _form(tower.forms, precision, tower.serve, device)
    if whole is None:
        raise TowerUnreadable(f"a tower with outputs {[one.name for one in tower.outputs]} has no form that runs here")
    forms = [_form(part.forms, whole.precision, whole.precision, device) for part in tower.parts]
    parts = [(part, form) for part, form in zip(tower.parts, forms, strict=True) if form is not None]
    # In parts only where that takes no more than the whole does: its precision, and no TensorFlow if it takes none.
    same = all((form.precision, form.kind) == (whole.precision, whole.kind) for _, form in parts)
    if parts and same and len(parts) == len(tower.parts):
        return Chosen(tuple(parts))
    page = TowerPart(name=WHOLE, per="candidate", inputs=tower.inputs, outputs=tower.outputs, forms=tower.forms)
    return Chosen(((page, whole),))


def _form(
    forms: Sequence[TowerForm], precision: Precision | None, serve: Precision, device: Device
) -> TowerForm | None:
    asked = (serve,) if precision is None else (precision, serve)
    compiled_first = [(kind, each) for each in asked for kind in ("litert", "saved_model")]
    if device == "gpu":
        saved_first = [("saved_model", each) for each in (*asked, "f32")]
        return find_form(forms, *saved_first, *compiled_first)
    return find_form(forms, *compiled_first)
