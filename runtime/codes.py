"""Codes of vectors: half a byte for one or two dims, by which the nearest of some vectors are found
without a tree.

faiss compares 32 codes at a time with tables of a query in the processor's registers. Of two dims a
code, it reads 1/16 of the bytes of the vectors, and so finds what is nearest among the matches of a
filter several times as fast as exact scores do. To import faiss costs 0.1 s and 15 MB, so this
module is imported where an index has codes.

Source: faiss 1.15, `IndexPQFastScan`; https://github.com/facebookresearch/faiss/wiki/Fast-accumulation-of-PQ-and-AQ-codes-(FastScan).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from bundle import native
from bundle.arithmetic import ceil_div
from bundle.format.manifest import Distance
from runtime.errors import IndexUnreadable
from runtime.exact import prepared
from runtime.vectors import zero_padded

Vectors = NDArray[np.float32]
Codes = NDArray[np.uint8]

# faiss compares codes of 4 bits in registers, and no others.
_CODE_BITS = 4
_CENTROIDS = 1 << _CODE_BITS
_DIMS_PER_CODE = 2


class CodeBook:
    """Centroids, of which 16 stand for each dim of a vector, or for every two. Safe for any thread.

    Attributes:
      code_bytes: The size of one vector's codes.
    """

    def __init__(self, centroids: Vectors, distance: Distance) -> None:
        """Takes centroids.

        Args:
          centroids: [dim, 16, 1] or [pairs, 16, 2] float32; the last pair of an odd dim ends in a
            dim of zeros.
          distance: The distance of the index; cosine encodes vectors of length 1.
        """
        codes, _, dims_per_code = centroids.shape
        self.centroids = centroids
        self.distance = distance
        self._metric = faiss.METRIC_INNER_PRODUCT
        if distance == "squared_l2":
            self._metric = faiss.METRIC_L2
        self._quantizer = faiss.ProductQuantizer(codes * dims_per_code, codes, _CODE_BITS)
        faiss.copy_array_to_vector(centroids.ravel(), self._quantizer.centroids)
        self.code_bytes: int = self._quantizer.code_size

    @classmethod
    def train(cls, sample: Vectors, distance: Distance) -> CodeBook:
        """Finds centroids of every two dims, the same for the same sample.

        Args:
          sample: [n, dim] float32; n at least 1.
          distance: The distance of the index.

        Raises:
          InvalidIndex: A vector cannot be searched.
        """
        # Otherwise OpenMP starts a thread per core, and the sums depend on their number.
        faiss.omp_set_num_threads(1)
        dim = sample.shape[1]
        pairs = _pairs(dim)
        sample = prepared(sample, distance)
        # faiss finds no more centroids than vectors, so that a small sample is repeated.
        sample = np.resize(sample, (max(_CENTROIDS, len(sample)), dim))
        quantizer = faiss.ProductQuantizer(pairs * _DIMS_PER_CODE, pairs, _CODE_BITS)
        quantizer.cp.min_points_per_centroid = 1  # otherwise faiss warns of a small sample
        quantizer.train(zero_padded(sample, pairs * _DIMS_PER_CODE))
        centroids = faiss.vector_to_array(quantizer.centroids)
        return cls(centroids.reshape(pairs, _CENTROIDS, _DIMS_PER_CODE), distance)

    @classmethod
    def load(cls, path: Path, dim: int, distance: Distance) -> CodeBook:
        """Reads the centroids that `write` wrote.

        Raises:
          IndexUnreadable: The file has another size, or cannot be read.
        """
        values = _pairs(dim) * _CENTROIDS * _DIMS_PER_CODE
        _check_size(path, 4 * values)
        centroids = np.fromfile(path, "<f4").astype(np.float32)
        return cls(centroids.reshape(-1, _CENTROIDS, _DIMS_PER_CODE), distance)

    def write(self, path: Path) -> None:
        """Writes the centroids: raw little-endian float32, those of a pair of dims after another.

        Raises:
          OSError: The file cannot be written.
        """
        self.centroids.astype("<f4").tofile(path)

    def encode(self, vectors: Vectors) -> Codes:
        """Returns [n, code_bytes] uint8: the codes of [n, dim] float32 vectors.

        A vector's codes depend on no other vector.

        Raises:
          InvalidIndex: A vector cannot be searched.
        """
        faiss.omp_set_num_threads(1)
        vectors = prepared(vectors, self.distance)
        codes: Codes = self._quantizer.compute_codes(zero_padded(vectors, self._quantizer.d))
        return codes

    def pack(self, codes: Codes, positions: NDArray[Any] | None = None) -> PackedCodes:
        """Returns codes in the order in which they are compared.

        Args:
          codes: [size, code_bytes] uint8.
          positions: [m] integers below size, of those that are taken; None: all.
        """
        if positions is None:
            positions = np.arange(len(codes))
        positions = np.ascontiguousarray(positions, np.uint32)
        quantizer = self._quantizer
        if native.pack_codes is None or not _is_packed_alike():
            taken = codes.take(positions, axis=0, mode="clip")
            return PackedCodes(_packed_by_faiss(quantizer, taken, self._metric))
        # Compiled code takes a fifth of the time.
        index = faiss.IndexPQFastScan(quantizer.d, quantizer.M, _CODE_BITS, self._metric)
        index.pq = quantizer
        index.is_trained = True
        index.ntotal = positions.size
        index.ntotal2 = ceil_div(positions.size, index.bbs) * index.bbs
        index.codes.resize(index.ntotal2 * self.code_bytes)
        if positions.size:  # no memory cannot be wrapped
            memory = faiss.rev_swig_ptr(index.codes.get(), index.codes.size())
            native.pack_codes(codes, positions, memory)
        return PackedCodes(index)


def _packed_by_faiss(quantizer: Any, codes: Codes, metric: int) -> Any:
    """Returns an index of [n, code_bytes] uint8 codes that faiss has packed."""
    # faiss packs the codes of an index that it has not filled itself, if all members are set.
    unpacked = faiss.IndexPQ(quantizer.d, quantizer.M, _CODE_BITS, metric)
    unpacked.pq = quantizer
    unpacked.is_trained = True
    unpacked.ntotal = len(codes)
    faiss.copy_array_to_vector(codes.ravel(), unpacked.codes)
    return faiss.IndexPQFastScan(unpacked)


@cache
def _is_packed_alike() -> bool:
    """Returns whether compiled code packs codes as the installed release of faiss does, by an
    example of two blocks.
    """
    assert native.pack_codes is not None  # noqa: S101 - the caller looks first
    quantizer = faiss.ProductQuantizer(12, 6, _CODE_BITS)
    codes = np.arange(40 * quantizer.code_size, dtype=np.uint8).reshape(40, -1)
    by_faiss = _packed_by_faiss(quantizer, codes, faiss.METRIC_L2)
    expected = faiss.AlignedTable_to_array(by_faiss.codes)
    if expected.size != 64 * quantizer.code_size:
        return False
    packed = np.empty_like(expected)
    native.pack_codes(codes, np.arange(40, dtype=np.uint32), packed)
    return np.array_equal(packed, expected)


class PackedCodes:
    """Codes of some vectors, for repeated searches. A search releases the GIL and changes nothing:
    any number of threads may search.

    Attributes:
      size: The number of vectors.
      bytes: The memory that the codes take.
    """

    def __init__(self, index: Any) -> None:
        """Wraps an index of faiss; use `CodeBook.pack`."""
        self._index = index
        self._sign = np.float32(1)
        if index.metric_type == faiss.METRIC_L2:
            self._sign = np.float32(-1)
        self.size: int = index.ntotal
        self.bytes: int = index.codes.size()

    def nearest(self, queries: Vectors, count: int) -> list[NDArray[np.int64]]:
        """Finds the vectors that seem nearest to each query.

        Args:
          queries: [n, dim] float32, finite; for cosine, of length 1. What is found for one does not
            depend on the others, but takes about half of the time beside them.
          count: The number of vectors to find. Fewer may be found where most vectors have the
            largest distance that codes can express.

        Returns:
          [m] int64 positions among the vectors for each query, best first by their codes.
        """
        return [positions for positions, _ in self.scored(queries, count)]

    def scored(self, queries: Vectors, count: int) -> list[tuple[NDArray[np.int64], Vectors]]:
        """Returns what `nearest` does, with [m] float32 scores by the codes; larger is better."""
        # Otherwise OpenMP starts a thread per core.
        faiss.omp_set_num_threads(1)
        padded = zero_padded(queries, self._index.d)
        distances, positions = self._index.search(padded, min(count, self.size))
        # faiss fills the end of a short list with -1.
        sizes = np.count_nonzero(positions >= 0, axis=1).tolist()
        scores = self._sign * distances
        return [
            (positions[number, :size], scores[number, :size]) for number, size in enumerate(sizes)
        ]


class VectorCodes:
    """The codes of an index's vectors, in their order, mapped from their file."""

    def __init__(self, book: CodeBook, codes: Codes) -> None:
        """Takes [size, code_bytes] uint8."""
        self.book = book
        self.codes = codes

    @classmethod
    def load(
        cls, codes: Path, codebook: Path, size: int, dim: int, distance: Distance
    ) -> VectorCodes:
        """Opens the codes of `size` vectors.

        Args:
          codes: The file of the codes, which stays mapped.
          codebook: The file of the centroids.
          size: The number of vectors.
          dim: The dim of the vectors.
          distance: The distance of the index.

        Raises:
          IndexUnreadable: A file has another size, or cannot be read.
        """
        book = CodeBook.load(codebook, dim, distance)
        _check_size(codes, size * book.code_bytes)
        mapped = np.memmap(codes, np.uint8, "r", shape=(size, book.code_bytes))
        # As a plain array, which is read faster than a memmap.
        return cls(book, np.asarray(mapped))

    def part(self, first: int, end: int) -> VectorCodes:
        """Returns the codes of a range of the vectors."""
        return VectorCodes(self.book, self.codes[first:end])

    def pack(self, positions: NDArray[Any]) -> PackedCodes:
        """Returns the codes of the vectors at [m] positions, for searches."""
        return self.book.pack(self.codes, positions)


def _pairs(dim: int) -> int:
    """Returns how many pairs of dims have a code; the last one may be half a pair."""
    return (dim + 1) // _DIMS_PER_CODE


def _check_size(path: Path, expected: int) -> None:
    try:
        size = path.stat().st_size
    except OSError as problem:
        raise IndexUnreadable(f"{path.name} cannot be read: {problem}") from problem
    if size != expected:
        raise IndexUnreadable(f"{path.name} has {size} bytes; {expected} were expected")
