"""A ScaNN index read from its files while other threads run.

ScaNN's own constructor holds Python's lock from the first byte to the last: a quarter of a second of CPU for 300 000
vectors of 64, in which a service answers nobody. The work itself touches no Python: it is `ScannInterface::Initialize`,
which the library exports and which returns a status instead of raising. It is called here, by ctypes and so without the
lock, upon an index of one vector, which becomes the one in the files. Both ways give the same bits (tested).

That rests on how one build of the library is laid out, so it is done for versions it was tried with and for no other;
what fails is loaded again by the constructor, which says why.

Source: scann 1.4.2, `scann_ops/cc/scann_npy.cc` (the constructor: LoadArtifacts, Initialize) and `scann.h`; abseil
20250127, `status.h` (1 is OK); pybind11 2.13, `detail/common.h` (instance: a value's address follows its head).
"""

from __future__ import annotations

import ctypes
import math
import platform
import re
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TRIED = frozenset({"1.4.2"})
"""Versions of ScaNN whose layout is known."""
_INITIALIZE = (
    "_ZN14research_scann14ScannInterface10InitializeERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEES8_"
)
_HEAD_BYTES = 16
_OK = 1
_PAGES = ("AH_CENTERS", "PARTITIONER")
_NUMBERS = {"DATASET_NPY": "<f4", "AH_DATASET_NPY": "|u1", "TOKENIZATION_NPY": "<i4"}
_NPY_HEAD_BYTES = 128
_HEAD = re.compile(
    rb"\x93NUMPY\x01\x00\x76\x00\{'descr': ?'(?P<numbers><f4|[<|]u1|<i4)', 'fortran_order': ?False, "
    rb"'shape': ?\((?P<rows>[0-9]{1,18}),(?: ?(?P<columns>[0-9]{1,9}),?)?\)(?:, )?\} *\n"
)
"""Of numpy's format 1, as ScaNN and numpy write it."""


class _String(ctypes.Structure):
    """A `const std::string` of libstdc++: where its bytes are, how many, and how many there is room for."""

    _fields_ = (
        ("data", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("capacity", ctypes.c_size_t),
        ("rest", ctypes.c_size_t),
    )


def tried() -> bool:
    """Tells whether ScaNN is a build whose layout is known."""
    return metadata.version("scann") in TRIED and (platform.system(), platform.machine()) == ("Linux", "x86_64")


@cache
def _initialize(library: str) -> Any:
    """Returns the function; None: this is no build that was tried."""
    if not tried():
        return None
    try:
        function = ctypes.CDLL(library)[_INITIALIZE]
    except (OSError, AttributeError):
        return None
    function.restype, function.argtypes = None, [ctypes.c_void_p] * 4
    return function


def load_unlocked(scann: Any, directory: Path, config: Any, assets: str, shape: tuple[int, int]) -> Any:
    """Reads an index.

    Args:
      scann: the module `scann.scann_ops.py.scann_ops_pybind`.
      directory: of the index' files, which match their digests.
      config: the ScannConfig read from there.
      assets: its ScannAssets as text, each a name of a file there.
      shape: vectors that it has to hold, and their dim.
    Returns:
      A searcher; None: it has to be loaded by its constructor, which holds the lock, or says what is wrong.
    """
    from google.protobuf import text_format
    from scann.scann_ops import scann_assets_pb2

    initialize = _initialize(scann.scann_pybind.__file__)
    listed = text_format.Parse(assets, scann_assets_pb2.ScannAssets())
    if initialize is None or not _sound(directory, listed.assets, shape):
        return None
    for each in listed.assets:
        each.asset_path = str(directory / each.asset_path)
    # One thread to train: of several it would wait for each to begin and end, some milliseconds, and hold the lock.
    builder = scann.builder(np.ones((1, 1), np.float32), 1, "dot_product").score_brute_force()
    searcher = builder.set_n_training_threads(1).build().searcher
    this = ctypes.c_void_p.from_address(id(searcher) + _HEAD_BYTES).value
    status = ctypes.c_uint64(0)
    texts = [text_format.MessageToString(page).encode() for page in (config, listed)]
    strings = [_String(text, len(text), len(text), 0) for text in texts]
    initialize(ctypes.addressof(status), this, *(ctypes.addressof(each) for each in strings))
    return searcher if status.value == _OK else None


def _sound(directory: Path, assets: Sequence[Any], shape: tuple[int, int]) -> bool:
    """Tells whether the files fit each other so far that ScaNN tells by its status what may still be wrong with them:
    upon the rest it throws, which ends a process that has no C++ of its own to catch it."""
    from google.protobuf.message import DecodeError
    from scann.partitioning.partitioner_pb2 import SerializedPartitioner
    from scann.proto.centers_pb2 import CentersForAllSubspaces
    from scann.scann_ops.scann_assets_pb2 import ScannAsset

    files = {ScannAsset.AssetType.Name(each.asset_type): directory / each.asset_path for each in assets}
    if len(files) != len(assets) or not files.keys() <= {*_NUMBERS, *_PAGES}:
        return False
    arrays = {name: _array(file, _NUMBERS[name]) for name, file in files.items() if name in _NUMBERS}
    if any(array is None for array in arrays.values()) or "PARTITIONER" not in files:
        return all(array is not None for array in arrays.values())
    size, dim = shape
    tokens, held = arrays.get("TOKENIZATION_NPY"), arrays.get("AH_DATASET_NPY")
    try:
        tree = SerializedPartitioner.FromString(files["PARTITIONER"].read_bytes())
        codes = CentersForAllSubspaces.FromString(files["AH_CENTERS"].read_bytes())
    except (DecodeError, KeyError, OSError):
        return False
    root, leaves = tree.kmeans.kmeans_tree.root, tree.n_tokens
    if held is None or tokens is None or tokens.ndim != 1 or not len(held) == len(tokens) == size > 0:
        return False
    return bool(
        len(root.centers) == len(root.children) == leaves > 0
        and sorted(each.leaf_id for each in root.children) == list(range(leaves))
        and all(len(each.dimension) == dim for each in root.centers)
        and 0 <= int(tokens.min()) <= int(tokens.max()) < leaves
        and len(codes.subspace_centers) > 0
        and len({len(each.center) for each in codes.subspace_centers}) == 1
    )


def _array(file: Path, numbers: str) -> NDArray[Any] | None:
    """Maps an array whose file has the head and the size that ScaNN's parser takes; None: it has others."""
    with file.open("rb") as stream:
        head = _HEAD.match(stream.read(_NPY_HEAD_BYTES))
    if head is None or np.dtype(head["numbers"].decode()) != np.dtype(numbers):
        return None
    shape = (int(head["rows"]), *(() if head["columns"] is None else (int(head["columns"]),)))
    size = math.prod(shape) * np.dtype(numbers).itemsize
    if size == 0 or file.stat().st_size != _NPY_HEAD_BYTES + size:
        return None
    return np.memmap(file, np.dtype(numbers), "r", _NPY_HEAD_BYTES, shape)
