"""What is in a checkpoint: tables, slot variables, the rest. Frozen; knows meaning,
never storage.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, model_validator

from bundle.format.manifest import TrainedIdsCheck
from export.checkpoint.layouts import Layout
from export.checkpoint.variables import Entry, StorageKind
from export.errors import NotConvertible

FLOATS = ("float32", "float64", "bfloat16", "float16")
CANDIDATES_TOLD = 20

Origin = Literal[
    "TPUEmbedding",
    "TFRS TPUEmbedding",
    "PartialTPUEmbedding",
    "Keras Embedding",
    "Flax Embed",
    "feature column",
    "named",
    "layout file",
    "embedding spec",
    "dump",
    "TorchRec",
    "trained ids",
]
"""Who wrote a table: the mid-level API, the TFRS layers around it, a Keras or Flax layer, a feature
column; or the user said so, by naming its variable or in a layout file; or jax-tpu-embedding's
trainer recorded it in an EmbeddingSpecProto; or a parameter server dumped it; or TorchRec named it;
or ids that occur in training prove where it lies.
"""

STATED_NOTE = (
    "its layout is stated, not recorded by the training program: if the statement is wrong, ids "
    "get the rows of other ids"
)
"""Said of every table whose rows come out in an order that only the user knows."""


class StatedTable(BaseModel):
    """A table as a layout file states it; what is None is taken from the checkpoint.

    Attributes:
      key: of its variable, or the name of its stack, which stands somewhere in the key of one
        variable.
      kind: of its layout; "derive": trained ids are to prove it.
      rows, dim: of the table without padding.
      partitions: of a mod layout.
      cores, core_rows, offset, rotation: of a SparseCore layout.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    key: str
    kind: Literal["plain", "mod", "sparse_core", "derive"]
    rows: PositiveInt | None = None
    dim: PositiveInt | None = None
    partitions: PositiveInt | None = None
    cores: PositiveInt | None = None
    core_rows: PositiveInt | None = None
    offset: NonNegativeInt = 0
    rotation: NonNegativeInt = 0

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        own = {
            "plain": (),
            "mod": ("partitions",),
            "sparse_core": ("cores", "core_rows", "offset", "rotation"),
            "derive": (),
        }
        for name in sorted(self.model_fields_set - {"key", "kind", "rows", "dim", *own[self.kind]}):
            raise ValueError(f"{name!r} is no key of a table of kind {self.kind!r}")
        if self.kind == "sparse_core" and None in (self.rows, self.dim, self.cores):
            raise ValueError("a table of kind 'sparse_core' needs 'rows', 'dim' and 'cores'")
        return self


class RecordedTable(StatedTable):
    """A table as the training program recorded it, in an EmbeddingSpecProto."""


@dataclass(frozen=True, slots=True)
class Statements:
    """What the user says where a checkpoint cannot.

    Attributes:
      named: table name -> its variable (key, key without its suffix, attribute path) or the name it
        was recognised by.
      mod: names of tables whose rows TF1's `mod` strategy spread over partitions.
      layouts: tables of a layout file, by name.
    """

    named: Mapping[str, str] = field(default_factory=dict)
    mod: tuple[str, ...] = ()
    layouts: Mapping[str, StatedTable] = field(default_factory=dict)


class SlotSpec(NamedTuple):
    """One slot variable: recognised to be left out.

    Attributes:
      name: as the optimizer calls it, e.g. `accumulators`.
      key: of its variable.
      of: key of the variable that it belongs to; "" where the optimizer does not say.
      bytes: stored bytes, which an export does not read.
    """

    name: str
    key: str
    of: str
    bytes: int


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table.

    Attributes:
      name: what its training program calls it, or the user.
      key: of the variable that holds it.
      rows, dim, dtype: of the table; dtype by TensorFlow's name.
      layout: which row of the variable holds row r.
      stored: rows and columns of the variable: at least the table's.
      origin: who wrote it.
      path: attribute path of its variable in the object graph; "" where there is none.
      slices, files: how many slices (or chunks) its variable is cut into, and data files that hold
        them.
      bytes: of the table's values as stored, without padding.
      slots: slot variables of its variable; tables of a stack share them.
      note: what the user should know, or "".
      keys: key of the variable that holds the id of each row; "": ids are rows, or the model's
        rules make them rows.
      stated: whether the user states the layout, which the training program did not record.
      proof: how trained ids agree with the layout; None: there are none.
    """

    name: str
    key: str
    rows: int
    dim: int
    dtype: str
    layout: Layout
    stored: tuple[int, int]
    origin: Origin
    path: str
    slices: int
    files: int
    bytes: int
    slots: tuple[SlotSpec, ...] = ()
    note: str = ""
    keys: str = ""
    stated: bool = False
    proof: TrainedIdsCheck | None = None

    @property
    def derived(self) -> bool:
        """Whether trained ids alone tell the layout."""
        return self.origin == "trained ids"


def may_be_table(entry: Entry) -> bool:
    """Tells whether a variable has the shape and the dtype of a table."""
    return len(entry.shape) == 2 and min(entry.shape) > 0 and entry.dtype in FLOATS


@dataclass(frozen=True, slots=True)
class RefusedTable:
    """Something that metadata tells to be tables, but that cannot be exported, and why.

    Attributes:
      is_stack: whether only the layout of its tables is not known.
    """

    name: str
    key: str
    reason: str
    is_stack: bool = False


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A variable that holds a table a second time, value for value.

    Attributes:
      key: of the variable, which an export does not read.
      of: key of the variable that is read.
      bytes: stored bytes.
    """

    key: str
    of: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything in a checkpoint, sorted.

    Attributes:
      checkpoint: base name of its prefix.
      fingerprint: digest of its index.
      objects: whether it has an object graph; without one, only names tell what a variable is.
      step: training step, where it is recorded.
      tables, refused: in the order of their names.
      slots: all of the optimizers' variables, those of tables included.
      dense: every other variable.
      duplicates: variables that hold a table once more.
      storage: what keeps the variables.
    """

    checkpoint: str
    fingerprint: str
    objects: bool
    step: int | None
    tables: tuple[TableSpec, ...]
    refused: tuple[RefusedTable, ...]
    slots: tuple[SlotSpec, ...]
    dense: tuple[Entry, ...]
    duplicates: tuple[Duplicate, ...] = ()
    storage: StorageKind = "TensorFlow"

    @property
    def slot_bytes(self) -> int:
        """Bytes that an export saves by leaving slot variables out."""
        return sum(slot.bytes for slot in self.slots)

    @property
    def candidates(self) -> tuple[Entry, ...]:
        """Variables that might be tables though nothing says so, the ones with most rows first."""
        return tuple(
            sorted(filter(may_be_table, self.dense), key=lambda entry: (-entry.shape[0], entry.key))
        )

    def table(self, name: str) -> TableSpec:
        """Returns a table by its name.

        Raises:
          NotConvertible: there is none, or it cannot be exported; says what there is and how to
            name a variable.
        """
        for table in self.tables:
            if table.name == name:
                return table
        for refused in self.refused:
            if refused.name == name:
                raise NotConvertible(
                    f"table {name!r} in checkpoint {self.checkpoint} cannot be exported: "
                    f"{refused.reason}"
                )
        names = [table.name for table in self.tables]
        close = difflib.get_close_matches(name, names[:2000], n=1)
        hint = f"did you mean {close[0]!r}?" if close else self.naming_help()
        raise NotConvertible(
            f"checkpoint {self.checkpoint} has no table {name!r} (recognized: "
            f"{', '.join(names) or 'none'}); {hint}"
        )

    def naming_help(self) -> str:
        """Says how to name a variable as a table, and which might be meant."""
        lines = [
            f"{entry.key} {list(entry.shape)} {entry.dtype}"
            for entry in self.candidates[:CANDIDATES_TOLD]
        ]
        if not lines:
            return "no other variable has the shape of a table"
        more = len(self.candidates) - len(lines)
        return (
            "name a variable with --table NAME=KEY (in a recipe: tables.NAME.key); those with the "
            "shape of a table: " + "; ".join(lines) + (f"; and {more} more" if more else "")
        )
