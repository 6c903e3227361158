"""Files of Keras' own layouts: weights, archives, and weights in several files."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from export.checkpoint.formats.keras_archive import WEIGHTS

TABLE = np.arange(80, dtype=np.float32).reshape(20, 4)


def write_weights(path: Path, **options: Any) -> Path:
    """A file such as Keras 3 saves, with an Embedding named `user` and a dense kernel."""
    with h5py.File(path, "w") as file:
        for group, name in (("layers/embedding", "user"), ("layers/dense", "dense")):
            contents = file.create_group(f"{group}/vars")
            contents.attrs["name"] = name
            contents.create_dataset("0", data=TABLE, **options)
    return path


def write_ordered(
    path: Path, layers: Mapping[str, Sequence[str]], *, numbered: bool = False
) -> Path:
    """Writes a file of the older format, whose attributes state layers and their weights in order,
    and which has a dataset `kernel` and a group `inside` in each layer.

    Args:
      path: The path of the file; a whole model is written if its name begins so.
      layers: The weights of each layer.
      numbered: Whether lists are in several attributes, as Keras cuts those that are too long.
    """
    with h5py.File(path, "w") as file:
        weights = file.create_group("model_weights") if path.name.startswith("model") else file
        weights.attrs["keras_version"] = "2.20.1"
        _write_names(weights, "layer_names", list(layers), numbered=numbered)
        for layer, names in layers.items():
            group = weights.create_group(layer)
            _write_names(group, "weight_names", list(names), numbered=numbered)
            group.create_dataset("kernel", data=TABLE)
            group.create_group("inside")
    return path


def _write_names(group: Any, attribute: str, names: list[str], *, numbered: bool) -> None:
    encoded = [name.encode() for name in names]
    if not numbered or not names:
        group.attrs[attribute] = encoded
        return
    for number, name in enumerate(encoded):
        group.attrs[f"{attribute}{number}"] = [name]


def write_archive(path: Path, compression: int = zipfile.ZIP_STORED) -> Path:
    weights = write_weights(path.with_suffix(".weights"))
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("metadata.json", "{}")
        archive.writestr("config.json", "{}")
        archive.write(weights, WEIGHTS)
    weights.unlink()
    return path


def write_config(path: Path, config: bytes | None) -> Path:
    """Writes an archive with a configuration, or without."""
    with zipfile.ZipFile(write_archive(path)) as archive:
        weights = archive.read(WEIGHTS)
    with zipfile.ZipFile(path, "w") as archive:
        if config is not None:
            archive.writestr("config.json", config)
        archive.writestr(WEIGHTS, weights)
    return path


def write_shards(directory: Path, files: int = 2, index: str = "") -> Path:
    """Writes two datasets into two files, the second of which its index names in a list, with the
    first.
    """
    names = ["a_00000.weights.h5", "a_00001.weights.h5"]
    for number, name in enumerate(names[:files]):
        with h5py.File(directory / name, "w") as file:
            file.create_dataset(f"layers/{'xy'[number]}/vars/0", data=TABLE + number)
    weight_map = {"/x/vars": names[0], "/y/vars": names}
    path = directory / "a.weights.json"
    path.write_text(index or json.dumps({"weight_map": weight_map}))
    return path
