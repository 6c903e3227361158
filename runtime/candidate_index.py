"""What export and service know of an index of candidates, whichever library searches it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import Distance
from runtime.errors import InvalidIndex, InvalidInput
from runtime.exact import check_queries, normalized, rank_exactly
from runtime.index_files import Run, run_here
from runtime.vectors import LENGTH_MAX, SEARCHABLE, VectorFile

Vectors = NDArray[np.float32]
Positions = NDArray[np.int64]
Kind = Literal["brute_force", "tree_ah"]

TREE_PARAMETERS = ("num_leaves", "leaves_to_search", "dimensions_per_block", "reorder")


class CandidateIndex(ABC):
    """An index that was loaded: finds the candidates nearest to a query. A search releases the GIL
    and changes nothing: any number of threads may search.

    The candidates are found by quantized vectors. Their scores are computed by `rank_exactly`, from
    the vectors in their file.

    Attributes:
      distance: The distance of the index.
      size: The number of candidates.
      dim: The dim of their vectors.
      reorder: The number of a tree's candidates whose exact score is computed; 0: the index is
        searched by brute force.
    """

    def __init__(self, distance: Distance, vectors: Vectors, reorder: int) -> None:
        """Takes the vectors that the index was built from, [size, dim] float32; they may be mapped
        from their file.
        """
        self.distance = distance
        self.size, self.dim = vectors.shape
        self.reorder = reorder
        self._vectors = np.asarray(vectors)

    def search(
        self,
        queries: Vectors,
        k: int,
        leaves_to_search: int | None = None,
        reorder: int | None = None,
    ) -> tuple[Positions, Vectors]:
        """Finds the k nearest candidates of each query.

        Args:
          queries: [n, dim] float32.
          k: The number of neighbors of each query.
          leaves_to_search: The leaves that this search visits; None: as written.
          reorder: The candidates whose exact score is computed, at least k; None: as written.

        Returns:
          [n, k] int64 positions and [n, k] float32 scores, larger is better, best first. If fewer
          are found, because k exceeds the index or the leaves searched have few candidates, the end
          is filled with -1 and -inf.

        Raises:
          InvalidInput: The queries have another shape or cannot be searched, or k is below 1.
        """
        check_queries(queries, self.dim, k)
        queries = np.ascontiguousarray(queries, np.float32)
        if self.distance == "cosine":
            queries = normalized(queries)
        count = min(k, self.size)
        pool = min(max(reorder or self.reorder, count), self.size)
        positions = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        # One by one: in a batch, the libraries add up in another order.
        for row, query in enumerate(queries):
            candidates = self.candidates(query, pool, leaves_to_search)
            nearest, best_scores = rank_exactly(
                self._vectors, query, candidates, count, self.distance
            )
            positions[row, : nearest.size] = nearest
            scores[row, : nearest.size] = best_scores
        return positions, scores

    def candidates(
        self, query: Vectors, pool: int, leaves_to_search: int | None = None
    ) -> NDArray[np.uint32]:
        """Finds the candidates of one query that seem nearest.

        Args:
          query: [dim] float32, finite; for cosine, of length 1.
          pool: The number of candidates; fewer are found if the leaves searched have fewer.
          leaves_to_search: The leaves that this search visits; None: as written.

        Returns:
          [m] uint32 positions, best first by quantized vectors.

        Raises:
          InvalidInput: The query cannot be searched.
        """
        return self.scored_candidates(query, pool, leaves_to_search)[0]

    @abstractmethod
    def scored_candidates(
        self, query: Vectors, pool: int, leaves_to_search: int | None = None
    ) -> tuple[NDArray[np.uint32], Vectors]:
        """Finds the `candidates`; returns them with [m] float32 scores by quantized vectors."""


class IndexEngine(ABC):
    """A library that builds indexes, and loads what it has built.

    Attributes:
      library: The distribution of the library, whose version decides what it builds.
      config: The file with the parameters of an index, those of its searches included.
      load_factor: The memory that loading an index takes, as a multiple of its files.
    """

    library: str
    config: str
    load_factor: int

    @abstractmethod
    def forecast_bytes(self, size: int, dim: int, kind: Kind, parameters: Mapping[str, Any]) -> int:
        """Returns an upper bound of the bytes that files of an index hold of its vectors, beside
        the file of the vectors.

        Args:
          size: The number of vectors.
          dim: The dim of the vectors.
          kind, parameters: As for `build_files`.
        """

    @abstractmethod
    def build_files(
        self,
        vectors: VectorFile,
        distance: Distance,
        kind: Kind,
        parameters: Mapping[str, Any],
        directory: Path,
        run: Run = run_here,
    ) -> None:
        """Trains an index and writes its files, in memory that does not depend on the number of
        vectors. The same vectors give the same sample.

        Args:
          vectors: The vectors, finite.
          distance: The distance; cosine is built as the dot product of vectors of length 1.
          kind: brute_force scores every vector; tree_ah scores quantized vectors in the nearest
            leaves of a tree.
          parameters: All of TREE_PARAMETERS for tree_ah; none for brute_force.
          directory: The directory for the files, which is created.
          run: Runs the encoding of blocks of vectors, perhaps several at a time.

        Raises:
          InvalidIndex: A parameter is unknown, missing or no positive integer, a vector cannot be
            searched, or the library cannot build an index with them.
          OSError: The files cannot be written.
        """

    @abstractmethod
    def load(
        self, directory: Path, distance: Distance, vectors: Vectors, where: str = ""
    ) -> CandidateIndex:
        """Loads an index that `build_files` wrote. Searches use the settings written with it.

        Args:
          directory: The directory of the files; it may have moved since they were written.
          distance: The distance that the index was built with.
          vectors: [size, dim] float32, the vectors that the index was built from, mapped from their
            file.
          where: What errors call the index.

        Raises:
          IndexUnreadable: A file is missing or damaged, or the index holds another number of
            vectors or measures another distance. Bytes that were changed within a file's bounds are
            found by the digests, not here.
        """

    @abstractmethod
    def set_search_parameters(
        self, directory: Path, leaves_to_search: int | None = None, reorder: int | None = None
    ) -> None:
        """Changes the parameters with which a written tree is searched; None leaves one as it is.

        Raises:
          OSError: They cannot be written.
        """

    @abstractmethod
    def match_stored(
        self,
        directory: Path,
        vectors: VectorFile,
        rows: Positions,
        distance: Distance,
        kind: Kind,
    ) -> NDArray[np.bool_]:
        """Returns which vectors the files of an index hold at their own positions.

        A tree stores the leaf and the code of each vector, which depend on no other vector: both
        are computed again, with the tree's own centroids and code book. Unlike the recall of a
        search, this distinguishes a right index from a wrong one whatever the vectors are, and
        however few of them.

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
          InvalidIndex: The library cannot encode vectors with it.
        """


def check_query(query: Vectors) -> None:
    """Checks a query before a library gets it, whoever was to check it before.

    Raises:
      InvalidInput: It cannot be searched.
    """
    if not np.vdot(query, query) <= LENGTH_MAX**2:
        raise InvalidInput(f"a query is too long; {SEARCHABLE} was expected")


def check_parameters(kind: Kind, parameters: Mapping[str, Any], size: int) -> None:
    """Checks the parameters with which an index over `size` vectors is built and searched.

    Raises:
      InvalidIndex: A parameter is unknown, missing or no positive integer, or too large.
    """
    expected: tuple[str, ...] = ()
    if kind == "tree_ah":
        expected = TREE_PARAMETERS
    if set(parameters) != set(expected):
        raise InvalidIndex(
            f"a {kind} index takes parameters {list(expected)}; {sorted(parameters)} were given"
        )
    for name, value in parameters.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidIndex(f"parameter {name!r} is {value!r}; a positive integer was expected")
    if kind == "tree_ah" and parameters["num_leaves"] > size:
        raise InvalidIndex(
            f"num_leaves is {parameters['num_leaves']}, but there are only {size} vectors"
        )
    if kind == "tree_ah" and parameters["leaves_to_search"] > parameters["num_leaves"]:
        raise InvalidIndex(
            f"leaves_to_search is {parameters['leaves_to_search']}, but the tree has "
            f"{parameters['num_leaves']} leaves"
        )
