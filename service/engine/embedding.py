"""Features -> a tower's vectors."""

from __future__ import annotations

from collections.abc import Mapping

from bundle.features import Column
from service.engine import choice, lookup, towers
from service.engine.limits import check_queries
from service.engine.requests import Embedded, Embedding, Vectors
from service.engine.steps import Steps
from service.generations.generation import Generation
from service.generations.loaded_towers import LoadedTower
from service.settings import ServiceSettings


def embed(generation: Generation, request: Embedding, settings: ServiceSettings, steps: Steps) -> Embedded:
    """Answers an Embedding with one generation: the tower's result, [n, dim] float32.

    Raises:
      InvalidArgument, TooLarge, NotFound: as `service/errors.py` tells.
      FeatureError: a column does not fit its feature.
    """
    name, tower = choice.tower(generation, request.tower)
    lookup.check_names(request.features, tower.inputs, "feature", f"tower {name!r}")
    lookup.check_size(settings, request.features.values())
    n = lookup.count_examples(generation.manifest, request.features)
    check_queries(n, settings)
    steps.computed(n)
    vectors = result(generation, tower, request.features, n, steps)
    return Embedded(generation.model, generation.version, vectors)


def result(generation: Generation, tower: LoadedTower, columns: Mapping[str, Column], n: int, steps: Steps) -> Vectors:
    """Runs a tower over the features of n examples; returns its result, [n, dim] float32."""
    work = tower.result_work
    values = towers.Values.alone(work, n)
    lookup.write(generation, values.each, columns, n, steps)
    outputs = towers.run(tower, work, values, generation.model, steps)
    return outputs[tower.page.result].reshape(n, -1)
