"""Builds ScaNN's files from a file of candidate vectors, in memory that does not depend on the
number of vectors.

ScaNN builds over vectors in memory and holds them up to three times meanwhile: as it gets them, its
own copy, and their residuals, of which it then trains on a sample. Here it gets only that sample. A
vector's leaf and code depend on no other vector, so they are computed block by block and joined:
one build over all vectors gives the same with the same centroids and code book.

Source: scann 1.4.2, `scann/scann_ops/cc/scann.cc` (Initialize, LoadArtifacts, Serialize).
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import Distance
from runtime.errors import IndexUnreadable
from runtime.exact import prepared
from runtime.scann import CODES, DATASET, TOKENS, Kind, ScannIndex, encode
from runtime.vectors import VectorFile

Vectors = NDArray[np.float32]
Positions = NDArray[np.int64]
SAMPLE_ROWS = 100_000
"""The number of vectors that code books are trained on."""
SAMPLE_ROWS_PER_LEAF = 100
"""The number of vectors for each leaf that centroids are trained on, if these are more."""
_ENCODED_BLOCKS = 4
"""The number of blocks of a file that are encoded at a time: writing an index costs ScaNN seconds
and 0.3 GB, however small it is.
"""

_ROUNDING = 1e-5
"""A bound of the relative difference between vectors that two machines scaled to length 1."""


@dataclass(frozen=True)
class EncodeTask:
    """Some vectors whose leaves and codes are to be computed.

    Attributes:
      trained: The directory of the index over the sample.
      vectors: The file of all vectors.
      first: The row of the first vector.
      count: The number of vectors.
      distance: The distance of the index.
      directory: The directory for leaves and codes.
    """

    trained: str
    vectors: VectorFile
    first: int
    count: int
    distance: Distance
    directory: str


Run = Callable[[Callable[[EncodeTask], None], Sequence[EncodeTask]], Any]
"""Runs a function on each task, anywhere on this machine."""


def run_here(function: Callable[[EncodeTask], None], tasks: Sequence[EncodeTask]) -> None:
    """Runs one task after another."""
    for task in tasks:
        function(task)


def build_files(
    vectors: VectorFile,
    distance: Distance,
    kind: Kind,
    parameters: Mapping[str, Any],
    directory: Path,
    run: Run = run_here,
    threads: int = 0,
) -> None:
    """Trains an index and writes its files; the same vectors give the same sample.

    Args:
      vectors: The vectors, finite.
      distance: The distance, see `ScannIndex.build`.
      kind: The kind of the index, see `ScannIndex.build`.
      parameters: The parameters of the index, see `ScannIndex.build`.
      directory: The directory for the files, which is created.
      run: Runs the encoding of blocks of vectors, perhaps several at a time.
      threads: The number of threads that train; 0: ScaNN's choice.

    Raises:
      InvalidIndex: ScaNN cannot build an index from these vectors and parameters.
      OSError: The files cannot be written.
    """
    size = len(vectors)
    sample_size = max(SAMPLE_ROWS, SAMPLE_ROWS_PER_LEAF * parameters.get("num_leaves", 0))
    if size <= sample_size:
        ScannIndex.build(vectors[:], distance, kind, parameters, threads).write(directory)
        return

    sample = vectors[:1]  # an exact index trains nothing: this writes its other files
    if kind != "brute_force":
        sample = read_sample(vectors, sample_size)
    ScannIndex.build(sample, distance, kind, parameters, threads).write(directory)
    del sample
    _return_freed_memory()
    if kind == "brute_force":
        blocks = (
            prepared(vectors[first : first + count], distance, first)
            for first, count in _blocks(vectors)
        )
        _write_array(directory / DATASET, blocks, size)
    else:
        _encode_all(vectors, distance, directory, run)


def _encode_all(vectors: VectorFile, distance: Distance, directory: Path, run: Run) -> None:
    """Replaces the leaves and codes of the sample in an index by those of all vectors."""
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".codes-") as temporary:
        tasks = [
            EncodeTask(str(directory), vectors, first, count, distance, f"{temporary}/{first}")
            for first, count in _blocks(vectors, _ENCODED_BLOCKS)
        ]
        run(encode_block, tasks)
        for name in (CODES, TOKENS):
            parts = (
                np.load(Path(task.directory) / name, mmap_mode="r", allow_pickle=False)
                for task in tasks
            )
            _write_array(Path(temporary) / name, parts, len(vectors))
        # Both are whole before the first one is replaced: an error leaves the sample index.
        for name in (CODES, TOKENS):
            (Path(temporary) / name).replace(directory / name)


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
    _return_freed_memory()


def match_stored(
    directory: Path, vectors: VectorFile, rows: Positions, distance: Distance, kind: Kind
) -> NDArray[np.bool_]:
    """Returns which vectors the files of an index hold at their own positions.

    A brute force index stores the vectors themselves. A tree stores the leaf and the code of each,
    which depend on no other vector: both are computed again, with the tree's own centroids and code
    book. Unlike the recall of a search, this distinguishes a right index from a wrong one whatever
    the vectors are, and however few of them.

    Args:
      directory: The directory of the index's files.
      vectors: The vectors that the index was built from.
      rows: [n] positions of the vectors that are compared.
      distance: The distance of the index.
      kind: The kind of the index.

    Returns:
      [n] whether the index holds the vector of `rows`.

    Raises:
      IndexUnreadable: A file is damaged.
      InvalidIndex: ScaNN cannot encode vectors with it.
    """
    block = prepared(vectors[rows], distance)
    if kind == "brute_force":
        stored = _stored_rows(directory / DATASET, rows)
        is_near: NDArray[np.bool_] = np.isclose(stored, block, rtol=_ROUNDING, atol=0).all(axis=1)
        return is_near

    is_same = np.ones(rows.size, bool)
    with tempfile.TemporaryDirectory(prefix="codes-") as temporary:
        np.save(Path(temporary) / DATASET, block)
        encode(directory, Path(temporary))
        for name in (TOKENS, CODES):
            stored = _stored_rows(directory / name, rows)
            encoded = np.load(Path(temporary) / name, allow_pickle=False)
            is_same &= (stored == encoded).reshape(rows.size, -1).all(axis=1)
    return is_same


def _stored_rows(path: Path, rows: Positions) -> NDArray[Any]:
    """Reads some rows of an array in a file of ScaNN."""
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
        return np.asarray(stored[rows])
    except (ValueError, IndexError, OSError) as problem:
        raise IndexUnreadable(f"{path.name} cannot be read: {problem}") from problem


def _return_freed_memory() -> None:
    """Returns memory that ScaNN freed to the system: the C library keeps it in its heaps."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def read_sample(vectors: VectorFile, size: int) -> Vectors:
    """Reads `size` of the vectors, the same ones in every run, in the order of their rows."""
    rows = np.sort(np.random.default_rng(0).choice(len(vectors), size, replace=False))
    sample = np.empty((size, vectors.shape[1]), np.float32)
    for first, count in _blocks(vectors):
        start, stop = np.searchsorted(rows, [first, first + count])
        block = vectors[first : first + count]
        sample[start:stop] = block[rows[start:stop] - first]
    return sample


def _blocks(vectors: VectorFile, joined: int = 1) -> Iterator[tuple[int, int]]:
    """Yields the first row and the number of rows of each block, several of a file's as one."""
    rows = vectors.block_rows * joined
    for first in range(0, len(vectors), rows):
        yield first, min(rows, len(vectors) - first)


def _write_array(path: Path, parts: Iterator[NDArray[Any]], size: int) -> None:
    """Writes one array of `size` rows from its parts, as `numpy.save` would."""
    with path.open("wb") as file:
        for number, part in enumerate(parts):
            if not number:
                header = {
                    "descr": part.dtype.str,
                    "fortran_order": False,
                    "shape": (size, *part.shape[1:]),
                }
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(part).data)
