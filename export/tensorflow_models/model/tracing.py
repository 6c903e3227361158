"""Builds the user's model without its tables, traces each call once, and prunes the graph at
lookups into towers.

What it requires, and why it partitions at lookups:
docs/adr/0002-lookups-are-extracted-while-tracing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bundle.format.manifest import DenseFeature
from export.errors import NotConvertible
from export.front_end.calls import call_of
from export.front_end.interface import OwnRows, TracedTower
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec, TableFacts
from export.graphs.functions import fill
from export.graphs.internals import join, variable_class
from export.graphs.loading import tf
from export.graphs.walks import needed, resource
from export.recipe.precisions import check_precisions
from export.recipe.schema import ExportJob
from export.tables.dumped import open_dumps
from export.tensorflow_models.frameworks.named_graphs import NamedGraph
from export.tensorflow_models.frameworks.placeholders import give_value, placeholder_class
from export.tensorflow_models.graph.pruning import TracedCall, prune
from export.tensorflow_models.graph.tower_results import tower_results
from export.tensorflow_models.lookups.interception import early_lookups
from export.tensorflow_models.lookups.records import Lookup, MakeTable
from export.tensorflow_models.model.call_tracing import trace_call
from export.tensorflow_models.model.feature_names import traced_name, with_bundle_names
from export.tensorflow_models.model.inline_lookups import insert_lookups, outside_ids_of
from export.tensorflow_models.model.inline_tables import Read, find_inline_lookups, find_other_reads
from export.tensorflow_models.model.input_dtypes import notes_on_dtypes
from export.tensorflow_models.model.looked_up_numbers import replace_looked_up_numbers
from export.tensorflow_models.model.object_paths import name_tables, object_paths
from export.tensorflow_models.model.own_rows import own_rows
from export.tensorflow_models.model.roots import build_root
from export.tensorflow_models.model.stated_rows import replace_stated_rows
from export.tensorflow_models.model.traced_lookups import resolve_lookups

Build = Callable[[ExportJob, Path], Any]
"""(recipe, its folder) -> the model: an object whose attributes can be called."""


@dataclass(frozen=True)
class TracedModel:
    """The model without its tables, and its towers.

    Attributes:
      spec: its tables, features and towers.
      towers: in the recipe's order.
      root: what the factory returned.
      tables: the placeholder variable of each table of `spec.tables`.
      own_rows: by feature, the model's own operations between inputs and rows.
      notes: for the plan, such as tables that could not be extracted.
      remarks: what else the user should know.
    """

    spec: ModelSpec
    towers: tuple[TracedTower, ...]
    root: Any
    tables: Mapping[str, Any]
    own_rows: Mapping[str, OwnRows] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def trace_towers(
    job: ExportJob, base: Path, inside: bool = False, build: Build = build_root
) -> TracedModel:
    """Builds and partitions the recipe's model; allocates no table.

    Args:
      job: the recipe.
      base: its folder, which the factory's file is relative to.
      inside: tables that only plain gathers read stay in the towers, whatever their size.
      build: builds the recipe's model.
    Raises:
      UsageError: the recipe names a call, input, output or factory that is not there.
      NotConvertible: the model cannot be partitioned as it is; names the feature, table or
        operation, and the cure.
    """
    check_precisions(job)
    layer_tables: dict[str, str] = {}
    make_table = table_maker(layer_tables)
    with early_lookups(make_table):
        root = build(job, base)
    call_of_tower = {name: call_of(name, job) for name in job.towers}
    calls = {
        call: trace_call(root, call, {name: job.inputs[name] for name in call.inputs}, make_table)
        for call in dict.fromkeys(call_of_tower.values())
    }
    lookups = _Lookups(job, root, {name: calls[call] for name, call in call_of_tower.items()})
    lookups.resolve()
    lookups.extract(inside)
    remarks = lookups.remarks()
    ordered = [
        prune(name, part, calls[call_of_tower[name]], layer_tables)
        for name, part in job.towers.items()
    ]
    for name, dumped in open_dumps(job, base).items():
        if name in lookups.tables:
            lookups.tables[name] = replace(lookups.tables[name], rows=dumped.keys.shape[0])
    described = lookups.describe(ordered)
    spec = with_bundle_names(described, job.vocabularies)
    computed = {
        name: lookups.own_rows[traced]
        for name, traced in zip(spec.features, described.features, strict=True)
        if traced in lookups.own_rows
    }
    towers = tuple(replace(tower, spec=spec.towers[tower.spec.name]) for tower in ordered)
    if isinstance(root, NamedGraph):
        fill(each for tower in towers for each in tower.variables)
    for tower in towers:
        for variable in tower.variables:
            give_value(variable)
    variables = {name: lookups.variables[name] for name in spec.tables}
    notes = (*lookups.notes, *_bag_notes(spec), *_clock_notes(spec))
    return TracedModel(spec, towers, root, variables, computed, notes, remarks)


def table_maker(names: dict[str, str]) -> MakeTable:
    """Returns the function that creates tables of embedding layers and adds their names, by
    resource, to `names`.
    """

    def make(table: TableFacts) -> Any:
        shape = (table.rows, table.dim)
        variable = variable_class()(
            shape=shape, dtype=tf.float32, trainable=True, name=table.config_name
        )
        names[resource(variable.handle)] = table.name
        return variable

    return make


class _Lookups:
    """The lookups of all calls: what each reads, whether it is extracted, and under which name.

    Attributes:
      tables, variables: by the table's name.
      own_rows: what computes the rows of features, by their names while tracing.
      notes: for the plan.
    """

    def __init__(self, job: ExportJob, root: Any, towers: Mapping[str, TracedCall]) -> None:
        """Takes the call of each tower."""
        self._job = job
        self._root = root
        self._calls = list({id(call): call for call in towers.values()}.values())
        self._results: dict[str, tuple[TracedCall, list[Any]]] = {}
        for name, call in towers.items():
            results = tower_results(name, job.towers[name], call.returned)
            self._results[name] = call, list(results.tensors.values())
        self._inside: dict[str, list[Lookup]] = {}
        """Lookups inside the towers by the name of the input whose values are their ids."""
        self.tables: dict[str, TableFacts] = {}
        self.variables: dict[str, Any] = {}
        self.own_rows: dict[str, OwnRows] = {}
        self.notes: tuple[str, ...] = ()

    def resolve(self) -> None:
        """Drops lookups that no tower needs, and finds the inputs of all others."""
        for call in self._calls:
            stops = needed(self._results_of(call), [each.activation for each in call.lookups]).stops
            call.lookups = [each for each in call.lookups if each.activation.name in stops]
        read = [each for each in self._all_lookups() if each.variable is not None]
        known = {
            resource(each.variable.handle): each.table for each in reversed(read) if each.table.name
        }
        plain = {
            resource(each.variable.handle): each.variable for each in read if not each.table.name
        }
        known |= name_tables(
            plain, object_paths(self._root), {each.name for each in known.values()}
        )
        for call in self._calls:
            call.lookups = [
                each
                if each.variable is None
                else replace(each, table=known[resource(each.variable.handle)])
                for each in call.lookups
            ]
            call.lookups = resolve_lookups(call, call.lookups)

    def extract(self, inside: bool) -> None:
        """Inlines the lookups that stay inside, and turns all others into features."""
        reads = [
            read
            for name, (call, results) in self._results.items()
            for read in self._reads(name, call, results)
        ]
        stay, self.notes = find_inline_lookups(self._all_lookups(), reads, self._job, inside)
        names: dict[FeatureSpec, str] = {}
        for call in self._calls:
            insert_lookups([each for each in call.lookups if each in stay], call.function.graph)
            for each in call.lookups:
                if each.feature is None:
                    continue
                if each not in stay:
                    self._extract(call, each, traced_name(each.feature, names))
                elif each.feature.entry.place is None:  # each position has a limit of its own
                    (name,) = each.feature.entry.inputs
                    self._inside.setdefault(name, []).append(each)
            for indicator, feature in replace_looked_up_numbers(call, self._results_of(call)):
                self._extract(call, indicator, traced_name(feature, names))
        rows = {name: table.rows for name, table in self.tables.items()}
        features = list(names)
        for call in self._calls:
            results = self._results_of(call)
            for indicator, feature in replace_stated_rows(call, results, features, rows, self._job):
                self._extract(call, indicator, traced_name(feature, names))

    def describe(self, towers: Iterable[TracedTower]) -> ModelSpec:
        """Returns the tables and features that towers need, under their names while tracing."""
        weights = {
            part.weights_for: name for name, part in self._job.inputs.items() if part.weights_for
        }
        embedded = {
            name: feature for call in self._calls for name, feature in call.features.items()
        }
        specs = {tower.spec.name: tower.spec for tower in towers}
        features: dict[str, FeatureSpec | DenseSpec] = {}
        for tensor in (tensor for tower in specs.values() for tensor in tower.inputs):
            which = tensor.feature
            if which in embedded:
                features[which] = replace(embedded[which], name=which)
                continue
            take: Any
            name, _, take = which.rpartition("@")
            dtype: Any = tensor.dtype
            shape = tuple(size for size in tensor.shape[1:] if size is not None)
            inside = self._inside.get(name, []) if take == "values" else []
            beside = weights[name] if take == "weights" else None
            entry = DenseFeature.model_construct(
                kind="dense",
                role="context",
                inputs=(name,),
                take=take,
                shape=shape,
                dtype=dtype,
                **_limits(inside),
            )
            tables_inside = tuple(dict.fromkeys(each.table.config_name for each in inside))
            features[which] = DenseSpec(which, entry, beside, tables_inside)
        used = {spec.entry.table for spec in features.values() if isinstance(spec, FeatureSpec)}
        tables = {name: table for name, table in self.tables.items() if name in used}
        return ModelSpec(tables, features, specs)

    def remarks(self) -> tuple[str, ...]:
        """Returns notes about inputs that towers read as other numbers than callers send."""
        ids = {
            name
            for call in self._calls
            for feature in call.features.values()
            for name in feature.reads
        }
        notes = [
            note
            for call in self._calls
            for note in notes_on_dtypes(call, self._results_of(call), ids)
        ]
        return tuple(dict.fromkeys(notes))

    def _results_of(self, call: TracedCall) -> list[Any]:
        """Returns the outputs of all towers of a call."""
        return [
            result
            for other, results in self._results.values()
            if other is call
            for result in results
        ]

    def _all_lookups(self) -> list[Lookup]:
        return [each for call in self._calls for each in call.lookups]

    @staticmethod
    def _reads(tower: str, call: TracedCall, results: list[Any]) -> list[Read]:
        graph = call.function.graph
        gathered = [each.variable for each in call.lookups if each.gather]
        gathered += [each for each in graph.variables if isinstance(each, placeholder_class())]
        tables = {resource(variable.handle): variable for variable in gathered}
        return find_other_reads(
            tower, results, [each.activation for each in call.lookups], graph, tables
        )

    def _extract(self, call: TracedCall, lookup: Lookup, name: str) -> None:
        table = lookup.table
        variable = lookup.variable
        if variable is not None:
            if self.variables.setdefault(table.name, variable) is not variable:
                raise NotConvertible(
                    f"two tables are called {table.name!r}; give their TableConfigs different "
                    "names, and where the "
                    "checkpoint does not know the new one, name its variable as tables.<new "
                    "name>.key in the recipe"
                )
            self.tables[table.name] = table
        if name in call.activations:
            join(lookup.activation, call.activations[name])
        elif lookup.feature is not None:
            call.features[name] = lookup.feature
            call.activations[name] = lookup.activation
            computed = own_rows(call, lookup)
            if computed is not None:
                self.own_rows[name] = computed


def _limits(lookups: Collection[Lookup]) -> dict[str, Any]:
    """Returns the fields of an input whose values are ids of tables inside the towers: which of
    them are rows, and what becomes of the others.
    """
    if not lookups:
        return {}
    rejecting = [each for each in lookups if each.outside.outcome == "nan"]
    outside = {outside_ids_of(each).outcome for each in lookups}
    if rejecting:
        lookups = rejecting
        other_ids = "refuse"
    else:
        other_ids = "zeros" if "zeros" in outside else "nearest"
    return {
        "below": min(each.table.rows for each in lookups),
        "from_end": all(each.outside.from_end for each in lookups),
        "outside": other_ids,
    }


def _bag_notes(spec: ModelSpec) -> Iterator[str]:
    """Yields notes about ragged and sparse inputs that go into the towers."""
    for feature in spec.features.values():
        if isinstance(feature, DenseSpec) and feature.entry.take == "padded":
            (name,) = feature.reads
            (size,) = feature.entry.shape
            yield (
                f"input {name!r} goes into the towers, at most {size} values per example "
                f"(inputs.{name}.length_max)"
            )


def _clock_notes(spec: ModelSpec) -> Iterator[str]:
    """Yields notes about towers whose results change while nothing that is sent changes."""
    for name, tower in spec.towers.items():
        if tower.clock:
            yield (
                f"tower {name!r} reads the clock ({tower.clock}): what it returns for a request "
                "changes with time, and vectors of a corpus keep the time of the export; to fix "
                "it, send the time as an input"
            )
