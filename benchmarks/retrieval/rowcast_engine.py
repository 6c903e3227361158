"""rowcast as an engine of the retrieval benchmark: the service's retrieval in process, from a
request to ids.

`python -m benchmarks.retrieval.rowcast_engine DIRECTORY FILTER_CACHE_BYTES`. Instead of a number,
`alone` runs the search and the rescoring without a request around them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.retrieval.corpus import DIM, K
from benchmarks.retrieval.engines import ALL, serve
from bundle.format import manifest, paths
from bundle.stores.attribute_index import AttributeIndex, write_attribute_index
from bundle.stores.reader import CandidateStore
from bundle.stores.writer import write_store
from runtime.exact import ExactIndex, rank_exactly
from runtime.scann import ScannIndex, write_index
from service.config import ServiceSettings
from service.engine.calls import Condition, Filter, Retrieval, Target
from service.engine.context import Execution
from service.engine.retrieval import retrieve
from service.versions.filter_cache import FilterCache
from service.versions.version import LoadedIndex, LoadedStore, ServedIndex

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
    directory = Path(sys.argv[1])
    base = directory / "rowcast"
    vectors = np.load(directory / "vectors.npy", mmap_mode="r")
    if not (base / "index").exists():
        ids = np.arange(len(vectors))
        attribute = pa.array(np.load(directory / "attribute.npy"))
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
        depths=(),
        recall=manifest.Recall(k=K, value=0.95, low=0.94, queries=100, target=0.95),
        partitions=1,
    )
    approximate = ScannIndex.load(base / "index", "dot_product", mapped)
    if sys.argv[2] == "alone":

        def search_alone(query: Any, _: int, setting: tuple[int, int]) -> Any:
            leaves, reorder = setting
            found = approximate.candidates(query, reorder, leaves)
            return rank_exactly(mapped, query, found, K, "dot_product")[0]

        serve(search_alone, {ALL: _SETTINGS}, directory)
        return

    cache = FilterCache(int(sys.argv[2]))
    exact = ExactIndex(mapped, "dot_product")
    index = LoadedIndex(entry, approximate, exact, mapped, store, cache)
    served = ServedIndex("items", entry, store, index, None)
    version: Any = SimpleNamespace(model="bench", version=1, indexes={"items": served}, shards=None)
    settings = ServiceSettings(root=directory)

    def search(query: Any, below: int, place: float) -> Any:
        wanted = None if below == ALL else Filter({"a": Condition(lt=below)})
        request = Retrieval(Target(), k=K, vectors=query[np.newaxis], filter=wanted, recall=place)
        return retrieve.retrieve(version, request, settings, Execution("retrieve")).neighbors.ids

    places = [at / 10 for at in range(1, len(_SETTINGS) + 1)]
    serve(search, dict.fromkeys((ALL, 10, 1), places), directory)


if __name__ == "__main__":
    main()
