"""Metadata of torch.distributed that cannot be followed, pickled by classes of PyTorch's names."""

from __future__ import annotations

import io
import pickle
import re
import sys
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import pytest

from export.checkpoint.formats import torch_distributed
from export.checkpoint.formats.torch_distributed import is_torch_distributed
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError

METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"
PACKAGES = (
    "torch",
    "torch._utils",
    "torch.storage",
    "torch.distributed",
    "torch.distributed.checkpoint",
)
CLASSES = {
    "BytesStorageMetadata": METADATA,
    "Metadata": METADATA,
    "TensorStorageMetadata": METADATA,
    "TensorProperties": METADATA,
    "ChunkStorageMetadata": METADATA,
    "MetadataIndex": METADATA,
    "_StorageInfo": FILESYSTEM,
}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a checkpoint of one part, whose storage info has other values.

    `lost` is the dtype of one more tensor, of which the metadata do not say where it lies; `more`
    holds further attributes of objects, by the names of their classes.
    """
    for module in (*PACKAGES, METADATA, FILESYSTEM):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    made: dict[str, type] = {}
    for name, module in CLASSES.items():
        made[name] = type(name, (), {"__module__": module})
        monkeypatch.setattr(sys.modules[module], name, made[name], raising=False)

    further: dict[str, Mapping[str, Any]] = {}

    def new(name: str, **attributes: Any) -> Any:
        instance = made[name]()
        vars(instance).update({**attributes, **further.get(name, {})})
        return instance

    for storage in (FloatStorage, UntypedStorage):
        place = sys.modules[storage.__module__]
        monkeypatch.setattr(place, storage.__name__, storage, raising=False)
    for name in ("_rebuild_tensor_v2", "_rebuild_parameter"):
        rebuild = type(name, (), {"__module__": "torch._utils"})
        monkeypatch.setattr(sys.modules["torch._utils"], name, rebuild, raising=False)

    def write_metadata(
        lost: str = "",
        part: bytes = bytes(32),
        shape: Any = (4, 2),
        dtype: Any = "torch.float32",
        properties: tuple[Any, ...] = ("torch.strided", False, 0, False),
        planner_data: Any = None,
        more: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        **changed: Any,
    ) -> Path:
        further.update(more)
        # The class pickles a tuple that begins with the dtype, under the attribute `state` here.
        chunk = new("ChunkStorageMetadata", offsets=(0,) * len(shape), sizes=shape)
        tensors = {}
        for name, kind in {"t": dtype, "lost": lost}.items():
            if not kind:
                continue
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
        (tmp_path / "c").mkdir()
        (tmp_path / "c/.metadata").write_bytes(pickle.dumps(metadata))
        (tmp_path / "c/__0_0.distcp").write_bytes(part)
        return tmp_path / "c"

    return write_metadata


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"transform_descriptors": ["ZStandard"]}, "saved with transforms .*without _extensions"),
        ({"relative_path": "../other.distcp"}, "is no name of a file"),
        ({"relative_path": "__1_0.distcp"}, "__1_0.distcp is missing"),
        ({"offset": True}, "True stands where a size was expected"),
        ({"shape": (4.0, 2)}, "4.0 stands where a size was expected"),
        ({"shape": (1 << 40, 1 << 40)}, r"'t' has the shape \[1099511627776, 1099511627776\], wh"),
        ({"offset": -1}, "-1 stands where a size was expected"),
        ({"length": 33}, "is cut short"),
        ({"lost": "torch.float32"}, r"does not say where 1 parts lie, one of 'lost'"),
        # A tensor of values that no table holds is not read.
        ({"lost": "torch.complex64"}, "cannot be read: File is not a zip file"),
        ({}, "cannot be read: File is not a zip file"),
    ],
)
def test_part_that_cannot_be_followed_is_refused(
    write: Write, changed: dict[str, Any], told: str
) -> None:
    with pytest.raises(CheckpointError, match=told):
        open_checkpoint(write(**changed))


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "TensorProperties"])
def test_attribute_that_is_not_understood_is_refused(write: Write, name: str) -> None:
    directory = write(more={name: {"row_order": [1, 0]}})
    with pytest.raises(CheckpointError, match=f"its {name} has 'row_order', which is not underst"):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        (
            ("torch.sparse_coo", False, 0, False),
            r"the layout torch\.sparse_coo; torch\.strided was",
        ),
        (("torch.strided", False, 0, False, "mod"), "6 properties; at most 5 are understood"),
    ],
)
def test_tensor_with_other_properties_is_refused(
    write: Write, properties: tuple[Any, ...], told: str
) -> None:
    with pytest.raises(CheckpointError, match=f"'t' has {told}"):
        open_checkpoint(write(properties=properties))


@pytest.mark.parametrize(
    ("planner_data", "shown"),
    [
        ({"sparsecore": {"world_size": 2}}, r"\['sparsecore'\] \(dict of world_size\)"),
        ({"t": {"rotation": 1}}, r"\['t'\] \(dict of rotation\)"),
        ({"t": ("a", ("b",))}, r"\['t'\] \(tuple\)"),
        ({"t": 4}, r"\['t'\] \(int\)"),
        # A path of no tensor is another thing with the form of a path.
        ({"t": ("t",), "cores": (2, 2)}, r"\['cores'\] \(tuple\)"),
        ({"t": {"a" * 300: 1}}, r"\['t'\] \(dict of a{200}\)"),
    ],
)
def test_planner_data_other_than_paths_are_refused(
    write: Write, planner_data: Any, shown: str
) -> None:
    directory = write(planner_data=planner_data)
    with pytest.raises(CheckpointError, match=f"planner_data{shown}.*order of the ids"):
        open_checkpoint(directory)


VALUES = np.arange(8, dtype=np.float32).reshape(4, 2)


class Storage:
    """The values of a tensor, which its pickle only names."""


class Tensor:
    """A tensor that is pickled as PyTorch does."""

    def __init__(
        self, shape: Sequence[int], strides: Sequence[int], first: Any = 0, parameter: bool = False
    ) -> None:
        self.view = (first, tuple(shape), tuple(strides))
        self.parameter = parameter

    def __reduce__(self) -> tuple[Any, ...]:
        utils: Any = sys.modules["torch._utils"]
        if self.parameter:
            return utils._rebuild_parameter, (Tensor(*self.view[1:]), True, OrderedDict())
        return utils._rebuild_tensor_v2, (Storage(), *self.view, False, OrderedDict())


class FloatStorage:
    """The class of a storage, which a pickle names."""

    __module__ = "torch"


class UntypedStorage:
    """The class of a storage of bytes."""

    __module__ = "torch.storage"


class Pickler(pickle.Pickler):
    kind: type = FloatStorage

    def persistent_id(self, saved: Any) -> Any:
        return ("storage", self.kind, "0", "cpu", 8) if isinstance(saved, Storage) else None


def pickled(saved: Any) -> bytes:
    buffer = io.BytesIO()
    Pickler(buffer, protocol=2).dump(saved)
    return buffer.getvalue()


def zipped(
    saved: Any,
    values: bytes = VALUES.tobytes(),
    byteorder: bytes | None = b"little",
    compression: int = zipfile.ZIP_STORED,
) -> bytes:
    """Returns a part as `torch.save` writes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickled(saved))
        if byteorder is not None:
            archive.writestr("archive/byteorder", byteorder)
        archive.writestr("archive/data/0", values, compression)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("shape", "strides"), [((4, 2), (2, 1)), ((8,), (1,)), ((8, 1), (1, 99)), ((1, 8), (7, 1))]
)
@pytest.mark.parametrize("parameter", [False, True])
@pytest.mark.parametrize("byteorder", [b"little", None])
def test_values_of_a_part_are_read_where_they_lie(
    write: Write,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    parameter: bool,
    byteorder: bytes | None,
) -> None:
    part = zipped(Tensor(shape, strides, parameter=parameter), byteorder=byteorder)
    directory = write(part=b"other parts" + part, shape=shape, offset=11, length=len(part))
    checkpoint = open_checkpoint(directory)
    assert list(checkpoint.entries) == ["t"]
    np.testing.assert_array_equal(checkpoint.read_all("t"), VALUES.reshape(shape))
    (piece,) = checkpoint.entries["t"].slices
    assert (piece.crc32, piece.crc32c) == (zlib.crc32(VALUES.tobytes()), None)
    assert (piece.starts, piece.shape, piece.bytes) == ((0,) * len(shape), shape, 32)


def test_storage_of_bytes_holds_values_as_well(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pickler, "kind", UntypedStorage)
    checkpoint = open_checkpoint(write(part=zipped(Tensor((4, 2), (2, 1)))))
    np.testing.assert_array_equal(checkpoint.read_all("t"), VALUES)


def test_tensor_without_rows_needs_no_part(write: Write) -> None:
    checkpoint = open_checkpoint(write(shape=(0, 2)))
    assert checkpoint.read_all("t").shape == (0, 2)


def test_fingerprint_is_of_metadata_and_values(write: Write) -> None:
    directory = write(part=zipped(Tensor((4, 2), (2, 1))))
    before = open_checkpoint(directory).fingerprint
    assert re.fullmatch("crc32c:[0-9a-f]{8}", before)
    part = zipped(Tensor((4, 2), (2, 1)), (VALUES + 1).tobytes())
    (directory / "__0_0.distcp").write_bytes(part)
    assert open_checkpoint(directory).fingerprint != before


ROWS_EXPECTED = (
    "the rows of shape [4, 2] were expected, without gaps: save a contiguous tensor; copy the file"
)


@pytest.mark.parametrize(
    ("saved", "options", "told"),
    [
        ([1], {}, "it is no tensor; copy the file anew"),
        (
            Tensor((2, 4), (4, 1)),
            {},
            "its tensor has shape [2, 4], strides [4, 1] and begins at value 0; " + ROWS_EXPECTED,
        ),
        (
            Tensor((4, 2), (1, 4)),
            {},
            "its tensor has shape [4, 2], strides [1, 4] and begins at value 0; " + ROWS_EXPECTED,
        ),
        (
            Tensor((4, 2), (2, 1), first=1),
            {},
            "its tensor has shape [4, 2], strides [2, 1] and begins at value 1; " + ROWS_EXPECTED,
        ),
        (
            Tensor((4, 2), (2, 1)),
            {"byteorder": b"big"},
            "its values are big-endian; save it on another machine; copy the file anew",
        ),
        (
            Tensor((4, 2), (2, 1)),
            {"values": bytes(28)},
            "its values have 28 bytes; 32 were expected; copy the file anew",
        ),
        (
            Tensor((4, 2), (2, 1)),
            {"compression": zipfile.ZIP_DEFLATED},
            "its values have 32 bytes; 32 were expected; copy the file anew",
        ),
        (Tensor((4, 2), (2, 1), first=Path), {}, "it names pathlib"),
    ],
)
def test_part_that_holds_something_else_is_refused(
    write: Write, saved: Any, options: dict[str, Any], told: str
) -> None:
    directory = write(part=zipped(saved, **options))
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(directory)
    lead = f"a part of 't' in {directory / '__0_0.distcp'} at byte 0 cannot be read: "
    assert str(error.value).startswith(lead + told)


def test_pickle_of_a_tensor_is_read_up_to_a_limit(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = Tensor((4, 2), (2, 1))
    directory = write(part=zipped(tensor))
    size = len(pickled(tensor))
    monkeypatch.setattr(torch_distributed, "_PICKLE_BYTES_MAX", size)
    assert len(open_checkpoint(directory).entries) == 1
    monkeypatch.setattr(torch_distributed, "_PICKLE_BYTES_MAX", size - 1)
    with pytest.raises(CheckpointError, match=r"its data\.pkl is too large for that of a tensor"):
        open_checkpoint(directory)


@pytest.mark.parametrize(("at", "value"), [(0, b"PK\0\0"), (28, b"\xff\xff"), (26, b"\xff\xff")])
def test_part_whose_values_do_not_lie_where_it_says_is_refused(
    write: Write, at: int, value: bytes
) -> None:
    part = bytearray(zipped(Tensor((4, 2), (2, 1))))
    start = part.rindex(b"PK\3\4")
    part[start + at : start + at + len(value)] = value
    told = "its values do not lie where its directory says; copy the file anew"
    with pytest.raises(CheckpointError, match=told):
        open_checkpoint(write(part=bytes(part)))


def test_part_whose_values_end_behind_it_is_refused(write: Write) -> None:
    part = bytearray(zipped(Tensor((4, 2), (2, 1))))
    start = part.rindex(b"PK\3\4")
    behind = len(part) - part.rindex(VALUES.tobytes())
    part[start + 28 : start + 30] = (behind - 31).to_bytes(2, "little")  # bytes of its extra field
    with pytest.raises(CheckpointError, match="its values do not lie where its directory says"):
        open_checkpoint(write(part=bytes(part)))


class Size(tuple[int, ...]):
    """A shape of PyTorch."""

    __slots__ = ()
    __module__ = "torch"

    def __reduce__(self) -> tuple[Any, ...]:
        return Size, (tuple(self),)


class Dtype:
    """A dtype of PyTorch, which is pickled by its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.__module__ = "torch"

    def __reduce__(self) -> str:
        return self.name


def test_sizes_and_dtypes_are_pickled_as_objects_of_pytorch(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = Dtype("float32")
    monkeypatch.setattr(sys.modules["torch"], "Size", Size, raising=False)
    monkeypatch.setattr(sys.modules["torch"], "float32", dtype, raising=False)
    directory = write(part=zipped(Tensor((4, 2), (2, 1))), shape=Size((4, 2)), dtype=dtype)
    checkpoint = open_checkpoint(directory)
    np.testing.assert_array_equal(checkpoint.read_all("t"), VALUES)


@pytest.mark.parametrize("less", [1, 10])
def test_part_that_is_cut_short_is_refused(write: Write, less: int) -> None:
    part = zipped(Tensor((4, 2), (2, 1)))
    with pytest.raises(CheckpointError, match="cannot be read: File is not a zip file"):
        open_checkpoint(write(part=part, length=len(part) - less))


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
