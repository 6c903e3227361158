"""The errors of broken files of Keras."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

from export.checkpoint.formats.keras import list_keras
from export.checkpoint.formats.keras_archive import WEIGHTS
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.units.export.checkpoint.formats.keras_files import (
    TABLE,
    write_archive,
    write_config,
    write_ordered,
    write_shards,
    write_weights,
)

Write = Callable[[Path], Path]


def archive(change: Callable[[bytes], bytes]) -> Write:
    """Returns what writes an archive whose bytes are changed."""

    def write(directory: Path) -> Path:
        path = write_archive(directory / "a.keras")
        path.write_bytes(change(path.read_bytes()))
        return path

    return write


def with_header(offset: int, value: bytes) -> Write:
    """Returns what writes an archive with other bytes in the header before the weights."""

    def change(content: bytes) -> bytes:
        start = content.rindex(b"PK\3\4") + offset
        return content[:start] + value + content[start + len(value) :]

    return archive(change)


def dataset(**options: Any) -> Write:
    """Returns what writes a file of one dataset, which holds no values unless they are given."""

    def write(directory: Path) -> Path:
        with h5py.File(directory / "a.weights.h5", "w") as file:
            file.create_dataset("layers/embedding/vars/0", dtype="f4", **options)
        return directory / "a.weights.h5"

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


def six_files(directory: Path) -> Path:
    for number in range(6):
        (directory / f"{number}.h5").write_bytes(b"")
    return directory


CUT_SHORT = "{path} is cut short; copy it anew"
NO_ARCHIVE = (
    "{path} is a zip file without model.weights.h5, no archive of Keras (PyTorch writes such"
)
NEVER_WRITTEN = "{path}: 'layers/embedding/vars/0': pieces were never written"

BROKEN: dict[str, tuple[Write, str]] = {
    "values": (
        archive(lambda data: data.replace(TABLE.tobytes(), TABLE.tobytes()[::-1])),
        "{path} cannot be read: Bad CRC-32 for file 'model.weights.h5'; it is damaged, copy it",
    ),
    "other member": (
        archive(lambda data: data.replace(WEIGHTS.encode(), b"model.weights.xx")),
        NO_ARCHIVE,
    ),
    "header": (with_header(0, b"PK\0\0"), CUT_SHORT),
    "bytes of the name": (with_header(26, b"\xff\xff"), CUT_SHORT),
    "bytes of the extra field": (with_header(28, b"\xff\xff"), CUT_SHORT),
    "archive without an end": (
        archive(lambda data: data[:-1]),
        "{path} cannot be read: File is not a zip file; it is damaged, copy it anew",
    ),
    "HDF5 named as an archive": (
        lambda directory: write_weights(directory / "a.keras"),
        "{path} cannot be read: File is not a zip file; it is damaged, copy it anew",
    ),
    "compressed archive": (
        lambda directory: write_archive(directory / "a.keras", zipfile.ZIP_DEFLATED),
        "model.weights.h5 in {path} is compressed; unzip the archive and give that file instead",
    ),
    "configuration": (
        lambda directory: write_config(directory / "a.keras", b"{"),
        "config.json in {path} does not hold the description of a model: it is not JSON: Expecting",
    ),
    "configuration that is a list": (
        lambda directory: write_config(directory / "a.keras", b"[1]"),
        "config.json in {path} does not hold the description of a model: it is no JSON object",
    ),
    "shard that is not there": (
        lambda directory: write_shards(directory, files=1),
        "{path} names 'a_00001.weights.h5', which is not beside it; copy all files of the save",
    ),
    "index of shards": (
        lambda directory: write_shards(directory, index="[]"),
        "{path}: its content is not what was expected (Input should be ",
    ),
    "several files": (
        six_files,
        "directory {path} holds 6 Keras files (1.h5, 2.h5, 3.h5, 4.h5, 5.h5); give one of them",
    ),
    # HDF5 reads what was never written as zeros, and what lies elsewhere from any file.
    "chunks never written": (dataset(shape=(10**9, 64), chunks=(100, 64)), NEVER_WRITTEN),
    "two chunks in one place": (with_chunk_at((2, 2), (2, 0)), NEVER_WRITTEN),
    "chunk beside its place": (with_chunk_at((2, 2), (2, 3)), "{path} cannot be listed: "),
    "values never written": (dataset(shape=(10**9, 64)), NEVER_WRITTEN),
    "size": (dataset(shape=(10**15, 1000)), "{path}: 'layers/embedding/vars/0' has the shape [10"),
    "weight that is not there": (
        lambda directory: write_ordered(directory / "a.h5", {"user": ["kernel", "bias"]}),
        "{path} cannot be listed: ",
    ),
    "weight that is a group": (
        lambda directory: write_ordered(directory / "a.h5", {"user": ["inside"]}),
        "{path} lists 'user/inside' among the weights of layer 'user', and holds no such dataset",
    ),
    "values in another file": (
        dataset(shape=(2, 4), external=[("/etc/passwd", 0, 32)]),
        "{path}: 'layers/embedding/vars/0': its values lie in other files, as Keras never puts",
    ),
}
"""What is broken, and the error of the path that is opened."""


@pytest.mark.parametrize(("write", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_file_of_keras_is_rejected_with_the_reason(
    tmp_path: Path, write: Write, message: str
) -> None:
    path = write(tmp_path)
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(path)
    assert str(error.value).startswith(message.format(path=path))


@pytest.mark.parametrize("path", ["/", "layers/embedding", "layers/embedding/vars/0"])
def test_attribute_that_keras_does_not_write_is_rejected(path: str, tmp_path: Path) -> None:
    written = write_weights(tmp_path / "a.weights.h5")
    assert list_keras(written).entries
    with h5py.File(written, "r+") as file:
        file[path].attrs["row_order"] = "mod"
    with pytest.raises(CheckpointError, match=f"unknown: attribute '{path.strip('/')}/row_order'"):
        list_keras(written)


def test_attributes_that_keras_writes_are_passed_over(tmp_path: Path) -> None:
    written = write_weights(tmp_path / "a.weights.h5")
    with h5py.File(written, "r+") as file:
        for name in ("keras_version", "backend", "training_config", "layer_names12"):
            file.attrs[name] = "3"
        file["layers/embedding"].attrs["weight_names12"] = "3"
    assert list_keras(written).entries
