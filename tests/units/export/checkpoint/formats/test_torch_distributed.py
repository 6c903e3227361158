"""Checkpoints of torch.distributed: which saved tensors are read, and the errors of those that
cannot be followed.
"""

from __future__ import annotations

import pickle
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from export.checkpoint.formats import torch_distributed
from export.checkpoint.formats.torch_distributed import is_torch_distributed
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.units.export.checkpoint.formats.torch_files import (
    METADATA_CLASSES,
    STAND_INS,
    BytesPickler,
    Tensor,
    pickled,
    stand_in,
    torch_names,
    zipped,
)

Write = Callable[..., Path]
VALUES = np.arange(8, dtype=np.float32).reshape(4, 2)
ROWS = Tensor((4, 2), (2, 1))
"""What `torch.save` pickles of the values."""


def part_of(saved: Any = ROWS, values: bytes = VALUES.tobytes(), **options: Any) -> bytes:
    return zipped(saved, values, **options)


def with_header(offset: int, value: bytes) -> bytes:
    """Returns a part with other bytes in the header before its values."""
    part = bytearray(part_of())
    start = part.rindex(b"PK\3\4") + offset
    part[start : start + len(value)] = value
    return bytes(part)


def ending_behind_itself() -> bytes:
    """Returns a part whose values begin so late that the last byte lies behind it."""
    part = part_of()
    extra_bytes = len(part) - part.rindex(VALUES.tobytes()) - 31
    return with_header(28, extra_bytes.to_bytes(2, "little"))


def write_checkpoint(
    root: Path,
    lost: str = "",
    part: bytes = bytes(32),
    shape: Any = (4, 2),
    dtype: str = "torch.float32",
    properties: tuple[Any, ...] = ("torch.strided", False, 0, False),
    planner_data: Any = None,
    more: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    **changed: Any,
) -> Path:
    """Writes a checkpoint of one part.

    Args:
      root: Where its directory is created.
      lost: The dtype of one more tensor, of which the metadata do not say where it lies.
      part: Its data file.
      shape: The shape of the tensor.
      dtype: Its dtype.
      properties: What its metadata have behind the dtype.
      planner_data: What the planner recorded.
      more: Further attributes of objects, by the names of their classes.
      changed: Other values of the part's storage info.
    """

    def new(name: str, **attributes: Any) -> Any:
        return stand_in(name, **attributes, **more.get(name, {}))

    chunk = new("ChunkStorageMetadata", offsets=(0,) * len(shape), sizes=shape)
    tensors = {}
    for name, kind in {"t": dtype, "lost": lost}.items():
        if kind:
            described = new("TensorProperties", state=(kind, *properties))
            tensors[name] = new(
                "TensorStorageMetadata", properties=described, size=shape, chunks=[chunk]
            )
    tensors["step"] = new("BytesStorageMetadata")
    index = new("MetadataIndex", fqn="t", offset=(0,) * len(shape), index=0)
    info = {"relative_path": "__0_0.distcp", "offset": 0, "length": len(part)} | changed
    metadata = new(
        "Metadata",
        state_dict_metadata=tensors,
        planner_data=planner_data,
        storage_data={index: new("_StorageInfo", **info)},
    )
    directory = root / "c"
    directory.mkdir()
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))
    (directory / "__0_0.distcp").write_bytes(part)
    return directory


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """`write_checkpoint` into a directory of the test."""
    with torch_names():
        yield partial(write_checkpoint, tmp_path)


@pytest.mark.parametrize(
    ("shape", "strides", "options"),
    [
        ((4, 2), (2, 1), {"byteorder": None}),
        ((8,), (1,), {"pickler": BytesPickler}),
        ((8, 1), (1, 99), {}),
        ((1, 8), (7, 1), {}),
    ],
)
@pytest.mark.parametrize("parameter", [False, True])
def test_values_of_a_part_are_read_behind_other_parts(
    write: Write,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    parameter: bool,
    options: dict[str, Any],
) -> None:
    part = part_of(Tensor(shape, strides, parameter=parameter), **options)
    directory = write(part=b"other parts" + part, shape=shape, offset=11, length=len(part))
    checkpoint = open_checkpoint(directory)
    np.testing.assert_array_equal(checkpoint.read_all("t"), VALUES.reshape(shape))
    (piece,) = checkpoint.entries["t"].slices
    assert (piece.crc32, piece.crc32c) == (zlib.crc32(VALUES.tobytes()), None)


def test_tensor_without_rows_needs_no_part(write: Write) -> None:
    checkpoint = open_checkpoint(write(shape=(0, 2)))
    assert checkpoint.read_all("t").shape == (0, 2)


def test_fingerprint_is_of_metadata_and_values(write: Write) -> None:
    directory = write(part=part_of())
    before = open_checkpoint(directory).fingerprint
    assert re.fullmatch("crc32c:[0-9a-f]{8}", before)
    (directory / "__0_0.distcp").write_bytes(part_of(values=(VALUES + 1).tobytes()))
    assert open_checkpoint(directory).fingerprint != before


UNREADABLE = "a part of 't' in {part} at byte 0 cannot be read: "
NOT_WHERE_IT_SAYS = UNREADABLE + "its values do not lie where its directory says; copy the file"
ROWS_EXPECTED = (
    "; the rows of shape [4, 2] were expected, without gaps: save a contiguous tensor; copy the"
)

BROKEN_METADATA: list[tuple[dict[str, Any], list[str]]] = [
    ({"transform_descriptors": ["ZStandard"]}, ["saved with transforms", "without _extensions"]),
    ({"relative_path": "../other.distcp"}, ["'../other.distcp' is no name of a file"]),
    ({"relative_path": "__1_0.distcp"}, ["__1_0.distcp is missing; copy all files"]),
    ({"offset": True}, ["True stands where a size was expected"]),
    ({"offset": [[1], [2]]}, ["the field '_StorageInfo.offset' is of type list"]),
    ({"offset": -1}, ["-1 stands where a size was expected"]),
    ({"shape": (4.0, 2)}, ["4.0 stands where a size was expected"]),
    ({"shape": (1 << 60, 1)}, ["'t' has the shape [1152921504606846976, 1], which nothing can"]),
    ({"length": 33}, ["{part} is cut short: a part of 't' lies behind its end; copy it anew"]),
    ({"lost": "torch.float32"}, ["does not say where 1 parts lie, one of 'lost'"]),
    # A tensor of values that no table holds is not read, so the next error is reported.
    ({"lost": "torch.complex64"}, [UNREADABLE + "File is not a zip file"]),
    (
        {"properties": ("torch.sparse_coo", False, 0, False)},
        ["'t' has the layout 'torch.sparse_coo'; 'torch.strided' was expected"],
    ),
    (
        {"properties": ("torch.strided", False, 0, False, "mod")},
        ["'t' has 6 properties; at most 5 are understood"],
    ),
    *(
        ({"more": {name: {"row_order": [1, 0]}}}, ["PyTorch 2", f"unknown: {name}.row_order."])
        for name in METADATA_CLASSES
        if name != "TensorProperties"
    ),
]
PLANNER_DATA: list[tuple[Any, str]] = [
    ({"sparsecore": {"world_size": 2}}, "['sparsecore'] without 'num_sc_per_device'"),
    ({"sparsecore": 2}, "['sparsecore'] (int)"),
    ({"t": {"rotation": 1}}, "['t'] (dict of rotation)"),
    ({"t": ("a", ("b",))}, "['t'] (tuple)"),
    ({"t": 4}, "['t'] (int)"),
    # A path of no tensor is another thing with the form of a path.
    ({"t": ("t",), "cores": (2, 2)}, "['cores'] (tuple)"),
    ({"t": {"a" * 300: 1}}, f"['t'] (dict of {'a' * 200})"),
]
BROKEN_METADATA += [
    ({"planner_data": recorded}, ["{metadata}: ", f"planner_data{expected}", "order of the ids"])
    for recorded, expected in PLANNER_DATA
]

VIEWS = {
    Tensor((2, 4), (4, 1)): "shape [2, 4], strides [4, 1] and begins at value 0",
    Tensor((4, 2), (1, 4)): "shape [4, 2], strides [1, 4] and begins at value 0",
    Tensor((4, 2), (2, 1), first=1): "shape [4, 2], strides [2, 1] and begins at value 1",
}
with torch_names():
    WHOLE = part_of()
    BROKEN_PARTS: list[tuple[dict[str, Any], list[str]]] = [
        ({"part": bytes(32)}, [UNREADABLE + "File is not a zip file; copy the file anew"]),
        ({"part": WHOLE, "length": len(WHOLE) - 1}, ["File is not a zip file"]),
        ({"part": WHOLE, "length": len(WHOLE) - 10}, ["File is not a zip file"]),
        ({"part": part_of([1])}, [UNREADABLE + "it is no tensor; copy the file anew"]),
        ({"part": part_of(Tensor((4, 2), (2, 1), Path))}, [UNREADABLE + "it names pathlib"]),
        *(
            ({"part": part_of(saved)}, [f"{UNREADABLE}its tensor has {view}{ROWS_EXPECTED}"])
            for saved, view in VIEWS.items()
        ),
        (
            {"part": part_of(byteorder=b"big")},
            [UNREADABLE + "its values are big-endian; save it on another machine; copy the file"],
        ),
        (
            {"part": part_of(byteorder=bytes(1 << 20))},
            [UNREADABLE + "its values are big-endian; save it on another machine; copy the file"],
        ),
        (
            {"part": part_of(values=bytes(28))},
            [UNREADABLE + "its values have 28 bytes; 32 were expected; copy the file anew"],
        ),
        (
            {"part": part_of(compression=zipfile.ZIP_DEFLATED)},
            [UNREADABLE + "it is compressed; PyTorch stores tensors as they are; copy the file"],
        ),
        ({"part": with_header(0, b"PK\0\0")}, [NOT_WHERE_IT_SAYS]),
        ({"part": with_header(26, b"\xff\xff")}, [NOT_WHERE_IT_SAYS]),  # bytes of its name
        ({"part": with_header(28, b"\xff\xff")}, [NOT_WHERE_IT_SAYS]),  # and of its extra field
        ({"part": ending_behind_itself()}, [NOT_WHERE_IT_SAYS]),
    ]


@pytest.mark.parametrize(("broken", "words"), [*BROKEN_METADATA, *BROKEN_PARTS])
def test_checkpoint_that_cannot_be_followed_is_rejected_with_the_reason(
    write: Write, broken: dict[str, Any], words: list[str]
) -> None:
    directory = write(**broken)
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(directory)
    positions = {"part": directory / "__0_0.distcp", "metadata": directory / ".metadata"}
    for expected in words:
        assert expected.format(**positions) in str(error.value)


def test_pickle_of_a_tensor_is_read_up_to_a_limit(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write(part=part_of())
    size = len(pickled(ROWS))
    monkeypatch.setattr(torch_distributed, "_PICKLE_BYTES_MAX", size)
    assert len(open_checkpoint(directory).entries) == 1
    monkeypatch.setattr(torch_distributed, "_PICKLE_BYTES_MAX", size - 1)
    with pytest.raises(CheckpointError, match=r"its data\.pkl is too large for that of a tensor"):
        open_checkpoint(directory)


def test_directory_of_parts_without_metadata_is_not_complete(tmp_path: Path) -> None:
    assert not is_torch_distributed(tmp_path)
    assert not is_torch_distributed(tmp_path / "none")
    (tmp_path / "notes").write_bytes(b"")
    assert not is_torch_distributed(tmp_path)
    (tmp_path / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(CheckpointError) as error:
        is_torch_distributed(tmp_path)
    assert str(error.value) == (
        f"directory {tmp_path} holds data files of torch.distributed and no .metadata: the save or "
        "the copy did not finish"
    )
    (tmp_path / ".metadata").write_bytes(b"")
    assert is_torch_distributed(tmp_path)


def first_of(value: Any, kind: str) -> Any:
    """Returns the first object of a class in the metadata; an empty one if there is none."""
    queue = [value]
    for child in queue:
        if type(child) is STAND_INS[kind]:
            return child
        queue += getattr(child, "__dict__", {}).values()
        if isinstance(child, dict):
            queue += [*child.keys(), *child.values()]
        elif isinstance(child, list):
            queue += child
    return STAND_INS[kind]()


@pytest.mark.parametrize("kind", METADATA_CLASSES)
@pytest.mark.parametrize("change", ["renamed", "removed", "retyped"])
def test_metadata_of_another_release_give_the_same_tensors_or_name_the_field(
    write: Write, kind: str, change: str
) -> None:
    directory = write(part=part_of())
    expected = open_checkpoint(directory).entries
    content = (directory / ".metadata").read_bytes()
    for field in vars(first_of(pickle.loads(content), kind)):
        metadata = pickle.loads(content)
        attributes = vars(first_of(metadata, kind))
        value = attributes.pop(field)
        if change == "renamed":
            attributes[f"{field}_renamed"] = value
        elif change == "retyped":
            attributes[field] = 7.5
        (directory / ".metadata").write_bytes(pickle.dumps(metadata))
        try:
            entries = open_checkpoint(directory).entries
        except CheckpointError as error:
            message = str(error)
        else:
            assert entries == expected
            continue
        words = {"renamed": f"these fields are unknown: {kind}.{field}_renamed."}
        assert words.get(change, field) in message
        assert ".metadata" in message
