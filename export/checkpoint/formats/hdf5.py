"""Opens HDF5 files, also within a .keras archive, and lists their datasets.

A listing is made in a process of its own: on damaged files the HDF5 library can crash, or loop.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from bundle.arithmetic import ceil_div
from export.errors import CheckpointError

LISTING_S = 120
"""The maximum duration of a listing in seconds, which a damaged file could exceed forever."""
_REASON_MAX = 200
"""The maximum number of characters of the library's error that a message repeats."""
_GROUP_ATTRIBUTES = re.compile(
    r"name|backend|keras_version|model_config|training_config|(layer|weight)_names\d*"
)
_DATASET_ATTRIBUTES = re.compile("dtype")
"""The attributes of groups and of datasets that Keras 3 and tf-keras write. A list of names that is
too long for one attribute is spread over several numbered ones.
"""
MODEL = "top_level_model_weights"
"""The group of the weights that belong to the model itself and not to a layer."""
_LAYERS = "layer_names"
_WEIGHTS = "weight_names"
_WHOLE_MODEL = "model_weights"
"""The group of the weights in the file of a whole model."""


class Dataset(NamedTuple):
    """One dataset.

    Attributes:
      key: The path in the file.
      shape: The extents of the dataset.
      dtype: The dtype of its values in NumPy's notation, e.g. `<f4`.
      attribute_dtype: The value of its attribute `dtype`; "" if it has none.
      offset: The position of its first byte in the file; -1 if it is not contiguous.
      stored_bytes: Its size on disk in bytes.
      chunks: The extents of a chunk; () if it has no chunks.
      problem: Why its values cannot be read as they are; "" if they can.
    """

    key: str
    shape: tuple[int, ...]
    dtype: str
    attribute_dtype: str
    offset: int
    stored_bytes: int
    chunks: tuple[int, ...]
    problem: str


class Contents(NamedTuple):
    """The contents of a file.

    Attributes:
      datasets: All datasets of the file.
      names: The attribute `name` of each group that has one, by the path of the group.
      model_config: The attribute `model_config` of the file; "" if it has none.
      unknown: The attributes that Keras does not write, by path and name.
      layers: By the name of each layer of a model, the paths of its weights' datasets by the names
        of the weights, in the order that the file's attributes state. The weights under `MODEL`
        belong to the model itself. {} if the attributes state no order.
      keras_version: The version of Keras that wrote the file, if its attributes state it; else "".
    """

    datasets: tuple[Dataset, ...]
    names: dict[str, str]
    model_config: str
    unknown: tuple[str, ...] = ()
    layers: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    keras_version: str = ""


def open_hdf5(path: str, member: str | None) -> Any:
    """Opens an HDF5 file for reading.

    Args:
      path: The path of the file, or of the archive.
      member: The name of the file in the archive; None if `path` is the file itself.
    Returns:
      An h5py.File.
    Raises:
      CheckpointError: The file cannot be opened, or h5py is missing.
    """
    try:
        import h5py
    except ImportError as problem:
        raise CheckpointError(
            f"{path} is read with h5py, which is not installed; run `pip install 'rowcast[export]'`"
        ) from problem
    try:
        if member is None:
            return h5py.File(path, "r")
        return h5py.File(zipfile.ZipFile(path).open(member), "r")
    except (OSError, KeyError, zipfile.BadZipFile) as problem:
        raise CheckpointError(
            f"{path} cannot be opened as HDF5: {problem}; it is damaged, copy it anew"
        ) from problem


def list_hdf5(path: str, member: str | None, limit_s: float = LISTING_S) -> Contents:
    """Lists a file.

    Args:
      path: The path of the file, or of an archive.
      member: The name of the file in the archive; None if `path` is the file itself.
      limit_s: The maximum duration in seconds.
    Raises:
      CheckpointError: The file is damaged, or h5py is missing.
    """
    # `-P`: a module of the current directory must not replace one of the library.
    command = [sys.executable, "-P", "-m", __name__, path, member or ""]
    try:
        process = subprocess.run(command, capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as problem:
        raise CheckpointError(
            f"{path} cannot be listed within {limit_s} s: it is damaged, copy it anew"
        ) from problem
    try:
        listing = orjson.loads(process.stdout)
    except orjson.JSONDecodeError as problem:
        raise CheckpointError(
            f"{path} cannot be listed: the HDF5 library ended with code {process.returncode}; it "
            "is damaged, copy it anew"
        ) from problem
    if "error" in listing:
        raise CheckpointError(listing["error"])

    datasets = []
    for fields in listing["datasets"]:
        dataset = Dataset(*fields)
        # JSON has lists for tuples.
        shape = tuple(dataset.shape)
        datasets.append(dataset._replace(shape=shape, chunks=tuple(dataset.chunks)))
    return Contents(
        tuple(datasets),
        listing["names"],
        listing["model_config"],
        tuple(listing["unknown"]),
        listing["layers"],
        listing["keras_version"],
    )


def _list(path: str, member: str | None) -> dict[str, Any]:
    """Lists a file in this process. Returns the fields of `Contents`, or `error`."""
    try:
        with open_hdf5(path, member) as file:
            names: dict[str, str] = {}
            unknown = _unknown_attributes("", file, _GROUP_ATTRIBUTES)
            datasets = [tuple(dataset) for dataset in _datasets(file, names, unknown)]
            # The file of weights states the order of layers itself; that of a whole model does so
            # in a group.
            weights = file
            if not _listed_names(file, _LAYERS):
                weights = file.get(_WHOLE_MODEL, file)
            return {
                "datasets": datasets,
                "names": names,
                "model_config": _text_attribute(file, "model_config"),
                "unknown": unknown,
                "layers": dict(_layers_in_order(weights)),
                "keras_version": _text_attribute(weights, "keras_version"),
            }
    except CheckpointError as problem:
        return {"error": str(problem)}
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as problem:
        reason = type(problem).__name__
        if str(problem):
            reason = str(problem).splitlines()[0][:_REASON_MAX]
        return {"error": f"{path} cannot be listed: {reason}; it is damaged, copy it anew"}


def _datasets(file: Any, names: dict[str, str], unknown: list[str]) -> Iterator[Dataset]:
    """Yields every dataset that has a shape. Adds the names of groups to `names`, and attributes
    that Keras does not write to `unknown`.
    """
    datasets: list[Any] = []

    def visit(path: str, item: Any) -> None:
        if hasattr(item, "shape"):
            unknown.extend(_unknown_attributes(path, item, _DATASET_ATTRIBUTES))
            datasets.append(item)
            return
        unknown.extend(_unknown_attributes(path, item, _GROUP_ATTRIBUTES))
        if "name" in item.attrs:
            names[path] = _text_attribute(item, "name")

    file.visititems(visit)
    for dataset in datasets:
        # h5py states no shape for a null dataspace, which has no values.
        if dataset.shape is None:
            continue
        problem = _problem(dataset)
        offset = None
        if not problem:
            offset = dataset.id.get_offset()
        yield Dataset(
            key=dataset.name.lstrip("/"),
            shape=dataset.shape,
            dtype=dataset.dtype.str,
            attribute_dtype=str(dataset.attrs.get("dtype", "")),
            offset=-1 if offset is None else offset,
            stored_bytes=dataset.id.get_storage_size(),
            chunks=dataset.chunks or (),
            problem=problem,
        )


def _layers_in_order(weights: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the name of each layer and its weights, in the order in which attributes list them."""
    names = _listed_names(weights, _LAYERS)
    if names and MODEL in weights:
        names.append(MODEL)
    for name in names:
        layer = weights[name]
        if not any(attribute.startswith(_WEIGHTS) for attribute in layer.attrs):
            raise KeyError(f"layer {name!r} has no attribute {_WEIGHTS!r}")
        weight_names = _listed_names(layer, _WEIGHTS)
        yield name, {weight: layer[weight].name.lstrip("/") for weight in weight_names}


def _listed_names(group: Any, attribute: str) -> list[str]:
    """Returns the names in an attribute of a group, or in the numbered attributes that hold a list
    that is too long for one attribute.
    """
    attributes = [attribute]
    if attribute not in group.attrs:
        attributes = []
        while f"{attribute}{len(attributes)}" in group.attrs:
            attributes.append(f"{attribute}{len(attributes)}")
    names: list[str] = []
    for name in attributes:
        values = group.attrs[name]
        are_names = isinstance(values, Iterable)
        if not are_names or not all(isinstance(value, str | bytes) for value in values):
            raise ValueError(f"the attribute {name!r} is {str(values)[:50]!r}; names were expected")
        names += map(_text, values)
    return names


def _text_attribute(item: Any, name: str) -> str:
    """Returns an attribute that is a text; "" if there is none."""
    value = item.attrs.get(name, "")
    if not isinstance(value, str | bytes):
        raise ValueError(f"the attribute {name!r} is {str(value)[:50]!r}; a text was expected")
    return _text(value)


def _text(value: str | bytes) -> str:
    # h5py returns a text of fixed length as bytes, and one of variable length as str.
    if isinstance(value, bytes):
        return value.decode()
    return value


def _unknown_attributes(path: str, item: Any, known_names: re.Pattern[str]) -> list[str]:
    return [f"{path}/{name}" for name in item.attrs if known_names.fullmatch(name) is None]


def _problem(dataset: Any) -> str:
    """Returns why values cannot be read; "" if they can be. Values that were never written would be
    read as zeros, and values in an external file may be any file's bytes.
    """
    if dataset.external is not None or dataset.is_virtual:
        return "its values lie in other files, as Keras never puts them"
    if dataset.chunks is None:
        missing_count = int(dataset.size > 0 and dataset.id.get_storage_size() == 0)
    else:
        chunk_count = math.prod(
            ceil_div(size, chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True)
        )
        missing_count = chunk_count - len(_corners_of_chunks(dataset))
    if not missing_count:
        return ""
    return (
        f"pieces were never written, or the file is damaged ({missing_count} cannot be found): "
        "the save did not finish, or its copy; copy it anew, or take another"
    )


def _corners_of_chunks(dataset: Any) -> set[tuple[int, ...]]:
    """Returns the positions at which the chunks of a dataset begin, for chunks that a reader looks
    up.

    A damaged index may have the right number of chunks and yet two of them at one position.
    """
    corners: set[tuple[int, ...]] = set()

    def add(chunk: Any) -> None:
        corner = chunk.chunk_offset
        spans = zip(corner, dataset.chunks, dataset.shape, strict=True)
        if all(start % extent == 0 and start < size for start, extent, size in spans):
            corners.add(corner)

    if dataset.id.get_num_chunks():
        dataset.id.chunk_iter(add)
    return corners


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(_list(sys.argv[1], sys.argv[2] or None)))
