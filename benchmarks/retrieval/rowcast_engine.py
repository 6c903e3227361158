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

from benchmarks.retrieval.corpus import DIM, K
from benchmarks.retrieval.engines import ALL, TUNED_ON, serve
from benchmarks.retrieval.loaded import NAME, load_index, write_attributes
from bundle.format import manifest
from bundle.format.indexes import Codes, CurvePoint, Index, RecallCurve
from export.corpora.codes import write_codes
from export.corpora.search_costs import measure_costs
from runtime.codes import VectorCodes
from runtime.engines import open_engine
from runtime.exact import rank_exactly
from runtime.vectors import VectorFile
from service.config import ServiceSettings
from service.contract.messages import Condition, Filter, RetrievalRequest, Target
from service.engine.computation import completed
from service.engine.execution import Execution
from service.engine.retrieval import pipeline

_PARAMETERS = {
    "num_leaves": 1000,
    "leaves_to_search": 15,
    "dimensions_per_block": 2,
    "reorder": 450,
}
_SETTINGS = [(15, 450), (30, 450), (60, 600), (80, 800), (100, 1000), (150, 1000), (200, 1500)]
"""Leaves and candidates to reorder, of rising recall."""
_RECALLS = [0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.99]
"""Of requests, of which the first that reaches the recall of the benchmark is measured."""


def main() -> None:
    """Builds or opens the index, then serves."""
    directory = Path(sys.argv[1])
    base = directory / "rowcast"
    vectors = np.load(directory / "vectors.npy", mmap_mode="r")
    engine = open_engine("scann")
    if not (base / "index").exists():
        write_attributes(base, {"a": np.load(directory / "attribute.npy")})
        vectors[:].tofile(base / "vectors.bin")
        file = VectorFile(base / "vectors.bin", DIM)
        engine.build_files(file, "dot_product", "tree_ah", _PARAMETERS, base / "index")
    if not (base / Codes.of(NAME).file).exists():
        write_codes(base, NAME, VectorFile(base / "vectors.bin", DIM), "dot_product")
    mapped = VectorFile(base / "vectors.bin", DIM).mapped
    approximate = engine.load(base / "index", "dot_product", mapped)

    def search_alone(query: Any, _: int, setting: tuple[int, int]) -> Any:
        leaves, reorder = setting
        positions = approximate.candidates(query, reorder, leaves)
        return rank_exactly(mapped, query, positions, K, "dot_product")[0]

    if sys.argv[2] == "alone":
        serve(search_alone, {ALL: _SETTINGS}, directory)
        return

    nearest = np.load(directory / f"nearest-{ALL}.npy")[:TUNED_ON]
    queries = np.load(directory / "queries.npy")[:TUNED_ON]
    curve = []
    for setting in _SETTINGS:
        neighbors = [search_alone(query, ALL, setting) for query in queries]
        hits = [np.isin(*pair).mean() for pair in zip(nearest, neighbors, strict=True)]
        recall = float(np.mean(hits))
        leaves, reorder = setting
        # The share of the queries, as that of the other engines is.
        point = CurvePoint(leaves_to_search=leaves, reorder=reorder, recall=recall, low=recall)
        curve.append(point)
    files = Codes.of(NAME)
    codes = VectorCodes.load(
        base / files.file, base / files.codebook, len(mapped), DIM, "dot_product"
    )
    entry = Index(
        corpus=NAME,
        query_tower="query",
        candidate_tower="candidate",
        kind="tree_ah",
        distance="dot_product",
        dim=DIM,
        directory="index",
        vectors="vectors.bin",
        parameters=_PARAMETERS,
        recall=manifest.Recall(k=K, value=0.95, low=0.94, queries=100, target=0.95),
        recall_curves=(RecallCurve(k=K, points=tuple(curve)),),
        codes=files,
        costs=measure_costs(approximate, mapped, codes, queries, _PARAMETERS["num_leaves"]),
    )
    served = load_index(base, entry, approximate, mapped, ["a"], int(sys.argv[2]))
    version: Any = SimpleNamespace(model="bench", version=1, indexes={NAME: served}, shards=None)
    settings = ServiceSettings(root=directory)

    def search(query: Any, below: int, recall: float) -> Any:
        wanted = None if below == ALL else Filter({"a": Condition(lt=below)})
        request = RetrievalRequest(
            Target(), k=K, vectors=query[np.newaxis], filter=wanted, recall=recall
        )
        computation = pipeline.select(version, request, settings, Execution("retrieve"))
        return completed(computation).ids

    serve(search, dict.fromkeys((ALL, 10, 1), _RECALLS), directory)


if __name__ == "__main__":
    main()
