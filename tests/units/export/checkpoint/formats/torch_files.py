"""Checkpoints of torch.distributed without torch: pickles of substitutes for its classes.

A pickle holds names of classes and functions. `torch_names` lets those of PyTorch mean substitutes,
so that they can be pickled.
"""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"
MODULES = (
    "torch",
    "torch._utils",
    "torch.storage",
    "torch.distributed",
    "torch.distributed.checkpoint",
    METADATA,
    FILESYSTEM,
)
METADATA_CLASSES = {
    "BytesStorageMetadata": METADATA,
    "Metadata": METADATA,
    "TensorStorageMetadata": METADATA,
    "TensorProperties": METADATA,
    "ChunkStorageMetadata": METADATA,
    "MetadataIndex": METADATA,
    "_StorageInfo": FILESYSTEM,
}
PLACES = METADATA_CLASSES | {
    "FloatStorage": "torch",
    "UntypedStorage": "torch.storage",
    "_rebuild_tensor_v2": "torch._utils",
    "_rebuild_parameter": "torch._utils",
}
STAND_INS = {name: type(name, (), {"__module__": module}) for name, module in PLACES.items()}


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
        if self.parameter:
            rebuild: Any = STAND_INS["_rebuild_parameter"]
            return rebuild, (Tensor(*self.view[1:]), True, OrderedDict())
        rebuild = STAND_INS["_rebuild_tensor_v2"]
        return rebuild, (Storage(), *self.view, False, OrderedDict())


class Pickler(pickle.Pickler):
    """Pickles a tensor; its storage is of a class that is named."""

    def persistent_id(self, saved: Any) -> Any:
        if not isinstance(saved, Storage):
            return None
        return ("storage", STAND_INS["FloatStorage"], "0", "cpu", 8)


class Part(NamedTuple):
    """A part of a tensor, which lies in a file behind the parts before it."""

    tensor: str
    starts: tuple[int, ...]
    values: NDArray[Any]
    file: str


@contextmanager
def torch_names() -> Iterator[None]:
    """Lets names of PyTorch mean the substitutes until the end."""
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setitem(sys.modules, module, ModuleType(module))
        patch.setattr(sys.modules["torch"], "Size", Size, raising=False)
        for name, module in PLACES.items():
            patch.setattr(sys.modules[module], name, STAND_INS[name], raising=False)
        yield


def stand_in(name: str, **attributes: Any) -> Any:
    """Returns an object of the class of a name."""
    created = STAND_INS[name]()
    vars(created).update(attributes)
    return created


def named_dtype(name: str) -> Dtype:
    """Returns the dtype that PyTorch has by a name, which from now on means it."""
    torch = sys.modules["torch"]
    dtype: Dtype = getattr(torch, name, None) or Dtype(name)
    setattr(torch, name, dtype)
    return dtype


def pickled(saved: Any) -> bytes:
    buffer = io.BytesIO()
    Pickler(buffer, protocol=2).dump(saved)
    return buffer.getvalue()


def zipped(
    saved: Any,
    values: bytes,
    byteorder: bytes = b"little",
    compression: int = zipfile.ZIP_STORED,
) -> bytes:
    """Returns a part as `torch.save` writes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickled(saved))
        archive.writestr("archive/byteorder", byteorder)
        archive.writestr("archive/data/0", values, compression)
    return buffer.getvalue()


def write_torch(
    directory: Path,
    tensors: Mapping[str, NDArray[Any]],
    parts: Sequence[Part],
    planner_data: Mapping[str, Any] = MappingProxyType({}),
    change: Callable[[Any], object] = bool,
) -> None:
    """Writes tensors in parts as `torch.distributed.checkpoint.save` does.

    Args:
      directory: An empty directory.
      tensors: The tensors by name.
      parts: Their parts.
      planner_data: What a planner records besides the paths of tensors.
      change: Changes the metadata.
    """
    contents: dict[str, bytes] = defaultdict(bytes)
    with torch_names():
        described = {}
        for name, values in tensors.items():
            state = (named_dtype(values.dtype.name), "torch.strided", False, 0, False)
            chunks = [
                stand_in(
                    "ChunkStorageMetadata",
                    offsets=Size(part.starts),
                    sizes=Size(part.values.shape),
                )
                for part in parts
                if part.tensor == name
            ]
            described[name] = stand_in(
                "TensorStorageMetadata",
                properties=stand_in("TensorProperties", state=state),
                size=Size(values.shape),
                chunks=chunks,
            )
        positions = {}
        for part in parts:
            strides = np.array(np.empty(part.values.shape).strides, int) // np.dtype(float).itemsize
            content = zipped(Tensor(part.values.shape, strides.tolist()), part.values.tobytes())
            index = stand_in("MetadataIndex", fqn=part.tensor, offset=Size(part.starts), index=None)
            positions[index] = stand_in(
                "_StorageInfo",
                relative_path=part.file,
                offset=len(contents[part.file]),
                length=len(content),
                transform_descriptors=None,
            )
            contents[part.file] += content
        metadata = stand_in(
            "Metadata",
            state_dict_metadata=described,
            planner_data={name: (name,) for name in tensors} | dict(planner_data),
            storage_data=positions,
            storage_meta=None,
        )
        change(metadata)
        (directory / ".metadata").write_bytes(pickle.dumps(metadata))
    for file, content in contents.items():
        (directory / file).write_bytes(content)
