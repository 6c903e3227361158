"""The recipe: ExportJob and its parts; unknown keys are rejected."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from bundle.format.manifest import Distance, IdentityIds, Name, Precision, Role, Unknown
from export.errors import UsageError


class Part(BaseModel):
    """A frozen part of the recipe."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, defer_build=True
    )


class CheckpointPart(Part):
    """Which checkpoint, and where the model is in its object graph."""

    path: str
    """A directory (its newest checkpoint), a prefix, or the `.index` file of a prefix, relative to the recipe; or a
    URL."""
    object_path: str = ""
    """Attribute path of the model in the checkpoint, e.g. `model` for `tf.train.Checkpoint(model=...)`."""
    by: Literal["objects", "names"] | None = None
    """How variables are found: by the model's objects, or by the names that TF1's Saver wrote; default: by names if the
    checkpoint has no object graph."""
    averages: bool = False
    """Reads the moving average of each variable that has one: TF1's `ExponentialMovingAverage`, Keras' `use_ema`, slot
    variables called `average`."""
    layout: str | None = None
    """A layout file, relative to the recipe: where tables lie in variables, if the checkpoint does not record it."""


class CodePart(Part):
    """The user's model code."""

    factory: str
    """`package.module:function` or `file.py:function`, relative to the recipe; called without arguments. It returns the
    built, untrained model, or, for TF1, a function of one dict of inputs that builds the graph."""
    table_threshold: int = Field(default=10_000, ge=0)
    """Rows up to which a table that is read by plain gathers may stay inside its towers."""
    inline_bytes_max: int = Field(default=64 << 20, ge=0)
    """Largest table, in bytes, that may stay inside a tower because it cannot be extracted."""


class InputPart(Part):
    """One input of the model's calls."""

    dtype: Literal["int32", "int64", "float32", "string"]
    """Of the tensor that the call takes."""
    shape: tuple[PositiveInt, ...] = ()
    """Of one example, without the batch; [] is a single value, as of ragged and sparse inputs."""
    kind: Literal["dense", "ragged", "sparse"] = "dense"
    """How the call takes a batch of it."""
    weights_for: str | None = None
    """This input holds the weights of the named one."""
    length_max: PositiveInt = 64
    """Most values of an example, for a ragged or sparse input that a tower reads itself; more are rejected."""


class VocabularyPart(Part):
    """A vocabulary: one key per line, in the order of the rows."""

    file: str
    """UTF-8, one key per line, in the order of the rows."""
    dtype: Literal["int64", "string"] = "string"
    """Of the keys."""


class VocabularyRule(Part):
    """ids = { kind = "vocabulary", vocabulary = NAME, first_row = N, oov_buckets = N, oov_first_row = N }"""

    kind: Literal["vocabulary"]
    """Row = `first_row` + position of the id in the vocabulary."""
    vocabulary: Name
    """One of the vocabularies."""
    first_row: int = Field(default=0, ge=0)
    """Row of the first key."""
    oov_buckets: int = Field(default=0, ge=0)
    """Rows for ids that the vocabulary does not hold: `oov_first_row` + their hash mod `oov_buckets`."""
    oov_first_row: int | None = Field(default=None, ge=0)
    """Needed with `oov_buckets`: in TensorFlow's tables the row behind the last key, in Keras' layers 0, or 1 with a
    `mask`, where `first_row` is the row behind these."""
    oov_hash: Literal["fingerprint", "modulo"] = "fingerprint"
    """fingerprint: as of hashed ids. modulo: an integer is its own hash, as Keras' IntegerLookup has it."""
    mask: int | str | None = None
    """The id that is row 0 whatever the vocabulary contains, as the `mask_token` of Keras' layers."""

    @model_validator(mode="after")
    def _placed(self) -> VocabularyRule:
        if self.oov_buckets and self.oov_first_row is None:
            raise ValueError("'oov_first_row' is given with 'oov_buckets'")
        return self


class HashRule(Part):
    """ids = { kind = "hash", buckets = N }; buckets defaults to the table's rows."""

    kind: Literal["hash"]
    """Row = FarmHash Fingerprint64 of the string, or of the integer in decimal, mod `buckets`."""
    buckets: PositiveInt | None = None
    """None: the table's rows."""
    dtype: Literal["int64", "string"] = "int64"
    """Of the ids in a self-contained SavedModel, whose signatures take no other; a service takes both."""


class BucketRule(Part):
    """ids = { kind = "buckets", boundaries = [...] }."""

    kind: Literal["buckets"]
    """Row = number of `boundaries` that are <= the value."""
    boundaries: tuple[float, ...]
    """Ascending."""


class KeyedRule(Part):
    """ids = { kind = "keyed" }: of a table that is imported with its keys."""

    kind: Literal["keyed"]
    """Row = the position of the id among the table's own keys."""


class FeaturePart(Part):
    """What the graph does not specify about one feature. A feature has the name of the model's input."""

    role: Role | None = None
    """Default: context if a query tower reads it or a context store holds it, candidate if a candidate tower or a
    corpus does, otherwise context. Required if they disagree about an input of a ranking tower."""
    ids: IdentityIds | VocabularyRule | HashRule | BucketRule | KeyedRule = Field(
        default=IdentityIds(), discriminator="kind"
    )
    """How an id in a request becomes a row, if the model does not specify it."""
    unknown: Unknown = Unknown()
    """What an id outside the table becomes."""
    default: Any = None
    """Value if a request leaves the feature out, written as in a request; without one, the feature is required."""


class TowerPart(Part):
    """One tower: a call of the model, and the outputs wanted from it."""

    role: Literal["query", "candidate", "ranking"]
    """What the service uses it for."""
    call: str = ""
    """Attribute path of what is called: "" is the model itself, `rank` one of its methods."""
    inputs: tuple[str, ...] = ()
    """Names of the inputs the call takes, as one dict; [] is all of them."""
    outputs: dict[Name, str] = {}
    """Output name -> key in what the call returns (a dict); {} when it returns one tensor, which becomes `result`."""
    result: str | None = None
    """The output that is the vector or the score; needed when there are several."""
    formula: str | None = None
    """Score that candidates are ordered by, as a formula of outputs: numbers, + - * / ^, brackets, min, max, exp, log,
    sqrt, sigmoid, e.g. `click^0.7 * like^0.3`; default: `result`."""
    split: bool = True
    """Partitions a ranking tower by data flow into parts that run once for a context, once for a candidate, and only
    for the outputs that a request names."""
    precisions: tuple[Precision, ...] = ("f32",)
    """Forms that are written: f32 and int8 for LiteRT; bf16 is a SavedModel, for service hosts with TensorFlow."""
    serve: Precision = "f32"
    """The precision that a service runs by default."""
    kendall_tau_min: dict[Literal["int8", "bf16"], float] = {}
    """Least Kendall tau-b between the orders by the original's values and by the precision's, for every output."""
    overlap_min: dict[Literal["int8", "bf16"], float] = {}
    """Least share of the original's best tenth (at most 100) that stays in the best tenth, for every output."""
    auc_loss_max: dict[Literal["int8", "bf16"], float] = {}
    """Largest loss of an output's area under the ROC curve; needs `verify.labels`."""
    max_abs_error: dict[Precision, float] = {}
    """Largest difference from the original model where the parity rule does not apply: for int8 and bf16, and for f32
    in a tower that computes in bfloat16 or float16 or reads a table whose rows are converted."""


class TablePart(Part):
    """How one table is written."""

    shard_rows: PositiveInt | None = None
    """Rows in a shard; None: as many as fit 4 GiB."""
    key: str | None = None
    """Variable of the checkpoint that holds it, or its name there or in `dump`, if the metadata does not identify
    it."""
    mod: bool = False
    """TF1 saved its variable in partitions, and spread the rows over them by the `mod` strategy."""
    dump: str | None = None
    """Directory with a dump of SOK or HugeCTR that holds this table instead of the checkpoint; ids are keys."""
    dtype: Literal["float32", "bfloat16", "float16", "int8"] | None = None
    """Type of its rows in the bundle; int8 has a scale for each row. Default: as stored, float64 as float32."""
    max_abs_error: float | None = Field(default=None, ge=0)
    """Largest accepted difference of a converted value from the checkpoint's."""
    rms_error: float | None = Field(default=None, ge=0)
    """Largest root of the mean square of these differences."""
    cosine_min: float | None = Field(default=None, ge=-1, le=1)
    """Least cosine between a row and its converted row."""
    unavailable: Literal["error", "unknown"] = "error"
    """What a lookup does where no shard that holds its row can be reached: fail, or treat the id as unknown and report
    the `coverage` of the answer."""


class CorpusPart(Part):
    """A candidate corpus: CSV, Parquet or TFRecord files with a row, or a `tf.train.Example`, per candidate."""

    file: str | tuple[str, ...]
    """A file, a directory of part files, a pattern such as `items/part-*.csv`, or a list of these; read in the order of
    names."""
    format: Literal["csv", "parquet", "tfrecord"] | None = None
    """None: by suffix: `.csv` (with a header), `.parquet`, `.tfrecord` or `.tfrecords`, perhaps with `.gz`."""
    compression: Literal["none", "gzip"] | None = None
    """Of CSV and TFRecord files; None: gzip where the name ends in `.gz`."""
    prebatched: bool = False
    """A TFRecord holds many candidates: as many as `id` has values; other features: equally many values for each."""
    id: str
    """Column of the candidate's id: integers or strings, unique, without nulls."""
    features: dict[str, str] = {}
    """Feature -> column that holds its value, as a caller would send it."""
    attributes: tuple[str, ...] = ()
    """Columns returned on request."""
    filters: tuple[str, ...] = ()
    """Columns that requests may filter by, which are attributes, too."""
    list_separator: str = "|"
    """Between the values of a bag in a CSV column."""

    @property
    def stored(self) -> CorpusPart:
        """All that its store depends on: what requests filter by is among the attributes."""
        attributes = tuple(dict.fromkeys((*self.attributes, *self.filters)))
        return self.model_copy(update={"attributes": attributes, "filters": ()})


class RecallPart(Part):
    """Recall that an index must reach against exact search before it is published, on the examples of `verify`."""

    k: PositiveInt = 10
    """Neighbors of each query that are compared."""
    value: float = Field(default=0.95, gt=0, le=1)
    """Least recall; nothing is published below it. Without `verify.examples` it has no effect."""
    queries: PositiveInt = 500
    """Queries it is measured on, at most."""
    of_tables: float | None = Field(default=None, gt=0, le=1)
    """Least recall against exact search over vectors made of the checkpoint's own rows, if tables are converted;
    default: measured and reported only."""


class IndexPart(Part):
    """A nearest-candidate index over a corpus."""

    corpus: Name
    """What is searched."""
    query_tower: Name
    """Tower that makes the query vectors."""
    candidate_tower: Name
    """Tower that makes the candidates' vectors."""
    distance: Distance = "dot_product"
    """Distance of vectors; scores are larger for nearer candidates in every case."""
    kind: Literal["auto", "brute_force", "tree_ah"] = "auto"
    """auto: brute force below 20 000 candidates in a partition, else a tree with asymmetric hashing and reordering."""
    partitions: int = Field(default=1, ge=1, le=1 << 16)
    """Ranges of candidates that have an index each and are searched as one; a build takes the memory of one of them. At
    most one for each candidate. Ranges are equally long but for the last; there are fewer if that would be empty."""
    recall: RecallPart = RecallPart()
    """The recall to reach."""
    parameters: dict[str, Any] = {}
    """ScaNN parameters that replace the chosen ones: num_leaves, leaves_to_search, dimensions_per_block, reorder; the
    first three are of each partition."""


class VerifyPart(Part):
    """What is checked before anything is published."""

    examples: str | None = None
    """A Parquet or JSON-lines file of raw examples (a column for each input). Default: examples are invented from known
    ids, and from numbers in the range of the model's Normalization layers, or else around 0."""
    count: PositiveInt = 256
    """Examples that towers are compared on."""
    labels: dict[str, str] = {}
    """Output -> column of `examples` with its label, 0 or 1: precisions below f32 are then judged by AUC."""
    expected: dict[str, str] = {}
    """Output (or `tower.output`, if several towers have it) -> column of `examples` with the value that training
    recorded. The only check that finds ids that lead to other rows than in training. The difference may be a twentieth
    of how much recorded values vary."""
    rows: PositiveInt = 4096
    """Rows compared per table unless `--full`."""


class OutputPart(Part):
    """Where the bundle goes: `<root>/<model>/<version>/`."""

    root: str
    """Directory of the bundles, relative to the recipe, or its URL (`s3://bucket/bundles`)."""
    tables: Literal["copy", "link", "inline", "inline-link"] = "copy"
    """copy: into the bundle. link: hard links into the checkpoint for rows that lie in order. inline: a self-contained
    SavedModel for TensorFlow Serving instead of a bundle. inline-link: the same, over hard links into the
    checkpoint."""
    serving_default: Name | None = None
    """The tower that is `serving_default` of a self-contained SavedModel; None: the first one."""


class ExportJob(Part):
    """The recipe."""

    model: Name
    """Name of the model in the root, in URLs and in requests."""
    checkpoint: CheckpointPart
    """What was trained."""
    code: CodePart
    """The model code."""
    inputs: dict[str, InputPart]
    """Inputs of the model's calls, by name."""
    towers: dict[Name, TowerPart]
    """Towers to extract from the model."""
    output: OutputPart
    """Where the bundle goes."""
    vocabularies: dict[Name, VocabularyPart] = {}
    """Vocabulary files."""
    features: dict[str, FeaturePart] = {}
    """What the model does not specify about a feature."""
    tables: dict[Name, TablePart] = {}
    """How tables are written."""
    candidates: dict[Name, CorpusPart] = {}
    """Candidate corpora."""
    contexts: dict[Name, CorpusPart] = {}
    """Stored features of contexts (users) by id, read like corpora; a request may then send only the id."""
    indexes: dict[Name, IndexPart] = {}
    """Nearest-candidate indexes."""
    verify: VerifyPart = VerifyPart()
    """What is checked before anything is published."""


def _nearest(wrong: str, known: list[str]) -> str:
    close = difflib.get_close_matches(wrong, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(sorted(known))}"


def _fields_at(model: Any, location: tuple[int | str, ...]) -> list[str]:
    """Returns the field names that a model allows beside the last part of `location`."""
    for part in location[:-1]:
        fields = getattr(model, "model_fields", None)
        if fields is not None:
            model = fields[part].annotation if part in fields else None
        else:
            arguments: tuple[Any, ...] = getattr(model, "__args__", ())
            model = arguments[1] if len(arguments) == 2 else None
        if model is None:
            return []
    return list(getattr(model, "model_fields", {}))


def explain(problem: ValidationError, model: type[BaseModel] = ExportJob) -> str:
    """Returns the first mistake of a recipe, or of another model, as one sentence: key, value and expectation."""
    # A misspelled key is both unknown and missing: reported as unknown, with the spelling that was meant.
    first = min(problem.errors(), key=lambda error: error["type"] != "extra_forbidden")
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _fields_at(model, first["loc"])
        return f"unknown key {where!r}" + (_nearest(str(first["loc"][-1]), known) if known else "")
    if first["type"] == "missing":
        return f"key {where!r} is missing"
    expected = first["msg"].removeprefix("Value error, ")
    return f"{where}: {expected} (got {first['input']!r})"


def read_recipe(path: Path) -> ExportJob:
    """Reads a recipe.

    Raises:
      UsageError: there is no such file, it is not TOML, or a key is unknown, missing or of the wrong type; names it.
    """
    try:
        parsed = tomllib.loads(path.read_text())
    except FileNotFoundError as problem:
        raise UsageError(f"recipe {path} does not exist") from problem
    except OSError as problem:
        raise UsageError(f"recipe {path} cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise UsageError(
            f"recipe {path} cannot be read: it is not UTF-8 text; a TOML file was expected"
        ) from problem
    except tomllib.TOMLDecodeError as problem:
        raise UsageError(f"recipe {path} cannot be read as TOML: {problem}") from problem
    except RecursionError as problem:
        raise UsageError(f"recipe {path} cannot be read: it is nested too deep") from problem
    try:
        return ExportJob.model_validate(parsed)
    except ValidationError as problem:
        raise UsageError(f"recipe {path}: {explain(problem)}") from problem


def name_of_call(path: str) -> str:
    """Returns the name of a call in messages; "" is the model's own call."""
    return f"call {path!r}" if path else "the model's call"
