"""Models in JAX of tests/models, whose tables are in the stacks of SparseCores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from export.recipe.schema import ExportJob
from tests.cases.models.planned_models import PlannedModel, Project, source_of
from tests.units.export.traced_models import MODELS

WITHOUT_LAYOUT = {"path": "checkpoint"}
"""The checkpoint of a recipe that names no layout file."""


def sparsecore_plans() -> Iterator[PlannedModel]:
    """Yields plans of the ranker whose specifications are dicts."""
    yield _sparsecore("sparsecore_ranker")
    yield _sparsecore("sparsecore_ranker.prepared", prepared=True, checkpoint=WITHOUT_LAYOUT)
    yield _sparsecore("sparsecore_ranker.without_layout", checkpoint=WITHOUT_LAYOUT)


def _sparsecore(name: str, prepared: bool = False, **sections: Any) -> PlannedModel:
    def write(folder: Path) -> Project:
        from tests.models import sparsecore_ranker as ranker

        ranker.write(folder, prepared)
        return Project(ExportJob.model_validate(ranker.recipe(**sections)), folder)

    return PlannedModel(name, source_of("sparsecore_ranker"), write, ("jax", "tensorstore"))


def jax_tpu_embedding_plans() -> Iterator[PlannedModel]:
    """Yields plans of the rankers that use jax-tpu-embedding itself."""
    for factory in ("build", "build_linen", "build_nnx"):
        yield _jax_tpu_embedding(factory)


def _jax_tpu_embedding(factory: str) -> PlannedModel:
    module = "jax_tpu_embedding_ranker"

    def write(folder: Path) -> Project:
        from tests.models import sparsecore_ranker as ranker

        ranker.write(folder)
        page = ranker.recipe(code={"factory": f"{MODELS / module}.py:{factory}"})
        return Project(ExportJob.model_validate(page), folder)

    plan = factory.replace("build", module).replace("_ranker_", "_ranker.")
    return PlannedModel(
        plan, source_of(module), write, ("jax", "flax", "tensorstore", "jax_tpu_embedding")
    )
