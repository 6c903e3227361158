"""Builds the user's model without its tables, traces each call once, and prunes it at its lookups into towers.

What is asked of the model, and why it is cut here: docs/adr/0002-layer-cut.md and 0009-gather-cut.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from export.errors import NotConvertible, UsageError
from export.frameworks.internals import join, variable_without_memory
from export.frameworks.loading import load_tensorflow
from export.frameworks.named_graphs import NamedGraph
from export.frameworks.placeholders import give_value, placeholder_class
from export.graph.origins import needed, resource
from export.graph.pruning import TracedCall, TracedTower, prune, tower_results
from export.graph.specs import DenseSpec, FeatureSpec, ModelSpec, TableFacts
from export.lookups.interception import lookups_intercepted
from export.lookups.records import Lookup, MakeTable
from export.model.calling import RawTrace, trace_call, zeros
from export.model.feature_names import FeatureNames, finally_named
from export.model.object_paths import name_tables, object_paths
from export.model.roots import build_root
from export.model.settling import Settled, divide, put_inside, reads_beside
from export.model.traced_lookups import Resolved, resolve_lookups
from export.recipe.precisions import check_precisions
from export.recipe.schema import ExportJob, TowerPart
from export.tables.dumped import open_dumps

Call = tuple[str, tuple[str, ...]]
"""Path of what is called, and names of the inputs that it takes."""


@dataclass(frozen=True)
class TracedModel:
    """The model without its tables, and its towers.

    Attributes:
      spec: what was found.
      towers: in the recipe's order.
      root: what the factory returned.
      tables: the variable that stands for each table of `spec.tables`.
      configs: the layer's FeatureConfig of each feature that is looked up by a layer.
      notes: what the plan should say: tables that could not be taken out.
    """

    spec: ModelSpec
    towers: tuple[TracedTower, ...]
    root: Any
    tables: Mapping[str, Any]
    configs: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def trace_towers(job: ExportJob, base: Path, inside: bool = False) -> TracedModel:
    """Builds and cuts the recipe's model; allocates no table.

    Args:
      job: the recipe.
      base: its folder, which the factory's file is relative to.
      inside: tables that only plain gathers read stay in the towers, whatever their size.
    Raises:
      UsageError: the recipe names a call, input, output or factory that is not there.
      NotConvertible: the model cannot be cut as it is; names the feature, table or operation, and the cure.
    """
    check_precisions(job)
    stand_ins: dict[str, TableFacts] = {}
    make_table = _table_maker(stand_ins)
    with lookups_intercepted(make_table, zeros, zeros):
        root = build_root(job, base)
    traces: dict[Call, RawTrace] = {}
    wanted: dict[Call, list[str]] = {}
    for name, part in job.towers.items():
        key = (part.call, call_inputs(name, part, job))
        wanted.setdefault(key, []).append(name)
        if key not in traces:
            parts = {which: job.inputs[which] for which in key[1]}
            traces[key] = trace_call(root, key[0], parts, make_table)
    cut = _Cutting(job, root, stand_ins)
    calls = cut.calls(traces, wanted, inside)
    named = {what: table.name for what, table in stand_ins.items()}
    towers = {name: prune(name, job.towers[name], calls[key], named) for key in traces for name in wanted[key]}
    ordered = [towers[name] for name in job.towers]
    for name, dumped in open_dumps(job, base).items():
        if name in cut.tables:
            cut.tables[name] = replace(cut.tables[name], rows=dumped.keys.shape[0])
    spec = finally_named(_describe(calls.values(), ordered, cut, job), job.vocabularies)
    final = tuple(replace(tower, spec=spec.towers[tower.spec.name]) for tower in ordered)
    if isinstance(root, NamedGraph):
        root.try_with({id(each): each for tower in final for each in tower.variables}.values())
    for tower in final:
        for variable in tower.variables:
            give_value(variable)
    configs = _configs(calls.values(), towers, spec)
    variables = {name: cut.variables[name] for name in spec.tables}
    return TracedModel(spec, final, root, variables, configs, (*cut.notes, *_bags_taken(spec)))


def call_inputs(name: str, part: TowerPart, job: ExportJob) -> tuple[str, ...]:
    """Returns the names of the inputs that a tower's call takes."""
    for which in part.inputs:
        if which not in job.inputs:
            raise UsageError(f"towers.{name}.inputs names {which!r}; the recipe's inputs: {', '.join(job.inputs)}")
    return part.inputs or tuple(job.inputs)


def _table_maker(stand_ins: dict[str, TableFacts]) -> MakeTable:
    tf = load_tensorflow()

    def stand_in(table: TableFacts) -> Any:
        shape = (table.rows, table.dim)
        variable = variable_without_memory(shape=shape, dtype=tf.float32, trainable=True, name=table.config_name)
        stand_ins[resource(variable.handle)] = table
        return variable

    return stand_in


class _Cutting:
    """Divides the lookups of all calls, and names what leaves.

    Attributes:
      tables, variables: by the table's name.
      below: rows of the smallest table inside the towers that an input reads, by its name.
      notes: for the plan.
    """

    def __init__(self, job: ExportJob, root: Any, stand_ins: Mapping[str, TableFacts]) -> None:
        self._job, self._root, self._stand_ins = job, root, stand_ins
        self._names = FeatureNames()
        self.tables: dict[str, TableFacts] = {}
        self.variables: dict[str, Any] = {}
        self.below: dict[str, int] = {}
        self.notes: tuple[str, ...] = ()

    def calls(
        self, traces: Mapping[Call, RawTrace], wanted: Mapping[Call, list[str]], inside: bool
    ) -> dict[Call, TracedCall]:
        """Returns each call with its features outside, and all other lookups back in its graph."""
        job = self._job
        reached = {key: self._reached(trace, wanted[key]) for key, trace in traces.items()}
        known = self._known(reached.values())
        lookups, reads = [], []
        for key, trace in reached.items():
            parts = {which: job.inputs[which] for which in key[1]}
            facts = {place: self._facts(each.lookup, known) for place, each in enumerate(trace.lookups)}
            lookups.append(resolve_lookups(trace, parts, facts))
            gathered = [each.lookup.variable for each in trace.lookups if each.gather]
            gathered += [each for each in trace.function.graph.variables if isinstance(each, placeholder_class())]
            tables = {resource(variable.handle): variable for variable in gathered}
            stops = [each.activation for each in trace.lookups]
            for name in wanted[key]:
                results, _ = tower_results(name, job.towers[name], trace.result)
                reads += reads_beside(name, results.values(), stops, trace.function.graph, tables)
        divided, self.notes = divide(lookups, reads, job, inside)
        for each in (each for settled in divided for each in settled.inside if isinstance(each, Resolved)):
            if each.feature.place is not None:
                continue  # each place of an input has a limit of its own
            (name,) = each.feature.inputs
            self.below[name] = min(each.table.rows, self.below.get(name, each.table.rows))
        return {key: self._call(trace, settled) for (key, trace), settled in zip(reached.items(), divided, strict=True)}

    def _reached(self, trace: RawTrace, towers: Iterable[str]) -> RawTrace:
        """Leaves out lookups that no tower needs."""
        results = [tower_results(name, self._job.towers[name], trace.result)[0] for name in towers]
        tensors = [tensor for each in results for tensor in each.values()]
        stops = needed(tensors, [each.activation for each in trace.lookups]).stops
        return replace(trace, lookups=tuple(each for each in trace.lookups if each.activation.name in stops))

    def _known(self, traces: Iterable[RawTrace]) -> dict[str, TableFacts]:
        """Returns what every table that is looked up is called, by its resource."""
        known: dict[str, TableFacts] = {}
        plain: dict[str, Any] = {}
        for trace in traces:
            for each in trace.lookups:
                if each.lookup.variable is None:
                    continue
                key = resource(each.lookup.variable.handle)
                if each.lookup.table.name:
                    known.setdefault(key, each.lookup.table)
                else:
                    plain.setdefault(key, each.lookup.variable)
        return {**name_tables(plain, object_paths(self._root), {each.name for each in known.values()}), **known}

    @staticmethod
    def _facts(lookup: Lookup, known: Mapping[str, TableFacts]) -> TableFacts:
        return lookup.table if lookup.variable is None else known[resource(lookup.variable.handle)]

    def _call(self, trace: RawTrace, settled: Settled) -> TracedCall:
        put_inside(settled, trace.function.graph)
        call = TracedCall(trace.function, trace.inputs, trace.lengths, trace.result, self._job.inputs)
        for each in settled.outside:
            lookup, name = each.recorded.lookup, self._names.name(each.feature)
            if lookup.variable is not None:
                self._know(each.table, lookup.variable)
            if name in call.activations:
                join(each.recorded.activation, call.activations[name])
                continue
            call.features[name], call.activations[name] = each.feature, each.recorded.activation
            if lookup.config is not None:
                call.configs[name] = lookup.config
        return call

    def _know(self, table: TableFacts, variable: Any) -> None:
        if self.variables.setdefault(table.name, variable) is not variable:
            raise NotConvertible(
                f"two tables are called {table.name!r}; give their TableConfigs different names, and where "
                "the checkpoint does not know the new one, tell its variable as tables.<new name>.key in the recipe"
            )
        self.tables[table.name] = table


def _describe(
    calls: Iterable[TracedCall],
    towers: Iterable[TracedTower],
    cut: _Cutting,
    job: ExportJob,
) -> ModelSpec:
    tables, weights = cut.tables, {part.weights_for: name for name, part in job.inputs.items() if part.weights_for}
    embedded = {name: feature for call in calls for name, feature in call.features.items()}
    specs = {tower.spec.name: tower.spec for tower in towers}
    features: dict[str, FeatureSpec | DenseSpec] = {}
    for tower in specs.values():
        for tensor in tower.inputs:
            which = tensor.feature
            if which in embedded:
                features[which] = replace(embedded[which], name=which)
                continue
            name, _, take = which.rpartition("@")
            shape = tuple(size for size in tensor.shape[1:] if size is not None)
            limit = cut.below.get(name) if take == "values" else None
            beside = weights[name] if take == "weights" else None
            features[which] = DenseSpec(which, tensor.dtype, shape, name, take, limit, beside)  # type: ignore[arg-type]
    used = {feature.table for feature in features.values() if isinstance(feature, FeatureSpec)}
    return ModelSpec({name: table for name, table in tables.items() if name in used}, features, specs)


def _bags_taken(spec: ModelSpec) -> Iterator[str]:
    """Yields notes of inputs whose ids towers take themselves."""
    for feature in spec.features.values():
        if isinstance(feature, DenseSpec) and feature.take == "padded":
            (name,), (size,) = feature.reads, feature.shape
            yield f"input {name!r} goes into the towers, of an example {size} values at most (inputs.{name}.length_max)"


def _configs(calls: Iterable[TracedCall], towers: Mapping[str, TracedTower], spec: ModelSpec) -> dict[str, Any]:
    """Returns the layers' configurations by the features' final names."""
    configs = {name: config for call in calls for name, config in call.configs.items()}
    found = {}
    for name, tower in towers.items():
        for before, after in zip(tower.spec.inputs, spec.towers[name].inputs, strict=True):
            if before.feature in configs:
                found[after.feature] = configs[before.feature]
    return found
