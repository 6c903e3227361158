"""Which forms of a tower run, by precision and device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bundle.format.manifest import TowerForm
from service.versions.tower_forms import choose_forms
from tests.bundles.small import SmallBundle

Write = Callable[..., SmallBundle]


def forms(listed: list[str]) -> tuple[TowerForm, ...]:
    return tuple(
        TowerForm.model_validate(
            {
                "kind": kind,
                "precision": precision,
                "path": f"{kind}-{precision}",
                "max_abs_error": {},
            }
        )
        for kind, precision in (form_text.split() for form_text in listed)
    )


@pytest.mark.parametrize(
    ("whole", "parts", "precision", "device", "expected"),
    [
        (["litert f32", "saved_model f32"], ["litert f32"], None, "cpu", "parts litert f32"),
        (
            ["litert f32", "litert int8"],
            ["litert f32", "litert int8"],
            "int8",
            "cpu",
            "parts litert int8",
        ),
        (["litert f32", "litert int8"], ["litert f32"], "int8", "cpu", "whole litert int8"),
        (["litert f32"], ["saved_model f32"], None, "cpu", "whole litert f32"),
        (["saved_model f32"], ["saved_model f32"], None, "cpu", "parts saved_model f32"),
        (["saved_model f32"], ["litert f32"], None, "cpu", "whole saved_model f32"),
        (
            ["litert f32", "saved_model f32"],
            ["litert f32", "saved_model f32"],
            None,
            "gpu",
            "parts saved_model f32",
        ),
        (
            ["litert f32", "saved_model f32", "saved_model bf16"],
            [],
            "bf16",
            "gpu",
            "whole saved_model bf16",
        ),
        (
            ["litert f32", "saved_model f32", "saved_model bf16"],
            [],
            "bf16",
            "cpu",
            "whole saved_model bf16",
        ),
        (["litert f32", "saved_model f32"], [], "bf16", "cpu", "whole litert f32"),
        (["litert f32"], ["litert f32"], None, "gpu", "parts litert f32"),
    ],
)
def test_choose_forms_by_precision_and_device(
    write: Write, whole: list[str], parts: list[str], precision: Any, device: Any, expected: str
) -> None:
    entry = write(parts=True).manifest.towers["ranking"]
    of_parts = (
        tuple(part.model_copy(update={"forms": forms(parts)}) for part in entry.parts)
        if parts
        else ()
    )
    chosen = choose_forms(
        entry.model_copy(update={"forms": forms(whole), "parts": of_parts}), precision, device
    )
    parts_text, form = expected.split(maxsplit=1)
    assert {f"{form.kind} {form.precision}" for _, form in chosen} == {form}
    assert [part.name for part, _ in chosen] == (
        ["whole"] if parts_text == "whole" else [part.name for part in entry.parts]
    )
