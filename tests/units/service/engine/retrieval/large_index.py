"""An index of many vectors, without a bundle around it: for what shows only at a size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format import manifest
from bundle.format.indexes import Codes, Engine, RecallCurve
from bundle.format.search_costs import SearchCosts
from bundle.stores.attribute_index import AttributeIndex
from bundle.stores.reader import CandidateStore
from runtime import partitions
from runtime.engines import default_engine
from runtime.exact import ExactIndex
from runtime.vectors import VectorFile
from service.contract.messages import RetrievalRequest, Target
from service.engine.execution import Execution
from service.engine.neighbors import Neighbors, Queries, SearchOptions
from service.engine.retrieval import search
from service.engine.retrieval.queries import allowed_candidates
from service.versions.filter_cache import FilterCache
from service.versions.version import LoadedIndex, LoadedStore, ServedIndex
from tests.bundles.indexes import write_index
from tests.bundles.search_costs import COSTS
from tests.bundles.stores import write_corpus

Vectors = NDArray[np.float32]


def load_index(
    place: Path,
    vectors: Vectors,
    attributes: Mapping[str, NDArray[Any]],
    *,
    distance: Literal["dot_product", "squared_l2", "cosine"] = "dot_product",
    parameters: Mapping[str, int],
    recall_curves: Sequence[RecallCurve] = (),
    coded: bool = False,
    costs: SearchCosts = COSTS,
    engine: Engine | None = None,
) -> LoadedIndex:
    """Writes and loads a tree index; the id of candidate i is i, its attributes are int64.

    Args:
      coded: Whether the index has codes.
      costs: The costs by which searches choose their ways.
      engine: The engine of the index; None: the default one.
    """
    engine = engine or default_engine()
    ids = np.arange(len(vectors))
    arrays = {name: pa.array(values) for name, values in attributes.items()}
    corpus = write_corpus(place, "items", ids, {"item": Column(ids)}, arrays, [*attributes])
    entry = manifest.Index(
        corpus="items",
        query_tower="query",
        candidate_tower="candidate",
        engine=engine,
        kind="tree_ah",
        distance=distance,
        dim=vectors.shape[1],
        directory="items/index",
        vectors="items/vectors.f32",
        parameters=dict(parameters),
        recall=manifest.Recall(k=20, value=0.9, low=0.89, queries=100, target=0.9),
        recall_curves=tuple(recall_curves),
        costs=costs,
    )
    directories = [place / entry.directory]
    write_index(vectors, distance, "tree_ah", parameters, directories[0], engine)
    filters = {
        name: AttributeIndex(place, attribute_filter, corpus.attributes[name], corpus.size)
        for name, attribute_filter in corpus.filters.items()
    }
    loaded = LoadedStore("items", corpus, filters, CandidateStore(place / corpus.file, corpus))
    approximate = partitions.load_index(entry.engine, directories, distance, vectors)
    codes = None
    if coded:
        # faiss is loaded where an index has codes.
        from export.corpora.codes import write_codes
        from runtime.codes import VectorCodes

        vectors.tofile(place / entry.vectors)
        write_codes(place, "items", VectorFile(place / entry.vectors, vectors.shape[1]), distance)
        written = Codes.of("items")
        entry = entry.model_copy(update={"codes": written})
        files = (place / written.file, place / written.codebook)
        codes = VectorCodes.load(*files, len(vectors), vectors.shape[1], distance)
    return LoadedIndex(
        entry=entry,
        approximate=approximate,
        exact=ExactIndex(vectors, distance),
        vectors=vectors,
        corpus=loaded,
        compiled=FilterCache(64 << 20),
        codes=codes,
    )


def find(index: LoadedIndex, vectors: Vectors, k: int, **request: Any) -> Neighbors:
    """Returns the neighbors of each vector with explanations; `request`: options of a Retrieval."""
    execution = Execution("retrieve")
    request_object = RetrievalRequest(Target(), vectors=vectors, **request)
    assert isinstance(index.corpus, LoadedStore)
    served = ServedIndex("items", index.entry, index.corpus, index, None, index.compiled)
    allowed = allowed_candidates(served, request_object, len(vectors), execution)
    queries = Queries(vectors, allowed)
    options = SearchOptions(k, request_object.exact, request_object.recall, explain=True)
    return search.nearest(index, queries, options, execution)


@cache
def clustered(count: int, dim: int, seed: int = 1) -> tuple[Vectors, NDArray[np.int64]]:
    """Vectors around 100 centers, which are the same for every seed, and the number of the center
    of each.
    """
    centers = np.random.default_rng(7).normal(size=(100, dim))
    random = np.random.default_rng(seed)
    cluster = random.integers(0, len(centers), count)
    vectors = centers[cluster] + random.normal(size=(count, dim)) * 0.8
    return vectors.astype(np.float32), cluster


def nearest(
    index: LoadedIndex, query: NDArray[np.float32], allowed: NDArray[np.bool_], k: int
) -> list[int]:
    """The k nearest of what is allowed, by scores of all of it."""
    exact = ExactIndex(index.vectors, index.entry.distance)
    (positions,), _ = exact.search(query[np.newaxis], k, np.flatnonzero(allowed))
    return [position for position in positions.tolist() if position >= 0]
