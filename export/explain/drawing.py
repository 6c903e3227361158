"""What was cut out of a model, as it is drawn: features -> tables -> towers, and their parts -> outputs.

Built from a job that is prepared or from a published bundle; the words are those of a service's `/v1/models/{model}`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bundle.errors import BundleError, NotCommitted
from bundle.format.dtypes import SCALE_BYTES, row_bytes
from bundle.format.manifest import (
    DenseFeature,
    EmbeddedFeature,
    Feature,
    Manifest,
    Tower,
    TowerForm,
    TowerPart,
    inputs_of,
)
from bundle.storage.staging import read_manifest
from export.checkpoint.formats.object_graph import VARIABLE_SUFFIX
from export.errors import UsageError, VerificationFailed
from export.figures import size_text
from export.id_rules.descriptions import rows_told

if TYPE_CHECKING:  # seconds, with TensorFlow
    from export.graph.specs import TowerSpec
    from export.jobs.preparation import Prepared


@dataclass(frozen=True)
class DrawnFeature:
    """One feature.

    Attributes:
      name, inputs, role: as in the manifest.
      table: that it reads; "" of numbers and indicators.
      kind: what callers send and what becomes of it: `single`, `bag, mean`, `numbers [3]`.
      rule: kind of the rule from id to row; "" of numbers.
      ids: the rule in full.
      unknown: what becomes of ids that the table does not know.
      default: whether it may be left out.
      below: of numbers that are rows of a table inside the towers, how many it has.
    """

    name: str
    inputs: tuple[str, ...]
    role: str
    table: str
    kind: str
    rule: str = ""
    ids: str = ""
    unknown: str = ""
    default: bool = False
    below: int | None = None

    @property
    def label(self) -> str:
        """Its name beside its table: without that, if it was only added to tell readers of one input apart."""
        return self.name.removesuffix(f"@{self.table}") if self.table else self.name


@dataclass(frozen=True)
class DrawnTable:
    """One table that left the towers; `source` is where its rows come from."""

    name: str
    rows: int
    dim: int
    dtype: str
    bytes: int
    source: str


@dataclass(frozen=True)
class DrawnPart:
    """A part of a tower, or a tower that has none.

    Attributes:
      name: of the part; "" of a whole tower.
      per: for what it is computed once: a context, a candidate, or "" for an example.
      features: that go into it.
      takes: outputs of earlier parts.
      gives: its outputs.
    """

    name: str
    per: str
    features: tuple[str, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True)
class DrawnTower:
    """One tower.

    Attributes:
      name, role, outputs, result, formula: as in the manifest.
      parts: at least one; a tower that is not cut is one itself.
      runs: its forms, or what keeps it from LiteRT.
      bytes: of its weights, or of the form that is served.
    """

    name: str
    role: str
    outputs: tuple[str, ...]
    result: str
    formula: str
    parts: tuple[DrawnPart, ...]
    runs: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class Drawing:
    """All that is drawn.

    Attributes:
      model: its name, and the version of a bundle.
      source: what it was drawn from.
      stays: what stays inside towers and why.
      stores: candidates, contexts and indexes, a line each.
    """

    model: str
    source: str
    features: tuple[DrawnFeature, ...]
    tables: tuple[DrawnTable, ...]
    towers: tuple[DrawnTower, ...]
    stays: tuple[str, ...]
    stores: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all tables outside the towers."""
        return sum(table.bytes for table in self.tables)

    @property
    def inputs(self) -> tuple[str, ...]:
        """What callers send."""
        return tuple(dict.fromkeys(name for feature in self.features for name in feature.inputs))

    def consumers(self, feature: str) -> tuple[tuple[str, str], ...]:
        """Returns the towers, and parts of towers, that take a feature."""
        return tuple(
            (tower.name, part.name) for tower in self.towers for part in tower.parts if feature in part.features
        )


def draw_prepared(prepared: Prepared, source: str) -> Drawing:
    """Draws what a recipe makes of its model."""
    spec, job, lacking = prepared.traced.spec, prepared.job, prepared.not_in_litert
    sizes = {tower.spec.name: _weight_bytes(tower.variables) for tower in prepared.traced.towers}
    plans = {table.spec.name: table for table in prepared.plan.tables}
    tables = []
    for name in spec.tables:
        table = plans[name].spec
        size = table.rows * (row_bytes(plans[name].dtype, table.dim) + SCALE_BYTES * (plans[name].dtype == "int8"))
        tables.append(
            DrawnTable(name, table.rows, table.dim, plans[name].dtype, size, _source(table.key, table.layout.kind))
        )
    towers = []
    for name, tower in spec.towers.items():
        split = [part.spec for part in prepared.splits[name].parts] if name in prepared.splits else []
        parts = _parts(split, tower)
        runs = f"a SavedModel, since {lacking[name]}" if lacking[name] else "LiteRT"
        formula = job.towers[name].formula or ""
        outputs = tuple(output.name for output in tower.outputs)
        towers.append(DrawnTower(name, tower.role, outputs, tower.result, formula, parts, (runs,), sizes[name]))
    stores = [f"candidates {name}: {part.id} of {_files(part.file)}" for name, part in job.candidates.items()]
    stores += [f"contexts {name}: {part.id} of {_files(part.file)}" for name, part in job.contexts.items()]
    stores += [f"index {name}: {part.query_tower} finds {part.corpus}" for name, part in job.indexes.items()]
    return Drawing(
        f"{job.model} {prepared.version}",
        source,
        tuple(_feature(name, page) for name, page in prepared.pages.items()),
        tuple(tables),
        tuple(towers),
        (*_inside(prepared.pages), *prepared.stays),
        tuple(stores),
    )


def drawing_of_bundle(directory: Path) -> Drawing:
    """Draws the bundle in a directory.

    Raises:
      UsageError: it holds none.
      VerificationFailed: its manifest is damaged.
    """
    try:
        page = read_manifest(directory)
    except NotCommitted as problem:
        raise UsageError(f"{problem}; give a recipe, or a bundle's directory: ROOT/MODEL/VERSION") from problem
    except BundleError as problem:
        raise VerificationFailed(str(problem)) from problem
    return draw_bundle(page, f"bundle {directory.parent.name}/{directory.name}")


def draw_bundle(page: Manifest, source: str) -> Drawing:
    """Draws a published bundle by its manifest."""
    tables = tuple(
        DrawnTable(
            name, table.rows, table.dim, table.dtype, table.bytes, _source(table.source.key, table.source.layout)
        )
        for name, table in page.tables.items()
    )
    stores = [f"candidates {name}: {corpus.size} by {corpus.id_dtype} id" for name, corpus in page.candidates.items()]
    stores += [f"contexts {name}: {corpus.size} by {corpus.id_dtype} id" for name, corpus in page.contexts.items()]
    stores += [
        f"index {name}: {index.query_tower} finds {index.corpus}, recall@{index.recall.k} {index.recall.value:.4f}"
        for name, index in page.indexes.items()
    ]
    return Drawing(
        f"{page.model} {page.version}",
        source,
        tuple(_feature(name, feature) for name, feature in page.features.items()),
        tables,
        tuple(_tower(name, tower, page) for name, tower in page.towers.items()),
        tuple(_inside(page.features)),
        tuple(stores),
    )


def _tower(name: str, tower: Tower, page: Manifest) -> DrawnTower:
    served = [form for form in tower.forms if form.precision == tower.serve]
    compiled = next((form for form in served if form.kind == "litert"), served[0] if served else None)
    runs = tuple(_form(form) for form in tower.forms)
    size = sum(file.bytes for file in page.files if compiled and _within(file.path, compiled.path))
    outputs, parts = tuple(output.name for output in tower.outputs), _parts(tower.parts, tower)
    return DrawnTower(name, tower.role, outputs, tower.result, tower.formula or "", parts, runs, size)


def _parts(parts: Sequence[TowerPart], tower: TowerSpec | Tower) -> tuple[DrawnPart, ...]:
    """Draws the parts of a tower; one without parts is drawn as a single one."""
    cut: Sequence[tuple[str, str, TowerPart | TowerSpec | Tower]]
    cut = [(part.name, part.per, part) for part in parts] or [("", "", tower)]
    return tuple(
        DrawnPart(
            name,
            per,
            tuple(source for each in piece.inputs for source in each.sources),
            tuple(each.tensor for each in piece.inputs if each.tensor),
            tuple(each.name for each in piece.outputs),
        )
        for name, per, piece in cut
    )


def _form(form: TowerForm) -> str:
    kind = "LiteRT" if form.kind == "litert" else "SavedModel"
    return f"{kind} {form.precision}, differs by {max(form.max_abs_error.values(), default=0.0):.2g} at most"


def _within(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def _feature(name: str, page: Feature) -> DrawnFeature:
    inputs = inputs_of(name, page)
    if isinstance(page, DenseFeature):
        taken = {
            "lengths": "how many ids",
            "padded": f"bag of {page.dtype}, {math.prod(page.shape)} at most",
            "weights": f"weights of a bag, {math.prod(page.shape)} at most",
        }
        kind = taken.get(page.take, f"{page.dtype} {list(page.shape) if page.shape else ''}".rstrip())
        kind = f"rows below {page.below}" if page.below is not None else kind
        default = page.default is not None
        return DrawnFeature(name, inputs, page.role, "", kind, default=default, below=page.below)
    kind = _kind(page)
    unknown = f"row {page.unknown.row}" if page.unknown.rule == "row" else page.unknown.rule
    default, ids = page.default is not None, rows_told(page, inputs)
    if page.indicator is not None:
        kind = f"{kind}; {page.stands_for}: {ids}; unknown: {unknown}"
    return DrawnFeature(name, inputs, page.role, page.table, kind, page.ids.kind, ids, unknown, default)


def _kind(page: EmbeddedFeature) -> str:
    """Returns what is sent for a feature that has ids, and how its rows are combined."""
    kinds = {"bag": f"bag, {page.combiner}", "sequence": f"sequence of {page.length}", "single": "single"}
    told = [kinds[page.kind]]
    if page.weighted:
        told.append("weighted")
    if page.place is not None and page.places is not None:
        told.append(f"value {page.place + 1} of {page.places}")
    if page.cast is not None:
        rounded = "" if page.cast.of == "int64" else f", rounded {page.cast.rounding.replace('_', ' ')}"
        told.append(f"cast to {page.cast.to}{rounded}")
    if page.max_norm is not None:
        told.append(f"rows clipped to {page.max_norm:g}")
    if page.empty_row is not None:
        told.append(f"row {page.empty_row} if empty")
    return ", ".join(told)


def _source(key: str, layout: str) -> str:
    told = key.removesuffix(VARIABLE_SUFFIX)
    return told if layout == "plain" else f"{told}, {layout.replace('_', ' ')}"


def _files(file: str | tuple[str, ...]) -> str:
    return file if isinstance(file, str) else f"{len(file)} files"


def _weight_bytes(variables: Iterable[object]) -> int:
    """Returns the bytes of a tower's variables; of those that are tables inside it, too."""
    return sum(int(each.shape.num_elements()) * each.dtype.size for each in variables)  # type: ignore[attr-defined]


def _inside(pages: Mapping[str, Feature]) -> list[str]:
    """Says which inputs go into towers as rows, in one line for all."""
    small = {
        name: page.below for name, page in pages.items() if isinstance(page, DenseFeature) and page.below is not None
    }
    if not small:
        return []
    most = max(small.values())
    named = ", ".join(list(small)[:6]) + (f" and {len(small) - 6} more" if len(small) > 6 else "")
    return [f"tables of at most {most} rows stay inside the towers, where {named} read{'s' * (len(small) == 1)} them"]


def summary(drawing: Drawing) -> str:
    """Returns what there is, in a line."""
    counts = ((len(drawing.inputs), "input"), (len(drawing.features), "feature"), (len(drawing.tables), "table"))
    told = [f"{count} {noun}{'s' * (count != 1)}" for count, noun in (*counts, (len(drawing.towers), "tower"))]
    inside = sum(tower.bytes for tower in drawing.towers)
    return f"{', '.join(told)}; {size_text(drawing.bytes)} of tables outside, {size_text(inside)} of weights inside"
