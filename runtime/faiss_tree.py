"""faiss: trees and their files, and exact search beside them. It is imported where an index is of
faiss.

A tree is an inverted file: leaves by k-means, and in each the residuals of its vectors as codes of
half a byte, 32 of which faiss compares at a time with tables of a query in the processor's
registers. The files are arrays of NumPy, of which faiss's own index is made when it is loaded:
`faiss.read_index` takes sizes from a file as they are, so a damaged one may end the process.

Source: faiss 1.15, `IndexIVFPQFastScan`;
https://github.com/facebookresearch/faiss/wiki/Fast-accumulation-of-PQ-and-AQ-codes-(FastScan).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from bundle.arithmetic import ceil_div
from bundle.format.fields import Positive, StrictModel
from bundle.format.manifest import Distance
from runtime.candidate_index import CandidateIndex, Kind, check_query
from runtime.errors import IndexUnreadable
from runtime.exact import ExactIndex
from runtime.vectors import find_unsearchable, zero_padded

Vectors = NDArray[np.float32]
Codes = NDArray[np.uint8]
Leaves = NDArray[np.uint32]

CONFIG = "config.json"
"""The file of the parameters of an index, those of its searches included."""
LEAVES = "leaves.npy"
"""The file of the leaf of each vector, [size] uint32."""
CODES = "codes.npy"
"""The file of the quantized residual of each vector, [size, bytes] uint8."""
_CENTROIDS = "centroids.npy"
_CODE_BOOK = "codebook.npy"

# faiss compares codes of 4 bits in registers, and no others.
_CODE_BITS = 4
_CODES = 1 << _CODE_BITS
_ROUNDS = 10
"""How often centroids of leaves move to the means of their vectors."""


class Config(StrictModel):
    """What the arrays do not say of an index.

    Attributes:
      size: The number of vectors.
      leaves_to_search: The leaves of a tree that searches visit; None: the index is no tree.
      reorder: The candidates of a tree whose exact score they compute; None likewise.
    """

    kind: Kind
    distance: Distance
    size: Positive
    dim: Positive
    leaves_to_search: Positive | None = None
    reorder: Positive | None = None

    @classmethod
    def read(cls, directory: Path, where: str) -> Config:
        """Reads the parameters that `write` wrote.

        Raises:
          IndexUnreadable: The file is missing or damaged.
        """
        try:
            return cls.model_validate_json((directory / CONFIG).read_bytes())
        except (OSError, ValidationError) as problem:
            raise IndexUnreadable(
                f"{where} has no readable {CONFIG}; export the bundle again"
            ) from problem

    def write(self, directory: Path) -> None:
        """Writes the parameters.

        Raises:
          OSError: The file cannot be written.
        """
        content = self.model_dump_json(indent=2, exclude_none=True)
        (directory / CONFIG).write_text(content + "\n")


class Quantizer(NamedTuple):
    """The centroids of leaves, and those of the residuals in them.

    Attributes:
      centroids: [leaves, dim] float32.
      code_book: [blocks, 16, dims of a block] float32; the last block may end in dims of zeros.
    """

    centroids: Vectors
    code_book: Vectors

    @classmethod
    def train(cls, sample: Vectors, leaves: int, dims_per_block: int) -> Quantizer:
        """Finds centroids, the same for the same sample.

        Args:
          sample: [n, dim] float32, which can be searched; n at least `leaves`.
          leaves: The number of leaves.
          dims_per_block: The number of dims that share a code.
        """
        # Otherwise OpenMP starts a thread per core, and the sums depend on their number.
        faiss.omp_set_num_threads(1)
        dim = sample.shape[1]
        parameters = faiss.ClusteringParameters()
        parameters.niter = _ROUNDS
        parameters.min_points_per_centroid = 1  # otherwise faiss warns of a small sample
        clustering = faiss.Clustering(dim, leaves, parameters)
        clustering.train(np.ascontiguousarray(sample, np.float32), faiss.IndexFlatL2(dim))
        centroids = faiss.vector_to_array(clustering.centroids).reshape(leaves, dim)

        blocks = ceil_div(dim, dims_per_block)
        quantizer = faiss.ProductQuantizer(blocks * dims_per_block, blocks, _CODE_BITS)
        quantizer.cp.min_points_per_centroid = 1
        residuals = sample - centroids[_nearest(centroids, sample)]
        # faiss finds no more centroids than vectors, so that a small sample is repeated.
        residuals = np.resize(residuals, (max(_CODES, len(residuals)), dim))
        quantizer.train(zero_padded(residuals, blocks * dims_per_block))
        code_book = faiss.vector_to_array(quantizer.centroids)
        return cls(centroids, code_book.reshape(blocks, _CODES, dims_per_block))

    @classmethod
    def read(cls, directory: Path, dim: int, where: str) -> Quantizer:
        """Reads the centroids that `write` wrote.

        Raises:
          IndexUnreadable: A file is missing or damaged.
        """
        centroids = read_array(directory / _CENTROIDS, np.float32, (None, dim), where)
        code_book = read_array(directory / _CODE_BOOK, np.float32, (None, _CODES, None), where)
        blocks, _, dims_per_block = code_book.shape
        if blocks != ceil_div(dim, dims_per_block):
            raise IndexUnreadable(
                f"{where} has codes of {blocks} blocks of {dims_per_block} dims; vectors have {dim}"
            )
        for name, values in ((_CENTROIDS, centroids), (_CODE_BOOK, code_book)):
            unsearchable = find_unsearchable(values.reshape(-1, values.shape[-1]))
            if unsearchable is not None:
                raise IndexUnreadable(f"{where}: {name} holds {unsearchable.value}")
        return cls(np.array(centroids), np.array(code_book))

    def write(self, directory: Path) -> None:
        """Writes the centroids.

        Raises:
          OSError: A file cannot be written.
        """
        np.save(directory / _CENTROIDS, self.centroids)
        np.save(directory / _CODE_BOOK, self.code_book)

    def encode(self, vectors: Vectors) -> tuple[Leaves, Codes]:
        """Returns the leaf of each of [n, dim] vectors, [n] uint32, and the code of its residual,
        [n, bytes] uint8.
        """
        faiss.omp_set_num_threads(1)
        leaves = _nearest(self.centroids, vectors)
        quantizer = self._product_quantizer()
        residuals = zero_padded(vectors - self.centroids[leaves], quantizer.d)
        return leaves.astype(np.uint32), quantizer.compute_codes(residuals)

    def inverted_file(self, distance: Distance, leaves: Leaves, codes: Codes) -> Any:
        """Returns an index of faiss with the codes of all vectors, by their leaves."""
        quantizer = self._product_quantizer()
        centroids = zero_padded(self.centroids, quantizer.d)
        metric = faiss.METRIC_INNER_PRODUCT
        by_centroid = faiss.IndexFlatIP(quantizer.d)
        if distance == "squared_l2":
            metric = faiss.METRIC_L2
            by_centroid = faiss.IndexFlatL2(quantizer.d)
        by_centroid.add(centroids)

        # faiss packs the codes of an index that it has not filled itself, if all members are set.
        unpacked = faiss.IndexIVFPQ(
            by_centroid, quantizer.d, len(centroids), quantizer.M, _CODE_BITS, metric
        )
        unpacked.pq = quantizer
        unpacked.is_trained = True
        unpacked.ntotal = len(leaves)
        order = leaves.argsort(kind="stable")
        ends = leaves[order].searchsorted(np.arange(len(centroids) + 1))
        for leaf in range(len(centroids)):
            positions = order[ends[leaf] : ends[leaf + 1]]
            leaf_codes = codes.take(positions, axis=0)
            unpacked.invlists.add_entries(
                leaf, positions.size, faiss.swig_ptr(positions), faiss.swig_ptr(leaf_codes)
            )
        packed = faiss.IndexIVFPQFastScan(unpacked)
        # The packed index refers to the other one, whose codes are no longer needed.
        unpacked.replace_invlists(None, False)
        if metric == faiss.METRIC_L2:
            # The same for all queries: without it, each search would compute it for its leaves.
            packed.precompute_table()
        return packed

    def _product_quantizer(self) -> Any:
        blocks, _, dims_per_block = self.code_book.shape
        quantizer = faiss.ProductQuantizer(blocks * dims_per_block, blocks, _CODE_BITS)
        faiss.copy_array_to_vector(self.code_book.ravel(), quantizer.centroids)
        return quantizer


class FaissTree(CandidateIndex):
    """Nearest candidates by the codes in the leaves nearest to a query."""

    def __init__(
        self,
        inverted_file: Any,
        distance: Distance,
        vectors: Vectors,
        leaves_to_search: int,
        reorder: int,
    ) -> None:
        """Wraps an index of faiss; use `load`.

        Args:
          inverted_file: The faiss index: the codes of the vectors in its leaves.
          distance, vectors, reorder: As for CandidateIndex.
          leaves_to_search: The number of leaves that a search visits if it does not say.
        """
        super().__init__(distance, vectors, reorder)
        self._inverted_file = inverted_file
        self._leaves_to_search = leaves_to_search
        self._sign = np.float32(1)
        if distance == "squared_l2":
            self._sign = np.float32(-1)

    @classmethod
    def load(cls, directory: Path, config: Config, vectors: Vectors, where: str) -> FaissTree:
        """Loads a tree; see `IndexEngine.load`.

        Args:
          directory: The directory of its files.
          config: Its parameters.
          vectors: [size, dim] float32.
          where: What errors call it.

        Raises:
          IndexUnreadable: See `IndexEngine.load`.
        """
        size, dim = vectors.shape
        quantizer = Quantizer.read(directory, dim, where)
        leaves = read_array(directory / LEAVES, np.uint32, (size,), where)
        code_bytes = ceil_div(len(quantizer.code_book), 2)
        codes = read_array(directory / CODES, np.uint8, (size, code_bytes), where)
        # faiss would write beyond its lists.
        if leaves.max() >= len(quantizer.centroids):
            raise IndexUnreadable(
                f"{where} has a vector in leaf {leaves.max()} of {len(quantizer.centroids)}"
            )
        if config.leaves_to_search is None or config.reorder is None:
            raise IndexUnreadable(f"{where} has no parameters of searches in {CONFIG}")
        inverted_file = quantizer.inverted_file(config.distance, leaves, codes)
        return cls(inverted_file, config.distance, vectors, config.leaves_to_search, config.reorder)

    def scored_candidates(
        self, query: Vectors, pool: int, leaves_to_search: int | None = None
    ) -> tuple[NDArray[np.uint32], Vectors]:
        """See `CandidateIndex.scored_candidates`."""
        check_query(query)
        # Otherwise OpenMP starts a thread per core.
        faiss.omp_set_num_threads(1)
        leaves = min(leaves_to_search or self._leaves_to_search, self._inverted_file.nlist)
        parameters = faiss.SearchParametersIVF(nprobe=leaves)
        padded = zero_padded(query[np.newaxis], self._inverted_file.d)
        count = min(pool, self.size)
        (distances,), (positions,) = self._inverted_file.search(padded, count, params=parameters)
        # faiss fills the end of a short list with -1.
        found_count = int(np.count_nonzero(positions >= 0))
        positions = positions[:found_count]
        scores = self._sign * distances[:found_count]
        if found_count < count:
            rest, rest_scores = self._left_out(padded, leaves, positions)
            positions = np.concatenate([positions, rest[: count - found_count]])
            scores = np.concatenate([scores, rest_scores[: count - found_count]])
            np.minimum.accumulate(scores, out=scores)
        return positions.astype(np.uint32), scores

    def _left_out(
        self, query: Vectors, leaves: int, found_positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], Vectors]:
        """Returns those in the leaves nearest to a query that faiss does not find.

        It leaves out what has the largest distance that its tables express: hardly any vectors, but
        all of them where tables distinguish none, as for a query of zeros.

        Args:
          query: [1, dim] float32.
          leaves: The number of leaves.
          found_positions: [m] positions that were found.

        Returns:
          [r] positions and their scores by the centroids of their leaves, best first.
        """
        inverted_file = self._inverted_file
        (distances,), (nearest,) = inverted_file.quantizer.search(query, leaves)
        lists = inverted_file.invlists
        members = [
            faiss.rev_swig_ptr(lists.get_ids(leaf), lists.list_size(leaf)).copy()
            for leaf in nearest.tolist()
        ]
        sizes = [positions.size for positions in members]
        positions = np.concatenate(members)
        is_left_out = np.isin(positions, found_positions, invert=True)
        scores = (self._sign * distances).repeat(sizes)
        return positions[is_left_out], scores[is_left_out]


class ExactCandidates(CandidateIndex):
    """Nearest candidates by exact scores of all vectors, in their file."""

    def __init__(self, distance: Distance, vectors: Vectors) -> None:
        """Takes [size, dim] float32."""
        super().__init__(distance, vectors, reorder=0)
        self._exact = ExactIndex(vectors, distance)

    def scored_candidates(
        self,
        query: Vectors,
        pool: int,
        leaves_to_search: int | None = None,  # noqa: ARG002 - there are no leaves
    ) -> tuple[NDArray[np.uint32], Vectors]:
        """See `CandidateIndex.scored_candidates`."""
        count = min(pool, self.size)
        (positions,), (scores,) = self._exact.search(query[np.newaxis], count)
        return positions.astype(np.uint32), scores


def read_array(
    path: Path, dtype: type[np.generic], shape: tuple[int | None, ...], where: str
) -> NDArray[Any]:
    """Returns an array of a file, mapped.

    Args:
      path: The file.
      dtype: The dtype of the array.
      shape: The shape; None: any size of that axis, at least 1.
      where: What errors call the index.

    Returns:
      An array of that dtype and shape, in C order, read-only.

    Raises:
      IndexUnreadable: The file is missing or damaged, or has another array.
    """
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError) as problem:
        raise IndexUnreadable(f"{where}: {path.name} cannot be read: {problem}") from problem
    has_shape = array.ndim == len(shape) and all(
        size == (expected or max(1, size))
        for size, expected in zip(array.shape, shape, strict=True)
    )
    if array.dtype != dtype or not has_shape or not array.flags.c_contiguous:
        raise IndexUnreadable(
            f"{where}: {path.name} has {array.dtype} of shape {list(array.shape)}; "
            f"{np.dtype(dtype)} of shape {list(shape)} was expected (None: any size)"
        )
    # As a plain array, which is read faster than a memmap.
    return np.asarray(array)


def _nearest(centroids: Vectors, vectors: Vectors) -> NDArray[np.int64]:
    """Returns the numbers of the centroids nearest to [n, dim] vectors, [n]."""
    index = faiss.IndexFlatL2(centroids.shape[1])
    index.add(np.ascontiguousarray(centroids))
    _, nearest = index.search(np.ascontiguousarray(vectors, np.float32), 1)
    numbers: NDArray[np.int64] = nearest[:, 0]
    return numbers
