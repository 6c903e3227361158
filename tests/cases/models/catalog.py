"""All models whose plans are recorded, and those that have none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from export.graphs.loading import load_tensorflow
from tests.cases.models import ids_recipes, keras_recipes, ranker_recipes, table_recipes
from tests.cases.models.example_plans import EXAMPLES, example_plans
from tests.cases.models.planned_models import PlannedModel
from tests.cases.models.script_plans import script_plans
from tests.units.export.traced_models import MODELS

MODULES = (
    *table_recipes.MODULES,
    *ranker_recipes.MODULES,
    *keras_recipes.MODULES,
    ids_recipes.IDS,
)
GROUPS: Mapping[str, Callable[[], Iterable[PlannedModel]]] = {
    **{module.name: module.plans for module in MODULES},
    "scripts": script_plans,
    "examples": example_plans,
}
"""What yields the plans of each group. It imports the models: the names of groups do not."""
WITHOUT_PLAN: Mapping[str, str] = {
    **{
        f"tests/models/{name}.py": "is exported whole by differential tests"
        for name in (
            "averaged",
            "graph_mode",
            "lookup_rankers",
            "published_calls",
            "published_models",
            "sequence_ranker",
            "sparsecore_ranker",
            "staged",
        )
    },
    "tests/models/dumped.py": "is exported whole in tests/e2e/test_dumped_tables.py",
    **{
        f"tests/models/{name}.py": "is exported whole by unit tests"
        for name in (
            "fixed_batch_ranker",
            "jax_tpu_embedding_ranker",
            "plain_module",
            "retrieval_parts",
            "saved_in_order",
            "tf1_graph",
        )
    },
    "tests/models/torch_towers.py": "is in files of PyTorch, which differential tests open",
    "tests/models/linear.py": "writes compiled towers, and is never exported",
    "tests/models/tensorflow_process.py": "starts processes",
    "tests/models/train_keras_3.py": "trains the models of keras_3.py",
    "examples/zoo": "builds models of other repositories",
    "examples/clients": "sends requests to the bundle of the quick start",
    "examples/stream": "sends changes to a served model",
    "examples/quickstart": "has a bundle of the model of examples/movielens",
    "examples/torch_dlrm": "PyTorch writes its tower, and is not installed where tests run",
}
"""What has no plan, and why."""


def planned_models(group: str) -> dict[str, PlannedModel]:
    """Returns the models of a group by the names of their plans."""
    load_tensorflow()  # as the exporter needs it, before a model imports it
    by_name: dict[str, PlannedModel] = {}
    for model in GROUPS[group]():
        assert model.name not in by_name, f"two plans are called {model.name}"
        by_name[model.name] = model
    return by_name


def sources() -> Iterator[str]:
    """Yields every module of tests/models and every folder of examples."""
    for file in MODELS.glob("*.py"):
        yield f"tests/models/{file.name}"
    for file in EXAMPLES.glob("*/__init__.py"):
        yield f"examples/{file.parent.name}"
