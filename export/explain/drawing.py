"""What `explain` shows of a model: features -> tables -> towers, and their parts -> outputs.

Built from a prepared job or from a published bundle; `--json` prints it as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.errors import BundleError, NotCommitted
from bundle.format import manifest
from bundle.format.dtypes import SCALE_BYTES, row_bytes
from bundle.storage.catalog import read_manifest
from export.checkpoint.formats.object_graph import VARIABLE_SUFFIX
from export.errors import UsageError, VerificationFailed
from export.graphs.functions import bytes_of, constants_of
from export.id_graphs.descriptions import describe_ids
from export.report_text import partitions_text, size_text, thousands

if TYPE_CHECKING:  # seconds, with TensorFlow
    from export.checkpoint.inventory.specs import TableSpec
    from export.corpora.size_estimates import IndexForecast
    from export.front_end.specs import TowerSpec
    from export.jobs.preparation import Prepared

NAMES_MAX = 8
"""Of features, where more are taken: the first ones and how many are named."""


@dataclass(frozen=True)
class DrawnFeature:
    """One feature.

    Attributes:
      name, inputs, role: as in the manifest.
      kind: what callers send and what becomes of it: `single`, `bag, mean`, `numbers [3]`.
      table: that it reads; "" of numbers and indicators.
      rule: kind of the rule from id to row; "" of numbers.
      ids: the rule in full.
      unknown: what becomes of ids that the table does not know.
      default: whether it may be left out.
      taken_by: towers, or `TOWER/PART`, that take it.
    """

    name: str
    inputs: tuple[str, ...]
    role: str
    kind: str
    table: str
    rule: str
    ids: str
    unknown: str
    default: bool
    taken_by: tuple[str, ...]

    @property
    def label(self) -> str:
        """Its name beside its table: without that, if it was only added to tell readers of one
        input apart.
        """
        return self.name.removesuffix(f"@{self.table}") if self.table else self.name


@dataclass(frozen=True)
class DrawnTable:
    """One table that left the towers, the features that read it, and where its rows come from."""

    name: str
    rows: int
    dim: int
    dtype: str
    bytes: int
    read_by: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class DrawnPart:
    """A part of a tower, or a tower that has none.

    Attributes:
      name: `TOWER/PART`, or the tower's.
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

    @property
    def label(self) -> str:
        """Its own name, without the tower's; "" of a whole tower."""
        return self.name.partition("/")[2]

    def __str__(self) -> str:
        count = f"{len(self.features)} features: " if len(self.features) > NAMES_MAX else ""
        takes = (
            ", ".join([*self.takes, *filter(None, [count + shortened(self.features, NAMES_MAX)])])
            or "nothing"
        )
        gives = shortened(self.gives, NAMES_MAX)
        return (
            f"{self.label}, once for each {self.per}, takes {takes}; gives {gives}"
            if self.per
            else f"takes {takes}"
        )


@dataclass(frozen=True)
class DrawnTower:
    """One tower.

    Attributes:
      name, role, outputs, result, formula: as in the manifest.
      parts: at least one; a tower that is not split is one itself.
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
class DrawnCurve:
    """What the settings of an index that were tried find and cost.

    Attributes:
      index: its name.
      k, target: recall@k was measured, and this was to be reached.
      points: recall, cost as a share of exact search's, and the setting, by rising cost.
      chosen: the setting of the index as it was written.
    """

    index: str
    k: int
    target: float
    points: tuple[tuple[float, float, str], ...]
    chosen: str


@dataclass(frozen=True)
class Drawing:
    """All that is drawn.

    Attributes:
      model: its name, and the version of a bundle.
      source: what it was drawn from.
      stays: what stays inside towers and why.
      stores: corpora, contexts, indexes and the stages that choose from them, a line each.
      curves: of trees, in a bundle.
    """

    model: str
    source: str
    features: tuple[DrawnFeature, ...]
    tables: tuple[DrawnTable, ...]
    towers: tuple[DrawnTower, ...]
    stays: tuple[str, ...]
    stores: tuple[str, ...]
    curves: tuple[DrawnCurve, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all tables outside the towers."""
        return sum(table.bytes for table in self.tables)

    @property
    def totals(self) -> list[tuple[str, str]]:
        """How much there is of everything: a figure and what it counts."""
        inputs = {name for feature in self.features for name in feature.inputs}
        counts = {
            "input": inputs,
            "feature": self.features,
            "table": self.tables,
            "tower": self.towers,
        }
        totals = [
            (thousands(len(each)), noun + "s" * (len(each) != 1)) for noun, each in counts.items()
        ]
        inside = sum(tower.bytes for tower in self.towers)
        return [
            *totals,
            (size_text(self.bytes), "of table rows"),
            (size_text(inside), "of tower weights"),
        ]


def draw_prepared(prepared: Prepared, source: str) -> Drawing:
    """Draws what a recipe makes of its model."""
    spec = prepared.traced.spec
    job = prepared.job
    plans = {plan.spec.name: plan for plan in prepared.plan.tables}
    traced = {tower.spec.name: tower for tower in prepared.traced.towers}
    towers = []
    for name, tower in spec.towers.items():
        parts = (
            [part.spec for part in prepared.splits[name].parts] if name in prepared.splits else []
        )
        lacking = prepared.not_in_litert[name]
        runs = f"a SavedModel, since {lacking}" if lacking else "LiteRT"
        formula = job.towers[name].formula or ""
        held = [*traced[name].variables, *constants_of(traced[name].function)]
        towers.append(_tower(name, tower, parts, formula, [runs], sum(map(bytes_of, held))))
    features = _features(prepared.entries, towers)
    tables = [
        _table(features, name, plan.spec, plan.dtype, plan.spec.layout.kind, plan.spec)
        for name, plan in ((name, plans[name]) for name in spec.tables)
    ]
    stores = [
        f"{kind} {name}: {part.id} of "
        f"{part.file if isinstance(part.file, str) else f'{len(part.file)} files'}"
        + (
            f", filtered by {', '.join(part.filters)}: 4 bytes for each value of a candidate"
            if part.filters
            else ""
        )
        for kind, parts in (("corpus", job.corpora), ("contexts", job.contexts))
        for name, part in parts.items()
    ]
    stores += [
        f"index {name}: {part.query_tower} finds {part.corpus}; "
        f"{_forecast_text(prepared.forecasts[name])}"
        for name, part in job.indexes.items()
    ]
    stores += [
        f"stage {part.tower}: keeps {part.keep} candidates of each context for {name}"
        for name, part in job.stages.items()
    ]
    model = f"{job.model} {prepared.version}"
    stays = (*_inside(prepared.entries), *prepared.stays)
    return Drawing(model, source, features, tuple(tables), tuple(towers), stays, tuple(stores))


def drawing_of_bundle(directory: Path) -> Drawing:
    """Draws the bundle in a directory.

    Raises:
      UsageError: it holds none.
      VerificationFailed: its manifest is damaged.
    """
    try:
        bundle = read_manifest(directory)
    except NotCommitted as problem:
        raise UsageError(
            f"{problem}; give a recipe, or a bundle's directory: ROOT/MODEL/VERSION"
        ) from problem
    except BundleError as problem:
        raise VerificationFailed(str(problem)) from problem
    return draw_bundle(bundle, f"bundle {directory.parent.name}/{directory.name}")


def draw_bundle(bundle: manifest.Manifest, source: str) -> Drawing:
    """Draws a published bundle by its manifest."""
    towers = []
    for name, tower in bundle.towers.items():
        served = [form for form in tower.forms if form.precision == tower.serve]
        path = next(
            (form.path for form in served if form.kind == "litert"),
            served[0].path if served else None,
        )
        size = sum(
            file.bytes
            for file in bundle.files
            if path in (file.path, *map(str, Path(file.path).parents))
        )
        runs = [_form(form) for form in tower.forms]
        towers.append(_tower(name, tower, tower.parts, tower.formula or "", runs, size))
    features = _features(bundle.features, towers)
    tables = [
        _table(features, name, table, table.dtype, table.source.layout, table.source)
        for name, table in bundle.tables.items()
    ]
    stores = [
        f"{kind} {name}: {corpus.size} by {corpus.id_dtype} id{_filters(corpus, bundle)}"
        for kind, corpora in (("corpus", bundle.corpora), ("contexts", bundle.contexts))
        for name, corpus in corpora.items()
    ]
    stores += [
        f"index {name}: {index.query_tower} finds "
        f"{index.corpus}{partitions_text(index.partitions)}, "
        f"recall@{index.recall.k} {index.recall.value:.4f}"
        for name, index in bundle.indexes.items()
    ]
    stores += [_stage(name, stage) for name, stage in bundle.stages.items()]
    curves = tuple(
        _curve(name, index) for name, index in bundle.indexes.items() if len(index.curve) > 1
    )
    model = f"{bundle.model} {bundle.version}"
    stays = tuple(_inside(bundle.features))
    return Drawing(
        model, source, features, tuple(tables), tuple(towers), stays, tuple(stores), curves
    )


def _forecast_text(forecast: IndexForecast) -> str:
    count = (
        "each million of candidates"
        if forecast.candidates is None
        else f"{thousands(forecast.candidates)} candidates"
    )
    build = size_text(forecast.build_bytes)
    load = size_text(forecast.load_bytes)
    count += partitions_text(forecast.partitions)
    return (
        f"{count}: {size_text(forecast.disk_bytes)} of disk, at most {build} of memory to "
        f"build, {load} to load"
    )


def _filters(corpus: manifest.Corpus, bundle: manifest.Manifest) -> str:
    sizes = {file.path: file.bytes for file in bundle.files}
    told = [
        f"{name} ({corpus.attributes[name]}, "
        f"{size_text(sizes.get(each.values, 0) + sizes.get(each.rows, 0))})"
        for name, each in corpus.filters.items()
    ]
    return f", filtered by {', '.join(told)}" if told else ""


def _curve(name: str, index: manifest.Index) -> DrawnCurve:
    points = [
        (point.recall, point.relative_cost, _setting(point.parameters)) for point in index.curve
    ]
    chosen = {key: index.parameters.get(key) for key in index.curve[0].parameters}
    return DrawnCurve(name, index.recall.k, index.recall.target, tuple(points), _setting(chosen))


def _setting(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in parameters.items())


def _table(
    features: Sequence[DrawnFeature],
    name: str,
    table: manifest.Table | TableSpec,
    dtype: str,
    layout: str,
    source: manifest.TableSource | TableSpec,
) -> DrawnTable:
    readers = tuple(feature.label for feature in features if feature.table == name)
    size = table.rows * (row_bytes(dtype, table.dim) + SCALE_BYTES * (dtype == "int8"))
    origin = source.key.removesuffix(VARIABLE_SUFFIX)
    if layout != "plain":
        origin += f", {layout.replace('_', ' ')}"
    if source.stated:
        origin += ", stated layout"
    return DrawnTable(name, table.rows, table.dim, dtype, size, readers, origin)


def _tower(
    name: str,
    tower: TowerSpec | manifest.Tower,
    parts: Sequence[manifest.TowerPart],
    formula: str,
    runs: Sequence[str],
    size: int,
) -> DrawnTower:
    pieces = [_part(f"{name}/{part.name}", part.per, part) for part in parts] or [
        _part(name, "", tower)
    ]
    outputs = tuple(output.name for output in tower.outputs)
    return DrawnTower(
        name, tower.role, outputs, tower.result, formula, tuple(pieces), tuple(runs), size
    )


def _part(name: str, per: str, part: manifest.TowerPart | TowerSpec | manifest.Tower) -> DrawnPart:
    features = tuple(source for tensor in part.inputs for source in tensor.sources)
    takes = tuple(tensor.tensor for tensor in part.inputs if tensor.tensor)
    return DrawnPart(name, per, features, takes, tuple(output.name for output in part.outputs))


def _stage(name: str, stage: manifest.Stage) -> str:
    recalls = [
        f", recall@{recall.k} {recall.value:.4f} on index {index}"
        for index, recall in stage.recall.items()
    ]
    text = f"stage {stage.tower}: keeps {stage.keep} candidates of each context for {name}"
    return text + "".join(recalls)


def _form(form: manifest.TowerForm) -> str:
    kind = "LiteRT" if form.kind == "litert" else "SavedModel"
    return (
        f"{kind} {form.precision}, differs by "
        f"{max(form.max_abs_error.values(), default=0.0):.2g} at most"
    )


def _inside(features: Mapping[str, manifest.Feature]) -> list[str]:
    """Says which inputs go into towers as rows, in one line for all."""
    below = {
        name: each.below
        for name, each in features.items()
        if isinstance(each, manifest.DenseFeature) and each.below is not None
    }
    readers = f"{shortened(list(below), 6)} read{'s' * (len(below) == 1)} them"
    return (
        [f"tables of at most {max(below.values())} rows stay inside the towers, where {readers}"]
        if below
        else []
    )


def _features(
    features: Mapping[str, manifest.Feature], towers: Sequence[DrawnTower]
) -> tuple[DrawnFeature, ...]:
    taken_by: dict[str, list[str]] = {name: [] for name in features}
    for part in (part for tower in towers for part in tower.parts):
        for name in part.features:
            taken_by[name].append(part.name)
    return tuple(
        _feature(name, feature, tuple(taken_by[name])) for name, feature in features.items()
    )


def _feature(name: str, feature: manifest.Feature, taken_by: tuple[str, ...]) -> DrawnFeature:
    inputs = manifest.inputs_of(name, feature)
    default = feature.default is not None
    fitted = _fitted_lists(feature.input_length)
    if isinstance(feature, manifest.DenseFeature):
        kind = _dense_kind(feature) + fitted
        return DrawnFeature(name, inputs, feature.role, kind, "", "", "", "", default, taken_by)
    kind = _embedded_kind(feature) + fitted
    ids = describe_ids(feature, inputs)
    unknown = (
        f"row {feature.unknown.row}" if feature.unknown.rule == "row" else feature.unknown.rule
    )
    if feature.indicator is not None:
        kind = f"{kind}; {feature.stands_for}: {ids}; unknown: {unknown}"
    rule = feature.ids.kind
    return DrawnFeature(
        name, inputs, feature.role, kind, feature.table, rule, ids, unknown, default, taken_by
    )


def _fitted_lists(length: manifest.InputLength | None) -> str:
    """Returns what becomes of lists of another length than an input takes; "" if nothing does."""
    if length is None:
        return ""
    words = []
    if length.pad is not None:
        words.append(f"padded with {length.pad!r} at the {length.pad_side}")
    if length.keep is not None:
        words.append(f"of longer lists the {length.keep}")
    return "".join(f", {word}" for word in words)


def _dense_kind(feature: manifest.DenseFeature) -> str:
    if feature.below is not None:
        return f"rows below {feature.below}" + (", from the end" if feature.from_end else "")
    kinds = {
        "lengths": "how many ids",
        "padded": f"bag of {feature.dtype}, {math.prod(feature.shape)} at most",
        "weights": f"weights of a bag, {math.prod(feature.shape)} at most",
    }
    return kinds.get(
        feature.take, f"{feature.dtype} {list(feature.shape) if feature.shape else ''}".rstrip()
    )


def _embedded_kind(feature: manifest.EmbeddedFeature) -> str:
    """Returns what is sent for a feature that has ids, and how its rows are combined."""
    kinds = {
        "bag": f"bag, {feature.combiner}",
        "sequence": f"sequence of {feature.length}",
        "single": "single",
    }
    words = [kinds[feature.kind]]
    if feature.weighted:
        words.append("weighted")
    if feature.place is not None and feature.places is not None:
        words.append(f"value {feature.place + 1} of {feature.places}")
    if feature.max_norm is not None:
        words.append(f"rows clipped to {feature.max_norm:g}")
    if feature.empty_row is not None:
        words.append(f"row {feature.empty_row} if empty")
    return ", ".join(words)


def shortened(names: Sequence[str], most: int) -> str:
    """Returns names with commas between, the first ones of many."""
    more = len(names) - most
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:most])} and {more} more"
