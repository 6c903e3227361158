"""Which forms of a tower run, by precision and device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bundle.format.manifest import TowerForm
from service.versions.tower_forms import choose_forms
from tests.bundles.small import SmallBundle

Write = Callable[..., SmallBundle]


F32 = ["litert f32", "saved_model f32"]
BF16 = [*F32, "saved_model bf16"]
INT8 = ["litert f32", "litert int8"]
LITERT = ["litert f32"]
SAVED_MODEL = ["saved_model f32"]


def forms(listed: list[str]) -> tuple[TowerForm, ...]:
    fields = [dict(zip(("kind", "precision"), text.split(), strict=True)) for text in listed]
    return tuple(
        [TowerForm.model_validate({**form, "path": "x", "max_abs_error": {}}) for form in fields]
    )


@pytest.mark.parametrize(
    ("whole", "parts", "precision", "device", "expected"),
    [
        (F32, LITERT, None, "cpu", "parts litert f32"),
        (INT8, INT8, "int8", "cpu", "parts litert int8"),
        (INT8, LITERT, "int8", "cpu", "whole litert int8"),
        (LITERT, SAVED_MODEL, None, "cpu", "whole litert f32"),
        (SAVED_MODEL, SAVED_MODEL, None, "cpu", "parts saved_model f32"),
        (SAVED_MODEL, LITERT, None, "cpu", "whole saved_model f32"),
        (F32, F32, None, "gpu", "parts saved_model f32"),
        (BF16, [], "bf16", "gpu", "whole saved_model bf16"),
        (BF16, [], "bf16", "cpu", "whole saved_model bf16"),
        (F32, [], "bf16", "cpu", "whole litert f32"),
        (LITERT, LITERT, None, "gpu", "parts litert f32"),
    ],
)
def test_form_that_runs_is_chosen_by_precision_and_device(
    write: Write, whole: list[str], parts: list[str], precision: Any, device: Any, expected: str
) -> None:
    entry = write(parts=True).manifest.towers["ranking"]
    of_parts = [part.model_copy(update={"forms": forms(parts)}) for part in entry.parts if parts]
    entry = entry.model_copy(update={"forms": forms(whole), "parts": tuple(of_parts)})
    names = {
        f"{'whole' if part.name == 'whole' else 'parts'} {form.kind} {form.precision}"
        for part, form in choose_forms(entry, precision, device)
    }
    assert names == {expected}
