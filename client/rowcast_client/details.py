"""What a service tells about its models: versions, states, and how each call is written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from rowcast_client.stubs import embedding_service_pb2 as pb


@dataclass(frozen=True)
class VersionState:
    """One version under the service's root. state: loading, available, retiring or refused."""

    version: int
    state: str
    problem: str = ""


@dataclass(frozen=True)
class ModelState:
    """One model and its versions, newest first."""

    name: str
    versions: tuple[VersionState, ...]


@dataclass(frozen=True)
class FeatureDetails:
    """What a caller must know to send one feature.

    Attributes:
      name: the key of the feature in a request.
      kind: single, bag, sequence or dense.
      type: of a value: int64, string, "int64 or string", float32 or int32.
      role: context or candidate.
      required: it has no default.
      shape: of a dense feature.
      length: values kept of a sequence.
      combiner: of a bag.
      weighted: values may carry weights.
      unknown: what an id outside the table becomes: zeros, a row, or a refusal.
      table: that the feature reads.
      default: the value if none is sent.
      stored: the candidate store holds it: send the candidate's id instead.
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


@dataclass(frozen=True)
class CallSignature:
    """Features and outputs of one call: retrieve, rank, recommend or embed."""

    call: str
    tower: str
    features: tuple[FeatureDetails, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class TableDetails:
    """A table of the model."""

    name: str
    rows: int
    dim: int
    dtype: str


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
    """A candidate corpus: what can be returned, with which attributes, and which features are stored."""

    name: str
    size: int
    id_type: str
    attributes: tuple[str, ...]
    features: tuple[str, ...]


@dataclass(frozen=True)
class ModelDetails:
    """All that is needed to write a request for one version."""

    model: str
    version: int
    created: str
    calls: tuple[CallSignature, ...]
    tables: tuple[TableDetails, ...]
    indexes: tuple[IndexDetails, ...]
    corpora: tuple[CorpusDetails, ...]


def unpack_models(message: pb.ListModelsResponse) -> tuple[ModelState, ...]:
    """Reads a ListModelsResponse."""
    return tuple(
        ModelState(model.name, tuple(VersionState(one.version, one.state, one.problem) for one in model.versions))
        for model in message.models
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
        tables=tuple(TableDetails(one.name, one.rows, one.dim, one.dtype) for one in message.tables),
        indexes=tuple(
            IndexDetails(one.name, one.corpus, one.kind, one.distance, one.dim, one.size, one.recall_k, one.recall)
            for one in message.indexes
        ),
        corpora=tuple(
            CorpusDetails(one.name, one.size, one.id_type, tuple(one.attributes), tuple(one.features))
            for one in message.corpora
        ),
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
    )
