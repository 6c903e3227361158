"""Names of features: that of their input if nothing else reads it, else with the table that they
read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

from bundle.format.id_graphs import OperationNode
from bundle.format.identifiers import distinct_identifiers
from bundle.format.manifest import (
    GraphIds,
)
from export.front_end.specs import (
    DenseSpec,
    FeatureSpec,
    Keys,
    ModelSpec,
    TowerSpec,
    is_dense_name,
)
from export.partition.lookups.records import free_name, table_name

Features = Mapping[str, FeatureSpec | DenseSpec]


def traced_name(feature: FeatureSpec, names: dict[FeatureSpec, str]) -> str:
    """Returns a unique name for a feature; equal features of several calls share one.

    It is `<input>@<table>`, for a cross `<a>*<b>@<table>`, for one of several values
    `<input>[<position>]@<table>`, followed by the combiner or a number where that is not unique, or
    the name of a dense feature.
    """
    if feature in names:
        return names[feature]

    entry = feature.entry
    read = "*".join(entry.inputs)
    if entry.place is not None:
        read = f"{read}[{entry.place}]"
    plain = f"{read}@{entry.table or 'indicator'}"
    # A table may be read twice by one input, as with two combiners.
    choices = chain(
        [plain, f"{plain}.{entry.combiner or entry.kind}"],
        (f"{plain}.{n}" for n in count(2)),
    )
    names[feature] = next(
        choice
        for choice in choices
        # A table may be called `values`.
        if choice not in names.values() and not is_dense_name(choice)
    )
    return names[feature]


def with_bundle_names(
    model: ModelSpec, inputs: Iterable[str], vocabularies: Iterable[str]
) -> ModelSpec:
    """Returns the model with the bundle's names of features and vocabularies.

    A feature that is an input's only reader has its name. No other feature has the name of an
    input, whatever inputs are called.

    Args:
      model: The model, with the names that features had while it was traced.
      inputs: The names of the recipe's inputs.
      vocabularies: The names that the recipe gives to vocabularies.
    """
    reader_counts = Counter(name for spec in model.features.values() for name in spec.reads)
    used_names = {*inputs, *reader_counts}
    names: dict[str, str] = {}
    for name, spec in model.features.items():
        choices = chain([name], (f"{name}.{number}" for number in count(2)))
        if len(spec.reads) > 1:
            choices = chain(["*".join(spec.reads)], choices)
        elif reader_counts[spec.reads[0]] == 1:
            names[name] = spec.reads[0]
            continue
        names[name] = next(choice for choice in choices if choice not in used_names)
        used_names.add(names[name])

    named = {}
    for name, spec in model.features.items():
        named[names[name]] = _renamed(spec, names[name])
    towers = {name: _renamed_tower(tower, names) for name, tower in model.towers.items()}
    return ModelSpec(model.tables, _vocabularies_named(named, set(vocabularies)), towers)


def _renamed(spec: FeatureSpec | DenseSpec, name: str) -> FeatureSpec | DenseSpec:
    inputs = spec.reads
    if inputs == (name,):
        # A feature reads the input of its name by default.
        inputs = ()
    return _with_entry(replace(spec, name=name), inputs=inputs)


def _with_entry(spec: FeatureSpec | DenseSpec, **changes: Any) -> FeatureSpec | DenseSpec:
    """Returns a feature with changes of its entry."""
    entry: Any = spec.entry.model_copy(update=changes)
    return replace(spec, entry=entry)


def _renamed_tower(tower: TowerSpec, names: Mapping[str, str]) -> TowerSpec:
    """Returns a tower whose inputs read features by their names in the bundle."""
    features = [names.get(tensor.feature, tensor.feature) for tensor in tower.inputs]
    # Names of tensors are identifiers; those of features hold any characters.
    tensor_names = distinct_identifiers(features)
    inputs = []
    for tensor, feature in zip(tower.inputs, features, strict=True):
        changes = {"name": tensor_names[feature], "feature": feature}
        inputs.append(tensor.model_copy(update=changes))
    return replace(tower, inputs=tuple(inputs))


def _vocabularies_named(
    features: Features, used_names: set[str]
) -> dict[str, FeatureSpec | DenseSpec]:
    """Names the model's own vocabularies; equal ones share a name."""
    names: dict[Keys, str] = {}
    named: dict[str, FeatureSpec | DenseSpec] = {}
    for name, spec in features.items():
        named[name] = spec
        if not isinstance(spec, FeatureSpec) or not isinstance(spec.rule, GraphIds):
            continue
        tables = []
        inputs = _inputs_of_tables(spec.rule, spec.reads)
        for table, keys, read in zip(spec.rule.tables, spec.keys, inputs, strict=True):
            if keys not in names:
                names[keys] = free_name(table_name(read, "vocabulary of input"), used_names)
                used_names.add(names[keys])
            tables.append(table.model_copy(update={"vocabulary": names[keys]}))
        rule = spec.rule.model_copy(update={"tables": tuple(tables)})
        named[name] = _with_entry(spec, ids=rule)
    return named


def _inputs_of_tables(rule: GraphIds, reads: Sequence[str]) -> list[str]:
    """Returns one name of the inputs whose values each lookup table of a rule searches."""
    names = ["_".join(reads) for _ in rule.tables]
    for position, node in enumerate(rule.nodes):
        if isinstance(node, OperationNode) and "table" in node.attributes:
            inputs = [reads[number] for number in rule.inputs_of(position)]
            names[node.attributes["table"]] = "_".join(inputs)
    return names
