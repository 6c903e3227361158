"""Candidate vectors -> the codes that filtered searches compare."""

from __future__ import annotations

from pathlib import Path

from bundle.format import paths
from bundle.format.indexes import Codes
from bundle.format.manifest import Distance
from runtime.codes import CodeBook
from runtime.index_files import SAMPLE_ROWS, read_sample
from runtime.vectors import VectorFile


def write_codes(base: Path, name: str, vectors: VectorFile, distance: Distance) -> None:
    """Writes the codes of an index's vectors, in memory that does not depend on how many there are.

    Args:
      base: The directory of the bundle that is being written.
      name: The name of the index.
      vectors: The vectors of its candidates.
      distance: The distance of the index.

    Raises:
      OSError: The codes cannot be written.
    """
    entry = Codes.of(name)
    (base / paths.index_codes(name)).mkdir(parents=True, exist_ok=True)
    # The vectors may not fit into memory: a sample trains the codebook, blocks are encoded.
    sample = read_sample(vectors, min(SAMPLE_ROWS, len(vectors)))
    book = CodeBook.train(sample, distance)
    book.write(base / entry.codebook)
    with (base / entry.file).open("wb") as file:
        for first in range(0, len(vectors), vectors.block_rows):
            block = vectors[first : first + vectors.block_rows]
            file.write(book.encode(block).data)
