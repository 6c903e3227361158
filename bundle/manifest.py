"""The page that describes a bundle: docs/format.md as frozen models. Readers refuse what it does not allow.

A reader needs only this page, never a directory listing. Table shards carry their own digests; `files` lists every
other file of the bundle but the page itself, so that each digest is written exactly once.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, ValidationError, model_validator

from bundle import fields
from bundle.checksums import crc32c
from bundle.errors import DigestMismatch, FormatError, UnknownFormat
from bundle.fields import Boundaries, Count, Crc32c, Length, Page, Path, Positive
from bundle.table_pages import BLOCK_BYTES, Shard, Table, TableDtype, TableError, TableSource

__all__ = ["BLOCK_BYTES", "Shard", "Table", "TableDtype", "TableError", "TableSource"]

FORMAT_VERSION = 2
MANIFEST_BYTES_MAX = 256 << 20

Name = fields.Name
Distance = Literal["dot_product", "squared_l2", "cosine"]
Role = Literal["context", "candidate"]


class File(Page):
    """One file of the bundle."""

    path: Path
    bytes: Count
    crc32c: Crc32c


class IdentityIds(Page):
    """The id is the row."""

    kind: Literal["identity"] = "identity"


class HashIds(Page):
    """Row = FarmHash Fingerprint64(decimal string of an integer, or the string itself) mod `buckets`."""

    kind: Literal["hash"] = "hash"
    buckets: Positive


class VocabularyIds(Page):
    """Row = `first_row` + position of the id in the named vocabulary."""

    kind: Literal["vocabulary"] = "vocabulary"
    vocabulary: Name
    first_row: Count = 0


class BucketIds(Page):
    """Row = number of `boundaries` that are <= the (float) value."""

    kind: Literal["buckets"] = "buckets"
    boundaries: Boundaries


IdRule = Annotated[IdentityIds | HashIds | VocabularyIds | BucketIds, Field(discriminator="kind")]


class Unknown(Page):
    """What an id outside the table becomes.

    zeros: it contributes nothing. A single feature's vector is zeros; a bag leaves the id out, as TensorFlow's sparse
    lookup leaves out negative ids; a sequence holds zeros at its position. row: it reads row `row`. refuse: an error.
    """

    rule: Literal["zeros", "row", "refuse"] = "zeros"
    row: Count | None = None

    @model_validator(mode="after")
    def _row_given(self) -> Unknown:
        if (self.rule == "row") != (self.row is not None):
            raise ValueError("'row' is given with rule 'row', and only then")
        return self


class EmbeddedFeature(Page):
    """A named input that reads one table with one combiner."""

    kind: Literal["single", "bag", "sequence"]
    table: Name
    role: Role
    ids: IdRule = IdentityIds()
    unknown: Unknown = Unknown()
    combiner: Literal["sum", "mean", "sqrtn"] | None = None
    """Of a bag."""
    encoding: Literal["sparse", "ragged"] = "sparse"
    """Whose rules a bag follows: TensorFlow's sparse lookup drops weights <= 0 unless it sums; its ragged none."""
    weighted: bool = False
    """Whether callers may send a weight beside each id."""
    length: Length | None = None
    """Of a sequence: longer ones are cut at their end, shorter ones filled with zeros."""
    default: Any = None
    """The value taken when a caller leaves the feature out; null: it must be sent. Written as a request writes it."""

    @model_validator(mode="after")
    def _consistent(self) -> EmbeddedFeature:
        if (self.kind == "bag") != (self.combiner is not None):
            raise ValueError("'combiner' belongs to a bag, and a bag needs one")
        if (self.kind == "sequence") != (self.length is not None):
            raise ValueError("'length' belongs to a sequence, and a sequence needs one")
        return self


class DenseFeature(Page):
    """A named input of numbers that goes to the towers as it is."""

    kind: Literal["dense"]
    role: Role
    shape: tuple[Length, ...] = ()
    """Of one example; () is a single number."""
    dtype: Literal["float32", "int32", "int64"] = "float32"
    default: Any = None


Feature = Annotated[EmbeddedFeature | DenseFeature, Field(discriminator="kind")]


class TowerInput(Page):
    """One input tensor of a tower; `null` in `shape` is the batch."""

    name: str
    feature: str
    dtype: str
    shape: tuple[int | None, ...]


class TowerOutput(Page):
    """One output tensor of a tower."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


class TowerForm(Page):
    """One way to run a tower: a SavedModel directory or a LiteRT flatbuffer."""

    kind: Literal["saved_model", "litert"]
    precision: Literal["f32", "int8"]
    path: Path
    max_abs_error: dict[str, float]
    """Largest difference from the original model over the replayed examples, by output."""


class Tower(Page):
    """A query, candidate or ranking network without its tables."""

    role: Literal["query", "candidate", "ranking"]
    inputs: tuple[TowerInput, ...]
    outputs: tuple[TowerOutput, ...]
    result: str
    """The output that is the vector, or the score that candidates are ordered by."""
    forms: tuple[TowerForm, ...]
    serve: Literal["f32", "int8"] = "f32"
    """The precision that a service runs unless it is told otherwise."""


class Vocabulary(Page):
    """Keys in the order of their rows: an Arrow IPC file with the one column `key`."""

    file: Path
    size: Positive
    dtype: Literal["int64", "string"]


class Corpus(Page):
    """Candidates by id: an Arrow IPC file with columns `id`, `feature:<name>`, `weights:<name>`, `attribute:<name>`."""

    file: Path
    size: Positive
    id_dtype: Literal["int64", "string"]
    features: tuple[str, ...]
    attributes: dict[str, str]
    """Arrow type by attribute."""


class Recall(Page):
    """recall@k against exact search, measured when the index was built."""

    k: Positive
    value: float
    low: float
    """Lower end of the 95 % Wilson interval."""
    queries: Positive
    target: float


class CostPoint(Page):
    """One setting that was tried: its recall and its cost as a share of exact search's time."""

    parameters: dict[str, Any]
    recall: float
    relative_cost: float


class Index(Page):
    """Nearest-candidate search over one corpus."""

    corpus: Name
    query_tower: Name
    candidate_tower: Name
    kind: Literal["brute_force", "tree_ah"]
    distance: Distance
    dim: Positive
    directory: Path
    vectors: Path
    """Raw float32 rows in the corpus' order: for search by item, exact search and checks."""
    parameters: dict[str, Any]
    recall: Recall
    recall_of_tables: Recall | None = None
    """Where tables were converted: the same, against exact search over vectors made of the checkpoint's own rows."""
    curve: tuple[CostPoint, ...] = ()


class Provenance(Page):
    """What was exported, by what."""

    checkpoint: str
    """Base name of the checkpoint's prefix; never a path of the machine that wrote it."""
    step: int | None
    fingerprint: str
    """`crc32c:` of the checkpoint's index file; `sha256:` of what an Orbax checkpoint writes last."""
    model_code: str
    exporter: str
    libraries: dict[str, str]


class TableCheck(Page):
    """Rows compared, bit for bit, with the checkpoint."""

    rows_compared: Count
    rows: Positive


class Verification(Page):
    """What was proved before the bundle was committed."""

    tables: dict[str, TableCheck]
    examples: Count
    """Examples replayed through the original model and through every form of every tower."""
    tolerance: str
    table_effect: dict[str, dict[str, float]] = Field(default_factory=dict)
    """By tower and output: the largest difference that converted tables alone make."""


class Manifest(Page):
    """The whole page."""

    format_version: Literal[1, 2] = 2
    model: Name
    version: Positive
    created: str
    provenance: Provenance
    tables: dict[Name, Table]
    vocabularies: dict[Name, Vocabulary] = Field(default_factory=dict)
    features: dict[str, Feature]
    towers: dict[Name, Tower]
    candidates: dict[Name, Corpus] = Field(default_factory=dict)
    indexes: dict[Name, Index] = Field(default_factory=dict)
    verification: Verification
    files: tuple[File, ...]

    @model_validator(mode="after")
    def _features_closed(self) -> Manifest:
        for name, feature in self.features.items():
            if isinstance(feature, EmbeddedFeature):
                _known(feature.table, self.tables, f"features.{name}.table")
                if isinstance(feature.ids, VocabularyIds):
                    _known(feature.ids.vocabulary, self.vocabularies, f"features.{name}.ids.vocabulary")
                rows = self.tables[feature.table].rows
                if feature.unknown.row is not None and feature.unknown.row >= rows:
                    raise ValueError(f"features.{name}.unknown.row is {feature.unknown.row}, the table has {rows} rows")
        return self

    @model_validator(mode="after")
    def _towers_closed(self) -> Manifest:
        for name, tower in self.towers.items():
            for tower_input in tower.inputs:
                _known(tower_input.feature, self.features, f"towers.{name}.inputs.{tower_input.name}.feature")
            _known(tower.result, {output.name for output in tower.outputs}, f"towers.{name}.result")
        for name, corpus in self.candidates.items():
            for feature_name in corpus.features:
                _known(feature_name, self.features, f"candidates.{name}.features")
        for name, index in self.indexes.items():
            _known(index.corpus, self.candidates, f"indexes.{name}.corpus")
            _known(index.query_tower, self.towers, f"indexes.{name}.query_tower")
            _known(index.candidate_tower, self.towers, f"indexes.{name}.candidate_tower")
        return self

    @model_validator(mode="after")
    def _files_told_once(self) -> Manifest:
        listed = [file.path for file in self.files]
        if len(set(listed)) != len(listed):
            raise ValueError("files lists a path twice")
        ranges: dict[str, list[tuple[int, int]]] = {}
        for table in self.tables.values():
            for shard, size in table.extents():
                ranges.setdefault(shard.file, []).append((shard.offset, shard.offset + size))
        for file, parts in ranges.items():
            if any(later[0] < earlier[1] for earlier, later in pairwise(sorted(parts))):
                raise ValueError(f"shards overlap in {file!r}; each byte may belong to one shard")
            if file in listed:
                raise ValueError(f"files lists {file!r}, whose digests its shards carry already")
        return self


def _known(name: str, names: Any, where: str) -> None:
    if name not in names:
        raise ValueError(f"{where} names {name!r}, which the manifest does not have")


def parse(data: bytes) -> Manifest:
    """Reads a manifest from its bytes.

    Raises:
      UnknownFormat: the format version is not one this reader knows.
      DigestMismatch: the bytes differ from their digest.
      FormatError: the bytes are no JSON, too many, or break a rule of the format; names the field.
    """
    if len(data) > MANIFEST_BYTES_MAX:
        raise FormatError(f"manifest has {len(data)} bytes; at most {MANIFEST_BYTES_MAX} are read")
    try:
        page = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        raise FormatError(f"manifest is no JSON: {problem}") from problem
    if not isinstance(page, dict):
        raise FormatError("manifest is no JSON object")
    version = page.get("format_version")
    if type(version) is int and version == 1:
        _forget_layouts(page)
    elif type(version) is int and version == FORMAT_VERSION:
        _check_digest(data)
        del page["digest"]
    else:
        raise UnknownFormat(
            f"format_version {version!r} is not known here (this reader knows 1 to {FORMAT_VERSION}); "
            "a newer product version may read it"
        )
    try:
        return Manifest.model_validate(page)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "manifest"
        raise FormatError(f"manifest: {where}: {first['msg']}") from problem


def dump(manifest: Manifest) -> bytes:
    """Returns the manifest's bytes in today's format: JSON, two-space indent, keys in the order of the format page.

    `digest`, its second key, is the crc32c of these bytes while it is written as 0.
    """
    head = {"format_version": FORMAT_VERSION, "digest": 0}
    data = orjson.dumps(head | manifest.model_dump(mode="json", exclude=set(head)), option=orjson.OPT_INDENT_2) + b"\n"
    before, name, after = data.partition(b'"digest": ')
    return before + name + str(crc32c(data)).encode() + after[1:]


_BEFORE_DIGEST = b'{\n  "format_version": 2,\n  "digest": '
"""What every page of today's format begins with, so that its digest is found without reading on."""


def _check_digest(data: bytes) -> None:
    digits = data.removeprefix(_BEFORE_DIGEST)[:11].partition(b",")[0]
    rest = data[len(_BEFORE_DIGEST) + len(digits) :]
    whole = data.startswith(_BEFORE_DIGEST) and digits.isdigit()
    if not whole or crc32c(_BEFORE_DIGEST + b"0" + rest) != int(digits):
        raise DigestMismatch("manifest differs from its digest; copy the bundle again")


def _forget_layouts(page: dict[str, Any]) -> None:
    # Format 1 allowed any word for a layout, but only tables in the order of their variable were ever written.
    tables = page.get("tables")
    for table in tables.values() if isinstance(tables, dict) else ():
        if isinstance(table, dict) and isinstance(table.get("source"), dict):
            table["source"]["layout"] = "plain"
