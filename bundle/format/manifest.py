"""The manifest of a bundle: docs/reference/format.md as frozen models. Readers reject what it does
not allow.

A reader needs only the manifest, never a directory listing. Table segments carry their own digests;
`files` lists every other file of the bundle but the manifest itself, so that each digest is written
exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, ValidationError, model_validator

from bundle.errors import DigestMismatch, FormatError
from bundle.format import fields
from bundle.format.changes_position import ChangesPosition
from bundle.format.checksums import BLOCK_BYTES, crc32c
from bundle.format.features import (
    DenseFeature,
    EmbeddedFeature,
    Feature,
    JointInput,
    Role,
    Unknown,
    input_entry,
    input_facts,
    inputs_of,
    readers_of,
)
from bundle.format.fields import Count, Crc32c, Path, Positive, StrictModel
from bundle.format.id_graphs import IDENTITY, GraphIds, LookupTable
from bundle.format.ids import (
    IdRule,
    KeyedIds,
    lookup_tables_of,
)
from bundle.format.indexes import UNNAMED_ENGINE, CostPoint, Distance, Index, Recall
from bundle.format.input_lengths import InputLength
from bundle.format.key_paths import key_path
from bundle.format.precision import Precision
from bundle.format.tables import (
    Delta,
    NonFiniteRows,
    Segment,
    Table,
    TableDtype,
    TableError,
    TableSource,
)
from bundle.format.towers import (
    HeadEffect,
    ScoreDistribution,
    Tower,
    TowerExtension,
    TowerForm,
    TowerInput,
    TowerOutput,
    TowerPart,
)

__all__ = [
    "BLOCK_BYTES",
    "IDENTITY",
    "CostPoint",
    "Delta",
    "DenseFeature",
    "Distance",
    "EmbeddedFeature",
    "Feature",
    "GraphIds",
    "HeadEffect",
    "IdRule",
    "Index",
    "InputLength",
    "JointInput",
    "KeyedIds",
    "LookupTable",
    "NonFiniteRows",
    "Precision",
    "Recall",
    "Role",
    "ScoreDistribution",
    "Segment",
    "Table",
    "TableDtype",
    "TableError",
    "TableSource",
    "Tower",
    "TowerExtension",
    "TowerForm",
    "TowerInput",
    "TowerOutput",
    "TowerPart",
    "Unknown",
    "input_entry",
    "inputs_of",
    "lookup_tables_of",
    "readers_of",
]

FORMAT_VERSION = 1
MANIFEST_BYTES_MAX = 256 << 20
"""The maximum size of a manifest; readers reject larger ones. It suffices for about 44 TiB of
copied rows.
"""
WARM_UP_REQUESTS_MAX = 1_000
"""The maximum number of recorded requests for the warm-up, as of TensorFlow Serving.

Source: tensorflow_serving/servables/tensorflow/saved_model_warmup_util.h, kMaxNumRecords.
"""
_BLOCK_LINE_BYTES = 24
"""The bytes of a block's checksum: an indent, up to ten digits, a comma and the end of the line."""
_SEGMENT_LINES_BYTES = 1 << 10
"""An upper bound of the bytes of a segment's other fields."""

Name = fields.Name


class File(StrictModel):
    """One file of the bundle."""

    path: Path
    bytes: Count
    crc32c: Crc32c


class Vocabulary(StrictModel):
    """Keys in the order of their rows: an Arrow IPC file with the one column `key`."""

    file: Path
    size: Positive
    dtype: Literal["int64", "string"]


class KeyIndex(StrictModel):
    """Distinct int64 keys of a table of dynamic keys, mapped: the position of each
    gives its row.
    """

    file: Path
    size: Positive


class AttributeIndex(StrictModel):
    """Positions of candidates by the value of one attribute, for filters.

    Value i of `values` has the positions `rows[ends[i - 1]:ends[i]]`, ascending.
    """

    values: Path
    """An Arrow IPC file with the columns `value` (distinct, ascending) and `end` (int64)."""
    rows: Path
    """The positions: little-endian uint32."""


class Corpus(StrictModel):
    """Candidates, or contexts, by id: an Arrow IPC file.

    Columns `id`, `feature:<input>`, `weights:<input>`, `attribute:<name>`.
    """

    file: Path
    size: Positive
    id_dtype: Literal["int64", "string"]
    features: tuple[str, ...]
    attributes: dict[str, str]
    """The Arrow type by attribute."""
    filters: dict[str, AttributeIndex] = Field(default_factory=dict)
    """The indexes of the attributes that requests may filter by."""
    cut: dict[str, Positive] = Field(default_factory=dict)
    """The number of rows whose list was longer than its input takes, by input, if there are any."""
    padded: dict[str, Positive] = Field(default_factory=dict)
    """The number of rows whose list was shorter, and padded, by input, if there are any."""


class CandidateList(StrictModel):
    """Lists of candidates by segment: an Arrow IPC file with the columns `id` and `segment`."""

    file: Path
    corpus: Name
    """The corpus that has the candidates."""
    size: Positive
    """The number of rows: candidates of all segments."""
    by: str | None = None
    """The input of contexts whose value is the segment; null: All contexts have the default."""
    default: str = ""
    """The segment of contexts whose value has none."""


class WarmUpRequests(StrictModel):
    """Requests that a service computes before it serves the version: a TFRecord file of
    `tensorflow.serving.PredictionLog` records, as SavedModels have it for TensorFlow Serving.
    """

    file: Path
    size: Annotated[int, Field(ge=1, le=WARM_UP_REQUESTS_MAX, strict=True)]
    """The number of records."""


class StageRecall(StrictModel):
    """How much of what a tower ranks best a stage before it keeps, measured at export on the
    nearest candidates of an index.
    """

    k: Positive
    """The number of best candidates of the tower that are looked for among those that are kept."""
    value: float
    """The mean share of these over all contexts."""
    low: float
    """The lower end of the 95 % Wilson interval of `value`, where each context counts as one."""
    contexts: Positive
    """The number of contexts."""
    pool_size: Positive
    """The number of candidates of each context from which the stage kept some."""
    representative: bool = True
    """Whether the contexts are examples of the recipe, not synthetic ones."""


class Stage(StrictModel):
    """A cheaper ranking tower, which chooses the candidates that another one ranks."""

    tower: Name
    """The cheaper ranking tower; its formula, or else its result, orders the candidates."""
    keep: Positive
    """The number of candidates of each context that it keeps, by default."""
    recall: dict[Name, StageRecall] = Field(default_factory=dict)
    """The measured recall, by index."""


class Provenance(StrictModel):
    """What was exported, by what."""

    checkpoint: str
    """The base name of the checkpoint's prefix; never a path of the machine that wrote it."""
    step: int | None = None
    fingerprint: str
    """`crc32c:` of the checkpoint's index file; `sha256:` of the file that Orbax writes last."""
    model_code: str
    exporter: str
    libraries: dict[str, str]


class PaddingCheck(StrictModel):
    """What training left in the padding of a SparseCore stack, as a stated layout places it."""

    rows: Count
    """The number of padding rows that were compared, none of which contradicts the layout. 0: There
    is no padding, or nothing distinguishes it from rows of a table."""
    slots: tuple[str, ...] = ()
    """Slot variables whose values in these rows were compared, too."""


class TrainedIdsCheck(StrictModel):
    """How ids that occur in training agree with the layout of a table: their rows must be rows that
    training changed."""

    ids: Count
    """The number of trained ids that were checked."""
    agree: Count
    """The number of these ids whose row training changed, as the optimizer's slot variables
    show."""
    other_layout: str
    """The layout that explains the ids best of all others that the variable can have; empty if it
    can have no other."""
    other_agree: Count
    """The number of trained ids whose row training changed, by that layout."""
    decisive: bool
    """Whether every other layout leaves more of the ids on rows that training did not change, which
    proves the layout."""


class TableCheck(StrictModel):
    """Rows compared, bit for bit, with the checkpoint."""

    rows_compared: Count
    rows: Positive
    stated_layout: Literal["derived", "trained_ids", "expected", "accepted"] | None = None
    """How the layout of a table is known that the training program did not record: it was derived
    from ids of training (`derived`); or it is stated, and these ids prove it (`trained_ids`),
    outputs that training recorded agree with it (`expected`), or nothing verifies that row r is the
    row of id r (`accepted`)."""
    trained_ids: TrainedIdsCheck | None = None
    """How ids of training agree with the layout, wherever it comes from; absent without ids."""
    padding: PaddingCheck | None = None
    """The padding of a stack whose layout is stated: it could contradict the layout, and does
    not."""
    decoder: str | None = None
    """The library, and its version, that decoded the chunks of an encoded table both for the copy
    and for the comparison. The comparison proves where rows are, not that they were decoded
    well."""


class Verification(StrictModel):
    """What was proved before the bundle was committed."""

    tables: dict[str, TableCheck]
    examples: Count
    """The number of examples that were replayed through the original model and through every form
    of every tower."""
    hostile_examples: dict[str, Count] = Field(default_factory=dict)
    """The number of examples with hostile numbers for which the forms of a tower, and of its parts,
    agree with its SavedModel in f32, by tower; absent for a tower without further forms."""
    tolerance: str
    table_effect: dict[str, dict[str, float]] = Field(default_factory=dict)
    """The largest difference that converted tables alone make, by tower and output."""
    unverified: tuple[str, ...] = ()
    """What no check could show, each with the reason or the remedy."""


class Manifest(StrictModel):
    """The whole manifest."""

    format_version: Literal[1] = 1
    model: Name
    version: Positive
    created: str
    provenance: Provenance
    tables: dict[Name, Table]
    vocabularies: dict[Name, Vocabulary] = Field(default_factory=dict)
    keys: dict[Name, KeyIndex] = Field(default_factory=dict)
    features: dict[str, Feature]
    unread_inputs: tuple[str, ...] = ()
    """Inputs of the model that no tower reads. A request may send them, without an effect."""
    towers: dict[Name, Tower]
    corpora: dict[Name, Corpus] = Field(default_factory=dict)
    """Candidates to retrieve from, by corpus."""
    contexts: dict[Name, Corpus] = Field(default_factory=dict)
    """Stores of context features by id, as corpora hold candidates."""
    indexes: dict[Name, Index] = Field(default_factory=dict)
    lists: dict[Name, CandidateList] = Field(default_factory=dict)
    """Lists of candidates that recommendations can draw from, such as popular ones."""
    stages: dict[Name, Stage] = Field(default_factory=dict)
    """Cheaper ranking towers that come before others in a recommendation, by the name of the tower
    that they come before."""
    warm_up: WarmUpRequests | None = None
    """Requests that a service computes before it serves the version; null: The export had none."""
    changes_included: ChangesPosition | None = None
    """The last state of the model's changes that corpora and contexts contain, with those before
    it, but for what expires or was sent with vectors; null: none were read."""
    verification: Verification
    files: tuple[File, ...]

    @cached_property
    def inputs(self) -> dict[str, tuple[str, ...]]:
        """What callers send, by name, with the features that read it; the first defines how its
        values are written.
        """
        return readers_of(self.features)

    @property
    def listed_files(self) -> set[str]:
        """The paths of all files of the bundle but the manifest."""
        extents = [extent for table in self.tables.values() for extent, _ in table.extents()]
        return {file.path for file in self.files} | {extent.file for extent in extents}

    @cached_property
    def towers_of_stages(self) -> frozenset[str]:
        """The towers that come before others; a request means one of them only by its name."""
        return frozenset([stage.tower for stage in self.stages.values()])

    def role_of(self, name: str) -> Role:
        """Returns whether an input is sent once for a context or for each candidate."""
        return input_facts(name, self.features[self.inputs[name][0]]).role

    def default_of(self, name: str) -> Any:
        """Returns what stands for an input that is not sent; None: it must be sent."""
        return input_facts(name, self.features[self.inputs[name][0]]).default

    def length_of(self, name: str) -> InputLength | None:
        """Returns how many values each example has in an input; None: any number of them."""
        return input_facts(name, self.features[self.inputs[name][0]]).length

    def dim_of(self, feature: EmbeddedFeature) -> int:
        """Returns the width of the vectors that a feature reads."""
        if feature.ordinal:
            return 1
        return feature.indicator or self.tables[feature.table].dim

    def readers(self, name: str) -> list[Feature]:
        """Returns the features that read an input."""
        return [self.features[reader] for reader in self.inputs[name]]

    def inputs_of(self, features: Iterable[str]) -> tuple[str, ...]:
        """Returns what callers send for some features, each input once, in the order of the
        features.
        """
        names: list[str] = []
        for name in features:
            names += inputs_of(name, self.features[name])
        return tuple(dict.fromkeys(names))

    @model_validator(mode="after")
    def _inputs_agree(self) -> Manifest:
        for name, readers in self.inputs.items():
            # By their texts: a default may be a list, which has no hash.
            facts = {repr(input_facts(name, self.features[reader])) for reader in readers}
            if len(facts) > 1:
                raise ValueError(
                    f"features {', '.join(readers)} read {name!r} with different roles, defaults "
                    "or numbers of values"
                )
            position_counts = {getattr(self.features[reader], "places", None) for reader in readers}
            if len(position_counts - {None}) > 1:
                raise ValueError(
                    f"features {', '.join(readers)} read places of {name!r} of different numbers"
                )
        return self

    @model_validator(mode="after")
    def _unread_inputs_have_no_reader(self) -> Manifest:
        if len(set(self.unread_inputs)) < len(self.unread_inputs):
            raise ValueError("unread_inputs lists an input twice")
        for name in self.unread_inputs:
            if name in self.inputs:
                raise ValueError(
                    f"unread_inputs lists {name!r}, which feature {self.inputs[name][0]!r} reads"
                )
        return self

    @model_validator(mode="after")
    def _features_closed(self) -> Manifest:
        for name, feature in self.features.items():
            if isinstance(feature, EmbeddedFeature):
                if feature.indicator is None:
                    _check_known(feature.table, self.tables, f"features.{name}.table")
                for table in lookup_tables_of(feature.ids):
                    _check_known(table.vocabulary, self.vocabularies, f"features.{name}.ids.tables")
                if isinstance(feature.ids, KeyedIds):
                    _check_known(feature.ids.keys, self.keys, f"features.{name}.ids.keys")
                # Rows that are read whatever the ids are must exist: no later read checks them.
                rows = feature.indicator or self.tables[feature.table].rows
                row_by_field = {
                    "unknown.row": feature.unknown.row,
                    "empty_row": feature.empty_row,
                    "filler_row": feature.filler_row,
                }
                for field, row in row_by_field.items():
                    if row is not None and row >= rows:
                        raise ValueError(
                            f"features.{name}.{field} is {row}, the table has {rows} rows"
                        )
        return self

    # The next three check that names in one part of the manifest exist in another, so that no
    # reader meets an unknown name.
    @model_validator(mode="after")
    def _towers_closed(self) -> Manifest:
        for name, tower in self.towers.items():
            entries = [*tower.inputs]
            for part in tower.all_parts:
                entries += part.inputs
            for entry in entries:
                for source in entry.sources:
                    _check_known(
                        source, self.features, f"towers.{name}.inputs.{entry.name}.feature"
                    )
            _check_known(
                tower.result, {output.name for output in tower.outputs}, f"towers.{name}.result"
            )
        return self

    @model_validator(mode="after")
    def _stores_closed(self) -> Manifest:
        inputs = self.inputs
        for kind, stores in (("corpora", self.corpora), ("contexts", self.contexts)):
            for name, corpus in stores.items():
                for feature_input in corpus.features:
                    _check_known(feature_input, inputs, f"{kind}.{name}.features")
                for attribute in corpus.filters:
                    _check_known(attribute, corpus.attributes, f"{kind}.{name}.filters")
        for name, index in self.indexes.items():
            _check_known(index.corpus, self.corpora, f"indexes.{name}.corpus")
            _check_known(index.query_tower, self.towers, f"indexes.{name}.query_tower")
            _check_known(index.candidate_tower, self.towers, f"indexes.{name}.candidate_tower")
        for name, entry in self.lists.items():
            _check_known(entry.corpus, self.corpora, f"lists.{name}.corpus")
            if entry.by is not None:
                _check_known(entry.by, inputs, f"lists.{name}.by")
        return self

    @model_validator(mode="after")
    def _stages_closed(self) -> Manifest:
        for name, stage in self.stages.items():
            for where, tower in ((f"stages.{name}", name), (f"stages.{name}.tower", stage.tower)):
                _check_known(tower, self.towers, where)
                if self.towers[tower].role != "ranking":
                    raise ValueError(f"{where} names {tower!r}, which is no ranking tower")
            if stage.tower in self.stages or stage.tower == name:
                raise ValueError(
                    f"stages.{name}.tower names {stage.tower!r}, which a stage comes before"
                )
            for index in stage.recall:
                _check_known(index, self.indexes, f"stages.{name}.recall")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Manifest:
        for name, tower in self.towers.items():
            tower_sources = {source for entry in tower.inputs for source in entry.sources}
            for part in tower.all_parts:
                for source in (source for entry in part.inputs for source in entry.sources):
                    if source not in tower_sources:
                        raise ValueError(
                            f"towers.{name}: part {part.name!r} takes {source!r}, which the tower "
                            "does not"
                        )
                    if part.per != "candidate" and self.features[source].role == "candidate":
                        raise ValueError(
                            f"towers.{name}: part {part.name!r} is per {part.per}, {source!r} a "
                            "candidate's"
                        )
        return self

    @model_validator(mode="after")
    def _files_listed_once(self) -> Manifest:
        listed = [file.path for file in self.files]
        if len(set(listed)) != len(listed):
            raise ValueError("files lists a path twice")
        ranges: dict[str, list[tuple[int, int]]] = {}
        for table in self.tables.values():
            for segment, size in table.extents():
                ranges.setdefault(segment.file, []).append((segment.offset, segment.offset + size))
        # Tables may share a file of the checkpoint, but no bytes of it.
        for file, file_ranges in ranges.items():
            if any(later[0] < earlier[1] for earlier, later in pairwise(sorted(file_ranges))):
                raise ValueError(
                    f"segments overlap in {file!r}; each byte may belong to one segment"
                )
            if file in listed:
                raise ValueError(f"files lists {file!r}, whose digests its segments carry already")
        return self


def _check_known(name: str, names: Any, where: str) -> None:
    """Raises ValueError if a field names an entry that the manifest does not have."""
    if name not in names:
        raise ValueError(f"{where} names {name!r}, which the manifest does not have")


def parse(data: bytes) -> Manifest:
    """Reads a manifest from its bytes.

    Raises:
      UnknownFormat: This reader does not know the format version.
      DigestMismatch: The bytes differ from their digest.
      FormatError: The bytes are no JSON, too many, or break a rule of the format; names the field.
    """
    if len(data) > MANIFEST_BYTES_MAX:
        raise FormatError(f"manifest has {len(data)} bytes; at most {MANIFEST_BYTES_MAX} are read")
    # The version comes before the digest: a newer one may have its digest elsewhere.
    content = fields.read_json(data, "manifest", FORMAT_VERSION)
    _check_digest(data)
    del content["digest"]
    try:
        return Manifest.model_validate(content)
    except ValidationError as problem:
        # One problem is enough to reject the manifest; a list of all would be long.
        first = problem.errors()[0]
        where = str(key_path(Manifest, first["loc"])) or "manifest"
        raise FormatError(f"manifest: {where}: {first['msg']}") from problem


def segments_bytes(blocks: int, segments: int) -> int:
    """Returns an upper bound of the bytes that segments take in a manifest.

    Args:
      blocks: The number of blocks of all segments.
      segments: The number of segments.
    """
    return blocks * _BLOCK_LINE_BYTES + segments * _SEGMENT_LINES_BYTES


def dump(manifest: Manifest) -> bytes:
    """Returns the manifest's bytes: JSON, two-space indent, keys in the order of the format page,
    nothing that is null.

    `digest`, its second key, is the crc32c of these bytes while it is written as 0.

    Raises:
      FormatError: There are more bytes than readers take.
    """
    head = {"format_version": FORMAT_VERSION, "digest": 0}
    excluded = set(head)
    # Readers that do not know these fields can read all bundles without them.
    for field in ("lists", "stages"):
        if not getattr(manifest, field):
            excluded.add(field)
    content = manifest.model_dump(mode="json", exclude=excluded, exclude_none=True)
    for index in content["indexes"].values():
        if index["engine"] == UNNAMED_ENGINE:
            del index["engine"]
    data = orjson.dumps(head | content, option=orjson.OPT_INDENT_2) + b"\n"
    if len(data) > MANIFEST_BYTES_MAX:
        raise FormatError(f"manifest has {len(data)} bytes; readers take {MANIFEST_BYTES_MAX}")
    # The digest replaces its 0, the one digit after the first such key.
    before, key, after = data.partition(b'"digest": ')
    digest = str(crc32c(data)).encode()
    return before + key + digest + after[1:]


def _check_digest(data: bytes) -> None:
    # Every manifest begins like this: its digest is found without reading on.
    before = b'{\n  "format_version": %d,\n  "digest": ' % FORMAT_VERSION
    digits = data.removeprefix(before)[:11].partition(b",")[0]
    after = data[len(before) + len(digits) :]
    has_digest = data.startswith(before) and digits.isdigit()
    # As it was when the digest was computed.
    digested = before + b"0" + after
    if not has_digest or crc32c(digested) != int(digits):
        raise DigestMismatch("manifest differs from its digest; copy the bundle again")
