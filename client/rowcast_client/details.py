"""What a service tells about its models: versions, states, and how each call is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rowcast_client.stubs import embedding_service_pb2 as pb


@dataclass(frozen=True)
class VersionState:
    """One version under the service's root.

    Attributes:
      state: loading; available; kept, to go back to; retiring; refused, then `problem` says why.
      current: requests that name no version are answered by it.
      labels: that stand for it.
      memory_bytes: what it may take beside its tables, at most, in each process; 0: it is not loaded.
    """

    version: int
    state: str
    problem: str = ""
    current: bool = False
    labels: tuple[str, ...] = ()
    memory_bytes: int = 0


@dataclass(frozen=True)
class ModelState:
    """One model and its versions, newest first."""

    name: str
    versions: tuple[VersionState, ...]


@dataclass(frozen=True)
class FeatureDetails:
    """What a caller must know to send one input.

    Attributes:
      name: the key of the input in a request.
      kind: single, bag, sequence or dense.
      type: of a value: int64, string, "int64 or string", float32 or int32.
      role: context or candidate.
      required: it has no default.
      shape: of a dense feature.
      length: values kept of a sequence; how many a bag may have, 0 where that is open.
      combiner: of a bag.
      weighted: values may carry weights.
      unknown: what an id outside the table becomes: zeros, a row, or a refusal.
      table: that the feature reads.
      default: the value if none is sent.
      stored: the candidate store, or of a context feature the context store, holds it: send the id instead.
      readers: what reads it, by name: see ReaderDetails.
    """

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
    """Inputs and outputs of one call: retrieve, rank, recommend or embed."""

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
    """How an id becomes a row, as the bundle's manifest says; None: dense."""
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
    """What integers are made of what is sent before `ids` is asked, as the bundle's manifest says; None: none."""


@dataclass(frozen=True)
class TableDetails:
    """A table of the model."""

    name: str
    rows: int
    dim: int
    dtype: str
    bytes: int


@dataclass(frozen=True)
class IndexDetails:
    """An index of the model, with the recall measured when it was built."""

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
    """Candidates, or contexts, by id: their attributes, and which features are stored."""

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
    """All that is needed to write a request for one version, and to see what becomes of it."""

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


def unpack_models(message: pb.ListModelsResponse) -> tuple[ModelState, ...]:
    """Reads a ListModelsResponse."""
    return tuple(ModelState(model.name, tuple(map(_version_state, model.versions))) for model in message.models)


def _version_state(message: pb.VersionState) -> VersionState:
    return VersionState(
        message.version, message.state, message.problem, message.current, tuple(message.labels), message.memory_bytes
    )


def unpack_details(message: pb.ModelDetails) -> ModelDetails:
    """Reads a ModelDetails message."""
    return ModelDetails(
        model=message.model.name,
        version=message.model.version,
        created=message.created,
        calls=tuple(
            CallSignature(one.call, one.tower, tuple(map(_feature, one.features)), tuple(one.outputs))
            for one in message.calls
        ),
        tables=tuple(TableDetails(one.name, one.rows, one.dim, one.dtype, one.bytes) for one in message.tables),
        indexes=tuple(
            IndexDetails(one.name, one.corpus, one.kind, one.distance, one.dim, one.size, one.recall_k, one.recall)
            for one in message.indexes
        ),
        corpora=tuple(map(_corpus, message.corpora)),
        contexts=tuple(map(_corpus, message.contexts)),
        readers=tuple(map(_reader, message.readers)),
        towers=tuple(map(_tower, message.towers)),
        current=message.current,
        labels=tuple(message.labels),
    )


def _feature(message: pb.FeatureDetails) -> FeatureDetails:
    return FeatureDetails(
        name=message.name,
        kind=message.kind,
        type=message.type,
        role=message.role,
        required=message.required,
        shape=tuple(message.shape),
        length=message.length,
        combiner=message.combiner,
        weighted=message.weighted,
        unknown=message.unknown,
        table=message.table,
        default=json.loads(message.default_json) if message.default_json else None,
        stored=message.stored,
        readers=tuple(message.readers),
    )


def _reader(message: pb.ReaderDetails) -> ReaderDetails:
    return ReaderDetails(
        name=message.name,
        inputs=tuple(message.inputs),
        kind=message.kind,
        role=message.role,
        table=message.table,
        ids=json.loads(message.ids_json) if message.ids_json else None,
        unknown=message.unknown,
        combiner=message.combiner,
        encoding=message.encoding,
        weighted=message.weighted,
        length=message.length,
        shape=tuple(message.shape),
        dtype=message.dtype,
        take=message.take,
        place=message.place if message.HasField("place") else None,
        places=message.places if message.HasField("places") else None,
        max_norm=message.max_norm if message.HasField("max_norm") else None,
        empty_row=message.empty_row if message.HasField("empty_row") else None,
        padding=json.loads(message.padding_json) if message.padding_json else None,
        below=message.below if message.HasField("below") else None,
        cast=json.loads(message.cast_json) if message.cast_json else None,
    )


def _corpus(message: pb.CorpusDetails) -> CorpusDetails:
    return CorpusDetails(
        message.name, message.size, message.id_type, tuple(message.attributes), tuple(message.features)
    )


def _tower(message: pb.TowerDetails) -> TowerDetails:
    return TowerDetails(
        name=message.name,
        role=message.role,
        inputs=_tensors(message.inputs),
        outputs=_tensors(message.outputs),
        result=message.result,
        formula=message.formula,
        forms=_forms(message.forms),
        parts=tuple(
            PartDetails(one.name, one.per, _tensors(one.inputs), _tensors(one.outputs), _forms(one.forms))
            for one in message.parts
        ),
        device=message.device,
    )


def _tensors(messages: Iterable[pb.TensorDetails]) -> tuple[TensorDetails, ...]:
    return tuple(
        TensorDetails(one.name, one.dtype, tuple(one.shape), tuple(one.readers), one.tensor) for one in messages
    )


def _forms(messages: Iterable[pb.FormDetails]) -> tuple[FormDetails, ...]:
    return tuple(
        FormDetails(
            kind=one.kind,
            precision=one.precision,
            max_abs_error=dict(one.max_abs_error),
            effects={name: _effect(effect) for name, effect in one.effects.items()},
            runs=one.runs,
        )
        for one in messages
    )


def _effect(message: pb.EffectDetails) -> EffectDetails:
    return EffectDetails(
        kendall_tau=message.kendall_tau,
        overlap=message.overlap,
        k=message.k,
        auc=message.auc if message.HasField("auc") else None,
        auc_original=message.auc_original if message.HasField("auc_original") else None,
    )
