"""ScaNN: build, write, load and search. The one import of ScaNN, with TensorFlow hidden meanwhile.

With TensorFlow installed a plain `import scann` loads it for an operation that is not used here
(3.6 s and 0.5 GB against 0.1 s and 30 MB). Of ScaNN only `builder` and `load_searcher` of
`scann_ops_pybind` are used, the `ScannSearcher` that both return, and the protos of the files that
they read and write.

Source: scann 1.4.2, `scann_ops/py/scann_ops_pybind.py` (load_searcher) and `scann_builder.py`
(parameters).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import Distance
from runtime.errors import IndexUnreadable, InvalidIndex
from runtime.exact import check_queries, normalised, rank_exactly

Vectors = NDArray[np.float32]
Positions = NDArray[np.int64]
Kind = Literal["brute_force", "tree_ah"]

DATASET = "dataset.npy"
"""Holds the vectors, one row each."""
CODES = "hashed_dataset.npy"
"""Holds the quantized code of each vector."""
TOKENS = "datapoint_to_token.npy"
"""Holds the leaf of each vector."""
CODE_BOOK = "ah_codebook.pb"
"""Holds the code book that a tree's training produced."""
PARTITIONER = "serialized_partitioner.pb"
"""Holds the leaves' centroids."""
TREE_PARAMETERS = ("num_leaves", "leaves_to_search", "dimensions_per_block", "reorder")
CONFIG = "scann_config.pb"
"""File with the parameters of an index, those of its searches included."""
_ASSETS = "scann_assets.pbtxt"
_HIDDEN = "tensorflow"


def _import_scann() -> tuple[Any, Any, Any]:
    absent = object()
    shown: Any = sys.modules.get(_HIDDEN, absent)
    sys.modules[_HIDDEN] = None  # type: ignore[assignment]  # what Python takes for "not installed"
    try:
        from scann.proto import scann_pb2
        from scann.scann_ops import scann_assets_pb2
        from scann.scann_ops.py import scann_ops_pybind
    finally:
        if shown is absent:
            del sys.modules[_HIDDEN]
        else:
            sys.modules[_HIDDEN] = shown
    return scann_ops_pybind, scann_pb2, scann_assets_pb2


_scann, _protos, _assets = _import_scann()


class ScannIndex:
    """Nearest candidates by ScaNN. A search releases the GIL and changes nothing: any number of
    threads may search.

    What was built in memory scores by itself; of what was loaded the scores are those of
    `rank_exactly`, by the vectors in their file.

    Attributes:
      reorder: candidates of a tree whose exact score is computed; 0: of a brute force index, as
        many as are wanted.
    """

    def __init__(
        self,
        searcher: Any,
        distance: Distance,
        size: int,
        dim: int,
        reorder: int,
        vectors: Vectors | None = None,
    ) -> None:
        """Wraps a searcher; use `build` or `load`."""
        self._searcher = searcher
        self.distance = distance
        self.reorder = reorder
        self._vectors = vectors
        self.size = size
        self.dim = dim

    @classmethod
    def build(
        cls,
        vectors: Vectors,
        distance: Distance,
        kind: Kind,
        parameters: Mapping[str, Any],
        threads: int = 0,
    ) -> ScannIndex:
        """Trains an index in memory.

        Args:
          vectors: [size, dim] float32, finite.
          distance: cosine is built as the dot product of vectors of length 1.
          kind: brute_force scores every vector; tree_ah scores quantised vectors in the nearest
            leaves of a tree, then reorders the best by their exact scores.
          parameters: of tree_ah, all of TREE_PARAMETERS; of brute_force, none.
          threads: that train; 0: ScaNN's choice.
        Raises:
          InvalidIndex: a parameter is unknown, missing or no positive integer, or ScaNN cannot
            build from these.
        """
        size, dim = vectors.shape
        check_parameters(kind, parameters, size)
        prepared = (
            normalised(vectors)
            if distance == "cosine"
            else np.ascontiguousarray(vectors, np.float32)
        )
        measure = "squared_l2" if distance == "squared_l2" else "dot_product"
        builder = _scann.builder(prepared, 10, measure)
        if kind == "brute_force":
            builder = builder.score_brute_force()
        else:
            threshold = float("nan") if measure == "squared_l2" else 0.2
            builder = (
                builder.tree(
                    num_leaves=parameters["num_leaves"],
                    num_leaves_to_search=parameters["leaves_to_search"],
                    training_sample_size=min(size, max(100_000, 100 * parameters["num_leaves"])),
                )
                .score_ah(
                    parameters["dimensions_per_block"], anisotropic_quantization_threshold=threshold
                )
                .reorder(parameters["reorder"])
            )
        try:
            searcher = builder.set_n_training_threads(threads).build()
        except (RuntimeError, ValueError) as problem:
            raise InvalidIndex(
                f"ScaNN builds no {kind} index over {size} vectors of dim {dim} with "
                f"{dict(parameters)}: {problem}"
            ) from problem
        return cls(searcher, distance, size, dim, parameters.get("reorder", 0))

    @classmethod
    def load(
        cls, directory: Path, distance: Distance, vectors: Vectors, where: str = ""
    ) -> ScannIndex:
        """Loads an index that `write` wrote. Searches use the settings written with it. Holds the
        GIL meanwhile.

        ScaNN is given a list of the files, in a directory of its own beside nothing else: it would
        follow a path out of the bundle, and unpickle a file of ids that it finds there. A tree is
        given no vectors.

        Args:
          directory: of ScaNN's files; may have moved since they were written.
          distance: the one it was built with.
          vectors: [size, dim] float32 that it was built from, mapped from their file: a tree reads
            those that it reorders there.
          where: what errors call it.
        Raises:
          IndexUnreadable: a file is missing, truncated or lies outside the directory, or the index
            holds another number of vectors or measures another distance. Bytes that were changed
            within a file's bounds are found by the digests, not here.
        """
        size, dim = vectors.shape
        where = where or f"index {directory.parent.name!r}"
        assets = _read_assets(directory, where)
        config = _read_config(directory, where)
        measure = "SquaredL2Distance" if distance == "squared_l2" else "DotProductDistance"
        if config.distance_measure.distance_measure != measure:
            raise IndexUnreadable(
                f"{where} measures {config.distance_measure.distance_measure}; {distance} was "
                "expected"
            )
        reorder = 0
        if config.HasField("exact_reordering"):
            reorder = config.exact_reordering.approx_num_neighbors
            config.ClearField("exact_reordering")
            _remove_vectors(assets)
        try:
            searcher = _load(directory, config, assets)
            held = searcher.size()
            # Some damage shows only when it is searched.
            searcher.search(np.zeros(dim, np.float32), 1)
        except (RuntimeError, ValueError, IndexError, OSError) as problem:
            reason = str(problem).replace(str(directory), directory.name)
            raise IndexUnreadable(f"{where} cannot be loaded by ScaNN: {reason}") from problem
        if held != size:
            raise IndexUnreadable(f"{where} holds {held} vectors; {size} were expected")
        return cls(searcher, distance, size, dim, reorder, np.asarray(vectors))

    def write(
        self, directory: Path, leaves_to_search: int | None = None, reorder: int | None = None
    ) -> None:
        """Writes the index' files, with paths relative to the directory, no ids, and of a tree no
        vectors.

        Args:
          directory: made if it is not there.
          leaves_to_search: what searches of the loaded index use; None: what it was built with.
          reorder: likewise.
        Raises:
          OSError: they cannot be written.
        """
        directory.mkdir(parents=True, exist_ok=True)
        try:
            self._searcher.serialize(str(directory), True)
        except RuntimeError as problem:
            raise OSError(f"ScaNN cannot write to {directory}: {problem}") from problem
        if self.reorder:
            assets = _read_assets(directory, directory.name)
            _remove_vectors(assets)
            _write_assets(directory, assets)
            (directory / DATASET).unlink()
        settle(directory, leaves_to_search, reorder)

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
          k: neighbors wanted per query.
          leaves_to_search: of this search only; None: as written.
          reorder: candidates whose exact score is computed; raised to k where k is larger; None: as
            written.
        Returns:
          positions [n, k] int64 and scores [n, k] float32, larger is better, best first; where
          fewer were found (k beyond the index, or few candidates in the leaves searched) the end is
          filled with -1 and -inf.
        Raises:
          InvalidInput: the queries have another shape or hold NaN or infinities, or k is below 1.
        """
        check_queries(queries, self.dim, k)
        queries = np.ascontiguousarray(queries, np.float32)
        if self.distance == "cosine":
            queries = normalised(queries)
        wanted = min(k, self.size)
        pool = min(max(reorder or self.reorder, wanted), self.size)
        positions = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        for row, query in enumerate(
            queries
        ):  # not as a batch, in which ScaNN sums in another order
            if self._vectors is None:
                found, best = self._found(
                    query, wanted, pool if self.reorder else -1, leaves_to_search
                )
            else:
                candidates = self.candidates(query, pool, leaves_to_search)
                found, best = rank_exactly(self._vectors, query, candidates, wanted, self.distance)
            positions[row, : found.size] = found
            scores[row, : found.size] = best
        return positions, scores

    def candidates(
        self, query: Vectors, pool: int, leaves_to_search: int | None = None
    ) -> NDArray[np.uint32]:
        """Finds the candidates of one query that seem nearest, of an index that was loaded.

        Args:
          query: [dim] float32, finite; for cosine, of length 1.
          pool: how many; fewer are found where the leaves searched hold fewer.
          leaves_to_search: None: as written.
        Returns:
          [m] uint32 positions, best first by quantised vectors.
        """
        return self.scored_candidates(query, pool, leaves_to_search)[0]

    def scored_candidates(
        self, query: Vectors, pool: int, leaves_to_search: int | None = None
    ) -> tuple[NDArray[np.uint32], Vectors]:
        """Finds the `candidates`; returns them with [m] float32, their scores by
        quantised vectors.
        """
        return self._found(query, pool, -1, leaves_to_search)

    def _found(
        self, query: Vectors, count: int, reorder: int, leaves_to_search: int | None
    ) -> tuple[NDArray[Any], Vectors]:
        found, distances = self._searcher.search(query, count, reorder, leaves_to_search or -1)
        # Dot products are larger for nearer vectors, squared distances smaller.
        return found, np.float32(0) - distances if self.distance == "squared_l2" else distances


def settle(
    directory: Path, leaves_to_search: int | None = None, reorder: int | None = None
) -> None:
    """Changes what searches of a written index use; None leaves it as it is."""
    path = directory / CONFIG
    config = _protos.ScannConfig.FromString(path.read_bytes())
    if leaves_to_search is not None:
        config.partitioning.query_spilling.max_spill_centers = leaves_to_search
    if reorder is not None:
        config.exact_reordering.approx_num_neighbors = reorder
    path.write_bytes(config.SerializeToString(deterministic=True))


def encode(trained: Path, directory: Path) -> None:
    """Finds the leaves and codes of vectors by the centroids and the code book of another tree
    index.

    Args:
      trained: directory of that index.
      directory: holds the vectors, as `dataset.npy`; the files of an index over them are written
        beside it.
    Raises:
      InvalidIndex: ScaNN cannot.
    """
    kinds = _assets.ScannAsset
    listed = _assets.ScannAssets()
    for kind, path in (
        (kinds.AH_CENTERS, trained / CODE_BOOK),
        (kinds.PARTITIONER, trained / PARTITIONER),
        (kinds.DATASET_NPY, directory / DATASET),
    ):
        listed.assets.add(asset_type=kind, asset_path=str(path.resolve()))
    try:
        # ScaNN computes what is not listed.
        _load(trained, _read_config(trained, trained.name), listed).serialize(str(directory), True)
    except (RuntimeError, ValueError) as problem:
        raise InvalidIndex(f"ScaNN finds no codes of {directory.name}: {problem}") from problem


def write_index(
    vectors: Vectors, distance: Distance, kind: Kind, parameters: Mapping[str, Any], directory: Path
) -> ScannIndex:
    """Builds an index, writes it, and returns it. See ScannIndex.build and ScannIndex.write."""
    index = ScannIndex.build(vectors, distance, kind, parameters)
    index.write(directory)
    return index


def check_parameters(kind: Kind, parameters: Mapping[str, Any], size: int) -> None:
    """Checks what an index over `size` vectors is built and searched with.

    Raises:
      InvalidIndex: a parameter is unknown, missing or no positive integer, or too large.
    """
    expected = TREE_PARAMETERS if kind == "tree_ah" else ()
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


def _load(directory: Path, config: Any, assets: Any) -> Any:
    """Has ScaNN load an index from a directory that holds a config and a list of files in
    `directory`, nothing else.
    """
    listed = _assets.ScannAssets()
    for each in assets.assets:
        listed.assets.add(
            asset_type=each.asset_type, asset_path=str(directory.resolve() / each.asset_path)
        )
    with tempfile.TemporaryDirectory(prefix="scann-") as beside:
        (Path(beside) / CONFIG).write_bytes(config.SerializeToString())
        _write_assets(Path(beside), listed)
        return _scann.load_searcher(beside)


def _read_assets(directory: Path, where: str) -> Any:
    from google.protobuf import text_format

    try:
        text = (directory / _ASSETS).read_text()
        assets = text_format.Parse(text, _assets.ScannAssets())
    except OSError as problem:
        raise IndexUnreadable(f"{where} lacks {_ASSETS}; export the bundle again") from problem
    except (UnicodeDecodeError, text_format.ParseError) as problem:
        raise IndexUnreadable(
            f"{where} has an {_ASSETS} that cannot be read: {problem}"
        ) from problem
    for each in assets.assets:
        if "/" in each.asset_path or not (directory / each.asset_path).is_file():
            raise IndexUnreadable(
                f"{where} lists file {each.asset_path!r}, which is not in its directory"
            )
    return assets


def _write_assets(directory: Path, assets: Any) -> None:
    from google.protobuf import text_format

    (directory / _ASSETS).write_text(text_format.MessageToString(assets))


def _remove_vectors(assets: Any) -> None:
    for each in [
        each for each in assets.assets if each.asset_type == _assets.ScannAsset.DATASET_NPY
    ]:
        assets.assets.remove(each)


def _read_config(directory: Path, where: str) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return _protos.ScannConfig.FromString((directory / CONFIG).read_bytes())
    except (OSError, DecodeError) as problem:
        raise IndexUnreadable(
            f"{where} has no readable {CONFIG}; export the bundle again"
        ) from problem
