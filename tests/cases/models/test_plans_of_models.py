"""Every model of tests/models and of examples is planned, noted or rejected as its case says."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from export.cli import documents
from export.errors import ExportError
from export.graphs.loading import tf
from export.jobs.preparation import Prepared, prepare
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from tests.cases.models.catalog import WITHOUT_PLAN, planned_models, sources
from tests.cases.models.outcomes import NOTED, REJECTED
from tests.cases.models.planned_models import PlannedModel, Project

MODELS = planned_models()
ACCEPTED = [name for name in MODELS if name not in REJECTED]
RECORDED = Path(__file__).parent / "examples"
FACTS_OF_TABLES = ("rows", "dim", "dtype", "layout", "stated")
pytestmark = pytest.mark.filterwarnings(
    "ignore:`layer.add_variable` is deprecated",  # by linear_model of TF1
    "ignore:__array__ implementation doesn't accept a copy keyword",  # by save_weights of Keras 3
    "ignore:Even though the `tf.config.experimental_run_functions_eagerly`",  # by adapt()
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ACCEPTED)
def test_model_is_accepted_with_its_notes_alone_and_an_example_as_recorded(
    name: str, tmp_path: Path
) -> None:
    prepared = planned(MODELS[name], tmp_path)
    notes = [note for note in prepared.notes if not note.startswith("no tower reads")]
    for words in NOTED.get(name, ()):
        assert any(words in note for note in notes), words
    for note in notes:
        assert any(words in note for words in NOTED.get(name, ())), note
    if name.startswith("examples."):
        assert_recorded(name.removeprefix("examples."), facts(prepared))


@pytest.mark.parametrize("name", REJECTED)
def test_model_is_rejected_with_its_place_and_what_helps(name: str, tmp_path: Path) -> None:
    kind, *words = REJECTED[name]
    with pytest.raises(ExportError) as raised:
        planned(MODELS[name], tmp_path)
    assert type(raised.value).__name__ == kind
    for word in words:
        assert word in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["two_towers.movies", "tf1", "sparsecore_ranker", "torch_towers.ranker"]
)
def test_order_of_a_recipe_has_no_meaning(name: str, tmp_path: Path) -> None:
    def reordered(folder: Path) -> Project:
        project = MODELS[name].write(folder)
        page = project.job.model_dump(exclude_unset=True)
        return Project(ExportJob.model_validate(in_reversed_order(page)), project.base)

    original = facts(planned(MODELS[name], tmp_path / "original"))
    other = PlannedModel(name, "", reordered, MODELS[name].requires)
    assert words_of(facts(planned(other, tmp_path / "other"))) == words_of(original)


def test_every_model_has_a_plan_or_a_reason_for_none() -> None:
    sources_of_plans = {model.source for model in MODELS.values()}
    assert sources_of_plans | WITHOUT_PLAN.keys() == {*sources()}
    assert sources_of_plans.isdisjoint(WITHOUT_PLAN)
    assert {*REJECTED, *NOTED} <= MODELS.keys()


def planned(model: PlannedModel, folder: Path) -> Prepared:
    """Returns the plan of a model's export, or skips where a framework is not installed."""
    for module in model.requires:
        if find_spec(module) is None:
            pytest.skip(f"{module} cannot be imported")
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
