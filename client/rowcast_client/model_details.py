"""What a service reports about its models and changes, in the words of its JSON.
Generated from proto/; see scripts/message_records.py.

Enumerated values are words, such as "tree_ah"; "" stands where none applies. A newer service may
send words that are not listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rowcast_client.results import Ids

LoadState = Literal["loading", "available", "kept", "retiring", "failed"]
Call = Literal["retrieve", "rank", "recommend", "embed"]
FeatureKind = Literal["single", "bag", "sequence", "dense"]
Role = Literal["context", "candidate"]
DataType = Literal[
    "",
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "int8",
    "int32",
    "int64",
    "string",
    "bool",
    "int64_or_string",
]
Combiner = Literal["", "sum", "mean", "sqrtn"]
PadSide = Literal["", "start", "end"]
Keep = Literal["first", "last"]
BagEncoding = Literal["", "sparse", "ragged"]
Take = Literal["", "values", "lengths", "padded", "weights"]
TowerRole = Literal["query", "candidate", "ranking"]
Device = Literal["cpu", "gpu"]
FormKind = Literal["litert", "saved_model"]
Precision = Literal["f32", "int8", "bf16"]
IndexKind = Literal["brute_force", "tree_ah"]
Distance = Literal["dot_product", "squared_l2", "cosine"]


@dataclass(frozen=True)
class ModelState:
    """A model and its versions.

    Attributes:
      versions: Newest first.
    """

    name: str
    versions: Sequence[VersionState]


@dataclass(frozen=True)
class VersionState:
    """A version of a model.

    Attributes:
      state: Whether it is loaded; kept versions serve requests that name them.
      problem: Why it failed; empty: it did not.
      current: Whether it serves requests that name no version.
      labels: The labels that stand for it.
      memory_bytes: Maximum memory in each process, without the tables; 0: it is not loaded.
    """

    version: int
    state: LoadState
    problem: str
    current: bool
    labels: Sequence[str]
    memory_bytes: int


@dataclass(frozen=True)
class ModelDetails:
    """A version of a model: what a client needs to know to write a request, and how it is used:
    inputs -> readers -> tables -> towers -> outputs.

    Attributes:
      created: When it was exported.
      calls: The calls that it serves, each for every tower or index that it can run.
      corpora: Candidates by id.
      contexts: Contexts by id.
      readers: How the inputs of calls are used.
      current: Whether it serves requests that name no version.
      labels: The labels that stand for it.
      lists: Lists of candidates that recommendations can draw from.
      stages: Cheaper ranking towers that come before others in recommendations.
    """

    model: str
    version: int
    created: str
    calls: Sequence[CallSignature]
    tables: Sequence[TableDetails]
    indexes: Sequence[IndexDetails]
    corpora: Sequence[CorpusDetails]
    contexts: Sequence[CorpusDetails]
    readers: Sequence[ReaderDetails]
    towers: Sequence[TowerDetails]
    current: bool
    labels: Sequence[str]
    lists: Sequence[ListDetails]
    stages: Sequence[StageDetails]


@dataclass(frozen=True)
class CallSignature:
    """A call: the tower that it runs, its inputs, and its outputs.

    Attributes:
      tower: The tower that it runs; of recommend: the ranking tower.
    """

    call: Call
    tower: str
    features: Sequence[FeatureDetails]
    outputs: Sequence[str]


@dataclass(frozen=True)
class FeatureDetails:
    """One input of a call: what a client sends by this name.

    Attributes:
      kind: How many values an example has.
      type: Of its values.
      role: Whether it belongs to the context or to a candidate.
      shape: Of a dense feature.
      length: Of a sequence; of a bag that a tower reads itself, the largest number of ids; else 0.
      combiner: How the rows of a bag are combined.
      weighted: Whether its ids have weights.
      unknown: What happens with an id without a row: zeros, refuse, or row N; empty: it reads no
        table.
      table: The table that it reads.
      required: Whether a request must send it.
      default: What an example has if the input is left out; None: there is none.
      stored: A corpus or context store holds it: send the id of the candidate or context instead.
      readers: The readers that use it, by name.
      input_length: None: kind, shape and length say how many values an example has.
    """

    name: str
    kind: FeatureKind
    type: DataType
    role: Role
    shape: Sequence[int]
    length: int
    combiner: Combiner
    weighted: bool
    unknown: str
    table: str
    required: bool
    default: Any
    stored: bool
    readers: Sequence[str]
    input_length: InputLength | None


@dataclass(frozen=True)
class InputLength:
    """An input of which each example has a fixed number of values.

    Attributes:
      values: How many.
      pad: The value that fills up a shorter list; None: a shorter list is an error.
      pad_side: Where it is added.
      keep: Which values of a longer list stay; None: a longer list is an error.
    """

    values: int
    pad: Any
    pad_side: PadSide
    keep: Keep | None


@dataclass(frozen=True)
class ReaderDetails:
    """What reads an input: one table with one combiner, or its numbers. Several may read one input.
    A field that does not apply is null, empty, 0 or false.

    Attributes:
      ids: How an id becomes a row; None: it is dense.
      shape: Of a dense one.
      dtype: Of a dense one.
      take: What a dense one takes of its input.
      place: Of a single: which of the `places` values of each example it reads, from 0; None: all.
      max_norm: Of a bag: rows that are longer are scaled to this length.
      empty_row: The row that an empty bag reads.
      padding: The id that only pads and is left out; None: none.
      below: Of a dense one: integers are 0 to below - 1, others are rejected.
      joint: Several inputs, in their order; empty: there is one.
    """

    name: str
    inputs: Sequence[str]
    kind: FeatureKind
    role: Role
    table: str
    ids: Mapping[str, Any] | None
    unknown: str
    combiner: Combiner
    encoding: BagEncoding
    weighted: bool
    length: int
    shape: Sequence[int]
    dtype: DataType
    take: Take
    place: int | None
    places: int | None
    max_norm: float | None
    empty_row: int | None
    padding: int | str | None
    below: int | None
    joint: Sequence[JointInput]


@dataclass(frozen=True)
class JointInput:
    """One of several inputs whose values make ids together.

    Attributes:
      padding: The value that a cross leaves out; None: none.
    """

    role: Role
    default: Any
    padding: int | str | None


@dataclass(frozen=True)
class TowerDetails:
    """A tower of the model.

    Attributes:
      role: What its outputs are used for.
      result: The output that is the vector, or the score unless there is a formula.
      formula: Gives the score unless a request has its own; empty: the result is the score.
      forms: The forms in which the bundle has it.
      parts: In the order in which they run; none: it runs as a whole.
      device: Where it runs in this service.
    """

    name: str
    role: TowerRole
    inputs: Sequence[TensorDetails]
    outputs: Sequence[TensorDetails]
    result: str
    formula: str
    forms: Sequence[FormDetails]
    parts: Sequence[PartDetails]
    device: Device


@dataclass(frozen=True)
class TensorDetails:
    """An input or an output of a tower, or of a part of one.

    Attributes:
      readers: Of an input: whose values it is, side by side.
      tensor: Of an input of a part, instead: the output of an earlier one.
      shape: -1: any size, first of all the batch.
    """

    name: str
    readers: Sequence[str]
    tensor: str
    dtype: DataType
    shape: Sequence[int]


@dataclass(frozen=True)
class FormDetails:
    """One way to run a tower.

    Attributes:
      max_abs_error: The largest difference from the original model, by output.
      effects: The effect of precisions below f32, by output.
      runs: Whether this service runs it.
    """

    kind: FormKind
    precision: Precision
    max_abs_error: Mapping[str, float]
    effects: Mapping[str, EffectDetails]
    runs: bool


@dataclass(frozen=True)
class EffectDetails:
    """The effect of a precision on the order by one output.

    Attributes:
      overlap: Share of the best k that stay.
    """

    kendall_tau: float
    overlap: float
    k: int
    auc: float | None
    auc_original: float | None


@dataclass(frozen=True)
class PartDetails:
    """A part of a tower.

    Attributes:
      per: Context: it runs once for each context; candidate: once for each candidate.
    """

    name: str
    per: Role
    inputs: Sequence[TensorDetails]
    outputs: Sequence[TensorDetails]
    forms: Sequence[FormDetails]


@dataclass(frozen=True)
class TableDetails:
    """A table of embeddings."""

    name: str
    rows: int
    dim: int
    dtype: DataType
    bytes: int


@dataclass(frozen=True)
class IndexDetails:
    """An index of candidates.

    Attributes:
      recall: Measured at export, of the `recall_k` best.
    """

    name: str
    corpus: str
    kind: IndexKind
    distance: Distance
    dim: int
    size: int
    recall_k: int
    recall: float


@dataclass(frozen=True)
class CorpusDetails:
    """Candidates, or contexts, by id with their stored features."""

    name: str
    size: int
    id_type: DataType
    attributes: Sequence[str]
    features: Sequence[str]


@dataclass(frozen=True)
class ListDetails:
    """A list of candidates that recommendations can draw from.

    Attributes:
      size: Candidates of all segments.
      by: The input of contexts whose value is their segment; empty: all have the same list.
    """

    name: str
    corpus: str
    size: int
    by: str


@dataclass(frozen=True)
class StageDetails:
    """A cheaper ranking tower that comes before another one in recommendations.

    Attributes:
      before: The ranking tower that it comes before.
      tower: The cheaper ranking tower.
      keep: Candidates of each context that it keeps, by default.
      recall_k: The best candidates of the ranking tower that were looked for at export; 0: not
        measured.
      recall: Their share that it kept, the lowest of all indexes.
    """

    before: str
    tower: str
    keep: int
    recall_k: int
    recall: float


@dataclass(frozen=True, eq=False)
class ChangeResult:
    """What became of a change. It is on the disk, and the process that responds serves it.

    Attributes:
      version: The version that the change was checked against.
      sequence: Of the last state of the change; 0: nothing was written.
      changed: How many ids were changed.
      outdated: Ids that were left alone, because a later state of theirs was applied before; at
        most 100.
      unknown: Ids to delete, or to give attributes to, that no loaded version has; at most 100.
        This is no error: they are kept for later versions.
      outdated_count: How many ids are outdated.
      unknown_count: How many ids are unknown.
      is_repeated: The stream was applied up to this offset, or beyond from_offset, before: nothing
        was changed.
      stream_offset: Up to which offset the stream is applied; 0: the change is of none.
    """

    model: str
    version: int
    sequence: int
    changed: int
    outdated: Ids
    unknown: Ids
    outdated_count: int
    unknown_count: int
    is_repeated: bool
    stream_offset: int


@dataclass(frozen=True, eq=False)
class AppliedChanges:
    """What was changed of a model so far.

    Attributes:
      sequence: Of the last state of the model; 0: there is none.
      streams: By the name of a stream: the offset behind what was applied of it.
    """

    model: str
    sequence: int
    streams: Mapping[str, int]


RECORDS: Mapping[str, Callable[..., Any]] = {
    "ModelState": ModelState,
    "VersionState": VersionState,
    "GetModelResponse": ModelDetails,
    "CallSignature": CallSignature,
    "FeatureDetails": FeatureDetails,
    "InputLength": InputLength,
    "ReaderDetails": ReaderDetails,
    "JointInput": JointInput,
    "TowerDetails": TowerDetails,
    "TensorDetails": TensorDetails,
    "FormDetails": FormDetails,
    "EffectDetails": EffectDetails,
    "PartDetails": PartDetails,
    "TableDetails": TableDetails,
    "IndexDetails": IndexDetails,
    "CorpusDetails": CorpusDetails,
    "ListDetails": ListDetails,
    "StageDetails": StageDetails,
}
"""The record of each message, by the name of the message."""
