"""Parts of a recipe that name each other, files and tables: what is missing is reported before
the checkpoint and the model are opened, and of what is likely wrong there are warnings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bundle.format.manifest import IDENTITY, EmbeddedFeature, IdRule
from export.errors import NotConvertible
from export.front_end.specs import ModelSpec
from export.jobs.likely_mistakes import likely_mistakes
from export.jobs.preparation import prepare
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from tests.id_graphs import computed_ids, hash_ids, vocabulary_ids
from tests.units.export.traced_features import embedded
from tests.units.export.traced_models import MODELS, one_table_recipe, save_checkpoint


def test_constant_counts_as_a_weight_of_its_tower_up_to_the_limit_of_a_variable(
    tmp_path: Path,
) -> None:
    job = one_table_recipe("build_with_content")
    page = job.model_dump(mode="json")
    page["checkpoint"]["path"] = str(save_checkpoint(job, tmp_path))
    page["output"]["root"] = str(tmp_path / "bundles")
    page["code"]["inline_bytes_max"] = 320
    prepare(ExportJob.model_validate(page), MODELS, ExportSettings())
    page["code"]["inline_bytes_max"] = 319
    with pytest.raises(NotConvertible, match=r"constant float32 \[20, 4\] .*one_table.py:"):
        prepare(ExportJob.model_validate(page), MODELS, ExportSettings())


HASHED = hash_ids(3)
MOVED = computed_ids(("AddV2", 10))
FIRST = vocabulary_ids("ids")
SECOND = vocabulary_ids("ids", first_row=1)
OTHERS = vocabulary_ids("others")
RULES: dict[str, tuple[dict[str, IdRule], tuple[str, ...], tuple[str, ...]]] = {
    # the rules of features of one table, those that are the model's own, words of the warning
    "one vocabulary": ({"seen": SECOND, "liked": SECOND}, (), ()),
    "rows": ({"seen": IDENTITY, "liked": IDENTITY}, (), ()),
    # Fields of one table, each with its offset.
    "an offset of the model": ({"seen": IDENTITY, "liked": MOVED}, ("liked",), ()),
    "rules of the model": ({"seen": SECOND, "liked": HASHED}, ("seen", "liked"), ()),
    "a vocabulary and rows": (
        {"movie": SECOND, "seen": IDENTITY},
        (),
        ("'movie'", "'seen'", "verify.expected"),
    ),
    "a hash of the model and rows": (
        {"movie": HASHED, "seen": IDENTITY},
        ("movie",),
        ("'movie'", "'seen'"),
    ),
    "two vocabularies": (
        {"movie": FIRST, "seen": OTHERS, "liked": FIRST},
        (),
        ("'movie'", "'seen'", "others"),
    ),
    "two first rows": (
        {"seen": SECOND, "liked": SECOND, "wrong": FIRST},
        (),
        ("'seen'", "'wrong'", "first_row"),
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_features_of_one_table_by_different_rules_of_the_recipe_are_warned_of(name: str) -> None:
    rules, of_model, words = RULES[name]
    specs: dict[str, Any] = {}
    entries: dict[str, Any] = {}
    for feature, rule in rules.items():
        own: dict[str, Any] = {"ids": rule} if feature in of_model else {}
        specs[feature] = embedded(feature, "movies", **own)
        entries[feature] = EmbeddedFeature(kind="single", table="movies", role="context", ids=rule)
    warnings = likely_mistakes(entries, ModelSpec({}, specs, {}))
    assert len(warnings) == (1 if words else 0)
    assert all(expected in warnings[0] for expected in words)
