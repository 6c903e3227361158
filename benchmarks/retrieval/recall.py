"""`python -m benchmarks.retrieval.recall`: the recall of searches, beside the requested recall.

For each distance, the exporter builds an index that is to reach a recall of 0.95 at one k. Then the
service's search is compared with exact search on other queries: at several k, without a filter, and
with filters that half or a tenth of the candidates match, evenly or in some clusters alone.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.cores import host
from benchmarks.report import Sheet
from benchmarks.retrieval.loaded import NAME, load_index, write_attributes
from bundle.format import paths
from export.corpora.codes import write_codes
from export.corpora.indexes import build_index
from export.recipe.schema import IndexSection, RecallSection
from runtime.partitions import load_index as load_tree
from runtime.vectors import VectorFile
from service.config import ServiceSettings
from service.contract.messages import Condition, Filter, RetrievalRequest, Target
from service.engine.computation import completed
from service.engine.execution import Execution
from service.engine.retrieval import pipeline
from service.versions.version import ServedIndex

DISTANCES = ("dot_product", "cosine", "squared_l2")
RECALL = 0.95
_DIM = 32
_CLUSTERS = 200
_EXAMPLES = 500
_SEED = 7
_FILTERS: dict[str, tuple[str, int]] = {
    "none": ("", 0),
    "50 %": ("percent", 50),
    "10 %": ("percent", 10),
    "50 %, in clusters": ("cluster", _CLUSTERS // 2),
    "10 %, in clusters": ("cluster", _CLUSTERS // 10),
}
"""By name: an attribute, and the value below which candidates match; no attribute: all match."""
_CACHE_BYTES = 256 << 20
_Z95 = 1.96

Vectors = NDArray[np.float32]


class _Measured(NamedTuple):
    """A mean over queries, and half of its 95 % interval."""

    mean: float
    margin: float

    @property
    def is_below(self) -> bool:
        """Whether it is less than was requested, and not by chance."""
        return self.mean + self.margin < RECALL

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + "*" * self.is_below


def main() -> None:
    """Builds, measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieval.recall")
    parser.add_argument("--size", type=int, default=100_000, help="candidates (default 100,000)")
    parser.add_argument("--queries", type=int, default=100, help="that measure (default 100)")
    parser.add_argument("--built-at", type=int, nargs="*", default=[10, 100], help="k of recipes")
    parser.add_argument("--k", type=int, nargs="*", default=[10, 100, 1000], help="k of requests")
    arguments = parser.parse_args()
    console = Console(width=120, highlight=False)
    columns = ("distance", "k of the recipe", "filter", *(f"recall@{k}" for k in arguments.k))
    rows = []
    measured = []
    for distance in DISTANCES:
        for built_at in arguments.built_at:
            with tempfile.TemporaryDirectory() as directory:
                index, queries = _built(Path(directory), distance, built_at, arguments)
                for name, (attribute, below) in _FILTERS.items():
                    recalls = [_recall(index, queries, attribute, below, k) for k in arguments.k]
                    measured += recalls
                    rows.append([distance, str(built_at), name, *map(str, recalls)])
    lowest = min(recall.mean for recall in measured)
    missed = sum(recall.is_below for recall in measured)
    console.print(
        f"{arguments.size} vectors of dim {_DIM} in {_CLUSTERS} clusters, {arguments.queries} "
        f"queries, on {host()}; load average {os.getloadavg()[0]:.1f}. The target is {RECALL}. The "
        f"lowest is {lowest:.3f}; {missed} of {len(measured)} are below {RECALL} by more than "
        "their 95 % interval, marked by *"
    )
    Sheet("Recall against exact search", columns, rows).show(console)


def _built(base: Path, distance: Any, k: int, arguments: Any) -> tuple[ServedIndex, Vectors]:
    """Returns an index that the exporter built for recall at k, and queries that it did not see."""
    random = np.random.default_rng(_SEED)
    centers = random.standard_normal((_CLUSTERS, _DIM), np.float32)

    def around(count: int) -> tuple[Vectors, NDArray[np.int64]]:
        cluster = random.integers(0, _CLUSTERS, count)
        noise = random.standard_normal((count, _DIM), np.float32)
        return centers[cluster] + noise * np.float32(0.8), cluster

    vectors, cluster = around(arguments.size)
    examples, _ = around(_EXAMPLES)
    queries, _ = around(arguments.queries)
    percent = random.integers(0, 100, arguments.size)
    file = base / paths.index_vectors(NAME)
    file.parent.mkdir(parents=True)
    vectors.astype("<f4").tofile(file)
    write_attributes(base, {"percent": percent, "cluster": cluster})
    write_codes(base, NAME, VectorFile(file, _DIM), distance)
    part = IndexSection(
        corpus=NAME,
        query_tower="query",
        candidate_tower="candidate",
        distance=distance,
        recall=RecallSection(k=k, value=RECALL, queries=_EXAMPLES),
    )
    entry = build_index(base, NAME, part, examples, coded=True)
    directories = [base / partition for partition in entry.directories]
    tree = load_tree(entry.engine, directories, distance, vectors)
    return load_index(base, entry, tree, vectors, ["percent", "cluster"], _CACHE_BYTES), queries


def _recall(index: ServedIndex, queries: Vectors, attribute: str, below: int, k: int) -> _Measured:
    """Returns the share of the true k nearest that searches find, each query alone."""
    wanted = Filter()
    if attribute:
        wanted = Filter({attribute: Condition(lt=below)})
    shares = []
    for query in queries:
        ids = _ids(index, query, wanted, k)
        true = _ids(index, query, wanted, k, exact=True)
        shares.append(len(ids & true) / len(true))
    margin = _Z95 * float(np.std(shares)) / math.sqrt(len(shares))
    return _Measured(float(np.mean(shares)), margin)


def _ids(
    index: ServedIndex, query: Vectors, wanted: Filter, k: int, *, exact: bool = False
) -> set[int]:
    version: Any = SimpleNamespace(model="bench", version=1, indexes={NAME: index}, shards=None)
    request = RetrievalRequest(Target(), k=k, vectors=query[np.newaxis], filter=wanted, exact=exact)
    settings = ServiceSettings(root=Path())
    execution = Execution("retrieve")
    result = completed(pipeline.select(version, request, settings, execution))
    return {*result.ids.tolist()}


if __name__ == "__main__":
    main()
