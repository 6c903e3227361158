"""Files of Keras that are broken, or hold what Keras does not write."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.cases.checkpoints.inspections import Case, Write

WEIGHTS = "model.weights.h5"
TABLE = np.arange(80, dtype=np.float32).reshape(20, 4)
KEY = "layers/embedding/vars/0"


def write_weights(path: Path, **options: Any) -> Path:
    """Writes a file of an Embedding, as Keras 3 saves it; without options, of these values."""
    with h5py.File(path, "w") as file:
        file.create_dataset(KEY, **(options or {"data": TABLE}))
        file["layers/embedding/vars"].attrs["name"] = "user"
    return path


def dataset(**options: Any) -> Write:
    return lambda directory: write_weights(directory / "a.weights.h5", **options)


def archive(
    members: Mapping[str, bytes | str] | None = None,
    compression: int = zipfile.ZIP_STORED,
    change: Callable[[bytes], bytes] = bytes,
    **options: Any,
) -> Write:
    """Returns what writes an archive of weights and of more members, and changes its bytes."""

    def write(directory: Path) -> Path:
        path = directory / "a.keras"
        weights = write_weights(directory / "weights", **options)
        with zipfile.ZipFile(path, "w", compression) as opened:
            opened.writestr("metadata.json", "{}")
            for name, content in (members or {}).items():
                opened.writestr(name, content)
            opened.write(weights, WEIGHTS)
        weights.unlink()
        path.write_bytes(change(path.read_bytes()))
        return path

    return write


def with_chunk_at(corner: tuple[int, int], second: tuple[int, int]) -> Write:
    """Returns what writes a file whose index has the chunk of one place in another."""

    def write(directory: Path) -> Path:
        path = dataset(data=TABLE, chunks=(2, 2))(directory)
        # An index holds the first row, the first column and the first byte of each chunk.
        before, after = (struct.pack("<3Q", *position, 0) for position in (corner, second))
        content = path.read_bytes()
        assert content.count(before) == 1
        path.write_bytes(content.replace(before, after))
        return path

    return write


def with_attribute(path: str) -> Write:
    def write(directory: Path) -> Path:
        written = dataset()(directory)
        with h5py.File(written, "r+") as file:
            file[path].attrs["row_order"] = "mod"
        return written

    return write


def write_ordered(
    path: Path, layers: Mapping[str, list[str]], *, group: str = "", numbered: bool = False
) -> Path:
    """Writes a file of the older format, whose attributes state layers and their weights in order,
    and which has a dataset `kernel` and a group `inside` in each layer.

    Args:
      path: The path of the file.
      layers: The weights of each layer.
      group: The group of the layers, which a whole model has.
      numbered: Whether lists are in several attributes, as Keras cuts those that are too long.
    """

    def state(owner: Any, attribute: str, names: list[str]) -> None:
        if numbered and names:
            for number, name in enumerate(names):
                owner.attrs[f"{attribute}{number}"] = [name]
        else:
            owner.attrs[attribute] = [name.encode() for name in names]

    with h5py.File(path, "w") as file:
        root = file.create_group(group) if group else file
        root.attrs["keras_version"] = "2.20.1"
        state(root, "layer_names", list(layers))
        for layer, names in layers.items():
            state(root.create_group(layer), "weight_names", names)
            root[layer]["kernel"] = TABLE
            root[layer].create_group("inside")
    return path


def ordered(*names: str) -> Write:
    return lambda directory: write_ordered(directory / "a.h5", {"user": list(names)})


def shards(directory: Path, index: str) -> Path:
    write_weights(directory / "a_00000.weights.h5")
    (directory / "a.weights.json").write_text(index)
    return directory / "a.weights.json"


def six_files(directory: Path) -> Path:
    for number in range(6):
        (directory / f"{number}.h5").write_bytes(b"")
    return directory


NEVER_WRITTEN = "never written"
ANEW = "copy it anew"

BROKEN_KERAS: dict[str, Case] = {
    "values": (archive(change=lambda data: data.replace(b"\0\0\x80?", b"?\0\0\0")), "CRC-32", ANEW),
    "other member": (
        archive(change=lambda data: data.replace(WEIGHTS.encode(), b"model.weights.xx")),
        "without model.weights.h5",
        "PyTorch",
    ),
    "HDF5 named as an archive": (
        lambda directory: write_weights(directory / "a.keras"),
        "not a zip file",
    ),
    "compressed archive": (archive(compression=zipfile.ZIP_DEFLATED), "is compressed", "unzip"),
    "configuration": (archive({"config.json": "{"}), "config.json in {path}", "JSON"),
    "configuration of many levels": (
        archive({"config.json": '{"class_name":' * 100_000}),
        "{path}",
        "copy it anew",
    ),
    "member that Keras does not write": (
        archive({"row_order.json": "{}"}),
        "unknown: 'row_order.json'",
    ),
    "shard that is not there": (
        partial(shards, index='{"weight_map": {"/y/vars": "a_00001.weights.h5"}}'),
        "'a_00001.weights.h5'",
        "not beside it",
    ),
    "several files": (six_files, "holds 6 Keras files", "give one of them"),
    # HDF5 reads what was never written as zeros, and what lies elsewhere from any file.
    "chunks never written": (dataset(shape=(10**9, 64), dtype="f4", chunks=(9, 64)), NEVER_WRITTEN),
    "two chunks in one place": (with_chunk_at((2, 2), (2, 0)), KEY, NEVER_WRITTEN),
    "chunk beside its place": (with_chunk_at((2, 2), (2, 3)), "{path} cannot be listed"),
    "values never written": (dataset(shape=(10**9, 64), dtype="f4"), NEVER_WRITTEN),
    "weight that is not there": (ordered("kernel", "bias"), "{path} cannot be listed"),
    "weight that is a group": (ordered("inside"), "'user/inside'", "no such dataset"),
    "values in another file": (
        dataset(shape=(2, 4), dtype="f4", external=[("/etc/passwd", 0, 32)]),
        KEY,
        "other files",
    ),
    "attribute of the file": (with_attribute("/"), "unknown: attribute '/row_order'"),
    "attribute of a dataset": (with_attribute(KEY), f"unknown: attribute '{KEY}/row_order'"),
}
