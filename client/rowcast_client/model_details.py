"""What a service reports about its models, in the words of its JSON.

The records have the fields of the contract's messages, which explains them in detail. Enumerated
values are words, such as "tree_ah"; "" stands where none applies. A newer service may send words
that are not listed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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


@dataclass(frozen=True)
class VersionState:
    """A version of a model.

    Attributes:
      version: The number of the version.
      state: Whether it is loaded; "kept" versions serve requests that name them.
      problem: The reason why it failed; "" if it did not.
      current: Whether it serves requests that name no version.
      labels: The labels that stand for it.
      memory_bytes: The maximum memory in each process, without the tables; 0 if it is not loaded.
    """

    version: int
    state: Literal["loading", "available", "kept", "retiring", "failed"]
    problem: str
    current: bool
    labels: Sequence[str]
    memory_bytes: int


@dataclass(frozen=True)
class ModelState:
    """A model and its versions, newest first."""

    name: str
    versions: Sequence[VersionState]


@dataclass(frozen=True)
class InputLength:
    """The number of values of an input of which each example has equally many.

    Attributes:
      values: The number of values.
      pad: The value that fills up a shorter list; None if a shorter list is an error.
      pad_side: Where it is added.
      keep: Which values of a longer list stay; "" if a longer list is an error.
    """

    values: int
    pad: Any
    pad_side: Literal["", "start", "end"]
    keep: Literal["", "first", "last"]


@dataclass(frozen=True)
class FeatureDetails:
    """An input of a call: what a client sends by this name.

    Attributes:
      name: The name of the feature.
      kind: How many values an example has.
      type: The type of the values.
      role: Whether it belongs to the context or to a candidate.
      shape: The shape of a dense feature.
      length: The maximum length of a sequence.
      combiner: How the rows of a bag are combined.
      weighted: Whether its ids have weights.
      unknown: What an id without a row reads: "zeros", "row N", or "refuse".
      table: The table that it reads.
      required: Whether a request must send it.
      default: The value of an example that leaves it out; None if there is none.
      stored: Whether the candidate or context store has it, so that its id is enough.
      readers: The names of the readers that use it.
      input_length: The number of values, if it is fixed.
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
class CallSignature:
    """A call of the model: the tower that it runs, its inputs, and its outputs."""

    call: Literal["retrieve", "rank", "recommend", "embed"]
    tower: str
    features: Sequence[FeatureDetails]
    outputs: Sequence[str]


@dataclass(frozen=True)
class ReaderDetails:
    """How inputs are used: one table with one combiner, or numbers.

    Attributes:
      inputs: The names of the inputs; several if their ids are crossed.
      ids: How an id becomes a row: the `kind` of the rule, and its fields. None of a dense reader.
      place: Which of the `places` values of each example a single reader reads; None: all.
      max_norm: The length to which longer rows are scaled; None: they are not.
      empty_row: The row that an empty bag reads.
      padding: The id that is left out.
      below: The limit of whole numbers.
    """

    name: str
    inputs: Sequence[str]
    kind: FeatureKind
    role: Role
    table: str
    ids: Mapping[str, Any] | None
    unknown: str
    combiner: Combiner
    encoding: Literal["", "sparse", "ragged"]
    weighted: bool
    length: int
    shape: Sequence[int]
    dtype: DataType
    take: Literal["", "values", "lengths", "padded", "weights"]
    place: int | None
    places: int | None
    max_norm: float | None
    empty_row: int | None
    padding: int | str | None
    below: int | None


@dataclass(frozen=True)
class TensorDetails:
    """An input or an output of a tower, or of a part of one.

    Attributes:
      name: The name of the tensor.
      readers: The readers whose values an input has, side by side.
      tensor: The output of an earlier part that an input has, instead.
      dtype: The type of its values.
      shape: Its sizes; -1 is any size, at first that of the batch.
    """

    name: str
    readers: Sequence[str]
    tensor: str
    dtype: DataType
    shape: Sequence[int]


@dataclass(frozen=True)
class EffectDetails:
    """The effect of a precision on the order by one output; `overlap` is the share of the best k
    that stay.
    """

    kendall_tau: float
    overlap: float
    k: int
    auc: float | None
    auc_original: float | None


@dataclass(frozen=True)
class FormDetails:
    """A form of a tower: the format that it is stored in, with its precision.

    Attributes:
      kind: The format.
      precision: The precision of its weights.
      max_abs_error: The largest difference from the original model, by output.
      effects: The effect on the order, by output, of precisions below f32.
      runs: Whether this service runs it.
    """

    kind: Literal["litert", "saved_model"]
    precision: Literal["f32", "int8", "bf16"]
    max_abs_error: Mapping[str, float]
    effects: Mapping[str, EffectDetails]
    runs: bool


@dataclass(frozen=True)
class PartDetails:
    """A part of a tower, which runs once per context or once per candidate."""

    name: str
    per: Role
    inputs: Sequence[TensorDetails]
    outputs: Sequence[TensorDetails]
    forms: Sequence[FormDetails]


@dataclass(frozen=True)
class TowerDetails:
    """A tower.

    Attributes:
      name: The name of the tower.
      role: What its outputs are used for.
      inputs: Its inputs.
      outputs: Its outputs.
      result: The output that is the vector, or the score unless there is a formula.
      formula: The formula of the score, unless a request has its own; "": the result is the score.
      forms: The forms in which the bundle has it.
      parts: Its parts, in the order in which they run; empty if it runs as a whole.
      device: Where it runs in this service.
    """

    name: str
    role: Literal["query", "candidate", "ranking"]
    inputs: Sequence[TensorDetails]
    outputs: Sequence[TensorDetails]
    result: str
    formula: str
    forms: Sequence[FormDetails]
    parts: Sequence[PartDetails]
    device: Literal["cpu", "gpu"]


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
    """An index, with its recall as measured for the best `recall_k`."""

    name: str
    corpus: str
    kind: Literal["brute_force", "tree_ah"]
    distance: Literal["dot_product", "squared_l2", "cosine"]
    dim: int
    size: int
    recall_k: int
    recall: float


@dataclass(frozen=True)
class CorpusDetails:
    """Candidates, or contexts, by id, with their attributes and stored features."""

    name: str
    size: int
    id_type: DataType
    attributes: Sequence[str]
    features: Sequence[str]


@dataclass(frozen=True)
class ListDetails:
    """Candidates in a fixed order, from which recommendations can draw.

    Attributes:
      name: What requests name.
      corpus: The corpus that has the candidates.
      size: The number of candidates of all segments.
      by: The input of contexts whose value is their segment; empty: all have the same list.
    """

    name: str
    corpus: str
    size: int
    by: str


@dataclass(frozen=True)
class StageDetails:
    """A cheaper ranking tower, which chooses the candidates that another one ranks.

    Attributes:
      before: The ranking tower that it comes before.
      tower: The cheaper ranking tower.
      keep: The number of candidates of each context that it keeps, by default.
      recall_k: How many of the best candidates of the ranking tower were looked for at export; 0:
        It was not measured.
      recall: Their share that it kept, the lowest of all indexes.
    """

    before: str
    tower: str
    keep: int
    recall_k: int
    recall: float


@dataclass(frozen=True)
class ModelDetails:
    """All that a client needs to write a request for a version, and how the version uses it.

    Attributes:
      model: The name of the model.
      version: The number of the version.
      created: When it was exported, as ISO 8601.
      calls: The calls that it serves.
      tables: Its tables.
      indexes: Its indexes.
      corpora: Its candidates.
      contexts: Its stores of context features by id.
      readers: How the inputs of calls are used.
      towers: Its towers.
      current: Whether it serves requests that name no version.
      labels: The labels that stand for it.
      lists: Its lists of candidates.
      stages: Its cheaper ranking towers that come before others in recommendations.
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
