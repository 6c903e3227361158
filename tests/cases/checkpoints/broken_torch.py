"""Checkpoints of PyTorch that are broken: of torch.distributed, and of safetensors."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.cases.checkpoints.inspections import Case, Write
from tests.units.export.checkpoint.formats.safetensors_files import write_header, write_safetensors
from tests.units.export.checkpoint.formats.torch_files import (
    METADATA_CLASSES,
    Part,
    Tensor,
    stand_in,
    torch_names,
    write_torch,
    zipped,
)

VALUES = np.arange(8, dtype=np.float32).reshape(4, 2)
ROWS = Tensor((4, 2), (2, 1))
"""What `torch.save` pickles of the values."""


class Runs:
    """Creates a file when its pickle is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def part(
    saved: Any = ROWS,
    values: bytes = VALUES.tobytes(),
    byteorder: bytes = b"little",
    compression: int = zipfile.ZIP_STORED,
) -> bytes:
    with torch_names():
        return zipped(saved, values, byteorder, compression)


def distributed(
    data: bytes | None = None, change: Callable[[Any], object] = bool, **planned: Any
) -> Write:
    """Returns what writes a checkpoint of one part.

    Args:
      data: Its data file; None: as torch writes it.
      change: Changes its metadata.
      planned: What the planner recorded besides.
    """

    def change_all(metadata: Any) -> None:
        metadata.state_dict_metadata["step"] = stand_in("BytesStorageMetadata")
        if data is not None:
            vars(objects_of(metadata)["_StorageInfo"])["length"] = len(data)
        change(metadata)

    def write(directory: Path) -> Path:
        parts = [Part("t", (0, 0), VALUES, "__0_0.distcp")]
        write_torch(directory, {"t": VALUES}, parts, planned, change_all)
        if data is not None:
            (directory / "__0_0.distcp").write_bytes(data)
        return directory

    return write


def objects_of(metadata: Any) -> dict[str, Any]:
    """Returns an object of each class in the metadata."""
    ((index, info),) = metadata.storage_data.items()
    tensor = metadata.state_dict_metadata["t"]
    return {
        "Metadata": metadata,
        "MetadataIndex": index,
        "_StorageInfo": info,
        "TensorStorageMetadata": tensor,
        "TensorProperties": tensor.properties,
        "ChunkStorageMetadata": tensor.chunks[0],
        "BytesStorageMetadata": metadata.state_dict_metadata["step"],
    }


def having(name: str, data: bytes | None = None, **attributes: Any) -> Write:
    """Returns what writes a checkpoint with other attributes of an object of a class."""
    return distributed(data, lambda metadata: vars(objects_of(metadata)[name]).update(attributes))


def stored(data: bytes | None = None, **attributes: Any) -> Write:
    return having("_StorageInfo", data, **attributes)


def lose_part(metadata: Any) -> None:
    """Lists one more tensor, of which the metadata do not say where it lies."""
    metadata.state_dict_metadata["lost"] = objects_of(metadata)["TensorStorageMetadata"]


def metadata(content: bytes) -> Write:
    """Returns what writes metadata alone."""

    def write(directory: Path) -> Path:
        (directory / ".metadata").write_bytes(content)
        return directory

    return write


def unfinished(directory: Path) -> Path:
    (directory / "__0_0.distcp").write_bytes(b"")
    return directory


NOT_A_SIZE = "stands where a size was expected"

BROKEN_DISTRIBUTED: dict[str, Case] = {
    "no metadata": (unfinished, "no .metadata", "did not finish"),
    "code in the metadata": (metadata(pickle.dumps(Runs(Path("made")))), ".metadata", "it names"),
    "transforms": (stored(transform_descriptors=["ZStandard"]), "transforms", "_extensions"),
    "file elsewhere": (stored(relative_path="../other"), "'../other' is no name of a file"),
    "file that is gone": (stored(relative_path="__1_0.distcp"), "__1_0.distcp is missing"),
    "offset below zero": (stored(offset=-1), "-1", NOT_A_SIZE),
    "shape too large": (
        having("TensorStorageMetadata", size=(1 << 60, 1)),
        "'t'",
        "which nothing can have",
    ),
    "part behind the end": (stored(bytes(32), length=33), "is cut short", "'t'"),
    "part that is not listed": (distributed(change=lose_part), "1 parts", "'lost'"),
    "sparse tensor": (
        having("TensorProperties", state=("torch.float32", "torch.sparse_coo", False, 0, False)),
        "'torch.sparse_coo'",
    ),
    "more properties": (
        having(
            "TensorProperties",
            state=("torch.float32", "torch.strided", False, 0, False, (2, 1), "x"),
        ),
        "7 properties",
    ),
    **{
        f"more of {name}": (
            having(name, row_order=[1, 0]),
            "PyTorch 2",
            f"unknown: {name}.row_order",
        )
        for name in METADATA_CLASSES
        if name != "TensorProperties"
    },
    **{
        f"planner's {recorded!r:.60}": (distributed(**recorded), f"planner_data{words}")
        for recorded, words in (
            ({"sparsecore": {"world_size": 2}}, "['sparsecore'] without 'num_sc_per_device'"),
            ({"sparsecore": 2}, "['sparsecore'] (int)"),
            ({"t": {"rotation": 1}}, "['t'] (dict of rotation)"),
            ({"t": ("a", ("b",))}, "['t'] (tuple)"),
            # A path of no tensor is another thing with the form of a path.
            ({"t": ("t",), "cores": (2, 2)}, "['cores'] (tuple)"),
        )
    },
    # Its parts.
    "part of a list": (distributed(part([1])), "it is no tensor"),
    "code in a part": (distributed(part(Tensor((4, 2), (2, 1), Path))), "it names pathlib"),
    **{
        f"view of {shape}, {strides}, {first}": (
            distributed(part(Tensor(shape, strides, first))),
            f"shape {list(shape)}, strides {list(strides)} and begins at value {first}",
            "contiguous",
        )
        for shape, strides, first in (((2, 4), (4, 1), 0), ((4, 2), (1, 4), 0), ((4, 2), (2, 1), 1))
    },
    "big-endian part": (distributed(part(byteorder=b"big")), "big-endian"),
    "values cut short": (distributed(part(values=bytes(28))), "28 bytes", "32 were expected"),
    "compressed part": (distributed(part(compression=zipfile.ZIP_DEFLATED)), "is compressed"),
}


def file_of(header: Any, data: bytes = bytes(48)) -> Write:
    """Returns what writes a file of safetensors with a header, as JSON or as it is."""
    return lambda directory: write_header(directory / "a.safetensors", header, data)


def tensor(**changes: Any) -> Write:
    """Returns what writes a file of one tensor, of which some is changed."""
    return file_of({"t": GOOD | changes})


def begins(size: int, content: bytes = b"") -> Write:
    """Returns what writes a file that states the size of its header."""

    def write(directory: Path) -> Path:
        (directory / "a.safetensors").write_bytes(struct.pack("<Q", size) + content)
        return directory / "a.safetensors"

    return write


def indexed(directory: Path, index: Any) -> Path:
    """Writes two files of a tensor of one name, and an index."""
    (directory / "sub").mkdir()
    for name in ("1.safetensors", "2.safetensors", "sub/a.safetensors"):
        write_safetensors(directory / name, {"t": VALUES})
    path = directory / "m.safetensors.index.json"
    path.write_text(index if isinstance(index, str) else json.dumps(index))
    return path


def without_index(directory: Path) -> Path:
    for number in range(6):
        (directory / f"{number}.safetensors").write_bytes(b"")
    return directory


GOOD = {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}
FIRST = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
SECOND = FIRST | {"data_offsets": [24, 48]}
MAP = {"t": "1.safetensors"}
DAMAGED = "tensor 't' is damaged"
NOT_EXPECTED = "not what was expected"

BROKEN_SAFETENSORS: dict[str, Case] = {
    "header too large": (begins(100_000_001), "100000001 bytes", "100000000"),
    **{
        f"header {text!r}": (file_of(text, b""), "{path}", NOT_EXPECTED)
        for text in (b"{", b"[]", b"\xff")
    },
    "metadata of another release": (
        file_of({"__metadata__": {"format": "pt", "sharding": "mod"}}, b""),
        "unknown: '__metadata__.sharding'",
    ),
    "no position": (file_of({"t": {"dtype": "F32", "shape": [1]}}), "'t.data_offsets' is missing"),
    "extent below zero": (tensor(shape=[-4, 3]), DAMAGED, "(-4, 3)"),
    "end behind the file": (tensor(data_offsets=[0, 49]), "{path} is cut short", "'t'"),
    "values of other sizes": (tensor(dtype="F64"), "'t'", "has 48 bytes"),
    # One flipped bit made "a" of "c".
    "name twice": (
        file_of(f'{{"a": {json.dumps(FIRST)}, "a": {json.dumps(SECOND)}}}'.encode()),
        "byte 24",
        "0 was expected",
    ),
    "tensors that overlap": (file_of({"a": FIRST, "b": FIRST}), "byte 0", "24 was expected"),
    "values of no tensor": (file_of({"a": FIRST}), "end at byte 24 of 48"),
    "several files without an index": (without_index, "6 checkpoints", "give one of them"),
    **{
        f"index {index!r}": (partial(indexed, index=index), "{path}", words)
        for index, words in (
            ("{", NOT_EXPECTED),
            ("[]", NOT_EXPECTED),
            ("{}", "'weight_map' is missing"),
            ({"weight_map": [1]}, "'weight_map' is [1]"),
            ({"weight_map": MAP, "row_order": "mod"}, "unknown: 'row_order'"),
            ({"weight_map": MAP, "metadata": {"mod": 4}}, "'metadata.mod'"),
            ({"weight_map": MAP | {"n": "2.safetensors"}}, "'t' is in two files"),
            *(
                ({"weight_map": {"t": name}}, f"{name!r}, which is not beside it")
                for name in ("none.safetensors", "sub/a.safetensors", "sub", "..")
            ),
        )
    },
}
