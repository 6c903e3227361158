"""How a checkpoint stores a variable: dtype, shape, and the slices of it that lie in files. Frozen,
without any I/O.

A slice is an index range of one variable, stored row-major and contiguous. A variable that was
saved whole is one slice that covers it. Slices may lie in any file, in any order, cut along any
axis; only together do they cover the variable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np

from bundle.arithmetic import ceil_div
from export.checkpoint.layouts import SparseCore
from object_store.stamps import Stamp

RANK_MAX = 32
"""The maximum number of axes of an array, which was NumPy's own limit before version 2."""

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in (
        ("float32", "<f4"),
        ("float64", "<f8"),
        ("float16", "<f2"),
        ("bfloat16", ml_dtypes.bfloat16),
        ("int8", "i1"),
        ("int16", "<i2"),
        ("int32", "<i4"),
        ("int64", "<i8"),
        ("uint8", "u1"),
        ("uint16", "<u2"),
        ("uint32", "<u4"),
        ("uint64", "<u8"),
        ("bool", "?"),
    )
}
"""Fixed-width dtypes, by TensorFlow's name. A variable of another dtype is listed and never read
as rows.
"""
_ITEMSIZES = {name: dtype.itemsize for name, dtype in NUMPY_DTYPES.items()}


def is_wider_integer(dtype: str, stored: str) -> bool:
    """Returns whether a variable of a dtype holds every integer of the stored one: JAX has no
    integers of 64 bits by default, where TensorFlow has them, as in `Normalization.count`.
    """
    wide = NUMPY_DTYPES.get(dtype)
    narrow = NUMPY_DTYPES.get(stored)
    if wide is None or narrow is None or wide.kind not in "iu" or narrow.kind not in "iu":
        return False
    return np.can_cast(narrow, wide, "safe")


class Slice(NamedTuple):
    """Where an index range of a variable lies.

    Attributes:
      file: Path of the data file, or its URL.
      offset: First byte in the file; not aligned to anything.
      bytes: Length of the stored range.
      crc32c: The checksum of exactly those bytes; None if the storage keeps none (HDF5).
      starts: First index on each axis.
      shape: Extent on each axis.
      stamp: The stamp of the data file when the checkpoint was opened. The file may not change
        until its rows are read.
      crc32: The other checksum of exactly those bytes, which zip files keep; None if there is none.
    """

    file: str
    offset: int
    bytes: int
    crc32c: int | None
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    stamp: Stamp | None = None
    crc32: int | None = None

    def key_parts(self) -> list[Any]:
        """Returns what decides the content: a checkpoint that was moved is the same one, whose
        files have the same names.
        """
        return [Path(self.file).name, *self[1:6], self.crc32]


class ArrayStore(NamedTuple):
    """Where a variable lies that is stored in chunks, and so has no slices: Orbax's zarr arrays,
    chunked HDF5 datasets.

    Attributes:
      spec: JSON that opens it, with tensorstore or, if its driver is `hdf5`, with h5py.
      chunk: Extent of a chunk on each axis; a chunk is decoded as a whole.
      memory_bytes: The maximum memory that reading rows of it takes, in bytes.
      file: The file that another save to the same place would replace; "" if none is watched.
      stamp: The stamp of that file when the checkpoint was opened.
      absent: Number of chunks that are not stored, where the format does not say whether they were
        lost or are zeros.
    """

    spec: str
    chunk: tuple[int, ...]
    memory_bytes: int = 0
    file: str = ""
    stamp: Stamp | None = None
    absent: int = 0


class Entry(NamedTuple):
    """One stored variable: `slices` of it in files, or `array`, never both."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    slices: tuple[Slice, ...]
    array: ArrayStore | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of one value; 0 where values have no fixed width."""
        return _ITEMSIZES.get(self.dtype, 0)

    @property
    def bytes(self) -> int:
        """Bytes of its values as stored, all slices together; uncompressed."""
        if self.array is not None:
            return math.prod(self.shape) * self.itemsize
        return sum(part.bytes for part in self.slices)

    @property
    def whole(self) -> bool:
        """Whether the variable lies in one piece."""
        # A single slice may cover only a part of the variable.
        return len(self.slices) == 1 and self.slices[0].shape == self.shape

    @property
    def pieces(self) -> int:
        """How many slices or chunks the variable is cut into."""
        if self.array is None:
            return len(self.slices)
        return math.prod(
            ceil_div(size, max(1, chunk))
            for size, chunk in zip(self.shape, self.array.chunk, strict=True)
        )

    @property
    def files(self) -> int:
        """How many data files hold a part of it."""
        return len({part.file for part in self.slices})


def can_be(shape: Sequence[int]) -> bool:
    """Returns whether an array can have a shape: few axes, and bytes that 63 bits count, even if
    one axis is empty.
    """
    # Before the product, which takes the square of the number of axes.
    if len(shape) > RANK_MAX or min(shape, default=0) < 0:
        return False
    # An empty axis counts as 1: it would hide axes that overflow. The widest value has 16 bytes, so
    # that 2^59 values have 2^63 bytes.
    return math.prod(size or 1 for size in shape) < 1 << 59


@dataclass(frozen=True, slots=True)
class DumpedTable:
    """One table of a dump: its rows are found by key.

    Attributes:
      name: The name of the table in the dump.
      vectors: The rows of the table, [rows, dim].
      keys: The key of each row, [rows] integers.
      slots: The slot variables by name, [rows, dim] each.
    """

    name: str
    vectors: Entry
    keys: Entry
    slots: Mapping[str, Entry]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Everything that it stores."""
        return (self.vectors, self.keys, *self.slots.values())


StorageKind = Literal["TensorFlow", "Orbax", "Keras", "SOK", "HugeCTR", "PyTorch"]


@dataclass(frozen=True, slots=True)
class StackedTable:
    """A table in a stack, as the training program recorded it: a variable whose rows are sharded
    over SparseCores, and which several tables may share.

    Attributes:
      name: The name of the table.
      stack: The name of the stack.
      rows, dim: The shape of the table.
      layout: Which row of the stack holds row r.
      stored: Rows and columns of the stack; () if the record does not state its columns.
      combiner: How the rows of an example become one vector; "" if the record does not state it.
    """

    name: str
    stack: str
    rows: int
    dim: int
    layout: SparseCore
    stored: tuple[int, ...] = ()
    combiner: str = ""


@dataclass(frozen=True, slots=True)
class ModSharding:
    """How a training program sharded the rows of embedding tables over SparseCores.

    Attributes:
      cores: SparseCores of all devices.
      tables: The tables that it describes; every other table has a variable of its own, with its
        padding.
    """

    cores: int
    tables: tuple[StackedTable, ...] = ()


class Asset(NamedTuple):
    """A file that a layer saved beside its variables, such as a vocabulary.

    Attributes:
      bytes: Its size, decompressed.
      file: The local archive that holds it, or the file itself; "" if an array holds it.
      member: Its name in the archive, or the key of the array; "" if it is a file of its own.
    """

    bytes: int
    file: str
    member: str


class OrderedLayer(NamedTuple):
    """A layer in a file of Keras that states the order of layers and of their weights.

    Attributes:
      name: The name of the layer; "" for the model itself, which may have weights beside its
        layers.
      weights: The key of each weight by its name, in their order.
    """

    name: str
    weights: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of the variables, and what it records of them besides their keys.

    Attributes:
      kind: A TensorBundle of TensorFlow, Orbax's tree of arrays, Keras's HDF5, the dump of a
        parameter server, or tensors of PyTorch.
      step: Training step, as a directory's name says it.
      layer_names: The name of the variable's layer by its key, where a Keras file records it.
      model: Configuration of the Keras model, where the file has it: class and name of every layer.
      assets: What layers of Keras saved beside their variables, by path in the model: with slashes,
        in Orbax with dots.
      layers: Configurations of the layers of a model, by their paths, "" of the model itself: of a
        model of tf-keras in a SavedModel, or of a whole model in Keras's older format.
      ordered_layers: The layers of a model in Keras's older format, with their weights, in the
        order in which Keras itself loads them; () if the file has another format.
      keras_version: The version of Keras that wrote a file, where it is recorded; else "".
      problems: The problems of its files that no slice shows: they are missing or cut short.
      notes: What the user should know of its metadata.
      dumped: Tables of dynamic keys, by the key of the variable of their vectors.
      averages: Key of the moving average that is read in a variable's place, by the variable's key.
      sharding: How the rows of embedding tables are sharded; None: nothing says that they are.
    """

    kind: StorageKind = "TensorFlow"
    step: int | None = None
    layer_names: Mapping[str, str] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    assets: Mapping[str, Asset] = field(default_factory=dict)
    layers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ordered_layers: tuple[OrderedLayer, ...] = ()
    keras_version: str = ""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    dumped: Mapping[str, DumpedTable] = field(default_factory=dict)
    averages: Mapping[str, str] = field(default_factory=dict)
    sharding: ModSharding | None = None


class Listing(NamedTuple):
    """What a format lists of a checkpoint: a digest that distinguishes it from others, every
    variable by its key, and more.
    """

    fingerprint: str
    entries: Mapping[str, Entry]
    storage: Storage = Storage()
