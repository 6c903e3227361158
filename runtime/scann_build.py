"""Builds ScaNN's files from a file of candidate vectors, in memory that does not depend on the
number of vectors.

ScaNN builds over vectors in memory and holds them up to three times meanwhile: as it gets them, its
own copy, and their residuals, of which it then trains on a sample. Here it gets only that sample.

Source: scann 1.4.2, `scann/scann_ops/cc/scann.cc` (Initialize, LoadArtifacts, Serialize).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.format.manifest import Distance
from bundle.storage.residency import return_freed_memory
from runtime.candidate_index import CandidateIndex, IndexEngine, Kind
from runtime.exact import prepared
from runtime.index_files import (
    EncodeTask,
    Run,
    encode_all,
    read_sample,
    row_blocks,
    run_here,
    sample_size,
    stored_rows,
    write_array,
)
from runtime.scann import (
    CODES,
    CONFIG,
    DATASET,
    TOKENS,
    ScannIndex,
    encode,
    set_search_parameters,
    write_trained,
)
from runtime.vectors import VectorFile

Vectors = NDArray[np.float32]
Positions = NDArray[np.int64]
_LEAF_BYTES = 4
"""The size of the number of a leaf."""
_ENCODED_BLOCKS = 4
"""The number of blocks of a file that are encoded at a time: writing an index costs ScaNN seconds
and 0.3 GB, however small it is.
"""

_ROUNDING = 1e-5
"""A bound of the relative difference between vectors that two machines scaled to length 1."""


class ScannEngine(IndexEngine):
    """Builds and loads indexes of ScaNN. A tree stores leaves and codes, and no vectors; a brute
    force index stores the vectors themselves.
    """

    library = "scann"
    config = CONFIG
    load_factor = 2

    def forecast_bytes(self, size: int, dim: int, kind: Kind, parameters: Mapping[str, Any]) -> int:
        """See `IndexEngine.forecast_bytes`."""
        if kind == "brute_force":
            return 4 * dim * size
        return size * (_LEAF_BYTES + ceil_div(dim, parameters["dimensions_per_block"]))

    def build_files(
        self,
        vectors: VectorFile,
        distance: Distance,
        kind: Kind,
        parameters: Mapping[str, Any],
        directory: Path,
        run: Run = run_here,
    ) -> None:
        """See `IndexEngine.build_files`."""
        sampled = sample_size(parameters.get("num_leaves", 0))
        if len(vectors) <= sampled:
            write_trained(vectors[:], distance, kind, parameters, directory)
            return

        sample = vectors[:1]  # an exact index trains nothing: this writes its other files
        if kind != "brute_force":
            sample = read_sample(vectors, sampled)
        write_trained(sample, distance, kind, parameters, directory)
        del sample
        return_freed_memory()
        if kind == "brute_force":
            blocks = (
                prepared(vectors[first : first + count], distance, first)
                for first, count in row_blocks(vectors)
            )
            write_array(directory / DATASET, blocks, len(vectors))
        else:
            encode_all(
                encode_block, (CODES, TOKENS), vectors, distance, directory, run, _ENCODED_BLOCKS
            )

    def load(
        self, directory: Path, distance: Distance, vectors: Vectors, where: str = ""
    ) -> CandidateIndex:
        """See `IndexEngine.load`; holds the GIL meanwhile."""
        return ScannIndex.load(directory, distance, vectors, where)

    def set_search_parameters(
        self, directory: Path, leaves_to_search: int | None = None, reorder: int | None = None
    ) -> None:
        """See `IndexEngine.set_search_parameters`."""
        set_search_parameters(directory, leaves_to_search, reorder)

    def match_stored(
        self,
        directory: Path,
        vectors: VectorFile,
        rows: Positions,
        distance: Distance,
        kind: Kind,
    ) -> NDArray[np.bool_]:
        """See `IndexEngine.match_stored`."""
        block = prepared(vectors[rows], distance)
        if kind == "brute_force":
            stored = stored_rows(directory / DATASET, rows)
            is_near: NDArray[np.bool_] = np.isclose(stored, block, rtol=_ROUNDING, atol=0).all(
                axis=1
            )
            return is_near

        is_same = np.ones(rows.size, bool)
        with tempfile.TemporaryDirectory(prefix="codes-") as temporary:
            np.save(Path(temporary) / DATASET, block)
            encode(directory, Path(temporary))
            for name in (TOKENS, CODES):
                stored = stored_rows(directory / name, rows)
                encoded = np.load(Path(temporary) / name, allow_pickle=False)
                is_same &= (stored == encoded).reshape(rows.size, -1).all(axis=1)
        return is_same


def encode_block(task: EncodeTask) -> None:
    """Writes the leaves and codes of some vectors.

    Raises:
      InvalidIndex: ScaNN cannot encode them.
    """
    block = task.vectors[task.first : task.first + task.count]
    block = prepared(block, task.distance, task.first)
    directory = Path(task.directory)
    directory.mkdir()
    np.save(directory / DATASET, block)
    del block
    encode(Path(task.trained), directory)
    (directory / DATASET).unlink()
    return_freed_memory()
