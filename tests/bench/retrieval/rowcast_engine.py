"""rowcast as an engine of the retrieval benchmark: the service's retrieval in process, from a request to ids.

`python -m tests.bench.retrieval.rowcast_engine DIRECTORY FILTER_CACHE_BYTES`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from bundle.format import manifest, paths
from bundle.stores.attribute_index import AttributeIndex, write_attribute_index
from bundle.stores.reader import CandidateStore
from bundle.stores.writer import write_store
from runtime.exact import ExactIndex
from runtime.scann import ScannIndex, write_index
from service.config import ServiceSettings
from service.engine import retrieval
from service.engine.context import Execution
from service.engine.requests import Condition, Retrieval, Target
from service.models.filter_cache import FilterCache
from service.models.version import LoadedIndex, LoadedStore, ServedIndex
from tests.bench.retrieval.corpus import DIM, K
from tests.bench.retrieval.engines import ALL, serve

_ENTRY = manifest.AttributeIndex(values="candidates/items/a.values", rows="candidates/items/a.rows")
_STORE = paths.candidate_store("items")
_PARAMETERS = {
    "num_leaves": 1000,
    "leaves_to_search": 15,
    "dimensions_per_block": 2,
    "reorder": 450,
}
_SETTINGS = [(15, 450), (30, 450), (60, 600), (80, 800), (100, 1000), (150, 1000), (200, 1500)]
"""Leaves and candidates to reorder, of rising recall: requests choose by their place."""


def main() -> None:
    """Builds or opens the index, then serves."""
    directory, cache_bytes = Path(sys.argv[1]), int(sys.argv[2])
    base, vectors = directory / "rowcast", np.load(directory / "vectors.npy", mmap_mode="r")
    if not (base / "index").exists():
        ids, attribute = np.arange(len(vectors)), pa.array(np.load(directory / "attribute.npy"))
        write_store(base / _STORE, ids, {}, {"a": attribute})
        write_attribute_index(base / _STORE, "a", base, _ENTRY)
        vectors[:].tofile(base / "vectors.bin")
        write_index(vectors[:], "dot_product", "tree_ah", _PARAMETERS, base / "index")
    size = len(vectors)
    mapped = np.asarray(np.memmap(base / "vectors.bin", "<f4", "r", shape=(size, DIM)))
    corpus = manifest.Corpus(
        file=_STORE, size=size, id_dtype="int64", features=(), attributes={"a": "int64"}
    )
    filters = {"a": AttributeIndex(base, _ENTRY, "int64", size)}
    store = LoadedStore("items", corpus, filters, CandidateStore(base / _STORE, corpus))
    curve = tuple(
        manifest.CostPoint(
            parameters={"leaves_to_search": leaves, "reorder": reorder},
            recall=at / 10,
            relative_cost=at,
        )
        for at, (leaves, reorder) in enumerate(_SETTINGS, 1)
    )
    entry: Any = SimpleNamespace(
        distance="dot_product",
        dim=DIM,
        kind="tree_ah",
        corpus="items",
        parameters=_PARAMETERS,
        curve=curve,
        partitions=1,
    )
    approximate = ScannIndex.load(base / "index", "dot_product", mapped)
    cache, exact = FilterCache(cache_bytes), ExactIndex(mapped, "dot_product")
    index = LoadedIndex(entry, approximate, exact, mapped, store, cache)
    served = ServedIndex("items", entry, store, index, None)
    version: Any = SimpleNamespace(model="bench", version=1, indexes={"items": served}, shards=None)
    settings = ServiceSettings(root=directory)

    def search(query: Any, below: int, place: float) -> Any:
        wanted = None if below == ALL else {"a": Condition(lt=below)}
        request = Retrieval(Target(), k=K, vectors=query[np.newaxis], filter=wanted, recall=place)
        return retrieval.retrieve(version, request, settings, Execution("retrieve")).neighbors.ids

    places = [at / 10 for at in range(1, len(_SETTINGS) + 1)]
    serve(search, dict.fromkeys((ALL, 10, 1), places), directory)


if __name__ == "__main__":
    main()
