"""Damages of the small job's indexes, in a bundle that is staged or published."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bundle.format import paths
from runtime.engines import default_engine
from tests.bundles.indexes import write_index
from tests.units.export.movies_job import MOVIES

VECTORS = paths.index_vectors("movies")
"""Of all indexes."""


def swap_vectors(bundle: Path) -> None:
    """Gives two candidates each other's vector."""
    vectors = np.fromfile(bundle / VECTORS, "<f4").reshape(MOVIES, -1)
    vectors[[3, 8]] = vectors[[8, 3]]
    vectors.tofile(bundle / VECTORS)


def reverse_vectors(bundle: Path) -> None:
    """Reverses the order of all vectors."""
    np.fromfile(bundle / VECTORS, "<f4").reshape(MOVIES, -1)[::-1].tofile(bundle / VECTORS)


def build_of_reversed_vectors(bundle: Path, tree: str = "movies") -> None:
    """Builds the tree of an index of the vectors in the other order."""
    vectors = np.fromfile(bundle / VECTORS, "<f4").reshape(MOVIES, -1)
    built = dict.fromkeys(("num_leaves", "leaves_to_search", "reorder"), 1)
    parameters = built | {"num_leaves": 20, "dimensions_per_block": 2}
    directory = bundle / paths.index_directory(tree, default_engine())
    write_index(vectors[::-1].copy(), "squared_l2", "tree_ah", parameters, directory)


def reverse_codes(bundle: Path, tree: str = "movies") -> None:
    """Reverses the order of the codes of an index."""
    path = bundle / paths.index_codes(tree) / "codes.bin"
    codes = np.fromfile(path, np.uint8).reshape(MOVIES, -1)
    codes[::-1].tofile(path)
