"""The files of an index over more vectors than fit into memory: a sample of them trains it, and all
are encoded block by block.

A vector's leaf and code depend on no other vector, so they are computed by blocks, and joined: one
build over all vectors gives the same with the same centroids and code book.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import Distance
from runtime.errors import IndexUnreadable
from runtime.vectors import VectorFile

Vectors = NDArray[np.float32]
Positions = NDArray[np.int64]
SAMPLE_ROWS = 100_000
"""The number of vectors that code books are trained on."""
SAMPLE_ROWS_PER_LEAF = 100
"""The number of vectors for each leaf that centroids are trained on, if these are more."""


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


Encode = Callable[[EncodeTask], None]
"""Writes the leaves and codes of some vectors. A function of a module, which processes import."""
Run = Callable[[Encode, Sequence[EncodeTask]], Any]
"""Runs a function on each task, anywhere on this machine."""


def run_here(encode: Encode, tasks: Sequence[EncodeTask]) -> None:
    """Runs one task after another."""
    for task in tasks:
        encode(task)


def sample_size(leaves: int) -> int:
    """Returns the maximum number of vectors that an index of some leaves is trained on."""
    return max(SAMPLE_ROWS, SAMPLE_ROWS_PER_LEAF * leaves)


def read_sample(vectors: VectorFile, size: int) -> Vectors:
    """Reads `size` of the vectors, the same ones in every run, in the order of their rows.

    Returns:
      [size, dim] float32.
    """
    rows = np.sort(np.random.default_rng(0).choice(len(vectors), size, replace=False))
    sample = np.empty((size, vectors.shape[1]), np.float32)
    for first, count in row_blocks(vectors):
        start, stop = np.searchsorted(rows, [first, first + count])
        block = vectors[first : first + count]
        sample[start:stop] = block[rows[start:stop] - first]
    return sample


def row_blocks(vectors: VectorFile, joined: int = 1) -> Iterator[tuple[int, int]]:
    """Yields the first row and the number of rows of each block, several of a file's as one."""
    rows = vectors.block_rows * joined
    for first in range(0, len(vectors), rows):
        yield first, min(rows, len(vectors) - first)


def encode_all(
    encode: Encode,
    names: Sequence[str],
    vectors: VectorFile,
    distance: Distance,
    directory: Path,
    run: Run,
    joined: int = 1,
) -> None:
    """Replaces the leaves and codes of the sample in an index by those of all vectors.

    Args:
      encode: Writes the leaves and codes of a task.
      names: The files with the leaves and codes, arrays of NumPy.
      vectors: The vectors.
      distance: The distance of the index.
      directory: The directory of the index.
      run: Runs the tasks.
      joined: The number of blocks of the file of vectors in a task.

    Raises:
      InvalidIndex: A vector cannot be encoded.
      OSError: The files cannot be written.
    """
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".codes-") as temporary:
        tasks = [
            EncodeTask(str(directory), vectors, first, count, distance, f"{temporary}/{first}")
            for first, count in row_blocks(vectors, joined)
        ]
        run(encode, tasks)
        for name in names:
            parts = (
                np.load(Path(task.directory) / name, mmap_mode="r", allow_pickle=False)
                for task in tasks
            )
            write_array(Path(temporary) / name, parts, len(vectors))
        # All are whole before the first one is replaced: an error leaves the sample index.
        for name in names:
            (Path(temporary) / name).replace(directory / name)


def write_array(path: Path, parts: Iterable[NDArray[Any]], size: int) -> None:
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


def stored_rows(path: Path, rows: Positions) -> NDArray[Any]:
    """Reads some rows of an array in a file of an index.

    Returns:
      [m, ...] of the stored dtype for [m] rows, in their order.

    Raises:
      IndexUnreadable: The file is damaged.
    """
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
        return np.asarray(stored[rows])
    except (ValueError, IndexError, OSError) as problem:
        raise IndexUnreadable(f"{path.name} cannot be read: {problem}") from problem
