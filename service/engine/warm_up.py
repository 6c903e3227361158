"""Synthetic requests that a generation must answer before it is served, through the paths that real ones take."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import UnknownRefused
from bundle.features import Column
from bundle.manifest import DenseFeature, EmbeddedFeature, Manifest, SeveralIds, TextIds, VocabularyIds, first_of
from service.engine import embedding, ranking, recommendation, retrieval, towers
from service.engine.finite import NotFinite
from service.engine.jobs import Work
from service.engine.requests import Embedding, Ranking, Recommendation, Retrieval, Target
from service.engine.steps import Steps
from service.generations.generation import Generation
from service.settings import ServiceSettings

_EXAMPLES = (1, 64)
"""Examples of each run of a tower: one alone, and enough to grow every buffer once."""
_EXACT_BYTES_MAX = 4 << 20
"""Of vectors that are all searched exactly: more would have to be read before a version is served."""


def run(generation: Generation, settings: ServiceSettings, pause: Callable[[], object]) -> None:
    """Runs every tower, reads every table and store, searches every index, and makes one request of every call.

    Of large tables and indexes it reads few pages: how soon a version is served does not hang on their size.

    Args:
      pause: called after each.
    Raises:
      ServiceError, BundleError: a request cannot be answered.
      Exception: whatever a tower or an index raises.
    """
    steps = Steps("warm_up", math.inf, None)
    for table in generation.tables.values():
        table.gather(np.array([0, table.rows - 1], np.int64))
        pause()
    for tower in generation.towers.values():
        for n in _EXAMPLES:
            work = tower.work(frozenset(output.name for output in tower.page.outputs))
            values = towers.Values.alone(work, n)
            for place in values.each:
                place.array[...] = "" if place.array.dtype == object else 0
            with contextlib.suppress(NotFinite):  # a mean over no value, as zeros may be: no caller's numbers
                towers.run(tower, work, values, generation.model, steps)[tower.page.result].reshape(n, -1)
            pause()
    for store in generation.contexts.values():
        store.store.features(store.store.positions(store.store.ids(np.zeros(1, np.int64))), store.page.features)
        pause()
    for name, index in generation.indexes.items():
        first = index.corpus.store.ids(np.zeros(1, np.int64))
        attributes = tuple(index.corpus.page.attributes)
        for exact in (False, True) if index.vectors.nbytes <= _EXACT_BYTES_MAX else (False,):
            request = Retrieval(Target(), 1, ids=first, index=name, attributes=attributes, exact=exact)
            retrieval.retrieve(generation, request, settings, steps)
            pause()
    for answer, asked in _requests(generation):
        # No id of some vocabularies can be invented, nor numbers that all models can compute with.
        with contextlib.suppress(UnknownRefused, NotFinite):
            answer(generation, asked, settings, steps)
        pause()


def _requests(generation: Generation) -> Iterator[tuple[Work[Any, Any], Any]]:
    """Yields what embeds, ranks and recommends, each with a request for features that are made up."""
    manifest = generation.manifest
    for name, tower in generation.towers.items():
        yield embedding.embed, Embedding(Target(), name, _columns(generation, tower.inputs))
        if tower.page.role != "ranking":
            continue
        context, candidate = tower.by_role["context"], tower.by_role["candidate"]
        asked = _columns(generation, context)
        if candidate:
            yield ranking.rank, Ranking(Target(), asked, candidates=_columns(generation, candidate), tower=name)
        for index_name, index in generation.indexes.items():
            unstored = set(candidate) - set(index.corpus.page.features)
            if any(manifest.default_of(name) is None for name in unstored):
                continue  # such candidates are ranked by features that callers send
            query = generation.towers[index.page.query_tower]
            asked = {**asked, **_columns(generation, query.inputs)}
            yield recommendation.recommend, Recommendation(Target(), asked, 1, 1, index=index_name, tower=name)


def _columns(generation: Generation, names: Iterable[str]) -> dict[str, Column]:
    """One example of each input: id 0 (or "0"), or as many zeros as it takes."""
    columns: dict[str, Column] = {}
    manifest = generation.manifest
    for name in names:
        readers = [manifest.features[each] for each in manifest.inputs[name]]
        sizes = [math.prod(each.shape) for each in readers if isinstance(each, DenseFeature) and each.take == "values"]
        embedded = [each for each in readers if isinstance(each, EmbeddedFeature)]
        texts = any(_takes_texts(manifest, name, each) for each in embedded)
        texts |= any(isinstance(each, DenseFeature) and each.dtype == "string" for each in readers)
        sizes += [each.places for each in embedded if each.places is not None]
        size = sizes[0] if sizes else 1
        value: NDArray[Any] = (
            np.full(size, "0", object) if texts else np.zeros(size, np.int64)
        )  # no number is refused as 0
        columns[name] = Column(value, np.array([0, value.size], np.int64))
    return columns


def _takes_texts(manifest: Manifest, name: str, feature: EmbeddedFeature) -> bool:
    """Tells whether a feature takes strings alone of an input."""
    if isinstance(feature.ids, SeveralIds):
        key = feature.ids.keys[feature.inputs.index(name)]
        return key.dtype == "string" and key.boundaries is None
    rule = first_of(feature.ids)
    if isinstance(rule, TextIds):
        return True
    return isinstance(rule, VocabularyIds) and manifest.vocabularies[rule.vocabulary].dtype == "string"
