"""Builds the files of an index of faiss from a file of candidate vectors, in memory that does not
depend on the number of vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.format.manifest import Distance
from runtime.candidate_index import CandidateIndex, IndexEngine, Kind, check_parameters
from runtime.errors import IndexUnreadable
from runtime.exact import prepared
from runtime.faiss_tree import CODES, CONFIG, LEAVES, Config, ExactCandidates, FaissTree, Quantizer
from runtime.index_files import (
    EncodeTask,
    Run,
    encode_all,
    read_sample,
    row_blocks,
    run_here,
    sample_size,
    stored_rows,
)
from runtime.vectors import VectorFile

Vectors = NDArray[np.float32]
Positions = NDArray[np.int64]
_LEAF_BYTES = 4
"""The size of the number of a leaf."""


class FaissEngine(IndexEngine):
    """Builds and loads indexes of faiss. A tree stores leaves and codes, and no vectors; a brute
    force index stores its parameters alone, and searches the vectors where they lie.
    """

    library = "faiss-cpu"
    config = CONFIG
    # Codes are sorted by leaf and packed, each beside a position of 8 bytes. Measured with 16 bytes
    # of code a vector: 2.
    load_factor = 5

    def forecast_bytes(self, size: int, dim: int, kind: Kind, parameters: Mapping[str, Any]) -> int:
        """See `IndexEngine.forecast_bytes`."""
        if kind == "brute_force":
            return 0
        blocks = ceil_div(dim, parameters["dimensions_per_block"])
        return size * (_LEAF_BYTES + ceil_div(blocks, 2))

    def build_files(
        self,
        vectors: VectorFile,
        distance: Distance,
        kind: Kind,
        parameters: Mapping[str, Any],
        directory: Path,
        run: Run = run_here,
    ) -> None:
        """See `IndexEngine.build_files`; trains in one thread, so that the same vectors give the
        same files.
        """
        size, dim = vectors.shape
        check_parameters(kind, parameters, size)
        directory.mkdir(parents=True, exist_ok=True)
        config = Config(
            kind=kind,
            distance=distance,
            size=size,
            dim=dim,
            leaves_to_search=parameters.get("leaves_to_search"),
            reorder=parameters.get("reorder"),
        )
        config.write(directory)
        if kind == "brute_force":
            for first, count in row_blocks(vectors):
                prepared(vectors[first : first + count], distance, first)
            return

        leaves = parameters["num_leaves"]
        sampled = min(size, sample_size(leaves))
        sample = prepared(read_sample(vectors, sampled), distance)
        quantizer = Quantizer.train(sample, leaves, parameters["dimensions_per_block"])
        del sample
        quantizer.write(directory)
        encode_all(encode_block, (LEAVES, CODES), vectors, distance, directory, run)

    def load(
        self, directory: Path, distance: Distance, vectors: Vectors, where: str = ""
    ) -> CandidateIndex:
        """See `IndexEngine.load`."""
        size, dim = vectors.shape
        where = where or f"index {directory.parent.name!r}"
        config = Config.read(directory, where)
        if config.distance != distance:
            raise IndexUnreadable(f"{where} measures {config.distance}; {distance} was expected")
        if config.size != size:
            raise IndexUnreadable(f"{where} holds {config.size} vectors; {size} were expected")
        if config.dim != dim:
            raise IndexUnreadable(f"{where} holds vectors of dim {config.dim}, not {dim}")
        if config.kind == "brute_force":
            return ExactCandidates(distance, vectors)
        return FaissTree.load(directory, config, vectors, where)

    def set_search_parameters(
        self, directory: Path, leaves_to_search: int | None = None, reorder: int | None = None
    ) -> None:
        """See `IndexEngine.set_search_parameters`."""
        changes: dict[str, int] = {}
        if leaves_to_search is not None:
            changes["leaves_to_search"] = leaves_to_search
        if reorder is not None:
            changes["reorder"] = reorder
        config = Config.read(directory, directory.name)
        config.model_copy(update=changes).write(directory)

    def match_stored(
        self,
        directory: Path,
        vectors: VectorFile,
        rows: Positions,
        distance: Distance,
        kind: Kind,
    ) -> NDArray[np.bool_]:
        """See `IndexEngine.match_stored`; a brute force index holds whatever vectors there are."""
        block = prepared(vectors[rows], distance)
        if kind == "brute_force":
            return np.ones(rows.size, bool)
        quantizer = Quantizer.read(directory, vectors.shape[1], directory.name)
        leaves, codes = quantizer.encode(block)
        same_leaf: NDArray[np.bool_] = stored_rows(directory / LEAVES, rows) == leaves
        same_code: NDArray[np.bool_] = (stored_rows(directory / CODES, rows) == codes).all(axis=1)
        return same_leaf & same_code


def encode_block(task: EncodeTask) -> None:
    """Writes the leaves and codes of some vectors.

    Raises:
      InvalidIndex: A vector cannot be searched.
    """
    block = task.vectors[task.first : task.first + task.count]
    block = prepared(block, task.distance, task.first)
    quantizer = Quantizer.read(Path(task.trained), block.shape[1], "the sample")
    leaves, codes = quantizer.encode(block)
    directory = Path(task.directory)
    directory.mkdir()
    np.save(directory / LEAVES, leaves)
    np.save(directory / CODES, codes)
