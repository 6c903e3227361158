"""Features -> a tower's vectors."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping

import numpy as np

from bundle.features import Column
from service.engine import choice, dividing, lookup, towers
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
    size = dividing.piece_of(work, n, steps)
    if size and dividing.cuttable(columns, n):
        with contextlib.suppress(dividing.Failed):
            return _in_pieces(generation, tower, columns, n, size, steps)
    began = time.thread_time()
    vectors = _run(generation, tower, columns, n, steps)
    dividing.took(work, n, time.thread_time() - began)
    return vectors


def _run(generation: Generation, tower: LoadedTower, columns: Mapping[str, Column], n: int, steps: Steps) -> Vectors:
    work = tower.result_work
    values = towers.Values.alone(work, n)
    lookup.write(generation, values.each, columns, n, steps)
    outputs = towers.run(tower, work, values, generation.model, steps)
    return outputs[tower.page.result].reshape(n, -1)


def _in_pieces(
    generation: Generation, tower: LoadedTower, columns: Mapping[str, Column], n: int, size: int, steps: Steps
) -> Vectors:
    """Raises: Failed: something is wrong with the call."""
    pieces: list[Vectors] = [np.empty((0, 0), np.float32)] * math.ceil(n / size)

    def compute(start: int, stop: int, own: Steps) -> None:
        some = dividing.cut(columns, n, start, stop)
        pieces[start // size] = _run(generation, tower, some, stop - start, own)

    dividing.in_pieces(tower.result_work, n, size, compute, steps)
    return np.concatenate(pieces)
