"""The JSON of models and their versions as pydantic models, for the OpenAPI document. The schemas
have the names of the messages of the protobuf contract.

Words that later versions may add to, such as the kind of an index, are plain strings.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypeAliasType

from service.openapi import Id, Int64, ResponseSchema

State = TypeAliasType("State", Literal["loading", "available", "kept", "retiring", "failed"])
Call = TypeAliasType("Call", Literal["retrieve", "rank", "recommend", "embed"])
FeatureKind = TypeAliasType("FeatureKind", Literal["single", "bag", "sequence", "dense"])
Role = TypeAliasType("Role", Literal["context", "candidate"])
TowerRole = TypeAliasType("TowerRole", Literal["query", "candidate", "ranking"])
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
IdRule = TypeAliasType(
    "IdRule",
    Annotated[
        dict[str, Any],
        Field(
            description="How an id becomes a row, as in the manifest; a graph as `expression` of "
            "its inputs, with the `dtypes` that are sent of them."
        ),
    ],
)
NumbersByOutput = TypeAliasType("NumbersByOutput", dict[str, float])


class VersionState(ResponseSchema):
    """A version under the root."""

    version: Int64
    state: State
    problem: str
    """Why it failed; empty: it did not."""
    current: bool
    """Whether it serves requests that name no version."""
    labels: list[str]
    memory_bytes: Int64
    """Maximum memory in each process, without the tables; 0: it is not loaded."""


class ModelState(ResponseSchema):
    """A model and its versions."""

    name: str
    versions: list[VersionState]


class ModelsResponse(ResponseSchema):
    """The models of the service."""

    models: list[ModelState]


class InputLength(ResponseSchema):
    """An input of which each example has a fixed number of values."""

    values: int
    pad: float | Id | None
    """The value that fills up a shorter list; null: a shorter list is an error."""
    pad_side: str
    """Where it is added: start or end."""
    keep: str | None
    """Which values of a longer list stay, first or last; null: a longer list is an error."""


class FeatureDetails(ResponseSchema):
    """One input of a call: what a client sends by this name."""

    name: str
    kind: FeatureKind
    type: str
    """Of its values: int64, string, float32 or others."""
    role: Role
    shape: list[int]
    """Of a dense feature."""
    length: int
    """Of a sequence; of a bag that a tower reads itself, the largest number of ids; else 0."""
    combiner: str
    """Of a bag: sum, mean or sqrtn; empty: none."""
    weighted: bool
    unknown: str
    """What happens with an id without a row: zeros, refuse, or row N; empty: it reads no table."""
    table: str
    required: bool
    default: Any
    """What an example has if the input is left out; null: there is none."""
    stored: bool
    """A store holds it: send the id of the candidate or context instead."""
    readers: list[str]
    """ReaderDetails that read it."""
    input_length: InputLength | None
    """Null: kind, shape and length say how many values an example has."""


class CallSignature(ResponseSchema):
    """The inputs and outputs of a call."""

    call: Call
    tower: str
    """The tower that it runs; of recommend: the ranking tower."""
    features: list[FeatureDetails]
    outputs: list[str]


class TableDetails(ResponseSchema):
    """A table of the bundle."""

    name: str
    rows: Int64
    dim: int
    dtype: str
    bytes: Int64


class IndexDetails(ResponseSchema):
    """An index of candidates."""

    name: str
    corpus: str
    kind: str
    """brute_force or tree_ah."""
    distance: str
    """dot_product, squared_l2 or cosine."""
    dim: int
    size: Int64
    recall_k: int
    recall: float
    """Measured at export, of the `recall_k` best."""


class ListDetails(ResponseSchema):
    """A list of candidates that recommendations can draw from."""

    name: str
    corpus: str
    size: Int64
    """Candidates of all segments."""
    by: str
    """The input of contexts whose value is their segment; empty: all have the same list."""


class StageDetails(ResponseSchema):
    """A cheaper ranking tower that comes before another one in recommendations."""

    before: str
    """The ranking tower that it comes before."""
    tower: str
    """The cheaper ranking tower."""
    keep: int
    """Candidates of each context that it keeps, by default."""
    recall_k: int
    """The best candidates of the ranking tower that were looked for at export; 0: not measured."""
    recall: float
    """Their share that it kept, the lowest of all indexes."""


class CorpusDetails(ResponseSchema):
    """Candidates, or contexts, by id with their stored features."""

    name: str
    size: Int64
    id_type: str
    """int64 or string."""
    attributes: list[str]
    features: list[str]


class ReaderDetails(ResponseSchema):
    """What reads an input: one table with one combiner, or its numbers. A field that does not apply
    is null, empty, 0 or false.
    """

    name: str
    inputs: list[str]
    kind: FeatureKind
    role: Role
    table: str
    ids: IdRule | None
    unknown: str
    combiner: str
    encoding: str
    weighted: bool
    length: int
    shape: list[int]
    dtype: str
    take: str
    place: int | None
    """Which of the `places` values it reads, from 0."""
    places: int | None
    max_norm: float | None
    """Rows that are longer are scaled to this length."""
    empty_row: Int64 | None
    """The row that an empty bag reads."""
    padding: Id | None
    """The id that only pads and is left out."""
    below: Int64 | None
    """Integers are 0 to below - 1; others are rejected."""


class TensorDetails(ResponseSchema):
    """An input or an output of a tower, or of a part of one."""

    name: str
    dtype: str
    shape: list[int]
    """-1: any size, first of all the batch."""
    readers: list[str]
    """Of an input: whose values it is, side by side."""
    tensor: str
    """Of an input of a part, instead: the output of an earlier one."""


class EffectDetails(ResponseSchema):
    """The effect of a precision on the order by one output."""

    kendall_tau: float
    overlap: float
    """Share of the best k that stay."""
    k: int
    auc: float | None
    auc_original: float | None


EffectsByOutput = TypeAliasType("EffectsByOutput", dict[str, EffectDetails])


class FormDetails(ResponseSchema):
    """One way to run a tower."""

    kind: str
    """litert or saved_model."""
    precision: str
    """f32, int8 or bf16."""
    max_abs_error: NumbersByOutput
    """The largest difference from the original model."""
    effects: EffectsByOutput
    runs: bool
    """Whether this service runs it."""


class NetworkDetails(ResponseSchema):
    """What a tower and a part of one have."""

    name: str
    inputs: list[TensorDetails]
    outputs: list[TensorDetails]
    forms: list[FormDetails]


class PartDetails(NetworkDetails):
    """A part of a tower."""

    per: Role
    """context: it runs once for each context; candidate: once for each candidate."""


class TowerDetails(NetworkDetails):
    """A tower of the model."""

    role: TowerRole
    result: str
    """The output that is the vector, or the score unless there is a formula."""
    formula: str
    """Gives the score unless a request has its own; empty: the result is the score."""
    device: str
    """Where it runs in this service: cpu or gpu."""
    parts: list[PartDetails]
    """In the order in which they run; none: it runs as a whole."""


class ModelDetails(ResponseSchema):
    """A version of a model: inputs, readers, tables, towers, outputs."""

    model: str
    version: Int64
    created: Time
    current: bool
    """Whether it serves requests that name no version."""
    labels: list[str]
    calls: list[CallSignature]
    tables: list[TableDetails]
    indexes: list[IndexDetails]
    corpora: list[CorpusDetails]
    contexts: list[CorpusDetails]
    """Stores of context features by id."""
    lists: list[ListDetails]
    stages: list[StageDetails]
    readers: list[ReaderDetails]
    towers: list[TowerDetails]


class LiveResponse(ResponseSchema):
    """The process should be left running."""

    live: bool


class ReadyResponse(ResponseSchema):
    """Requests should be sent here."""

    ready: bool
