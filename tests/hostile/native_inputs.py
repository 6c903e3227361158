"""Gives ScaNN and faiss what ends a process that does not check; prints the outcome of each input
as a line of JSON. A program of its own, so that its end is an outcome.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError
from bundle.format.indexes import Engine
from bundle.format.manifest import Distance
from runtime.codes import CodeBook
from runtime.engines import is_installed, open_engine
from runtime.vectors import LENGTH_MAX
from tests.bundles.indexes import write_index

Vectors = NDArray[np.float32]

DISTANCES: tuple[Distance, ...] = ("dot_product", "squared_l2", "cosine")
DIM = 8
INSTALLED: list[Engine] = [engine for engine in get_args(Engine) if is_installed(engine)]
TREE = {"num_leaves": 20, "leaves_to_search": 5, "dimensions_per_block": 2, "reorder": 50}
NUMBERS = (np.nan, np.inf, 3e38, -3e38, 1e38, 1e30, 1e19, LENGTH_MAX, 1e-45, 0.0)
SEARCHABLE = (1e-45, 0.0)
"""Of these numbers, those of which a vector can be searched."""


def main(directory: Path) -> None:
    """Tries all inputs."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((2000, DIM)).astype(np.float32)
    for engine in INSTALLED:
        try_searches(engine, directory / engine, vectors)
        try_vectors(engine, directory / engine / "hostile", vectors)
    try_codes(vectors)


def report(name: str, compute: Callable[..., object], *arguments: Any) -> None:
    """Prints what becomes of an input."""
    print(json.dumps([name, "began"]), flush=True)  # noqa: T201
    outcome = "served"
    try:
        compute(*arguments)
    except BundleError as problem:
        outcome = type(problem).__name__
    print(json.dumps([name, outcome]), flush=True)  # noqa: T201


def try_searches(engine: Engine, directory: Path, vectors: Vectors) -> None:
    """Searches trees for hostile queries and numbers of neighbors."""
    for distance in DISTANCES:
        write_index(vectors, distance, "tree_ah", TREE, directory / distance, engine)
        index = open_engine(engine).load(directory / distance, distance, vectors)
        for number in NUMBERS:
            signs = np.tile(np.array([1, -1], np.float32), DIM // 2)
            for query in (np.full(DIM, number, np.float32), signs * np.float32(number)):
                name = f"query {number} {distance}"
                report(name, index.search, query[np.newaxis], 5)
                report(name, index.candidates, query, 100)
        for k in (0, -1, len(vectors), 10**6):
            report(f"k {k}", index.search, vectors[:1], k)
        report("no query", index.search, vectors[:0], 5)
        report("dim", index.search, vectors[:1, :4], 5)


def try_vectors(engine: Engine, directory: Path, vectors: Vectors) -> None:
    """Builds indexes and code books of hostile vectors."""
    for number in NUMBERS:
        hostile = vectors.copy()
        hostile[7] = number
        for distance in DISTANCES:
            name = f"vector {number} {distance}"
            report(name, write_index, hostile, distance, "tree_ah", TREE, directory, engine)
            report(name, CodeBook.train, hostile, distance)
    equal = np.full((2000, DIM), LENGTH_MAX / DIM, np.float32)
    equal[::2] *= -1
    path = directory / "longest"
    report("longest vectors", write_index, equal, "squared_l2", "tree_ah", TREE, path, engine)
    report("longest vectors", _load_and_search, engine, path, "squared_l2", equal)


def _load_and_search(engine: Engine, directory: Path, distance: Distance, vectors: Vectors) -> None:
    open_engine(engine).load(directory, distance, vectors).search(vectors[:3], 5)


def try_codes(vectors: Vectors) -> None:
    """Compares codes with hostile queries, and loads code books of hostile numbers."""
    book = CodeBook.train(vectors, "dot_product")
    codes = book.pack(book.encode(vectors))
    for number in NUMBERS:
        query = np.full(DIM, number, np.float32)
        report(f"codes {number}", codes.nearest, query[np.newaxis], 10**6)
        centroids = np.full(book.centroids.shape, number, np.float32)
        hostile_book = CodeBook(centroids, "dot_product")
        packed = hostile_book.pack(book.encode(vectors))
        report(f"code book {number}", packed.nearest, vectors[:1], 5)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
