"""ScaNN: build, write, load and search. The only import of ScaNN, while TensorFlow is hidden; this
module is imported where an index is of ScaNN.

If TensorFlow is installed, a plain `import scann` loads it for an operation that is not used here:
3.6 s and 0.5 GB instead of 0.1 s and 30 MB. Of ScaNN, only `builder` and `load_searcher` of
`scann_ops_pybind` are used, the `ScannSearcher` that both return, and the protos of the files that
they read and write.

Source: scann 1.4.2, `scann_ops/py/scann_ops_pybind.py` (load_searcher) and `scann_builder.py`
(parameters).
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import Distance
from runtime.candidate_index import CandidateIndex, Kind, check_parameters, check_query
from runtime.errors import IndexUnreadable, InvalidIndex
from runtime.exact import prepared
from runtime.index_files import sample_size

Vectors = NDArray[np.float32]

DATASET = "dataset.npy"
"""The file of the vectors, one row each."""
CODES = "hashed_dataset.npy"
"""The file of the quantized code of each vector."""
TOKENS = "datapoint_to_token.npy"
"""The file of the leaf of each vector."""
CODE_BOOK = "ah_codebook.pb"
"""The file of the code book that a tree's training produced."""
PARTITIONER = "serialized_partitioner.pb"
"""The file of the leaves' centroids."""
CONFIG = "scann_config.pb"
"""The file of the parameters of an index, those of its searches included."""
_ASSETS = "scann_assets.pbtxt"
"""The file that lists the other files of an index."""
_HIDDEN = "tensorflow"
_ANISOTROPIC_THRESHOLD = 0.2
"""The value that the examples of ScaNN use for dot products."""


def _import_scann() -> tuple[Any, Any, Any]:
    """Imports ScaNN without TensorFlow; returns its bindings and two modules of protos."""
    absent = object()
    tensorflow: Any = sys.modules.get(_HIDDEN, absent)
    # To Python, a module that is None is not installed.
    sys.modules[_HIDDEN] = None  # type: ignore[assignment]
    try:
        from scann.proto import scann_pb2
        from scann.scann_ops import scann_assets_pb2
        from scann.scann_ops.py import scann_ops_pybind
    finally:
        if tensorflow is absent:
            del sys.modules[_HIDDEN]
        else:
            sys.modules[_HIDDEN] = tensorflow
    return scann_ops_pybind, scann_pb2, scann_assets_pb2


_scann, _protos, _assets = _import_scann()


class ScannIndex(CandidateIndex):
    """Nearest candidates by ScaNN."""

    def __init__(self, searcher: Any, distance: Distance, vectors: Vectors, reorder: int) -> None:
        """Wraps a searcher; use `load`."""
        super().__init__(distance, vectors, reorder)
        self._searcher = searcher

    @classmethod
    def load(
        cls, directory: Path, distance: Distance, vectors: Vectors, where: str = ""
    ) -> ScannIndex:
        """Loads an index; see `IndexEngine.load`. Holds the GIL meanwhile.

        ScaNN gets a list of the files in an otherwise empty directory: it would follow a path out
        of the bundle, and unpickle a file of ids that it finds. A tree gets no vectors.

        Raises:
          IndexUnreadable: See `IndexEngine.load`; or a file lies outside the directory.
        """
        size, dim = vectors.shape
        where = where or f"index {directory.parent.name!r}"
        assets = _read_assets(directory, where)
        config = _read_config(directory, where)
        measure = "DotProductDistance"
        if distance == "squared_l2":
            measure = "SquaredL2Distance"
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
            loaded_size = searcher.size()
            # Some damage shows only in a search.
            searcher.search(np.zeros(dim, np.float32), 1)
        except (RuntimeError, ValueError, IndexError, OSError) as problem:
            reason = str(problem).replace(str(directory), directory.name)
            raise IndexUnreadable(f"{where} cannot be loaded by ScaNN: {reason}") from problem
        if loaded_size != size:
            raise IndexUnreadable(f"{where} holds {loaded_size} vectors; {size} were expected")
        return cls(searcher, distance, vectors, reorder)

    def scored_candidates(
        self, query: Vectors, pool: int, leaves_to_search: int | None = None
    ) -> tuple[NDArray[np.uint32], Vectors]:
        """See `CandidateIndex.scored_candidates`."""
        check_query(query)
        # -1: no exact scores, and as many leaves as were written.
        positions, scores = self._searcher.search(query, pool, -1, leaves_to_search or -1)
        # ScaNN returns dot products, which are larger for nearer vectors, or squared distances.
        if self.distance == "squared_l2":
            scores = np.float32(0) - scores
        return positions, scores


def write_trained(
    vectors: Vectors, distance: Distance, kind: Kind, parameters: Mapping[str, Any], directory: Path
) -> None:
    """Trains an index in memory and writes its files, with paths relative to the directory, without
    ids, and without the vectors of a tree.

    Args:
      vectors: [size, dim] float32, finite.
      distance: The distance, see `IndexEngine.build_files`.
      kind: brute_force scores every vector; tree_ah scores quantized vectors in the nearest leaves
        of a tree.
      parameters: All of TREE_PARAMETERS for tree_ah; none for brute_force.
      directory: The directory for the files; it is created if it does not exist.

    Raises:
      InvalidIndex: See `IndexEngine.build_files`.
      OSError: The files cannot be written.
    """
    size, dim = vectors.shape
    check_parameters(kind, parameters, size)
    vectors = prepared(vectors, distance)
    measure = "dot_product"
    threshold = _ANISOTROPIC_THRESHOLD
    if distance == "squared_l2":
        measure = "squared_l2"
        threshold = math.nan  # anisotropic quantization is for products
    # Each search states how many neighbors it wants, whatever is stated here.
    builder = _scann.builder(np.ascontiguousarray(vectors, np.float32), 10, measure)
    if kind == "brute_force":
        builder = builder.score_brute_force()
    else:
        builder = (
            builder.tree(
                num_leaves=parameters["num_leaves"],
                num_leaves_to_search=parameters["leaves_to_search"],
                training_sample_size=min(size, sample_size(parameters["num_leaves"])),
            )
            .score_ah(
                parameters["dimensions_per_block"], anisotropic_quantization_threshold=threshold
            )
            .reorder(parameters["reorder"])
        )
    try:
        searcher = builder.build()
    except (RuntimeError, ValueError) as problem:
        raise InvalidIndex(
            f"ScaNN builds no {kind} index over {size} vectors of dim {dim} with "
            f"{dict(parameters)}: {problem}"
        ) from problem

    directory.mkdir(parents=True, exist_ok=True)
    try:
        searcher.serialize(str(directory), True)
    except RuntimeError as problem:
        raise OSError(f"ScaNN cannot write to {directory}: {problem}") from problem
    if kind == "tree_ah":
        assets = _read_assets(directory, directory.name)
        _remove_vectors(assets)
        _write_assets(directory, assets)
        (directory / DATASET).unlink()


def set_search_parameters(
    directory: Path, leaves_to_search: int | None = None, reorder: int | None = None
) -> None:
    """Changes the parameters with which a written index is searched; None leaves one as it is."""
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
      trained: The directory of that index.
      directory: The directory of the vectors, `dataset.npy`, in which the other files of an index
        over them are written.

    Raises:
      InvalidIndex: ScaNN cannot encode them.
    """
    kinds = _assets.ScannAsset
    assets = _assets.ScannAssets()
    for kind, path in (
        (kinds.AH_CENTERS, trained / CODE_BOOK),
        (kinds.PARTITIONER, trained / PARTITIONER),
        (kinds.DATASET_NPY, directory / DATASET),
    ):
        assets.assets.add(asset_type=kind, asset_path=str(path.resolve()))
    try:
        # ScaNN computes the leaves and codes, because none are listed.
        searcher = _load(trained, _read_config(trained, trained.name), assets)
        searcher.serialize(str(directory), True)
    except (RuntimeError, ValueError) as problem:
        raise InvalidIndex(f"ScaNN finds no codes of {directory.name}: {problem}") from problem


def _load(directory: Path, config: Any, assets: Any) -> Any:
    """Has ScaNN load an index from a temporary directory with two files: its configuration, and the
    list of its other files in `directory`.
    """
    absolute_assets = _assets.ScannAssets()
    for asset in assets.assets:
        path = directory.resolve() / asset.asset_path
        absolute_assets.assets.add(asset_type=asset.asset_type, asset_path=str(path))
    with tempfile.TemporaryDirectory(prefix="scann-") as temporary:
        (Path(temporary) / CONFIG).write_bytes(config.SerializeToString())
        _write_assets(Path(temporary), absolute_assets)
        return _scann.load_searcher(temporary)


def _read_assets(directory: Path, where: str) -> Any:
    """Reads the list of an index's files, all of which must be in its directory."""
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
    for asset in assets.assets:
        # ScaNN would read any file that a path names.
        if "/" in asset.asset_path or not (directory / asset.asset_path).is_file():
            raise IndexUnreadable(
                f"{where} lists file {asset.asset_path!r}, which is not in its directory"
            )
    return assets


def _write_assets(directory: Path, assets: Any) -> None:
    from google.protobuf import text_format

    (directory / _ASSETS).write_text(text_format.MessageToString(assets))


def _remove_vectors(assets: Any) -> None:
    """Removes the vectors from the list of an index's files."""
    for asset in list(assets.assets):
        if asset.asset_type == _assets.ScannAsset.DATASET_NPY:
            assets.assets.remove(asset)


def _read_config(directory: Path, where: str) -> Any:
    """Reads the parameters of an index."""
    from google.protobuf.message import DecodeError

    try:
        return _protos.ScannConfig.FromString((directory / CONFIG).read_bytes())
    except (OSError, DecodeError) as problem:
        raise IndexUnreadable(
            f"{where} has no readable {CONFIG}; export the bundle again"
        ) from problem
