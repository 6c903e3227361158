"""What is in a checkpoint: tables, slot variables and other variables. The types are frozen, and
describe the meaning of variables, not their storage.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, model_validator

from bundle.format.manifest import TrainedIdsCheck
from export.checkpoint.layouts import Layout
from export.checkpoint.variables import Entry, StackedTable, StorageKind
from export.errors import NotConvertible

FLOATS = ("float32", "float64", "bfloat16", "float16")
CANDIDATES_SHOWN = 20
"""The maximum number of variables that a message lists as possible tables."""
NAMES_COMPARED = 2000
"""The maximum number of names among which a similar one is searched, which takes time."""

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
"""Who wrote a table, or how it is known: the mid-level API, the TFRS layers around it, a Keras or
Flax layer, or a feature column wrote it; the user stated it, by naming its variable or in a layout
file; jax-tpu-embedding's trainer recorded it in an EmbeddingSpecProto; a parameter server dumped
it; TorchRec named it; or ids that occur in training prove where it lies.
"""

STATED_NOTE = (
    "its layout is stated, not recorded by the training program: if the statement is wrong, ids "
    "get the rows of other ids"
)
"""The note of every table whose rows come out in an order that only the user knows."""


class StatedTable(BaseModel):
    """A table as a layout file states it. Values that are None are taken from the checkpoint.

    Attributes:
      key: The key of its variable, or the name of its stack, which is part of the key of exactly
        one variable.
      kind: The kind of its layout; "derive" if trained ids are to prove the layout.
      rows, dim: The shape of the table without padding.
      partitions: The number of partitions of a mod layout.
      cores, core_rows, offset, rotation: The parameters of a SparseCore layout.
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
        kind_fields = {
            "plain": (),
            "mod": ("partitions",),
            "sparse_core": ("cores", "core_rows", "offset", "rotation"),
            "derive": (),
        }
        allowed = {"key", "kind", "rows", "dim", *kind_fields[self.kind]}
        # Fields have defaults: only those that the file itself sets can belong to another kind.
        for name in sorted(self.model_fields_set - allowed):
            raise ValueError(f"{name!r} is no key of a table of kind {self.kind!r}")
        # The variable of a stack shows neither the shapes of its tables nor the number of cores.
        if self.kind == "sparse_core" and None in (self.rows, self.dim, self.cores):
            raise ValueError("a table of kind 'sparse_core' needs 'rows', 'dim' and 'cores'")
        return self


FileTable = StatedTable | StackedTable
"""A table of a layout file: what the user states, or what the training program recorded."""


def is_to_be_derived(table: FileTable) -> bool:
    """Returns whether trained ids are to prove the layout of a table."""
    return isinstance(table, StatedTable) and table.kind == "derive"


@dataclass(frozen=True, slots=True)
class Statements:
    """What the user states where a checkpoint does not record it.

    Attributes:
      named: By the name of a table, its variable (the key, the key without its suffix, or the
        attribute path) or the name by which it was recognized.
      mod: The names of tables whose rows TF1's `mod` strategy spread over partitions.
      layouts: The tables of a layout file, by name.
    """

    named: Mapping[str, str] = field(default_factory=dict)
    mod: tuple[str, ...] = ()
    layouts: Mapping[str, FileTable] = field(default_factory=dict)


class SlotSpec(NamedTuple):
    """One slot variable, which is recognized in order to be left out.

    Attributes:
      name: The optimizer's name for it, e.g. `accumulators`.
      key: The key of the slot variable.
      trained_key: The key of the variable that the optimizer trains by it; "" where the optimizer
        does not record that.
      bytes: The number of stored bytes, which an export does not read.
    """

    name: str
    key: str
    trained_key: str
    bytes: int


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table.

    Attributes:
      name: The name that its training program or the user gives it.
      key: The key of the variable that holds it.
      rows, dim, dtype: The shape of the table, and TensorFlow's name of its dtype.
      layout: Which row of the variable holds row r of the table.
      stored: The shape of the variable, which is at least as large as the table.
      origin: The writer of the table, or the way in which it is known.
      path: The attribute path of its variable in the object graph; "" where there is none.
      slices, files: The number of slices (or chunks) that its variable is cut into, and the number
        of data files that hold them.
      bytes: The size of the table's values as stored, in bytes, without padding.
      slots: The slot variables of its variable; the tables of a stack share them.
      note: What the user should know, or "".
      keys: The key of the variable that holds the id of each row; "" if ids are rows, or the
        model's rules convert them to rows.
      stated: Whether the user states the layout, which the training program did not record.
      proof: How trained ids agree with the layout; None if there are no trained ids.
      combiner: The combiner that the training program recorded; "" if it recorded none.
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
    combiner: str = ""

    @property
    def layout_json(self) -> dict[str, Any]:
        """The layout as JSON values."""
        return {"kind": self.layout.kind, **asdict(self.layout)}

    @property
    def derived(self) -> bool:
        """Whether only trained ids determine the layout."""
        return self.origin == "trained ids"

    @property
    def stated_layout(self) -> Layout | None:
        """The layout that the training program recorded or the user states; None if trained ids
        alone determine it.
        """
        if self.derived:
            return None
        return self.layout


def may_be_table(entry: Entry) -> bool:
    """Returns whether a variable has the shape and the dtype of a table, and holds values."""
    return len(entry.shape) == 2 and min(entry.shape) > 0 and entry.dtype in FLOATS


@dataclass(frozen=True, slots=True)
class RejectedTable:
    """A table or a stack that metadata identifies but that cannot be exported, and the reason.

    Attributes:
      is_stack: Whether it is a stack, of which only the layout of the tables is not known.
    """

    name: str
    key: str
    reason: str
    is_stack: bool = False


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A variable that holds a table a second time, value for value.

    Attributes:
      key: The key of the variable, which an export does not read.
      original_key: The key of the variable that is read.
      bytes: The number of stored bytes.
    """

    key: str
    original_key: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything in a checkpoint, sorted.

    Attributes:
      checkpoint: The base name of the checkpoint's prefix.
      fingerprint: A digest of the checkpoint's index.
      objects: Whether the checkpoint has an object graph; without one, only names show what a
        variable is.
      step: The training step; None where it is not recorded.
      tables, rejected: The tables, and the tables that cannot be exported, in the order of their
        names.
      slots: All variables of the optimizers, including the slot variables of tables.
      dense: Every other variable.
      duplicates: The variables that hold a table a second time.
      storage: The kind of storage that holds the variables.
      notes: What the user should know of the checkpoint's metadata.
    """

    checkpoint: str
    fingerprint: str
    objects: bool
    step: int | None
    tables: tuple[TableSpec, ...]
    rejected: tuple[RejectedTable, ...]
    slots: tuple[SlotSpec, ...]
    dense: tuple[Entry, ...]
    duplicates: tuple[Duplicate, ...] = ()
    storage: StorageKind = "TensorFlow"
    notes: tuple[str, ...] = ()

    @property
    def slot_bytes(self) -> int:
        """The number of bytes that an export saves by leaving slot variables out."""
        return sum(slot.bytes for slot in self.slots)

    @property
    def candidates(self) -> tuple[Entry, ...]:
        """Variables that might be tables though nothing records it, sorted from the most rows to
        the fewest.
        """
        return tuple(
            sorted(filter(may_be_table, self.dense), key=lambda entry: (-entry.shape[0], entry.key))
        )

    def table(self, name: str) -> TableSpec:
        """Returns a table by its name.

        Raises:
          NotConvertible: There is no such table, or it cannot be exported; the error lists what
            there is and says how to name a variable.
        """
        for table in self.tables:
            if table.name == name:
                return table
        for rejected in self.rejected:
            if rejected.name == name:
                raise NotConvertible(
                    f"table {name!r} in checkpoint {self.checkpoint} cannot be exported: "
                    f"{rejected.reason}"
                )
        names = [table.name for table in self.tables]
        matches = difflib.get_close_matches(name, names[:NAMES_COMPARED], n=1)
        hint = self.naming_help()
        if matches:
            hint = f"did you mean {matches[0]!r}?"
        raise NotConvertible(
            f"checkpoint {self.checkpoint} has no table {name!r} (recognized: "
            f"{', '.join(names) or 'none'}); {hint}"
        )

    def naming_help(self) -> str:
        """Returns a message that says how to name a variable as a table, and which one might be
        meant.
        """
        lines = [
            f"{entry.key} {list(entry.shape)} {entry.dtype}"
            for entry in self.candidates[:CANDIDATES_SHOWN]
        ]
        if not lines:
            return "no other variable has the shape of a table"
        omitted_count = len(self.candidates) - len(lines)
        if omitted_count:
            lines.append(f"and {omitted_count} more")
        return (
            "name a variable with --table NAME=KEY (in a recipe: tables.NAME.key); those with the "
            "shape of a table: " + "; ".join(lines)
        )
