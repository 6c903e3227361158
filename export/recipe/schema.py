"""The recipe: ExportJob and its sections; unknown keys are rejected.

docs/reference/recipe.md is generated from the docstrings of sections and fields.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PositiveInt,
    Strict,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from bundle.format.fields import Boundaries
from bundle.format.indexes import Engine
from bundle.format.input_lengths import Keep, PadSide, PadValue
from bundle.format.key_paths import key_path
from bundle.format.manifest import Distance, Name, Precision, Role, Unknown
from bundle.shown_values import similar_file
from bundle.storage.regular_files import read_regular
from export.errors import UsageError

DERIVE = "derive"
"""The value of `checkpoint.layout` by which layouts are derived from ids of training."""
_EXPECTED = "Input should be "
"""The words by which pydantic begins what it expects."""
_OF_INPUTS = {"inputs", "features"}
"""The sections by the names of inputs."""
_RECIPE_BYTES_MAX = 64 << 20
"""The maximum size of a recipe in bytes."""
_WARM_UP_EXAMPLES_MAX = 64
"""The maximum number of examples in a bundle: as many as synthetic requests of a warm-up have."""


Item = TypeVar("Item")
Array = Annotated[tuple[Item, ...], Strict(False)]
InputDtype = Literal["int32", "int64", "float32", "string", "bool"]
INPUT_DTYPES = get_args(InputDtype)
"""An array of TOML, which is read as a list."""


class Section(BaseModel):
    """A frozen part of the recipe."""

    # `strict`: TOML has types, so that a number in quotes is a mistake.
    # `defer_build`: the schema of a section is built when it is first used, not at the import.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, defer_build=True
    )


class CheckpointSection(Section):
    """The checkpoint, and where the model is in it."""

    path: str
    """Path or URL: the prefix of a checkpoint, its `.index` file, or a directory, of which the
    newest checkpoint is read.
    """
    object_path: str = ""
    """Attribute path of the model in the checkpoint, such as `model` for
    `tf.train.Checkpoint(model=...)`.
    """
    by: Literal["objects", "names"] | None = None
    """How variables are found: by the objects of the model, or by the names of a TF1 Saver.
    Default: names if the checkpoint has no objects.
    """
    averages: bool = False
    """Read the moving average of each variable that has one."""
    allow_non_finite: Array[str] = ()
    """Variables of towers that may hold NaN or infinities: their keys in the checkpoint, or the
    names of the weights in a tower's file.
    """
    layout: str | None = None
    """Layout file, or "derive": layouts are derived from `verify.trained_ids`."""


class CodeSection(Section):
    """The model code."""

    factory: str
    """Function or class that builds the untrained model: `package.module:function`,
    `file.py:function`, `file.py:Class` or `notebook.ipynb:Class`. For TF1, it returns a function of
    one dict of inputs that builds the graph.
    """
    definitions: bool | None = None
    """Run only imports, classes, functions and constants of the file. Default: `true` for a
    notebook, and for a class of a file that does more than define.
    """
    arguments: dict[str, Any] = {}
    """Keyword arguments of the factory: values of TOML, or `{ vocabulary = "NAME" }` for the keys
    of `[vocabularies.NAME]` as a NumPy array.
    """
    names: dict[str, Any] = {}
    """Values of global names that the definitions need and the file computes, as in `arguments`."""
    trained_with: Literal["tensorflow", "jax", "torch"] | None = None
    """Backend of Keras 3 in training, if an export requests it."""
    table_threshold: int = Field(default=10_000, ge=0)
    """Maximum rows of a table that can stay inside its towers, if only plain gathers read it."""
    inline_bytes_max: int = Field(default=64 << 20, ge=0)
    """Maximum bytes of a table that stays inside a tower because it cannot be extracted, and of a
    constant.
    """


class InputSection(Section):
    """One input of the calls of the model."""

    dtype: InputDtype
    """Type of the tensor that the call takes. A bool is sent as 0 or 1; files may also have
    `true` and `false`.
    """
    shape: Array[PositiveInt] = ()
    """Shape of one example. [] is a single value, and the shape of ragged and sparse inputs."""
    kind: Literal["dense", "ragged", "sparse"] = "dense"
    """Kind of tensor in which the call takes a batch."""
    weights_for: str | None = None
    """The input whose weights this input holds."""
    length_max: PositiveInt = 64
    """Maximum values per example of a ragged or sparse input that a tower reads itself."""
    pad: PadValue | None = None
    """Value that fills up a list with fewer values than `shape`, as a client sends it. Without it,
    a shorter list is rejected. For a dense input with one axis.
    """
    pad_side: PadSide = "end"
    """Where `pad` is added."""
    keep: Keep | None = None
    """Which values of a longer list stay, as for `pad`. Without it, a longer list is rejected."""
    question: str = ""
    """What `rowcast-export init` could not find out about the input. `plan` repeats it, and `run`
    rejects the recipe: correct the other keys if they are wrong, then remove this one.
    """

    @property
    def sent_dtype(self) -> Literal["int32", "int64", "float32", "string"]:
        """Type of the values that are sent."""
        # Requests send booleans as 0 or 1.
        if self.dtype == "bool":
            return "int32"
        return self.dtype

    @model_validator(mode="after")
    def _dense_booleans(self) -> InputSection:
        if self.dtype == "bool" and self.kind != "dense":
            raise ValueError(f"a {self.kind} input has no dtype 'bool'; 'int32' was expected")
        return self

    @model_validator(mode="after")
    def _fixed_length(self) -> InputSection:
        changes = {
            "pad": self.pad is not None,
            "pad_side": self.pad_side != "end",
            "keep": self.keep is not None,
        }
        stated = [key for key, is_stated in changes.items() if is_stated]
        if not stated:
            return self
        if self.kind != "dense":
            raise ValueError(
                f"'{stated[0]}' belongs to a dense input; the model itself defines what becomes of "
                f"the lists of a {self.kind} one"
            )
        if len(self.shape) != 1 or self.weights_for is not None:
            raise ValueError(
                f"'{stated[0]}' belongs to an input of ids or numbers with one axis, such as "
                "shape = [20]"
            )
        if self.pad is None and self.pad_side != "end":
            raise ValueError("'pad_side' requires 'pad'")
        return self


class VocabularySection(Section):
    """A vocabulary: a list of keys."""

    file: str
    """UTF-8 text file with one key per line, in the order of the rows."""
    dtype: Literal["int64", "string"] = "string"
    """Type of the keys."""


class IdentityRule(Section):
    """The row is the id."""

    kind: Literal["identity"]
    """The kind of the rule."""


class VocabularyRule(Section):
    """The row is `first_row` + the position of the id in a vocabulary."""

    kind: Literal["vocabulary"]
    """The kind of the rule."""
    vocabulary: Name
    """A vocabulary in `[vocabularies.NAME]`."""
    first_row: int = Field(default=0, ge=0)
    """Row of the first key."""
    oov_buckets: int = Field(default=0, ge=0)
    """Number of rows for other ids. Their row is `oov_first_row` + hash of the id mod
    `oov_buckets`.
    """
    oov_first_row: int | None = Field(default=None, ge=0)
    """First row for other ids; required with `oov_buckets`. For lookup tables of TensorFlow: the
    row after the last key. For Keras layers: 0, or 1 with a `mask`, and `first_row` is the row
    after these rows.
    """
    oov_hash: Literal["fingerprint", "modulo"] = "fingerprint"
    """Hash of other ids. fingerprint: FarmHash, as for `kind = "hash"`. modulo: an integer is its
    own hash, as in Keras's IntegerLookup.
    """
    mask: int | str | None = None
    """The id that reads row 0: the `mask_token` of Keras layers."""

    @model_validator(mode="after")
    def _first_oov_row_stated(self) -> VocabularyRule:
        # No default fits all: TensorFlow has these rows behind the keys, Keras before them.
        if self.oov_buckets and self.oov_first_row is None:
            raise ValueError("'oov_buckets' requires 'oov_first_row'")
        return self


class HashRule(Section):
    """The row is FarmHash Fingerprint64 of the id (an integer: in decimal) mod `buckets`."""

    kind: Literal["hash"]
    """The kind of the rule."""
    buckets: PositiveInt | None = None
    """Default: the number of rows of the table."""
    dtype: Literal["int64", "string"] = "int64"
    """Type of the ids in the signatures of a self-contained SavedModel."""


class BucketRule(Section):
    """The row is the number of `boundaries` that are less than or equal to the value."""

    kind: Literal["buckets"]
    """The kind of the rule."""
    boundaries: Annotated[Boundaries, Strict(False)]
    """In ascending order."""


class KeyedRule(Section):
    """The row is the position of the id among the keys that the table was imported with."""

    kind: Literal["keyed"]
    """The kind of the rule."""


class FeatureSection(Section):
    """What the model does not specify about a feature, by the name of its input."""

    role: Role | None = None
    """Default: context if a query tower or a context store uses the feature, candidate if a
    candidate tower or a corpus uses it, else context. Required for an input of a ranking tower to
    which both apply.
    """
    ids: IdentityRule | VocabularyRule | HashRule | BucketRule | KeyedRule = Field(
        default=IdentityRule(kind="identity"), discriminator="kind"
    )
    """How an id in a request becomes a row, if the model does not specify it."""
    unknown: Unknown = Unknown()
    """What an id without a row reads. Default: zeros; in JAX what the lookup reads, or refuse where
    that is NaN and where the recipe makes rows of ids.
    """
    default: Any = None
    """Value if a request omits the feature, written as in a request. Without it, requests must
    include the feature.
    """


# Strict: pydantic would otherwise take `true` and 1.0 for the integer 1.
OutputStep = str | Annotated[int, Field(ge=0, strict=True)]
"""A step to an output in what a call returns: a key of a dict, or a position."""


class TowerSection(Section):
    """One tower: a call of the model, and the outputs to use."""

    role: Literal["query", "candidate", "ranking"]
    """What the service uses the tower for."""
    call: str = ""
    """Attribute path of the function to call: "" is the model itself, `rank` its method `rank`,
    `user_embedding` its layer with this attribute or name.
    """
    inputs: Array[str] = ()
    """Inputs that the call takes, as one dict in this order. [] passes all. Beside `arguments`, the
    order of the tables in these.
    """
    arguments: Array[Any] | dict[str, Any] | None = None
    """What the call takes instead of one dict: a list of its arguments, or a table by the names of
    its parameters. A string is the name of an input; lists, tables, booleans and numbers are passed
    as such.
    """
    outputs: dict[Name, OutputStep | Annotated[Array[OutputStep], Field(min_length=1)]] = {}
    """Where each output is in what the call returns: a key, a position from 0, an output name of a
    functional model of Keras, or a list of these, which leads into nested results. {} if the call
    returns one result, then named `result`.
    """
    result: str | None = None
    """The output that is the vector or the score. Required if the tower has several outputs."""
    formula: str | None = None
    """Combines outputs into the score that orders candidates, such as `click^0.7 * like^0.3`.
    Default: `result`.
    """
    split: bool = True
    """Partition a ranking tower into parts that run once per context, once per candidate, or only
    for the outputs that a request names.
    """
    precisions: Array[Precision] = ("f32",)
    """Precisions to export: f32 and int8 for LiteRT, bf16 as a SavedModel."""
    serve: Precision = "f32"
    """Precision at which a service runs the tower by default."""
    overlap_min: dict[Literal["int8", "bf16"], float] = {}
    """Minimum by precision, for every output, of the fraction of the original model's best tenth
    (at most 100 examples) that is also in the tower's.
    """
    max_abs_error: dict[Precision, float] = {}
    """Maximum absolute difference from the original model, by precision: for int8 and bf16, and for
    f32 in a tower that computes in half precision or reads a converted table.
    """

    @field_validator("arguments")
    @classmethod
    def _arguments_named(cls, arguments: Any) -> Any:
        # A call without inputs would return the same result for every example.
        if arguments is not None and not list(input_names(arguments)):
            raise ValueError("the name of an input was expected among the arguments")
        return arguments

    @model_validator(mode="after")
    def _same_inputs(self) -> TowerSection:
        if self.arguments is None or not self.inputs:
            return self
        names = dict.fromkeys(input_names(self.arguments))
        if set(names) != set(self.inputs):
            raise ValueError(
                f"'inputs' beside 'arguments' states the order of the same inputs: "
                f"{', '.join(names)} were expected in it"
            )
        return self


class TableSection(Section):
    """How to write one table."""

    segment_rows: PositiveInt | None = None
    """Rows per segment. Default: as many as fit in 4 GiB."""
    key: str | None = None
    """Variable of the checkpoint, or name of the table in the checkpoint or in `dump`, if the
    metadata does not identify it.
    """
    mod: bool = False
    """TF1 distributed the rows over partitions by the `mod` strategy."""
    dump: str | None = None
    """Directory with a dump that holds this table instead of the checkpoint."""
    dtype: Literal["float32", "bfloat16", "float16", "int8"] | None = None
    """Type of the rows in the bundle. Default: that of the checkpoint; float64 becomes float32."""
    max_abs_error: float | None = Field(default=None, ge=0)
    """Maximum absolute difference between a converted value and that of the checkpoint."""
    rms_error: float | None = Field(default=None, ge=0)
    """Maximum root mean square of these differences."""
    cosine_min: float | None = Field(default=None, ge=-1, le=1)
    """Minimum cosine between a row and its converted row."""
    allow_non_finite: bool = False
    """Publish the table although rows are not finite."""
    unavailable: Literal["error", "unknown"] = "error"
    """If no shard that holds a row responds: error: the request fails. unknown: the id is unknown,
    and the response reports its `coverage`.
    """


class CorpusSection(Section):
    """Candidates: CSV, JSON lines, Parquet or TFRecord files with one row, or one
    `tf.train.Example`, per candidate. What a line of JSON leaves out is null.
    """

    file: str | Array[str]
    """A file, a directory of part files, a pattern such as `items/part-*.csv`, or a list of these,
    read in the order of their names.
    """
    format: Literal["csv", "jsonl", "parquet", "tfrecord"] | None = None
    """Format of the files. Default: by the suffix `.csv` (with a header), `.json`, `.jsonl`,
    `.ndjson`, `.parquet`, `.tfrecord` or `.tfrecords`, each optionally with `.gz`.
    """
    compression: Literal["none", "gzip"] | None = None
    """Of files other than Parquet. Default: gzip if the name ends in `.gz`."""
    prebatched: bool = False
    """Each TFRecord holds one candidate for each value of `id`, and the same number of values of
    every other feature for each.
    """
    id: str
    """Column of the id of the candidate: integers or strings, unique, without nulls."""
    features: dict[str, str] = {}
    """Column of each feature, with values as a client sends them. The candidate tower of an index
    needs each of its inputs here, or a default of it.
    """
    attributes: Array[str] = ()
    """Columns that are returned with results on request."""
    filters: Array[str] = ()
    """Columns that requests can filter by. They are also attributes."""
    list_separator: str = "|"
    """Separator between the values of a bag in a CSV column."""

    @property
    def column_keys(self) -> dict[str, str]:
        """The columns that are read, each with the key of the section that names it first."""
        named = [("id", self.id)]
        named += [(f"features.{name}", column) for name, column in self.features.items()]
        named += [("attributes", column) for column in self.attributes]
        named += [("filters", column) for column in self.filters]
        # The first key stays: `setdefault` and not an assignment.
        keys: dict[str, str] = {}
        for key, column in named:
            keys.setdefault(column, key)
        return keys

    @property
    def stored(self) -> CorpusSection:
        """The section as its store depends on it: columns of filters are among the attributes."""
        attributes = tuple(dict.fromkeys((*self.attributes, *self.filters)))
        # A change of the filters changes no file of the store, so the store is not written again.
        return self.model_copy(update={"attributes": attributes, "filters": ()})


class ListSection(Section):
    """A list of candidates that recommendations can draw from, for all contexts or by segment:
    files as of a corpus, with one row per candidate, best first.
    """

    corpus: Name
    """Corpus that has the candidates."""
    file: str | Array[str]
    """As of a corpus."""
    format: Literal["csv", "jsonl", "parquet", "tfrecord"] | None = None
    """As of a corpus."""
    id: str
    """Column of the id of the candidate. Each is in the corpus, and in a segment once."""
    segment: str | None = None
    """Column of the segment of the row, such as a country; "" if it has none. Default: all rows are
    one list.
    """
    by: str | None = None
    """Input of contexts whose value is their segment; required with `segment`."""
    default: str = ""
    """Segment of contexts whose value has none."""

    @model_validator(mode="after")
    def _segments(self) -> ListSection:
        # A context finds its rows only if both have a segment.
        if (self.segment is None) != (self.by is None):
            raise ValueError("'segment' and 'by' belong together; set both or neither")
        return self


class RecallSection(Section):
    """Recall that an index must reach against exact search on the examples of `verify`."""

    k: PositiveInt = 10
    """Number of neighbors per query."""
    value: float = Field(default=0.95, gt=0, le=1)
    """Minimum recall, or nothing is published. Without `verify.examples`, it has no effect."""
    queries: PositiveInt = 500
    """Maximum number of queries from the examples. Every second one chooses the setting; the others
    measure its recall.
    """
    of_tables: float | None = Field(default=None, gt=0, le=1)
    """Minimum recall against vectors from the checkpoint's rows, if tables are converted. Default:
    only reported.
    """
    of_cold_users: float | None = Field(default=None, gt=0, le=1)
    """Minimum recall on the examples with empty bags. Default: only reported, with a note if it is
    less than `value`.
    """


class IndexSection(Section):
    """An index for retrieval from a corpus."""

    corpus: Name
    """Corpus to search."""
    query_tower: Name
    """Tower that computes the vectors of queries."""
    candidate_tower: Name
    """Tower that computes the vectors of candidates."""
    distance: Distance = "dot_product"
    """Distance between vectors. A larger score is always nearer."""
    engine: Literal["auto", Engine] = "auto"
    """Library of the index. auto: scann if it is installed here, else faiss."""
    kind: Literal["auto", "brute_force", "tree_ah"] = "auto"
    """brute_force compares all vectors. tree_ah is a tree with quantized vectors, and reordering.
    auto: brute_force for fewer than 20,000 candidates per partition, else tree_ah.
    """
    partitions: int = Field(default=1, ge=1, le=1 << 16)
    """Number of ranges of candidates with an index each, at most one per candidate. A build needs
    the memory of one. Fewer are built if the last would be empty.
    """
    recall: RecallSection = RecallSection()
    """Recall that the index must reach."""
    parameters: dict[str, Any] = {}
    """Parameters of a tree: num_leaves, leaves_to_search, dimensions_per_block (each for a
    partition), reorder. Default: chosen automatically.
    """


class StageRecallSection(Section):
    """How much of what a ranking tower finds best the stage keeps, measured on the examples of
    `verify` and the nearest candidates of each index whose corpus the tower can rank.
    """

    k: PositiveInt | None = None
    """Number of the ranking tower's best candidates. Default: 10, or `keep` if it is less."""
    value: float | None = Field(default=None, gt=0, le=1)
    """Minimum share of these that the stage keeps, or nothing is published. Requires
    `verify.examples`. Default: only reported.
    """
    pool_size: PositiveInt | None = None
    """Number of candidates from which the stage keeps some. Default: 10 times `keep`."""
    contexts: PositiveInt = 100
    """Maximum number of examples."""


class StageSection(Section):
    """A cheaper ranking tower, which selects the candidates that go on to the ranking tower NAME in
    `recommend`.
    """

    tower: Name
    """The cheaper ranking tower. Its `formula`, or else its `result`, orders the candidates."""
    keep: PositiveInt
    """Number of candidates of each context that go on, unless a request has another number."""
    recall: StageRecallSection = StageRecallSection()
    """Recall that the stage must reach."""

    @model_validator(mode="after")
    def _measurable(self) -> StageSection:
        if self.recall.k is not None and self.recall.k > self.keep:
            raise ValueError(
                f"'recall.k' is {self.recall.k}, more than 'keep', which is {self.keep}; the stage "
                "cannot keep that many"
            )
        # The recall would always be 1, so that its limit would verify nothing.
        if self.recall.pool_size is not None and self.recall.pool_size <= self.keep:
            raise ValueError(
                f"'recall.pool_size' is {self.recall.pool_size}, at most 'keep', which is "
                f"{self.keep}; a stage keeps all of such a pool"
            )
        return self


class TrainedIdsSection(Section):
    """Ids that occur in training, of a feature; or rows of a table. A file name stands for `file`
    alone.
    """

    file: str | None = None
    """Text file with one id per line, or a CSV, JSON-lines, Parquet or TFRecord file. Default: the
    file of `verify.examples`.
    """
    column: str | None = None
    """Column with the ids. Default: the column that has the name of the feature, else `id`, else
    the only one.
    """

    @model_validator(mode="before")
    @classmethod
    def _of_file(cls, value: Any) -> Any:
        # The short form: `trained_ids.user_id = "ids.txt"`.
        if isinstance(value, str):
            return {"file": value}
        return value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(core_schema) | {"type": ["object", "string"]}


RecordFormat = Literal["tf-example", "prediction-log", "elwc"]


class VerifySection(Section):
    """What to verify before the bundle is published."""

    examples: str | None = None
    """Raw examples, with a column for each input: a CSV (with `|` between the values of a list),
    JSON-lines (other suffixes, too) or Parquet file, or TFRecord files; a directory of such files,
    or a pattern. Default: synthetic examples.
    """
    examples_format: RecordFormat | None = None
    """Records of TFRecord files (`.gz`: compressed): tf-example (`tf.train.Example`),
    prediction-log (the requests of `tensorflow.serving.PredictionLog`) or elwc
    (`tensorflow.serving.ExampleListWithContext`).
    """
    count: PositiveInt = 256
    """Number of examples on which towers are compared."""
    labels: dict[str, str] = {}
    """Column of `examples` with the label, 0 or 1, of an output. Precisions below f32 are then
    judged by AUC.
    """
    expected: dict[str, str] = {}
    """Column of `examples` with the value that training recorded of an output (`tower.output` if
    several towers have it); of PredictionLog records, `response.NAME`. The differences may have a
    root mean square of a twentieth of the recorded values' standard deviation.
    """
    trained_ids: dict[str, TrainedIdsSection] = {}
    """Ids that occur in training, by the name of their feature, or rows by the name of their table,
    which prove or contradict layouts.
    """
    rows: PositiveInt = 4096
    """Number of rows to compare per table, unless `--full` is set."""
    stated_layouts: Literal["verify", "accept"] = "verify"
    """Tables with a stated layout are published, verify: only if `trained_ids` prove it, or if a
    tower that reads the table has outputs in `expected`; accept: also without.
    """

    @model_validator(mode="after")
    def _format_of_records(self) -> VerifySection:
        if self.examples is None and self.examples_format is not None:
            raise ValueError("'examples_format' requires 'examples'")
        # The name shows that a file holds records, but not which: bytes of one format often decode
        # as another (docs/adr/0068-records-of-tensorflow-serving.md).
        is_records = re.search(r"\.tfrecords?(\.gz)?$", self.examples or "") is not None
        if is_records and self.examples_format is None:
            raise ValueError(
                "'examples' are TFRecord files: state what their records are as "
                "'examples_format', tf-example, prediction-log or elwc"
            )
        return self


class WarmUpSection(Section):
    """Requests that a service computes before it serves the bundle. If one fails, the version is
    not served.
    """

    requests: str | None = None
    """TFRecord file of at most 1,000 requests, compressed if it ends in `.gz`. Default:
    `assets.extra/tf_serving_warmup_requests` of the SavedModel that `checkpoint.path` names, if it
    has one.
    """
    format: Literal["prediction-log", "elwc"] = "prediction-log"
    """Records of the file, as in `verify.examples_format`. Each elwc record is a ranking."""
    signature: str = ""
    """Signature that ranks ELWC records. Default: `serving_default`."""
    from_saved_model: bool = True
    """Take the requests of the SavedModel, if `requests` names no file."""
    examples: int = Field(default=0, ge=0, le=_WARM_UP_EXAMPLES_MAX)
    """Number of the first `verify.examples` that the bundle contains as a request for each tower,
    if it has no other requests. They lie in the bundle as they are in their file.
    """

    @model_validator(mode="after")
    def _check(self) -> WarmUpSection:
        if self.signature and self.format != "elwc":
            raise ValueError(
                "'signature' belongs to format 'elwc'; a PredictionLog names its signature itself"
            )
        # The requests of a SavedModel, which are the default, are PredictionLog records.
        if self.requests is None and self.format != "prediction-log":
            raise ValueError("'format' belongs to 'requests', which is missing")
        if self.requests is not None and self.examples:
            raise ValueError("'requests' and 'examples' exclude each other")
        return self


class OutputSection(Section):
    """Where to write the bundle: `<root>/<model>/<version>/`."""

    root: str
    """Directory of the bundles, or its URL (`s3://bucket/bundles`)."""
    tables: Literal["copy", "link", "inline", "inline-link"] = "copy"
    """copy: rows in the bundle. link: hard links to the checkpoint. inline: a self-contained
    SavedModel instead of a bundle. inline-link: the same, with hard links.
    """
    serving_default: Name | None = None
    """Tower of the signature `serving_default` of a self-contained SavedModel. Default: the only
    ranking tower that is no stage, else the only query tower, else the first by name.
    """


class ExportJob(Section):
    """The recipe."""

    model: Name
    """Name of the model in the root, in URLs and in requests."""
    checkpoint: CheckpointSection
    """The checkpoint to export."""
    code: CodeSection
    """The model code."""
    inputs: dict[str, InputSection]
    """Inputs of the calls of the model, by name."""
    towers: dict[Name, TowerSection]
    """Towers to extract from the model."""
    output: OutputSection
    """Where to write the bundle."""
    vocabularies: dict[Name, VocabularySection] = {}
    """Vocabulary files."""
    features: dict[str, FeatureSection] = {}
    """What the model does not specify about features."""
    tables: dict[Name, TableSection] = {}
    """How to write tables."""
    corpora: dict[Name, CorpusSection] = {}
    """Corpora: candidates to retrieve from."""
    contexts: dict[Name, CorpusSection] = {}
    """Stored features of contexts (users) by id."""
    indexes: dict[Name, IndexSection] = {}
    """Indexes for retrieval."""
    lists: dict[Name, ListSection] = {}
    """Lists of candidates that recommendations can draw from."""
    stages: dict[Name, StageSection] = {}
    """Cheaper ranking towers, by the name of the ranking tower that they come before."""
    verify: VerifySection = VerifySection()
    """What to verify before the bundle is published."""
    warm_up: WarmUpSection = WarmUpSection()
    """Requests that a service computes before it serves the bundle."""

    @field_validator("inputs")
    @classmethod
    def _levels_named(cls, inputs: dict[str, InputSection]) -> dict[str, InputSection]:
        for name in inputs:
            levels = name.split(".")
            if not all(levels):
                raise ValueError(f"{name!r} has an empty level; a dot stands between two names")
            # A level of the dict cannot be a tensor as well.
            for count in range(1, len(levels)):
                outer = ".".join(levels[:count])
                if outer in inputs:
                    raise ValueError(
                        f"{name!r} is inside {outer!r}, which is an input itself: a dot in a name "
                        "is a level of the dict that a call takes"
                    )
        return inputs


def _suggestion(wrong: str, field_names: list[str]) -> str:
    """Returns the clause about the fields that exist in place of a wrong one; "" if none do."""
    if not field_names:
        return ""
    close_matches = difflib.get_close_matches(wrong, field_names, n=1)
    if close_matches:
        return f"; did you mean {close_matches[0]!r}?"
    return f"; known here: {', '.join(sorted(field_names))}"


def _other_place(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """Returns the clause about another section of the same name that has an unknown key; "" if
    there is none, or several.
    """
    if model is not ExportJob or len(location) != 3:
        return ""
    section, name, key = location
    groups = set(ExportJob.model_fields) - {section}
    # An input and its feature share a name, so that a key of one is easily written to the other.
    if section in _OF_INPUTS:
        groups &= _OF_INPUTS
    owners = [group for group in groups if key in _fields_at(ExportJob, (group, name, key))]
    if len(owners) != 1:
        return ""
    return f"; {key!r} is a key of {owners[0]}.{name}"


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    return str(value)


def _fields_at(model: Any, location: tuple[int | str, ...]) -> list[str]:
    """Returns the field names that a model allows beside the last part of `location`."""
    # The last part is the unknown key itself.
    return list(getattr(key_path(model, location[:-1]).type, "model_fields", {}))


def _table_of(expected_type: Any, value: Any) -> str:
    """Returns the table that a text was probably meant as, such as { kind = "hash" }; "": none."""
    if not isinstance(value, str):
        return ""
    # A union of sections, such as the rules of ids, or one section.
    for section in get_args(expected_type) or [expected_type]:
        fields = getattr(section, "model_fields", {})
        required = [name for name, field in fields.items() if field.is_required()]
        for name, field in fields.items():
            is_the_only = required == [name] and field.annotation is str
            if is_the_only or value in get_args(field.annotation):
                return f"{{ {name} = {_toml(value)} }}"
    return ""


def _errors_at(
    errors: Sequence[ErrorDetails], model: type[BaseModel], location: tuple[int | str, ...]
) -> list[ErrorDetails]:
    """Returns the errors of the value at a location; of a list, those of its first wrong element
    if there is one.
    """
    outer = key_path(model, location).keys
    paths = [key_path(model, error["loc"]).keys for error in errors]
    innermost = max((path for path in paths if path[: len(outer)] == outer), key=len)
    return [error for path, error in zip(paths, errors, strict=True) if path == innermost]


def explain(problem: ValidationError, model: type[BaseModel] = ExportJob) -> str:
    """Returns the first mistake of a recipe, or of another model, as one sentence: key, value and
    expectation.
    """
    # A misspelled key is both unknown and missing: reported as unknown, with the spelling that was
    # meant.
    errors = problem.errors()
    first = min(errors, key=lambda error: error["type"] != "extra_forbidden")
    location = first["loc"]
    key = str(key_path(model, location))
    if first["type"] == "extra_forbidden":
        suggestion = _suggestion(str(location[-1]), _fields_at(model, location))
        elsewhere = _other_place(location, model)
        return f"unknown key {key!r}{elsewhere or suggestion}"
    if first["type"] == "missing":
        return f"key {key!r} is missing"
    # A value of several types has an error for each, and those of its elements if it is a list.
    alternatives = _errors_at(errors, model, location)
    first = alternatives[0]
    location = first["loc"]
    key = str(key_path(model, location))
    # pydantic puts these words before the text of a validator's ValueError.
    expected = first["msg"].removeprefix("Value error, ")
    if expected.startswith(_EXPECTED):
        types = [error["msg"].removeprefix(_EXPECTED) for error in alternatives]
        expected = (_EXPECTED + " or ".join(dict.fromkeys(types))).replace("tuple", "list")
    # TOML has no tuples, which is what pydantic makes of its arrays.
    if first["type"] == "tuple_type":
        expected = f"a list was expected, such as [{_toml(first['input'])}]"
    elif first["type"] == "union_tag_invalid":
        kinds = first["ctx"]["expected_tags"]
        expected = f"its {first['ctx']['discriminator']} is none of {kinds}"
    elif "dictionary" in expected:
        expected = "a table was expected"
        table = _table_of(key_path(model, location).type, first["input"])
        keys = _fields_at(model, (*location, ""))
        if table:
            expected += f", such as {table}"
        elif keys:
            expected += f" with keys of {', '.join(keys)}"
    return f"{key}: {expected} (got {first['input']!r})"


def read_recipe(path: Path) -> ExportJob:
    """Reads a recipe.

    Raises:
      UsageError: The file does not exist or is not TOML, or a key is unknown, missing or of the
        wrong type; names it.
    """
    try:
        parsed = tomllib.loads(read_regular(path, _RECIPE_BYTES_MAX).decode("utf-8-sig"))
    # Before OSError, of which it is a subclass: its usual cause is a wrong path.
    except FileNotFoundError as problem:
        raise UsageError(f"recipe {path} does not exist{similar_file(path)}") from problem
    except OSError as problem:
        raise UsageError(f"recipe {path} cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise UsageError(
            f"recipe {path} cannot be read: it is not UTF-8 text; a TOML file was expected"
        ) from problem
    except tomllib.TOMLDecodeError as problem:
        # The usual cause of an invalid value is a text without quotes.
        remedy = ""
        if str(problem).startswith("Invalid value"):
            remedy = "; texts need quotes"
        raise UsageError(f"recipe {path} cannot be read as TOML: {problem}{remedy}") from problem
    except RecursionError as problem:
        raise UsageError(f"recipe {path} cannot be read: it is nested too deeply") from problem
    try:
        return ExportJob.model_validate(parsed)
    except ValidationError as problem:
        raise UsageError(f"recipe {path}: {explain(problem)}") from problem


def input_names(argument: Any) -> Iterator[str]:
    """Yields the names of the inputs in an argument of a call, in its order.

    Raises:
      ValueError: The argument has a value that no call takes; names it.
    """
    if isinstance(argument, str):
        yield argument
    elif isinstance(argument, Mapping):
        for part in argument.values():
            yield from input_names(part)
    elif isinstance(argument, list | tuple):
        for part in argument:
            yield from input_names(part)
    # Booleans and numbers are passed as they are. TOML also has dates, which no call takes.
    elif not isinstance(argument, bool | int | float):
        raise ValueError(
            f"{argument} is no argument; names of inputs, lists, tables, numbers and booleans are"
        )


def name_of_call(path: str) -> str:
    """Returns the name of a call in messages; "" is the model's own call."""
    if not path:
        return "the model's call"
    return f"call {path!r}"
