"""A multi-head ranker with stored contexts, from its checkpoint to a bundle in parts, by a run that
was killed once.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from bundle.format.manifest import Manifest
from bundle.storage import catalog
from bundle.stores.reader import CandidateStore
from export.checkpoint.reader import open_checkpoint
from export.errors import VerificationFailed
from export.recipe.schema import read_recipe
from export.verify.published import verify_against_recipe
from tests.hostile.manifest_edits import reseal
from tests.units.export.commands import Command
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.movies_job import toml
from tests.units.export.ranking_parts import experts_recipe
from tests.units.export.traced_models import MODELS, save_checkpoint

pytestmark = pytest.mark.slow

EXAMPLES = 48
USERS = 9


def users() -> list[str]:
    rows = [
        f"u{row},{row},{'|'.join(str(item) for item in range(row % 4))},{row / 4}"
        for row in range(USERS)
    ]
    return ["name,number,seen,age", *rows]


def examples() -> list[str]:
    random = np.random.default_rng(3)
    return [
        json.dumps(
            {
                "user": int(random.integers(30)),
                "history": random.integers(0, 30, number % 4).tolist(),
                "item": int(random.integers(30)),
                "shop": int(random.integers(30)),
                "age": float(random.normal()),
                "clicked": number % 2,
            }
        )
        for number in range(EXAMPLES)
    ]


def write_experts(directory: Path) -> Path:
    """Writes all that the job reads; returns the recipe's path."""
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
    prefix = save_checkpoint(job, directory)
    shutil.copy(MODELS / "rankers.py", directory)
    (directory / "users.csv").write_text("\n".join(users()) + "\n")
    (directory / "examples.jsonl").write_text("\n".join(examples()) + "\n")
    page = job.model_dump(mode="json", exclude_unset=True)
    page["checkpoint"]["path"] = str(prefix)
    recipe = directory / "recipe.toml"
    recipe.write_text(
        "".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in page.items())
    )
    return recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_experts(tmp_path_factory.mktemp("experts"))


@pytest.fixture(scope="module")
def split_bundle(recipe: Path, forked: ForkedRuns) -> Path:
    """Of a run that was killed in the middle of the parts, and of the one that took it up."""
    run = ["run", str(recipe), "--version", "1"]
    output = recipe.parent / "output"
    assert forked.run(run, output, noted=18) == -signal.SIGKILL
    assert forked.run(run, output) == 0, output.read_text()
    return recipe.parent / "bundles/tested/1"


@pytest.fixture(scope="module")
def page(split_bundle: Path) -> Manifest:
    return catalog.read_manifest(split_bundle)


def test_plan_lists_parts_costs_and_what_litert_lacks(recipe: Path, command: Command) -> None:
    page = command("plan", recipe, "--json").json
    tower = page["towers"]["ranking"]
    parts = {part["name"]: part for part in tower["parts"]}
    assert (parts["context"]["per"], parts["context"]["features"]) == (
        "context",
        ["history", "user", "age"],
    )
    assert parts["head-both"]["tensors"] == ["click", "like"]
    assert parts["context"]["multiply_adds"] > 1000
    assert (tower["formula"], tower["not_in_litert"]) == ("click^0.7 * like^0.3", "")
    assert (page["contexts"], page["stays"]) == (["users"], [])
    message = command("plan", recipe)
    assert message.code == 0
    assert "head-share" in message.out


def test_run_of_several_heads_writes_a_part_for_each_in_every_form(
    split_bundle: Path, page: Manifest
) -> None:
    tower = page.towers["ranking"]
    assert [part.name for part in tower.parts] == [
        *("context", "trunk", "head-click", "head-like", "head-share", "head-both")
    ]
    forms = [("saved_model", "f32"), ("litert", "f32"), ("litert", "int8")]
    for part in tower.parts:
        assert [(form.kind, form.precision) for form in part.forms] == forms
        for form in part.forms:
            assert form.path.startswith(f"towers/ranking/parts/{part.name}/")
            assert (split_bundle / form.path).exists()
            assert all(
                error < (1e-5 if form.precision == "f32" else 0.5)
                for error in form.max_abs_error.values()
            )
    assert tower.formula == "click^0.7 * like^0.3"


def test_run_reports_the_effect_of_int8_on_order_and_labels(page: Manifest) -> None:
    tower = page.towers["ranking"]
    (form,) = (form for form in tower.forms if form.precision == "int8")
    assert set(form.effect) == {"click", "like", "share", "both", "loyal"}
    assert all(effect.kendall_tau >= 0.8 and effect.k == 4 for effect in form.effect.values())
    assert form.effect["click"].auc is not None
    assert form.effect["like"].auc is None
    (head,) = (part for part in tower.parts if part.name == "head-click")
    assert [set(form.effect) for form in head.forms] == [set(), set(), {"click"}]


def test_run_writes_the_context_store(split_bundle: Path, page: Manifest) -> None:
    corpus = page.contexts["users"]
    store = CandidateStore(split_bundle / corpus.file, corpus)
    (position,) = store.positions(np.array(["u3"], object))
    columns = store.features(np.array([position]), ["user", "history", "age"])
    assert [columns[name].values.tolist() for name in ("user", "history", "age")] == [
        [3],
        [0, 1, 2],
        [0.75],
    ]


def test_verify_of_a_split_tower_opens_every_part_and_runs_it(
    recipe: Path, split_bundle: Path
) -> None:
    findings = verify_against_recipe(split_bundle, read_recipe(recipe), recipe.parent).findings
    assert findings.unlisted == ()
    assert "tower ranking, part head-both, litert int8" in findings.opened
    assert "contexts users" in findings.opened
    assert findings.examples > 0


def test_verify_of_a_part_with_other_weights_names_it(
    recipe: Path, split_bundle: Path, tmp_path: Path
) -> None:
    split_bundle = Path(shutil.copytree(split_bundle, tmp_path / "1"))
    file = split_bundle / "towers/ranking/parts/head-share/compiled-f32.tflite"
    checkpoint = open_checkpoint(Path(read_recipe(recipe).checkpoint.path))
    content = file.read_bytes()
    last_layers = [
        checkpoint.read_all(key).tobytes()
        for key, variable in checkpoint.entries.items()
        if variable.shape == (16, 1)
    ]
    (weights,) = {layer for layer in last_layers if layer in content}
    file.write_bytes(content.replace(weights, bytes(len(weights))))
    reseal(split_bundle)
    with pytest.raises(
        VerificationFailed,
        match="tower 'ranking', part 'head-share', LiteRT f32, output 'share'",
    ):
        verify_against_recipe(split_bundle, read_recipe(recipe), recipe.parent)
