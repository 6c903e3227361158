"""A multi-head ranker with stored contexts: a bundle in parts, each of which is compared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.format.manifest import Manifest
from export.checkpoint.reader import open_checkpoint
from export.errors import VerificationFailed
from export.recipe.schema import read_recipe
from export.verify.published import verify_against_recipe
from tests.hostile.manifest_edits import reseal
from tests.units.export.movies_job import changed, export, toml
from tests.units.export.ranking_parts import experts_recipe
from tests.units.export.traced_models import MODELS, save_checkpoint

pytestmark = pytest.mark.slow

EXAMPLES = 48


def users() -> list[str]:
    rows = [
        f"u{row},{row},{'|'.join(str(item) for item in range(row % 4))},{row / 4}"
        for row in range(9)
    ]
    return ["name,number,seen,age", *rows]


def examples() -> list[dict[str, Any]]:
    random = np.random.default_rng(3)
    return [
        {name: int(random.integers(30)) for name in ("user", "item", "shop")}
        | {"history": random.integers(0, 30, number % 4).tolist()}
        | {"age": float(random.normal()), "clicked": number % 2}
        for number in range(EXAMPLES)
    ]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of the experts, beside all that it reads."""
    directory = tmp_path_factory.mktemp("experts")
    columns = {"user": "number", "history": "seen", "age": "age"}
    job = experts_recipe(
        tower={
            "precisions": ["f32", "int8"],
            "max_abs_error": {"int8": 0.5},
            "overlap_min": {"int8": 0.5},
            "formula": "click^0.7 * like^0.3",
        },
        contexts={"users": {"file": "users.csv", "id": "name", "features": columns}},
        verify={"examples": "examples.jsonl", "count": EXAMPLES, "labels": {"click": "clicked"}},
    )
    page = job.model_dump(mode="json", exclude_unset=True)
    page = changed(page, "checkpoint.path", str(save_checkpoint(job, directory)))
    shutil.copy(MODELS / "rankers.py", directory)
    (directory / "users.csv").write_text("\n".join(users()) + "\n")
    lines = [json.dumps(example) + "\n" for example in examples()]
    (directory / "examples.jsonl").write_text("".join(lines))
    keys = [f"{json.dumps(key)} = {toml(value)}\n" for key, value in page.items()]
    (directory / "recipe.toml").write_text("".join(keys))
    return directory / "recipe.toml"


@pytest.fixture(scope="module")
def page(recipe: Path) -> Manifest:
    return export(recipe, 1).manifest


@pytest.fixture(scope="module")
def bundle(recipe: Path, page: Manifest) -> Path:
    return recipe.parent / "bundles" / page.model / "1"


def test_each_head_is_a_part_in_every_form_with_its_effect_on_order_and_labels(
    page: Manifest, bundle: Path
) -> None:
    tower = page.towers["ranking"]
    assert [part.name for part in tower.parts] == [
        *("context", "trunk", "head-click", "head-like", "head-share", "head-both")
    ]
    for part in tower.parts:
        forms = [(form.kind, form.precision) for form in part.forms]
        assert forms == [("saved_model", "f32"), ("litert", "f32"), ("litert", "int8")]
        for form in part.forms:
            assert (bundle / form.path).exists()
            limit = 1e-5 if form.precision == "f32" else 0.5
            assert all(error < limit for error in form.max_abs_error.values())
    (effect,) = (form.effect for form in tower.forms if form.precision == "int8")
    assert set(effect) == {"click", "like", "share", "both", "loyal"}
    assert all(head.kendall_tau >= 0.8 and head.k == 4 for head in effect.values())
    assert effect["click"].auc is not None
    assert effect["like"].auc is None


def test_verify_names_the_part_that_has_other_weights(
    recipe: Path, bundle: Path, tmp_path: Path
) -> None:
    job = read_recipe(recipe)
    findings = verify_against_recipe(bundle, job, recipe.parent).findings
    assert "tower ranking, part head-both, litert int8" in findings.opened
    damaged = Path(shutil.copytree(bundle, tmp_path / "1"))
    file = damaged / "towers/ranking/parts/head-share/compiled-f32.tflite"
    checkpoint = open_checkpoint(Path(job.checkpoint.path))
    content = file.read_bytes()
    layers = [
        checkpoint.read_all(key).tobytes()
        for key, variable in checkpoint.entries.items()
        if variable.shape == (16, 1)
    ]
    (weights,) = {layer for layer in layers if layer in content}
    file.write_bytes(content.replace(weights, bytes(len(weights))))
    reseal(damaged)
    with pytest.raises(VerificationFailed, match="'head-share', LiteRT f32, output 'share'"):
        verify_against_recipe(damaged, job, recipe.parent)
