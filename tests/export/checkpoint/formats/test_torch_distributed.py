"""Metadata of torch.distributed that cannot be followed, pickled by classes of PyTorch's names."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError

METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"
PACKAGES = ("torch", "torch.distributed", "torch.distributed.checkpoint")
CLASSES = {
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

    `lost` is the dtype of one more tensor, of which the metadata do not say where it lies.
    """
    for module in (*PACKAGES, METADATA, FILESYSTEM):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    made: dict[str, type] = {}
    for name, module in CLASSES.items():
        made[name] = type(name, (), {"__module__": module})
        monkeypatch.setattr(sys.modules[module], name, made[name], raising=False)

    def new(name: str, **attributes: Any) -> Any:
        instance = made[name]()
        vars(instance).update(attributes)
        return instance

    def write_metadata(lost: str = "", **changed: Any) -> Path:
        # The class pickles a tuple that begins with the dtype, under the attribute `state` here.
        chunk = new("ChunkStorageMetadata", offsets=(0, 0), sizes=(4, 2))
        tensors = {}
        for name, dtype in {"t": "torch.float32", "lost": lost}.items():
            if not dtype:
                continue
            properties = new("TensorProperties", state=(dtype, "torch.strided"))
            tensors[name] = new(
                "TensorStorageMetadata", properties=properties, size=(4, 2), chunks=[chunk]
            )
        index = new("MetadataIndex", fqn="t", offset=(0, 0), index=0)
        info = {"relative_path": "__0_0.distcp", "offset": 0, "length": 32} | changed
        metadata = new(
            "Metadata",
            state_dict_metadata=tensors,
            storage_data={index: new("_StorageInfo", **info)},
        )
        (tmp_path / "c").mkdir()
        (tmp_path / "c/.metadata").write_bytes(pickle.dumps(metadata))
        (tmp_path / "c/__0_0.distcp").write_bytes(bytes(32))
        return tmp_path / "c"

    return write_metadata


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"transform_descriptors": ["ZStandard"]}, "saved with transforms .*without _extensions"),
        ({"relative_path": "../other.distcp"}, "is no name of a file"),
        ({"relative_path": "__1_0.distcp"}, "__1_0.distcp is missing"),
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
