"""Traces each call of a model without its tables once, and prunes the graph at lookups into towers.

What it requires, and why it partitions at lookups:
docs/adr/0002-lookups-are-extracted-while-tracing.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from bundle.format.manifest import DenseFeature, TowerInput
from export.errors import NotConvertible
from export.front_end.calls import Call, call_of
from export.front_end.interface import OwnRows, TracedTower
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec, TableFacts
from export.graphs.functions import fill
from export.graphs.internals import join
from export.graphs.loading import tf
from export.graphs.placeholders import give_value, placeholder_class
from export.graphs.walks import needed, resource
from export.partition.call_tracing import trace_call
from export.partition.features.feature_names import traced_name, with_bundle_names
from export.partition.features.inline_lookups import insert_lookups, outside_ids_of
from export.partition.features.inline_tables import Read, find_inline_lookups, find_other_reads
from export.partition.features.input_dtypes import notes_on_dtypes
from export.partition.features.looked_up_numbers import replace_looked_up_numbers
from export.partition.features.own_rows import own_rows
from export.partition.features.stated_rows import replace_stated_rows
from export.partition.features.traced_lookups import resolve_lookups
from export.partition.graph.pruning import TracedCall, prune
from export.partition.graph.tower_results import tower_results
from export.partition.lookups.records import TracedLookup, free_name
from export.partition.table_names import name_tables
from export.partition.traceable_model import TraceableModel
from export.recipe.schema import ExportJob
from export.tables.dumped import open_dumps


@dataclass(frozen=True)
class TracedModel:
    """The model without its tables, and its towers.

    Attributes:
      spec: The tables, features and towers.
      towers: The towers, in the recipe's order.
      root: What the front end knows the model by.
      tables: The placeholder variable of each table of `spec.tables`.
      own_rows: The model's own operations between inputs and rows, by feature.
      notes: Notes for the plan, such as those on tables that could not be extracted.
      remarks: What else the user should know.
    """

    spec: ModelSpec
    towers: tuple[TracedTower, ...]
    root: Any
    tables: Mapping[str, Any]
    own_rows: Mapping[str, OwnRows] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def trace_towers(
    job: ExportJob, base: Path, model: TraceableModel, inside: bool = False
) -> TracedModel:
    """Partitions the recipe's model.

    Args:
      job: The recipe.
      base: The recipe's folder, which its dumps of tables are relative to.
      model: The model.
      inside: Whether tables that only plain gathers read stay in the towers, whatever their size.

    Raises:
      UsageError: The recipe names a call, input or output that is not there.
      NotConvertible: The model cannot be partitioned as it is; names the feature, table or
        operation, and the cure.
    """
    # Towers that make the same call share its trace.
    call_of_tower = {name: call_of(name, job) for name in job.towers}
    calls: dict[Call, TracedCall] = {}
    for call in dict.fromkeys(call_of_tower.values()):
        sections = {name: job.inputs[name] for name in call.inputs}
        calls[call] = trace_call(model, call, sections)

    traces = {name: calls[call] for name, call in call_of_tower.items()}
    lookups = _ModelLookups(job, model, traces)
    lookups.resolve()
    lookups.extract(inside)
    # Before towers are pruned, which changes the graphs of the calls.
    remarks = lookups.remarks()
    ordered = [
        prune(name, section, traces[name], model.layer_tables)
        for name, section in job.towers.items()
    ]
    for name, dump in open_dumps(job, base).items():
        if name in lookups.tables:
            row_count = dump.keys.shape[0]
            lookups.tables[name] = replace(lookups.tables[name], rows=row_count)

    described = lookups.describe(ordered)
    spec = with_bundle_names(described, job.inputs, job.vocabularies)
    # Features keep their order when they are renamed.
    rows_by_feature = {
        name: lookups.own_rows[traced]
        for name, traced in zip(spec.features, described.features, strict=True)
        if traced in lookups.own_rows
    }
    towers = tuple(replace(tower, spec=spec.towers[tower.spec.name]) for tower in ordered)
    if not model.has_initial_values:
        fill(variable for tower in towers for variable in tower.variables)
    for tower in towers:
        for variable in tower.variables:
            give_value(variable)
    variables = {name: lookups.variables[name] for name in spec.tables}
    notes = (*lookups.notes, *_bag_notes(spec), *_clock_notes(spec))
    return TracedModel(spec, towers, model.root, variables, rows_by_feature, notes, remarks)


class _ModelLookups:
    """The lookups of all calls of a model: what each reads, whether it is extracted, and under
    which name.

    Attributes:
      tables, variables: The tables that leave the towers, and their variables, by the table's name.
      own_rows: What computes the rows of features, by their names while tracing.
      notes: Notes for the plan.
    """

    def __init__(
        self, job: ExportJob, model: TraceableModel, towers: Mapping[str, TracedCall]
    ) -> None:
        """Takes the call of each tower."""
        self._job = job
        self._model = model
        calls_by_id = {id(call): call for call in towers.values()}
        self._calls = list(calls_by_id.values())
        self._results: dict[str, tuple[TracedCall, list[Any]]] = {}
        for name, call in towers.items():
            results = tower_results(name, job.towers[name], call.returned)
            self._results[name] = call, list(results.tensors.values())
        self._inside: dict[str, list[TracedLookup]] = {}
        """Lookups inside the towers by the name of the input whose values are their ids."""
        self.tables: dict[str, TableFacts] = {}
        self.variables: dict[str, Any] = {}
        self.own_rows: dict[str, OwnRows] = {}
        self.notes: tuple[str, ...] = ()

    def resolve(self) -> None:
        """Drops lookups that no tower needs, and finds the inputs of all others."""
        for call in self._calls:
            call.lookups = _needed_lookups(call.lookups, self._results_of(call))

        table_of_resource = self._named_tables()
        for call in self._calls:
            named = []
            for lookup in call.lookups:
                if lookup.variable is None:
                    named.append(lookup)
                else:
                    table = table_of_resource[resource(lookup.variable.handle)]
                    named.append(replace(lookup, table=table))
            call.lookups = resolve_lookups(call, named)

    def _named_tables(self) -> dict[str, TableFacts]:
        """Returns the tables that lookups read, with their names in the bundle, by resource."""
        tables: dict[str, TableFacts] = {}
        unnamed: dict[str, Any] = {}
        for lookup in self._all_lookups():
            if lookup.variable is None:
                continue
            key = resource(lookup.variable.handle)
            if lookup.table.name:
                tables.setdefault(key, lookup.table)
            else:
                unnamed[key] = lookup.variable
        # Names that differ in the model may be one as names of files. A name that is both comes
        # first.
        names: dict[str, str] = {}
        for key in sorted(tables, key=lambda key: tables[key].name != tables[key].config_name):
            table = tables[key]
            if table.config_name not in names:
                names[table.config_name] = free_name(table.name, names.values())
            tables[key] = replace(table, name=names[table.config_name])
        # Tables of embedding layers have names; plain variables take free ones.
        used_names = {table.name for table in tables.values()}
        return tables | name_tables(unnamed, self._model.table_names(unnamed), used_names)

    def extract(self, inside: bool) -> None:
        """Inlines the lookups that stay inside, and turns all others into features."""
        reads: list[Read] = []
        for name, (call, results) in self._results.items():
            # The ids of a lookup that stays inside may be computed from tables, too.
            computed = [lookup for lookup in call.lookups if lookup.missing_rule is not None]
            reads += self._reads(name, call, [*results, *_operands(computed)])
        inline, self.notes = find_inline_lookups(self._all_lookups(), reads, self._job, inside)

        names: dict[FeatureSpec, str] = {}
        features_inside: list[FeatureSpec] = []
        rows_inside: dict[str, int] = {}
        for call in self._calls:
            graph = call.function.graph
            inserted = [inline[lookup] for lookup in call.lookups if lookup in inline]
            insert_lookups(inserted, graph)
            for lookup in inserted:
                # Of ids that the model computes, nothing is known before the tower runs.
                if lookup.feature is not None:
                    (name,) = lookup.feature.entry.inputs
                    self._inside.setdefault(name, []).append(lookup)
                    features_inside.append(lookup.feature)
                    rows_inside[lookup.table.name] = lookup.table.rows
            for lookup in call.lookups:
                if lookup not in inline:
                    self._extract(call, lookup, traced_name(lookup.feature, names))
            for indicator, feature in replace_looked_up_numbers(call, self._results_of(call)):
                self._extract(call, indicator, traced_name(feature, names))

        # Once the features of all calls are known: an input has one rule, whichever call reads it.
        rows = {name: table.rows for name, table in self.tables.items()} | rows_inside
        features = [*names, *features_inside]
        for call in self._calls:
            results = self._results_of(call)
            for indicator, feature in replace_stated_rows(call, results, features, rows, self._job):
                self._extract(call, indicator, traced_name(feature, names))

    def describe(self, towers: Iterable[TracedTower]) -> ModelSpec:
        """Returns the tables and features that towers need, under their names while tracing."""
        embedded: dict[str, FeatureSpec] = {}
        for call in self._calls:
            embedded |= call.features
        specs = {tower.spec.name: tower.spec for tower in towers}

        features: dict[str, FeatureSpec | DenseSpec] = {}
        for tower in specs.values():
            for tensor in tower.inputs:
                name = tensor.feature
                if name in embedded:
                    features[name] = replace(embedded[name], name=name)
                else:
                    features[name] = self._dense_spec(tensor)
        # Tables that only lookups of other outputs read are left out.
        used = {spec.entry.table for spec in features.values() if isinstance(spec, FeatureSpec)}
        tables = {name: table for name, table in self.tables.items() if name in used}
        return ModelSpec(tables, features, specs)

    def _dense_spec(self, tensor: TowerInput) -> DenseSpec:
        """Returns the feature of a tower's input that is called `<input>@<what it takes of it>`."""
        name, _, take = tensor.feature.rpartition("@")
        # Values of an input may be ids of tables inside the towers.
        inside: list[TracedLookup] = []
        if take == "values":
            inside = self._inside.get(name, [])
        weights = None
        if take == "weights":
            weights = self._weights_of(name)
        entry = DenseFeature.model_construct(
            kind="dense",
            role="context",
            inputs=(name,),
            take=cast(Any, take),
            shape=tuple(size for size in tensor.shape[1:] if size is not None),
            dtype=cast(Any, tensor.dtype),
            **_limits(inside),
        )
        table_names = dict.fromkeys(lookup.table.config_name for lookup in inside)
        return DenseSpec(tensor.feature, entry, weights, tuple(table_names))

    def _weights_of(self, name: str) -> str:
        """Returns the input that holds the weights of the ids in an input."""
        return next(
            weights
            for weights, section in reversed(self._job.inputs.items())
            if section.weights_for == name
        )

    def remarks(self) -> tuple[str, ...]:
        """Returns notes about inputs that towers read as other numbers than callers send."""
        ids: set[str] = set()
        for call in self._calls:
            for feature in call.features.values():
                ids.update(feature.reads)
        notes: list[str] = []
        for call in self._calls:
            notes += notes_on_dtypes(call, self._results_of(call), ids)
        return tuple(dict.fromkeys(notes))

    def _results_of(self, call: TracedCall) -> list[Any]:
        """Returns the outputs of all towers of a call."""
        outputs: list[Any] = []
        for tower_call, results in self._results.values():
            if tower_call is call:
                outputs += results
        return outputs

    def _all_lookups(self) -> list[TracedLookup]:
        return [lookup for call in self._calls for lookup in call.lookups]

    @staticmethod
    def _reads(tower: str, call: TracedCall, results: list[Any]) -> list[Read]:
        """Returns how a tower reads tables other than by lookups."""
        graph = call.function.graph
        variables = [lookup.variable for lookup in call.lookups if lookup.gather]
        variables += [
            variable for variable in graph.variables if isinstance(variable, placeholder_class())
        ]
        tables = {resource(variable.handle): variable for variable in variables}
        activations = [lookup.activation for lookup in call.lookups]
        return find_other_reads(tower, results, activations, graph, tables)

    def _extract(self, call: TracedCall, lookup: TracedLookup, name: str) -> None:
        """Makes a lookup the feature of a name; lookups of one name share a placeholder.

        Raises:
          NotConvertible: Its table has the name of another one.
        """
        table = lookup.table
        variable = lookup.variable
        if variable is not None:
            if self.variables.setdefault(table.name, variable) is not variable:
                raise NotConvertible(
                    f"two tables are called {table.name!r}; give their TableConfigs different "
                    "names, and where the checkpoint does not know the new one, name its variable "
                    "as tables.<new name>.key in the recipe"
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


def _needed_lookups(lookups: Sequence[TracedLookup], results: list[Any]) -> list[TracedLookup]:
    """Returns the lookups that results need, also for the ids of others."""
    activations = [lookup.activation for lookup in lookups]
    needed_names: set[str] = set()
    tensors = results
    while tensors:
        found_names = needed(tensors, activations).stops - needed_names
        needed_names |= found_names
        found = [lookup for lookup in lookups if lookup.activation.name in found_names]
        tensors = _operands(found)
    return [lookup for lookup in lookups if lookup.activation.name in needed_names]


def _operands(lookups: Iterable[TracedLookup]) -> list[Any]:
    """Returns the dense tensors of the ids and weights of lookups."""
    structures = [[lookup.ids, lookup.weights] for lookup in lookups]
    tensors = tf.nest.flatten(structures, expand_composites=True)
    return [tensor for tensor in tensors if tensor is not None]


def _limits(lookups: Collection[TracedLookup]) -> dict[str, Any]:
    """Returns the fields of an input whose values are ids of tables inside the towers: which of
    them are rows, and what becomes of the others.
    """
    if not lookups:
        return {}
    # The strictest lookup decides: rejected ids reach none of them.
    rejecting = [lookup for lookup in lookups if lookup.outside.outcome == "nan"]
    outside = {outside_ids_of(lookup).outcome for lookup in lookups}
    if rejecting:
        lookups = rejecting
        other_ids = "refuse"
    elif "zeros" in outside:
        other_ids = "zeros"
    else:
        other_ids = "nearest"
    return {
        "below": min(lookup.table.rows for lookup in lookups),
        "from_end": all(lookup.outside.from_end for lookup in lookups),
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
