"""What callers are told of models: frozen values, no protocol's types.

A model is told as it works: inputs -> readers -> tables -> towers -> outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.generations.shelf import VersionState


@dataclass(frozen=True)
class ModelState:
    """One model and its versions, newest first."""

    name: str
    versions: tuple[VersionState, ...]


@dataclass(frozen=True)
class FeatureDetails:
    """What a caller must know to send one input."""

    name: str
    kind: str
    type: str
    role: str
    required: bool
    shape: tuple[int, ...] = ()
    length: int = 0
    combiner: str = ""
    weighted: bool = False
    unknown: str = ""
    table: str = ""
    default: Any = None
    stored: bool = False
    readers: tuple[str, ...] = ()


@dataclass(frozen=True)
class CallSignature:
    """Inputs and outputs of one call."""

    call: str
    tower: str
    features: tuple[FeatureDetails, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class ReaderDetails:
    """What becomes of inputs: the rows of one table, combined, or numbers."""

    name: str
    inputs: tuple[str, ...]
    kind: str
    role: str
    table: str = ""
    ids: Any = None
    """The manifest's page of how an id becomes a row; None: dense."""
    unknown: str = ""
    combiner: str = ""
    encoding: str = ""
    weighted: bool = False
    length: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = ""
    take: str = ""
    place: int | None = None
    """Of a single: which of the `places` values of each example it reads, from 0; None: the one that there is."""
    places: int | None = None
    max_norm: float | None = None
    """Of a bag: rows that are longer are scaled to this length before they are combined."""
    empty_row: int | None = None
    """Of a bag: the row that it reads where nothing else is left in it."""
    padding: int | str | None = None
    """The id that only fills up and is left out."""
    below: int | None = None
    """Of a dense one: whole numbers are 0 to `below` - 1, others are refused."""
    cast: Any = None
    """The manifest's page of what integers are made of what is sent, before `ids`; None: none."""


@dataclass(frozen=True)
class TableDetails:
    """A table as callers see it."""

    name: str
    rows: int
    dim: int
    dtype: str
    bytes: int


@dataclass(frozen=True)
class IndexDetails:
    """An index as callers see it, with its measured recall."""

    name: str
    corpus: str
    kind: str
    distance: str
    dim: int
    size: int
    recall_k: int
    recall: float


@dataclass(frozen=True)
class CorpusDetails:
    """Candidates, or contexts, by id as callers see them."""

    name: str
    size: int
    id_type: str
    attributes: tuple[str, ...]
    features: tuple[str, ...]


@dataclass(frozen=True)
class TensorDetails:
    """An input or output of a tower; -1 in `shape` is any size."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    readers: tuple[str, ...] = ()
    """Of an input: whose values it is, side by side."""
    tensor: str = ""
    """Of a part's input, instead: the output of an earlier part."""


@dataclass(frozen=True)
class EffectDetails:
    """What a precision does to the order by one output."""

    kendall_tau: float
    overlap: float
    k: int
    auc: float | None = None
    auc_original: float | None = None


@dataclass(frozen=True)
class FormDetails:
    """A form of a tower or of a part, its errors by output, and whether it is the one that runs here."""

    kind: str
    precision: str
    max_abs_error: Mapping[str, float]
    effects: Mapping[str, EffectDetails]
    runs: bool


@dataclass(frozen=True)
class PartDetails:
    """A piece of a ranking tower that runs only where an output that is asked for needs it."""

    name: str
    per: str
    inputs: tuple[TensorDetails, ...]
    outputs: tuple[TensorDetails, ...]
    forms: tuple[FormDetails, ...]


@dataclass(frozen=True)
class TowerDetails:
    """A network: what it takes, what it gives, in which forms, on which device."""

    name: str
    role: str
    inputs: tuple[TensorDetails, ...]
    outputs: tuple[TensorDetails, ...]
    result: str
    formula: str
    forms: tuple[FormDetails, ...]
    parts: tuple[PartDetails, ...]
    device: str


@dataclass(frozen=True)
class ModelDetails:
    """All a caller needs to write a request for one version, and to see what becomes of it."""

    model: str
    version: int
    created: str
    calls: tuple[CallSignature, ...]
    tables: tuple[TableDetails, ...]
    indexes: tuple[IndexDetails, ...]
    corpora: tuple[CorpusDetails, ...]
    contexts: tuple[CorpusDetails, ...] = ()
    readers: tuple[ReaderDetails, ...] = ()
    towers: tuple[TowerDetails, ...] = ()
    current: bool = False
    labels: tuple[str, ...] = ()
