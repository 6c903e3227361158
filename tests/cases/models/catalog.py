"""All models whose plans are recorded, and those that have none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from export.graphs.loading import load_tensorflow
from tests.cases.models import ids_recipes, keras_recipes, ranker_recipes, table_recipes
from tests.cases.models.dumped_plans import dumped_plans
from tests.cases.models.example_plans import EXAMPLES, example_plans
from tests.cases.models.jax_plans import jax_tpu_embedding_plans, sparsecore_plans
from tests.cases.models.planned_models import PlannedModel
from tests.cases.models.script_plans import script_plans
from tests.cases.models.torch_plans import torch_plans
from tests.units.export.traced_models import MODELS

MODULES = (
    *table_recipes.MODULES,
    *ranker_recipes.MODULES,
    *keras_recipes.MODULES,
    ids_recipes.IDS,
)
WITHOUT_PLAN: Mapping[str, str] = {
    "tests/models/published_models.py": "are exported and served by differential tests",
    "tests/models/graph_mode.py": "is exported and served by differential tests",
    "tests/models/linear.py": "writes compiled towers, and is never exported",
    "tests/models/tensorflow_process.py": "starts processes",
    "tests/models/train_keras_3.py": "trains the models of keras_3.py",
    "tests/models/fixed_batch_ranker.py": "is exported whole by unit tests",
    "tests/models/staged.py": "is exported whole in tests/differential/test_stages.py",
    "tests/models/published_calls.py": "is exported whole by differential tests",
    "examples/zoo": "builds models of other repositories",
    "examples/clients": "sends requests to the bundle of the quick start",
    "examples/stream": "sends changes to a served model",
    "examples/quickstart": "has a bundle of the model of examples/movielens",
    "examples/torch_dlrm": "PyTorch writes its tower, and is not installed where tests run; "
    "torch_towers.ranker is the same kind of model",
}
"""What has no plan, and why."""


def planned_models() -> dict[str, PlannedModel]:
    """Returns all models by the names of their plans."""
    load_tensorflow()  # as the exporter needs it, before a model imports it
    models = chain(
        *(module.plans() for module in MODULES),
        dumped_plans(),
        sparsecore_plans(),
        jax_tpu_embedding_plans(),
        torch_plans(),
        script_plans(),
        example_plans(),
    )
    by_name: dict[str, PlannedModel] = {}
    for model in models:
        assert model.name not in by_name, f"two plans are called {model.name}"
        by_name[model.name] = model
    return by_name


def sources() -> Iterator[str]:
    """Yields every module of tests/models and every folder of examples."""
    for file in MODELS.glob("*.py"):
        yield f"tests/models/{file.name}"
    for file in EXAMPLES.glob("*/__init__.py"):
        yield f"examples/{file.parent.name}"
