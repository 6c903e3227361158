"""Every model of tests/models and of examples is planned, noted or rejected as its case says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from export.cli import documents
from export.errors import ExportError
from export.graphs.loading import tf
from export.jobs.preparation import Prepared, prepare
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from tests.cases.models.catalog import GROUPS, WITHOUT_PLAN, planned_models, sources
from tests.cases.models.outcomes import NOTED, REJECTED
from tests.cases.models.planned_models import PlannedModel, Project

RECORDED = Path(__file__).parent / "examples"
FACTS_OF_TABLES = ("rows", "dim", "dtype", "layout", "stated")
pytestmark = pytest.mark.filterwarnings(
    "ignore:`layer.add_variable` is deprecated",  # by linear_model of TF1
    "ignore:__array__ implementation doesn't accept a copy keyword",  # by save_weights of Keras 3
    "ignore:Even though the `tf.config.experimental_run_functions_eagerly`",  # by adapt()
)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_models_are_accepted_with_their_notes_alone_and_examples_as_recorded(
    group: str, tmp_path: Path
) -> None:
    models = [model for model in planned_models(group).values() if model.name not in REJECTED]
    assert_each(models, assert_accepted, tmp_path)


@pytest.mark.parametrize("group", sorted({name.partition(".")[0] for name in REJECTED}))
def test_models_are_rejected_with_their_places_and_what_helps(group: str, tmp_path: Path) -> None:
    models = [model for model in planned_models(group).values() if model.name in REJECTED]
    assert_each(models, assert_rejected, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("two_towers", "two_towers.movies"),
        pytest.param("tf1", "tf1", marks=pytest.mark.nightly),
        pytest.param("examples", "examples.jax_tpu_embedding", marks=pytest.mark.nightly),
    ],
)
def test_order_of_a_recipe_has_no_meaning(group: str, name: str, tmp_path: Path) -> None:
    model = planned_models(group)[name]

    def reordered(folder: Path) -> Project:
        project = model.write(folder)
        page = project.job.model_dump(exclude_unset=True)
        return Project(ExportJob.model_validate(in_reversed_order(page)), project.base)

    original = facts(planned(model, tmp_path / "original"))
    other = facts(planned(replace(model, write=reordered), tmp_path / "other"))
    assert words_of(other) == words_of(original)


def test_every_model_has_a_plan_or_a_reason_for_none() -> None:
    models = [model for group in GROUPS for model in planned_models(group).values()]
    sources_of_plans = {model.source for model in models}
    assert sources_of_plans | WITHOUT_PLAN.keys() == {*sources()}
    assert sources_of_plans.isdisjoint(WITHOUT_PLAN)
    assert {*REJECTED, *NOTED} <= {model.name for model in models}


def assert_each(
    models: Iterable[PlannedModel], check: Callable[[PlannedModel, Path], None], folder: Path
) -> None:
    """Checks every model, and names those that fail."""
    problems = []
    for model in models:
        try:
            check(model, folder / model.name)
        except (AssertionError, ExportError) as problem:
            problems.append(f"{model.name}: {problem}")
    assert not problems, "\n\n".join(problems)


def assert_accepted(model: PlannedModel, folder: Path) -> None:
    prepared = planned(model, folder)
    notes = [note for note in prepared.notes if not note.startswith("no tower reads")]
    expected = NOTED.get(model.name, ())
    assert [words for words in expected if not any(words in note for note in notes)] == []
    assert [note for note in notes if not any(words in note for words in expected)] == []
    if model.name.startswith("examples."):
        assert_recorded(model.name.removeprefix("examples."), facts(prepared))


def assert_rejected(model: PlannedModel, folder: Path) -> None:
    kind, *words = REJECTED[model.name]
    with pytest.raises(ExportError) as raised:
        planned(model, folder)
    assert type(raised.value).__name__ == kind
    assert [word for word in words if word not in str(raised.value)] == [], raised.value


def planned(model: PlannedModel, folder: Path) -> Prepared:
    """Returns the plan of a model's export."""
    folder.mkdir(exist_ok=True)
    tf.keras.backend.reset_uids()  # a checkpoint may hold the numbers of layers
    project = model.write(folder)
    tf.keras.backend.reset_uids()
    return prepare(project.job, project.base, ExportSettings())


def assert_recorded(example: str, planned_today: dict[str, Any]) -> None:
    """Compares the tables, features and towers of an example with those that were recorded."""
    file = RECORDED / f"{example}.json"
    if not file.exists():
        file.write_text(json.dumps(planned_today, indent=1) + "\n")
        pytest.fail(f"{file} was recorded: read it, and commit it if it is meant", pytrace=False)
    assert planned_today == json.loads(file.read_text())


def facts(prepared: Prepared) -> dict[str, Any]:
    """Returns what a plan's report says of the model."""
    report = documents.planned(prepared)
    tables = {
        name: {fact: table[fact] for fact in FACTS_OF_TABLES}
        for name, table in report["tables"].items()
    }
    for table in tables.values():
        table["layout"] = table["layout"]["kind"]
    for tower in report["towers"].values():
        # Keras numbers the names of layers through the life of a process.
        tower["weights"] = len(tower["weights"])
    parts = {part: report[part] for part in ("features", "towers", "stays")}
    plan: dict[str, Any] = json.loads(json.dumps({"tables": tables, **parts}))
    return plan


def in_reversed_order(page: Any) -> Any:
    """Returns the same recipe with the entries of each section in the reversed order."""
    if isinstance(page, dict):
        return {key: in_reversed_order(page[key]) for key in reversed(page)}
    return page


def words_of(report: dict[str, Any]) -> list[str]:
    """Returns all words of a report, in alphabetical order: lists may have another order."""
    return sorted(re.split(r'[\s,\[\]{}":]+', json.dumps(report)))
