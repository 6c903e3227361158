"""A model of tests/models whose tables a parameter server dumped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from export.model_code.factories import load_factory
from export.recipe.schema import ExportJob
from tests.cases.models.checkpoints import write_objects
from tests.cases.models.planned_models import PlannedModel, Project, source_of
from tests.cases.models.recipe_parts import ID, RAGGED, candidates, ranking
from tests.units.export.checkpoint.dump_files import collection_dump, hugectr_dump, sok_dump
from tests.units.export.traced_models import MODELS

USERS = 30
ITEMS = 20
KEYED = {"ids": {"kind": "keyed"}}
BY_KEY = {
    "user": KEYED,
    "history": KEYED,
    "item": {**candidates("item")["item"], **KEYED},
}
DUMPS = {
    "users": {"dump": "dumps/sok"},
    "user_bias": {"dump": "dumps/collections", "key": "collection_0_table_1"},
    "items": {"dump": "dumps/items"},
}


def dumped_plans() -> list[PlannedModel]:
    """Returns the plans of the model with its dumps, and without the rule that they need."""
    source = source_of("dumped")
    return [
        PlannedModel("dumped", source, lambda folder: _write(folder, BY_KEY)),
        PlannedModel("dumped.by_rows", source, lambda folder: _write(folder, candidates("item"))),
    ]


def _write(folder: Path, features: Mapping[str, object]) -> Project:
    users = 3 * np.arange(USERS)
    items = 5 * np.arange(ITEMS)
    vectors = np.zeros((USERS, 8), np.float32)
    biases = np.zeros((USERS, 1), np.float32)
    sok_dump(folder / "dumps/sok", "users_0", users, vectors)
    collection_dump(folder / "dumps/collections", [(users, vectors), (users, biases)])
    hugectr_dump(folder / "dumps/items", items, np.zeros((ITEMS, 8), np.float32))
    (folder / "dumped.py").write_bytes((MODELS / "dumped.py").read_bytes())
    page = {
        "model": "shop",
        "checkpoint": {"path": "checkpoint", "object_path": "model"},
        "code": {"factory": "dumped.py:build", "table_threshold": 100},
        "output": {"root": "bundles"},
        "inputs": {"user": ID, "hour": ID, "item": ID, "history": RAGGED},
        "towers": ranking(),
        "features": features,
        "tables": DUMPS,
    }
    job = ExportJob.model_validate(page)
    (folder / "checkpoint").mkdir()
    write_objects(load_factory(job.code.factory, folder), job, folder / "checkpoint")
    return Project(job, folder)
