"""A multi-head ranker with stored contexts: a bundle in parts, each of which is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.reader import open_checkpoint
from export.errors import VerificationFailed
from export.recipe.schema import read_recipe
from export.verify.published import verify_against_recipe
from tests.hostile.manifest_edits import reseal
from tests.units.export.movies_job import changed, export, write_examples, write_project
from tests.units.export.ranking_parts import experts_recipe
from tests.units.export.traced_models import save_checkpoint

EXAMPLES = 48
USERS = "".join(
    f"u{row},{row},{'|'.join(str(item) for item in range(row % 4))},{row / 4}\n" for row in range(9)
)


def example(number: int) -> dict[str, Any]:
    random = np.random.default_rng(number)
    ids = {name: int(random.integers(30)) for name in ("user", "item", "shop")}
    history = random.integers(0, 30, number % 4).tolist()
    return ids | {"history": history, "age": float(random.normal()), "clicked": number % 2}


@pytest.mark.nightly
@pytest.mark.slow
def test_heads_have_their_effects_and_verify_names_the_part_that_has_other_weights(
    tmp_path: Path,
) -> None:
    columns = {"user": "number", "history": "seen", "age": "age"}
    limits = {"max_abs_error": {"int8": 0.5}, "overlap_min": {"int8": 0.5}}
    job = experts_recipe(
        ("click", "like"),
        tower={"precisions": ["f32", "int8"], **limits, "formula": "click^0.7 * like^0.3"},
        contexts={"users": {"file": "users.csv", "id": "name", "features": columns}},
        verify={"examples": "examples.jsonl", "count": EXAMPLES, "labels": {"click": "clicked"}},
    )
    page = job.model_dump(mode="json", exclude_unset=True)
    page = changed(page, "checkpoint.path", str(save_checkpoint(job, tmp_path)))
    recipe = write_project(tmp_path, page)
    (tmp_path / "users.csv").write_text(f"name,number,seen,age\n{USERS}")
    write_examples(tmp_path, [example(number) for number in range(EXAMPLES)])

    manifest = export(recipe, 1).manifest
    (effect,) = (
        form.effect for form in manifest.towers["ranking"].forms if form.precision == "int8"
    )
    assert set(effect) == {"click", "like"}
    assert all(head.kendall_tau >= 0.8 and head.k == 4 for head in effect.values())
    assert (effect["click"].auc is None, effect["like"].auc) == (False, None)

    bundle = tmp_path / "bundles" / manifest.model / "1"
    job = read_recipe(recipe)
    file = bundle / "towers/ranking/parts/head-like/compiled-f32.tflite"
    checkpoint = open_checkpoint(Path(job.checkpoint.path))
    content = file.read_bytes()
    layers = [
        checkpoint.read_all(key).tobytes()
        for key, variable in checkpoint.entries.items()
        if variable.shape == (16, 1)
    ]
    (weights,) = {layer for layer in layers if layer in content}
    file.write_bytes(content.replace(weights, bytes(len(weights))))
    reseal(bundle)
    with pytest.raises(VerificationFailed, match="'head-like', LiteRT f32, output 'like'"):
        verify_against_recipe(bundle, job, tmp_path)
