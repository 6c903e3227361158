"""Every model of tests/models and of examples is planned as its committed snapshot says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from export.recipe.schema import ExportJob
from tests.plans.catalog import WITHOUT_PLAN, planned_models, sources
from tests.plans.plan_texts import plan_text
from tests.plans.planned_models import PlannedModel, Project
from tests.plans.snapshots import SNAPSHOTS, difference, missing_modules, recorded, update

MODELS = planned_models()
REJECTED = "one_table.plain-other_call"
"""A plan that takes no time."""


@pytest.mark.filterwarnings(
    "ignore:`layer.add_variable` is deprecated",  # by linear_model of TF1
    "ignore:__array__ implementation doesn't accept a copy keyword",  # by save_weights of Keras 3
    "ignore:Even though the `tf.config.experimental_run_functions_eagerly`",  # by adapt()
)
@pytest.mark.parametrize("name", MODELS)
def test_plan_is_the_recorded_one(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    if missing := missing_modules(model):
        pytest.skip(f"{', '.join(missing)} cannot be imported")
    changed = difference(SNAPSHOTS, name, plan_text(model, tmp_path))
    if changed:
        update = f".venv/bin/python scripts/update_plans {name}"
        pytest.fail(f"{changed}\n\nIf the change is meant: {update}", pytrace=False)


@pytest.mark.filterwarnings("ignore:`layer.add_variable` is deprecated")  # by linear_model
@pytest.mark.parametrize(
    "name", ["two_towers.movies", "tf1", "sparsecore_ranker", "torch_towers.ranker"]
)
def test_plan_of_reversed_tables_is_that_of_the_recipe(name: str, tmp_path: Path) -> None:
    def write(folder: Path) -> Project:
        project = MODELS[name].write(folder)
        page = project.job.model_dump(exclude_unset=True)
        return Project(ExportJob.model_validate(_reversed(page)), project.base)

    text = plan_text(replace(MODELS[name], write=write), tmp_path)
    recorded_text = (SNAPSHOTS / f"{name}.txt").read_text()
    # Only the order of lists changes.
    assert sorted(re.split(r"[\s,\[\]]+", text)) == sorted(re.split(r"[\s,\[\]]+", recorded_text))


def _reversed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reversed(value[key]) for key in reversed(value)}
    return value


def test_every_model_has_a_plan_or_a_reason_for_none() -> None:
    planned = {model.source for model in MODELS.values()}
    assert planned | WITHOUT_PLAN.keys() == {*sources()}
    assert planned.isdisjoint(WITHOUT_PLAN)


def test_every_recorded_plan_belongs_to_a_model() -> None:
    assert recorded(SNAPSHOTS) - MODELS.keys() == set()


def test_update_records_what_changed_deletes_what_is_gone_and_then_changes_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "gone.txt").write_text("")
    (tmp_path / f"{REJECTED}.txt").write_text("another plan\n")
    lines = list(update(tmp_path, MODELS, ["one_table.*other_call"]))
    assert lines == [
        "gone: deleted, since no model has this plan",
        f"{REJECTED}: recorded",
    ]
    recorded_text = (tmp_path / f"{REJECTED}.txt").read_text()
    assert recorded_text == (SNAPSHOTS / f"{REJECTED}.txt").read_text()
    assert list(update(tmp_path, MODELS, ["one_table.*other_call"])) == []


def test_update_keeps_plans_that_need_what_is_not_installed(tmp_path: Path) -> None:
    model = PlannedModel("lacking", "", MODELS[REJECTED].write, ("no_such_module",))
    (line,) = update(tmp_path, {"lacking": model}, [])
    assert line == "lacking: kept, since no_such_module cannot be imported"
    assert recorded(tmp_path) == set()
