"""What Keras 3 saves beside the weights of a model: its configuration, and files of layers.

The file of a layer is an asset, such as the vocabulary of a StringLookup that was adapted.

    config.json, metadata.json      class and arguments of every layer; version of Keras
    model.weights.h5                the weights
    assets/<path of the layer>/...  files that layers wrote, such as vocabulary.txt

All of it is in a zip file, the `.keras` archive, or in a directory into which one was unzipped.
Nothing is unpickled and nothing is executed; sizes are checked before anything is decompressed.

Source: Keras, src/saving/saving_lib.py.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from export.checkpoint.formats.upstreams import KERAS, UnknownFields
from export.checkpoint.variables import Asset
from export.errors import CheckpointError
from object_store.locations import Location

WEIGHTS = "model.weights.h5"
CONFIG_BYTES_MAX = 256 << 20
"""Maximum size of the description of a model: a megabyte of a zip file can become a gigabyte."""

_CONFIG = "config.json"
_METADATA = "metadata.json"
_METADATA_BYTES_MAX = 1 << 16
"""The maximum size of the metadata, which hold a version and a date."""
_ASSETS = "assets/"


class Description(NamedTuple):
    """The description of a model that Keras saves beside the weights.

    Attributes:
      config: The configuration of the model, as Keras serializes objects; {} if there is none.
      assets: The assets by their paths in the model, such as `layers/string_lookup/vocabulary.txt`.
      keras_version: The version of Keras that saved the model; "" if it is not stated.
    """

    config: dict[str, Any]
    assets: dict[str, Asset]
    keras_version: str = ""


NOTHING = Description({}, {})


def describe_archive(archive: zipfile.ZipFile, path: Path) -> Description:
    """Returns what an open archive holds beside its weights.

    Raises:
      CheckpointError: The archive holds a file that Keras does not write, or its configuration is
        too large or no JSON object.
    """
    members = {info.filename: info for info in archive.infolist() if not info.is_dir()}
    _check_files(members, path)
    assets = {
        name.removeprefix(_ASSETS): Asset(info.file_size, str(path), name)
        for name, info in members.items()
        if name.startswith(_ASSETS)
    }
    config_member = members.get(_CONFIG)
    if config_member is None:
        return Description({}, assets)
    # The size in the archive's directory is the decompressed one; zipfile reads no more than that.
    _check_size(config_member.file_size, path)
    version = ""
    metadata_member = members.get(_METADATA)
    if metadata_member is not None and metadata_member.file_size <= _METADATA_BYTES_MAX:
        version = _version(archive.read(_METADATA))
    config = parse_config(archive.read(config_member), f"{_CONFIG} in {path}")
    return Description(config, assets, version)


def describe_directory(weights: Path) -> Description:
    """Returns what lies beside weights, if they are those of an archive that was unzipped.

    Raises:
      CheckpointError: The configuration is too large.
    """
    directory = weights.parent
    file = directory / _CONFIG
    if weights.name != WEIGHTS or not file.is_file():
        return NOTHING
    _check_size(file.stat().st_size, directory)
    try:
        config = parse_config(file.read_bytes(), file)
    except CheckpointError:
        config = {}
    if not {"class_name", "config"} <= config.keys():
        return NOTHING  # Other programs give their settings this name, too.
    folder = directory / _ASSETS
    files = sorted(child for child in folder.rglob("*") if child.is_file())
    assets = {
        file.relative_to(folder).as_posix(): Asset(file.stat().st_size, str(file), "")
        for file in files
    }
    return Description(config, assets)


def read_asset(asset: Asset, bytes_max: int) -> bytes:
    """Returns the first bytes of an asset that is a file or lies in an archive.

    Raises:
      OSError: The asset cannot be read.
      zipfile.BadZipFile: The archive is damaged.
    """
    if not asset.member:
        with Path(asset.file).open("rb") as file:
            return file.read(bytes_max)
    with zipfile.ZipFile(asset.file) as archive, archive.open(asset.member) as member:
        return member.read(bytes_max)


def _check_files(names: Iterable[str], path: Path) -> None:
    """Checks that Keras writes files of these names.

    Raises:
      CheckpointError: There is a name that Keras does not write.
    """
    known_names = {WEIGHTS, _CONFIG, _METADATA}
    unknown = sorted(
        name for name in names if name not in known_names and not name.startswith(_ASSETS)
    )
    if unknown:
        raise CheckpointError(f"{path}: {UnknownFields(KERAS, list(map(repr, unknown)))}")


def _check_size(size: int, path: Path) -> None:
    if size > CONFIG_BYTES_MAX:
        raise CheckpointError(
            f"{_CONFIG} in {path} has {size} bytes decompressed; at most {CONFIG_BYTES_MAX} were "
            "expected of the description of a model"
        )


def _version(metadata: bytes) -> str:
    """Returns the version of Keras in the metadata of an archive; "" if they do not state it."""
    try:
        version = json.loads(metadata)["keras_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    if not isinstance(version, str):
        return ""
    return version


def parse_config(text: str | bytes, subject: Location | str) -> dict[str, Any]:
    """Parses the configuration of a model: a JSON object. Keras also writes NaN and Infinity.

    Raises:
      CheckpointError: The text is not JSON, no object, or nested too deeply.
    """
    reason = "it is no JSON object"
    try:
        value = json.loads(text)
    except RecursionError:
        value = None
        reason = "it is nested too deeply"
    except ValueError as problem:
        value = None
        reason = f"it is not JSON: {problem}"
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{subject} does not hold the description of a model: {reason}; copy it anew"
        )
    return value
