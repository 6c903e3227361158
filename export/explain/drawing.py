"""The contents of `explain`: features -> tables -> towers, and their parts -> outputs.

A drawing is built from a prepared job or from a published bundle; `--json` prints its fields.
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
from export.report_text import NEEDS_TENSORFLOW, partitions_text, size_text, thousands

# At run time, these would load TensorFlow, which takes seconds.
if TYPE_CHECKING:
    from export.checkpoint.inventory.specs import TableSpec
    from export.corpora.size_estimates import IndexForecast
    from export.front_end.specs import TowerSpec
    from export.jobs.preparation import Prepared

NAMES_MAX = 8
"""The number of features that a part lists; of more features, it lists the first and the count."""
_INSIDE_NAMES_MAX = 6
"""The number of features that the line about tables inside towers lists."""


@dataclass(frozen=True)
class FeatureNode:
    """One feature.

    Attributes:
      name: The name in the manifest.
      inputs: The inputs that it reads.
      role: The role in the manifest.
      kind: The form of the values, and how they are combined: `single`, `bag, mean`, `numbers [3]`.
      table: The table that it reads; "" for numbers and indicators.
      rule: The kind of the rule from id to row; "" for numbers.
      ids: The rule in full.
      unknown: The treatment of ids that the table does not know.
      default: Whether a request may leave the feature out.
      taken_by: The towers that take the feature, or their parts as `TOWER/PART`.
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
        """The name beside its table, without the suffix that distinguishes readers of one input."""
        if not self.table:
            return self.name
        return self.name.removesuffix(f"@{self.table}")


@dataclass(frozen=True)
class TableNode:
    """One table that left the towers, the features that read it, and where its rows come from."""

    name: str
    rows: int
    dim: int
    dtype: str
    bytes: int
    read_by: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class PartNode:
    """A part of a tower, or a whole tower that is not split.

    Attributes:
      name: The name as `TOWER/PART`, or the tower's name.
      per: The unit for which it is computed once: a context, a candidate, or "" for an example.
      features: The features that it reads.
      takes: The outputs of earlier parts that it reads.
      gives: The names of its outputs.
    """

    name: str
    per: str
    features: tuple[str, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]

    @property
    def label(self) -> str:
        """The name of the part without the tower's; "" for a whole tower."""
        return self.name.partition("/")[2]

    def __str__(self) -> str:
        sources = list(self.takes)
        if self.features:
            features = shortened(self.features, NAMES_MAX)
            if len(self.features) > NAMES_MAX:
                features = f"{len(self.features)} features: {features}"
            sources.append(features)
        takes = ", ".join(sources) or "nothing"
        # The outputs of a whole tower are shown with the tower.
        if not self.per:
            return f"takes {takes}"
        gives = shortened(self.gives, NAMES_MAX)
        return f"{self.label}, once for each {self.per}, takes {takes}; gives {gives}"


@dataclass(frozen=True)
class TowerNode:
    """One tower.

    Attributes:
      name: The name in the manifest.
      role: The role in the manifest.
      outputs: The names of its outputs.
      result: The output that is its result.
      formula: The formula that orders candidates; "": there is none.
      parts: Its parts, at least one; a tower that is not split is a part itself.
      runs: Its forms, or the reason why LiteRT cannot run it.
      bytes: The size of its weights, or of the form that is served.
    """

    name: str
    role: str
    outputs: tuple[str, ...]
    result: str
    formula: str
    parts: tuple[PartNode, ...]
    runs: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class RecallCurve:
    """The recall and the cost of the settings of an index that were tried.

    Attributes:
      index: The name of the index.
      k: The number of neighbors of which recall was measured.
      target: The recall that the recipe requires.
      points: Recall, cost as a share of exact search's, and the setting, by rising cost.
      chosen: The setting of the index as it was written.
    """

    index: str
    k: int
    target: float
    points: tuple[tuple[float, float, str], ...]
    chosen: str


@dataclass(frozen=True)
class Drawing:
    """A partitioned model, as `explain` shows it.

    Attributes:
      model: The name and version of the model.
      source: The recipe or bundle that it was drawn from, in words.
      features: The features of the model.
      tables: The tables outside the towers.
      towers: The towers of the model.
      stays: Lines about what stays inside towers, with the reason.
      stores: A line for each corpus, context store, index and stage.
      curves: The curves of indexes that are trees; a recipe has none.
    """

    model: str
    source: str
    features: tuple[FeatureNode, ...]
    tables: tuple[TableNode, ...]
    towers: tuple[TowerNode, ...]
    stays: tuple[str, ...]
    stores: tuple[str, ...]
    curves: tuple[RecallCurve, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all tables outside the towers."""
        return sum(table.bytes for table in self.tables)

    @property
    def totals(self) -> list[tuple[str, str]]:
        """The totals of the model: pairs of a figure and what it counts."""
        # Several features may read one input, which counts once.
        inputs = {name for feature in self.features for name in feature.inputs}
        counts = {
            "input": len(inputs),
            "feature": len(self.features),
            "table": len(self.tables),
            "tower": len(self.towers),
        }
        totals = []
        for noun, count in counts.items():
            unit = noun if count == 1 else f"{noun}s"
            totals.append((thousands(count), unit))
        weight_bytes = sum(tower.bytes for tower in self.towers)
        totals.append((size_text(self.bytes), "of table rows"))
        totals.append((size_text(weight_bytes), "of tower weights"))
        return totals


def draw_prepared(prepared: Prepared, source: str) -> Drawing:
    """Draws a model as a recipe partitions it, before anything is written."""
    spec = prepared.traced.spec
    job = prepared.job
    traced_towers = {tower.spec.name: tower for tower in prepared.traced.towers}
    towers = []
    for name, tower in spec.towers.items():
        parts = []
        if name in prepared.splits:
            parts = [part.spec for part in prepared.splits[name].parts]
        runs = "LiteRT"
        litert_hindrance = prepared.not_in_litert[name]
        if litert_hindrance:
            runs = f"a SavedModel ({NEEDS_TENSORFLOW}), since {litert_hindrance}"
        # Constants of a graph are weights that are not trained.
        weights = [*traced_towers[name].variables, *constants_of(traced_towers[name].function)]
        size_bytes = sum(map(bytes_of, weights))
        formula = job.towers[name].formula or ""
        towers.append(_tower(name, tower, parts, formula, [runs], size_bytes))

    features = _features(prepared.entries, towers)
    plans = {plan.spec.name: plan for plan in prepared.plan.tables}
    tables = []
    for name in spec.tables:
        table = plans[name].spec
        node = _table(features, name, table, plans[name].dtype, table.layout.kind, table)
        tables.append(node)
    return Drawing(
        f"{job.model} {prepared.version}",
        source,
        features,
        tuple(tables),
        tuple(towers),
        (*_inside_lines(prepared.entries, tables), *prepared.stays),
        tuple(_planned_stores(prepared)),
    )


def _planned_stores(prepared: Prepared) -> list[str]:
    """Returns a line for each corpus, context store, index and stage of a recipe."""
    job = prepared.job
    lines = []
    for kind, sections in (("corpus", job.corpora), ("contexts", job.contexts)):
        for name, section in sections.items():
            source = section.file
            if not isinstance(source, str):
                source = f"{len(source)} files"
            line = f"{kind} {name}: {section.id} of {source}"
            if section.filters:
                filters = ", ".join(section.filters)
                line += f", filtered by {filters}: 4 bytes for each value of a candidate"
            lines.append(line)
    for name, index in job.indexes.items():
        forecast = _forecast_text(prepared.forecasts[name])
        lines.append(f"index {name}: {index.query_tower} finds {index.corpus}; {forecast}")
    for name, stage in job.stages.items():
        lines.append(
            f"stage {stage.tower}: keeps {stage.keep} candidates of each context for {name}"
        )
    return lines


def drawing_of_bundle(directory: Path) -> Drawing:
    """Draws the bundle in a directory.

    Raises:
      UsageError: The directory holds no bundle.
      VerificationFailed: The bundle's manifest is damaged.
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
        size = _served_bytes(tower, bundle.files)
        runs = [_form_text(form) for form in tower.forms]
        towers.append(_tower(name, tower, tower.parts, tower.formula or "", runs, size))
    features = _features(bundle.features, towers)
    tables = [
        _table(features, name, table, table.dtype, table.source.layout, table.source)
        for name, table in bundle.tables.items()
    ]
    # An index that is searched exactly has a single setting, which makes no curve.
    curves = [_curve(name, index) for name, index in bundle.indexes.items() if len(index.curve) > 1]
    return Drawing(
        f"{bundle.model} {bundle.version}",
        source,
        features,
        tuple(tables),
        tuple(towers),
        tuple(_inside_lines(bundle.features, tables)),
        tuple(_published_stores(bundle)),
        tuple(curves),
    )


def _served_bytes(tower: manifest.Tower, files: Sequence[manifest.File]) -> int:
    """Returns the size of the form in which a tower is served."""
    served_forms = [form for form in tower.forms if form.precision == tower.serve]
    if not served_forms:
        return 0
    # The same choice as that of a service, which opens the compiled form if there is one.
    compiled_forms = [form for form in served_forms if form.kind == "litert"]
    path = (compiled_forms or served_forms)[0].path
    # The path of a compiled form is a file, that of a SavedModel a directory.
    total = 0
    for file in files:
        if path == file.path or path in map(str, Path(file.path).parents):
            total += file.bytes
    return total


def _published_stores(bundle: manifest.Manifest) -> list[str]:
    """Returns a line for each corpus, context store, index and stage of a bundle."""
    lines = []
    for kind, corpora in (("corpus", bundle.corpora), ("contexts", bundle.contexts)):
        for name, corpus in corpora.items():
            filters = _filters_text(corpus, bundle)
            lines.append(f"{kind} {name}: {corpus.size} by {corpus.id_dtype} id{filters}")
    for name, index in bundle.indexes.items():
        lines.append(
            f"index {name}: {index.query_tower} finds "
            f"{index.corpus}{partitions_text(index.partitions)}, "
            f"recall@{index.recall.k} {index.recall.value:.4f}"
        )
    lines += [_stage_text(name, stage) for name, stage in bundle.stages.items()]
    return lines


def _forecast_text(forecast: IndexForecast) -> str:
    # Only Parquet files state the number of candidates without being read.
    candidates_text = "each million of candidates"
    if forecast.candidates is not None:
        candidates_text = f"{thousands(forecast.candidates)} candidates"
    candidates_text += partitions_text(forecast.partitions)
    disk = size_text(forecast.disk_bytes)
    build = size_text(forecast.build_bytes)
    load = size_text(forecast.load_bytes)
    return f"{candidates_text}: {disk} of disk, at most {build} of memory to build, {load} to load"


def _filters_text(corpus: manifest.Corpus, bundle: manifest.Manifest) -> str:
    """Returns the attributes by which candidates are filtered, each with its type and size."""
    sizes = {file.path: file.bytes for file in bundle.files}
    descriptions = []
    for name, filter_index in corpus.filters.items():
        size = sizes.get(filter_index.values, 0) + sizes.get(filter_index.rows, 0)
        descriptions.append(f"{name} ({corpus.attributes[name]}, {size_text(size)})")
    if not descriptions:
        return ""
    return f", filtered by {', '.join(descriptions)}"


def _curve(name: str, index: manifest.Index) -> RecallCurve:
    points = [
        (point.recall, point.relative_cost, _setting_text(point.parameters))
        for point in index.curve
    ]
    # The other parameters are those of the build, which all points share.
    chosen = {key: index.parameters.get(key) for key in index.curve[0].parameters}
    return RecallCurve(
        name, index.recall.k, index.recall.target, tuple(points), _setting_text(chosen)
    )


def _setting_text(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in parameters.items())


def _table(
    features: Sequence[FeatureNode],
    name: str,
    table: manifest.Table | TableSpec,
    dtype: str,
    layout: str,
    source: manifest.TableSource | TableSpec,
) -> TableNode:
    readers = tuple(feature.label for feature in features if feature.table == name)
    bytes_per_row = row_bytes(dtype, table.dim)
    # Each row of int8 values has a scale in a segment of its own.
    if dtype == "int8":
        bytes_per_row += SCALE_BYTES
    size = table.rows * bytes_per_row
    # TensorFlow appends this suffix to the keys of all variables.
    origin = source.key.removesuffix(VARIABLE_SUFFIX)
    if layout != "plain":
        origin += f", {layout.replace('_', ' ')}"
    if source.stated:
        origin += ", stated layout"
    return TableNode(name, table.rows, table.dim, dtype, size, readers, origin)


def _tower(
    name: str,
    tower: TowerSpec | manifest.Tower,
    parts: Sequence[manifest.TowerPart],
    formula: str,
    runs: Sequence[str],
    size: int,
) -> TowerNode:
    nodes = [_part(f"{name}/{part.name}", part.per, part) for part in parts]
    if not nodes:
        nodes = [_part(name, "", tower)]
    outputs = tuple(output.name for output in tower.outputs)
    return TowerNode(
        name, tower.role, outputs, tower.result, formula, tuple(nodes), tuple(runs), size
    )


def _part(name: str, per: str, part: manifest.TowerPart | TowerSpec | manifest.Tower) -> PartNode:
    features = tuple(source for tensor in part.inputs for source in tensor.sources)
    takes = tuple(tensor.tensor for tensor in part.inputs if tensor.tensor)
    return PartNode(name, per, features, takes, tuple(output.name for output in part.outputs))


def _stage_text(name: str, stage: manifest.Stage) -> str:
    recalls = [
        f", recall@{recall.k} {recall.value:.4f} on index {index}"
        for index, recall in stage.recall.items()
    ]
    text = f"stage {stage.tower}: keeps {stage.keep} candidates of each context for {name}"
    return text + "".join(recalls)


def _form_text(form: manifest.TowerForm) -> str:
    kind = {"litert": "LiteRT", "saved_model": "SavedModel"}[form.kind]
    error = max(form.max_abs_error.values(), default=0.0)
    return f"{kind} {form.precision}, differs by {error:.2g} at most"


def _inside_lines(
    features: Mapping[str, manifest.Feature], tables: Sequence[TableNode]
) -> list[str]:
    """Returns the line about inputs that go into towers as rows, and one about each table that is
    outside although it is as small; no line without such inputs.
    """
    row_limits = {}
    for name, feature in features.items():
        if isinstance(feature, manifest.DenseFeature) and feature.below is not None:
            row_limits[name] = feature.below
    if not row_limits:
        return []
    names = shortened(list(row_limits), _INSIDE_NAMES_MAX)
    verb = "reads" if len(row_limits) == 1 else "read"
    largest = max(row_limits.values())
    lines = [f"tables of at most {largest} rows stay inside the towers, where {names} {verb} them"]
    for table in tables:
        if table.rows <= largest:
            reasons = {
                _reason_outside(feature)
                for feature in features.values()
                if isinstance(feature, manifest.EmbeddedFeature) and feature.table == table.name
            }
            lines.append(
                f"table {table.name} of {thousands(table.rows)} rows is outside, since "
                f"{' and '.join(sorted(reasons))}"
            )
    return lines


def _reason_outside(feature: manifest.EmbeddedFeature) -> str:
    """Returns why a feature does not read its table inside a tower, however small the table is."""
    if feature.ids != manifest.IDENTITY:
        return "its rows are computed from what requests send"
    if feature.kind != "single":
        return "it is read for lists of ids"
    return "the model or the recipe states what unknown ids read"


def _features(
    features: Mapping[str, manifest.Feature], towers: Sequence[TowerNode]
) -> tuple[FeatureNode, ...]:
    taken_by: dict[str, list[str]] = {name: [] for name in features}
    for tower in towers:
        for part in tower.parts:
            for name in part.features:
                taken_by[name].append(part.name)
    return tuple(
        _feature(name, feature, tuple(taken_by[name])) for name, feature in features.items()
    )


def _feature(name: str, feature: manifest.Feature, taken_by: tuple[str, ...]) -> FeatureNode:
    inputs = manifest.inputs_of(name, feature)
    default = feature.default is not None
    list_treatment = _list_treatment(feature.input_length)
    if isinstance(feature, manifest.DenseFeature):
        kind = _dense_kind(feature) + list_treatment
        return FeatureNode(name, inputs, feature.role, kind, "", "", "", "", default, taken_by)
    kind = _embedded_kind(feature) + list_treatment
    ids = describe_ids(feature, inputs)
    unknown: str = feature.unknown.rule
    if unknown == "row":
        unknown = f"row {feature.unknown.row}"
    if feature.indicator is not None:
        # An encoding reads no table, beside which its ids would be shown.
        kind = f"{kind}; {feature.stands_for}: {ids}; unknown: {unknown}"
    rule = feature.ids.kind
    return FeatureNode(
        name, inputs, feature.role, kind, feature.table, rule, ids, unknown, default, taken_by
    )


def _list_treatment(length: manifest.InputLength | None) -> str:
    """Returns the treatment of lists of another length than an input takes; "" if they are rejected
    or any length is taken.
    """
    if length is None:
        return ""
    words = []
    if length.pad is not None:
        words.append(f"padded with {length.pad!r} at the {length.pad_side}")
    if length.keep is not None:
        words.append(f"of longer lists the {length.keep}")
    return "".join(f", {word}" for word in words)


def _dense_kind(feature: manifest.DenseFeature) -> str:
    """Returns the form of the values of a feature that towers read directly."""
    if feature.below is not None:
        kind = f"rows below {feature.below}"
        if feature.from_end:
            kind += ", from the end"
        return kind
    match feature.take:
        case "lengths":
            return "how many ids"
        case "padded":
            return f"bag of {feature.dtype}, {math.prod(feature.shape)} at most"
        case "weights":
            return f"weights of a bag, {math.prod(feature.shape)} at most"
    if not feature.shape:
        return feature.dtype
    return f"{feature.dtype} {list(feature.shape)}"


def _embedded_kind(feature: manifest.EmbeddedFeature) -> str:
    """Returns the form of the ids of a feature, and how its rows are combined."""
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
    """Returns names with commas between them, of many names only the first ones and a count."""
    omitted_count = len(names) - most
    # A single name takes less room than "and 1 more".
    if omitted_count <= 1:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {omitted_count} more"
