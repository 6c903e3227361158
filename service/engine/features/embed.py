"""Features -> a tower's vectors."""

from __future__ import annotations

from service.config import ServiceSettings
from service.engine import towers
from service.engine.calls import Columns, Embedded, Embedding, Vectors
from service.engine.context import Execution
from service.engine.features import lookup
from service.engine.limits import check_rows, check_values
from service.engine.names import check_names, choose_tower
from service.versions.loaded_towers import LoadedTower
from service.versions.version import ModelVersion


async def embed(
    model_version: ModelVersion, request: Embedding, settings: ServiceSettings, execution: Execution
) -> Embedded:
    """Answers an Embedding with one model version: the tower's result, [n, dim] float32.

    Raises:
      InvalidArgument, TooLarge, NotFound: see service/errors.py.
      FeatureError: a column does not fit its feature.
    """
    name, tower = choose_tower(model_version, request.tower)
    check_names(request.features, tower.inputs, "feature", f"tower {name!r}")
    check_values(settings, request.features.values())
    n = lookup.count_queries(model_version, request.features, None, settings)
    check_rows(n, tower.result_dim, "features", settings, execution.request_count)
    execution.computed(n)
    vectors = await result(model_version, tower, request.features, n, execution)
    return Embedded(model_version.model, model_version.version, vectors)


async def result(
    model_version: ModelVersion, tower: LoadedTower, columns: Columns, n: int, execution: Execution
) -> Vectors:
    """Runs a tower on the features of n examples; returns its result, [n, dim] float32."""
    plan = tower.plan(frozenset([tower.entry.result]))
    inputs = towers.Inputs(plan.layout_alone, n)
    fetched = None
    execution.begin("lookup")
    if model_version.shards is not None:
        fetched = await lookup.fetch(model_version, [(inputs.places, columns, n)], execution)
    lookup.write(model_version, inputs.places, columns, n, execution, fetched)
    execution.begin("compute")
    outputs = towers.run(tower, plan, inputs, execution)
    return outputs[tower.entry.result].reshape(n, -1)
