"""Checkpoints of PyTorch that are broken: of torch.distributed, and of safetensors."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tests.cases.checkpoints.inspections import Case, Write
from tests.units.export.checkpoint.formats.safetensors_files import write_safetensors
from tests.units.export.checkpoint.formats.torch_files import (
    METADATA_CLASSES,
    Pickler,
    Tensor,
    stand_in,
    torch_names,
    zipped,
)

VALUES = np.arange(8, dtype=np.float32).reshape(4, 2)
ROWS = Tensor((4, 2), (2, 1))
"""What `torch.save` pickles of the values."""
NAMES = MappingProxyType[str, Any]({})


class Runs:
    """Creates a file when its pickle is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def part(
    saved: Any = ROWS,
    values: bytes = VALUES.tobytes(),
    byteorder: bytes | None = b"little",
    compression: int = zipfile.ZIP_STORED,
    pickler: type[Pickler] = Pickler,
) -> bytes:
    with torch_names():
        return zipped(saved, values, byteorder, compression, pickler)


def with_header(offset: int, value: bytes) -> bytes:
    """Returns a part with other bytes in the header before its values."""
    changed = bytearray(part())
    start = changed.rindex(b"PK\3\4") + offset
    changed[start : start + len(value)] = value
    return bytes(changed)


def distributed(
    data: bytes | None = None,
    *,
    shape: Any = (4, 2),
    dtype: str = "torch.float32",
    lost: str = "",
    properties: tuple[Any, ...] = ("torch.strided", False, 0, False),
    planned: Any = None,
    more: Any = NAMES,
    **storage: Any,
) -> Write:
    """Returns what writes a checkpoint of one part.

    Args:
      data: Its data file; None: as torch writes it.
      shape: The shape of the tensor.
      dtype: Its dtype.
      lost: The dtype of one more tensor, of which the metadata do not say where it lies.
      properties: What its metadata have behind the dtype.
      planned: What the planner recorded.
      more: Further attributes of objects, by the names of their classes.
      storage: Other values of the part's storage info.
    """
    stored = part() if data is None else data

    def new(name: str, **attributes: Any) -> Any:
        return stand_in(name, **attributes, **more.get(name, {}))

    def tensor(kind: str) -> Any:
        start = (0,) * len(shape)
        return new(
            "TensorStorageMetadata",
            properties=new("TensorProperties", state=(kind, *properties)),
            size=shape,
            chunks=[new("ChunkStorageMetadata", offsets=start, sizes=shape)],
        )

    def write(directory: Path) -> Path:
        with torch_names():
            tensors = {
                name: tensor(kind) for name, kind in {"t": dtype, "lost": lost}.items() if kind
            }
            tensors["step"] = new("BytesStorageMetadata")
            index = new("MetadataIndex", fqn="t", offset=(0,) * len(shape), index=0)
            info = {"relative_path": "__0_0.distcp", "offset": 0, "length": len(stored)} | storage
            metadata = new(
                "Metadata",
                state_dict_metadata=tensors,
                planner_data=planned,
                storage_data={index: new("_StorageInfo", **info)},
            )
            (directory / ".metadata").write_bytes(pickle.dumps(metadata))
        (directory / "__0_0.distcp").write_bytes(stored)
        return directory

    return write


def metadata(content: bytes) -> Write:
    """Returns what writes metadata alone."""

    def write(directory: Path) -> Path:
        (directory / ".metadata").write_bytes(content)
        return directory

    return write


def unfinished(directory: Path) -> Path:
    (directory / "__0_0.distcp").write_bytes(b"")
    return directory


NOT_WHERE_IT_SAYS = "do not lie where its directory says"
NOT_A_ZIP = "not a zip file"
NOT_A_SIZE = "stands where a size was expected"

BROKEN_DISTRIBUTED: dict[str, Case] = {
    "no metadata": (unfinished, "no .metadata", "did not finish"),
    "code in the metadata": (metadata(pickle.dumps(Runs(Path("made")))), ".metadata", "it names"),
    "metadata cut short": (metadata(b"\x80\x05]\x8c\xff."), ".metadata cannot be read"),
    "object outside the metadata": (metadata(b"\x80\x05\x8c\x01aQ."), "outside"),
    "transforms": (distributed(transform_descriptors=["ZStandard"]), "transforms", "_extensions"),
    "file elsewhere": (distributed(relative_path="../other"), "'../other' is no name of a file"),
    "file that is gone": (distributed(relative_path="__1_0.distcp"), "__1_0.distcp is missing"),
    "offset of a bool": (distributed(offset=True), "True", NOT_A_SIZE),
    "offset of a list": (distributed(offset=[[1]]), "_StorageInfo.offset", "list"),
    "offset below zero": (distributed(offset=-1), "-1", NOT_A_SIZE),
    "shape of floats": (distributed(shape=(4.0, 2)), "4.0", NOT_A_SIZE),
    "shape too large": (distributed(shape=(1 << 60, 1)), "'t'", "which nothing can have"),
    "part behind the end": (distributed(bytes(32), length=33), "is cut short", "'t'"),
    "part that is not listed": (distributed(lost="torch.float32"), "1 parts", "'lost'"),
    "sparse tensor": (
        distributed(properties=("torch.sparse_coo", False, 0, False)),
        "'torch.sparse_coo'",
    ),
    "more properties": (
        distributed(properties=("torch.strided", False, 0, False, "mod")),
        "6 properties",
    ),
    **{
        f"more of {name}": (
            distributed(more={name: {"row_order": [1, 0]}}),
            "PyTorch 2",
            f"unknown: {name}.row_order",
        )
        for name in METADATA_CLASSES
        if name != "TensorProperties"
    },
    **{
        f"planner's {recorded!r:.60}": (distributed(planned=recorded), f"planner_data{words}")
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
    "part of zeros": (distributed(bytes(32)), "__0_0.distcp", NOT_A_ZIP),
    "part cut short": (distributed(length=len(part()) - 1), NOT_A_ZIP),
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
    "part without a header": (distributed(with_header(0, b"PK\0\0")), NOT_WHERE_IT_SAYS),
    "long name in a header": (distributed(with_header(26, b"\xff\xff")), NOT_WHERE_IT_SAYS),
    "long extra field": (distributed(with_header(28, b"\xff\xff")), NOT_WHERE_IT_SAYS),
}


def file_of(header: Any, data: bytes = bytes(48)) -> Write:
    """Returns what writes a file of safetensors with a header, as JSON or as it is."""

    def write(directory: Path) -> Path:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        path = directory / "a.safetensors"
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)
        return path

    return write


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
    "header that is not there": (begins(100_000_000), "cut short in its header"),
    "header too large": (begins(100_000_001), "100000001 bytes", "100000000"),
    "header cut short": (begins(2, b"{"), "{path} is cut short in its header"),
    **{
        f"header {text!r}": (file_of(text, b""), "{path}", NOT_EXPECTED)
        for text in (b"{", b"[]", b"\xff")
    },
    "metadata of another release": (
        file_of({"__metadata__": {"format": "pt", "sharding": "mod"}}, b""),
        "unknown: '__metadata__.sharding'",
    ),
    "field of another release": (tensor(row_order="mod"), "newer release", "'t.row_order'"),
    "tensor of a number": (file_of({"t": 1}), "'t' is 1"),
    "no position": (file_of({"t": {"dtype": "F32", "shape": [1]}}), "'t.data_offsets' is missing"),
    "half a position": (tensor(data_offsets=[0]), "'t.data_offsets' is [0]"),
    "extent of a float": (tensor(shape=[4, 3.0]), "'t.shape.1' is 3.0"),
    "extent of a bool": (tensor(shape=[True, 12]), "'t.shape.0' is True"),
    "extent below zero": (tensor(shape=[-4, 3]), DAMAGED, "(-4, 3)"),
    "position below zero": (tensor(data_offsets=[-1, 47]), DAMAGED, "[-1, 47]"),
    "end before the start": (tensor(data_offsets=[48, 0]), DAMAGED, "[48, 0]"),
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
