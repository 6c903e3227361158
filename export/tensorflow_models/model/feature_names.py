"""Names of features: that of their input if nothing else reads it, else with the table that they
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

from bundle.format.identifiers import distinct_identifiers
from bundle.format.manifest import (
    CrossedIds,
    EmbeddedFeature,
    GraphIds,
    IdRule,
    JoinedIds,
    MultiInputIds,
    TextIds,
    lookup_tables_of,
)
from export.front_end.specs import DenseSpec, FeatureSpec, Keys, ModelSpec, TowerSpec
from export.tensorflow_models.lookups.records import free_name, table_name

Features = Mapping[str, FeatureSpec | DenseSpec]


def traced_name(feature: FeatureSpec, names: dict[FeatureSpec, str]) -> str:
    """Returns a unique name for a feature; equal features of several calls share one.

    It is `<input>@<table>`, for a cross `<a>*<b>@<table>`, for one of several values
    `<input>[<place>]@<table>`, followed by the combiner or a number where that is not unique.
    """
    if feature not in names:
        entry = feature.entry
        read = "*".join(entry.inputs)
        if entry.place is not None:
            read = f"{read}[{entry.place}]"
        plain = f"{read}@{entry.table or 'indicator'}"
        choices = chain(
            [plain, f"{plain}.{entry.combiner or entry.kind}"],
            (f"{plain}.{n}" for n in count(2)),
        )
        names[feature] = next(each for each in choices if each not in names.values())
    return names[feature]


def with_bundle_names(model: ModelSpec, vocabularies: Iterable[str]) -> ModelSpec:
    """Returns the model with the bundle's names of features and vocabularies.

    Args:
      model: with the names that features had while it was traced.
      vocabularies: names that the recipe gives to vocabularies.
    """
    readers: dict[str, int] = {}
    for spec in model.features.values():
        for name in spec.reads:
            readers[name] = readers.get(name, 0) + 1
    names: dict[str, str] = {}
    for name, spec in model.features.items():
        crossed = len(spec.reads) > 1
        short = "*".join(spec.reads)
        alone = short not in names.values() if crossed else readers[short] == 1
        names[name] = short if alone else name
    named = {names[name]: _renamed(spec, names[name]) for name, spec in model.features.items()}
    towers = {name: _tower(tower, names) for name, tower in model.towers.items()}
    return ModelSpec(model.tables, _vocabularies_named(named, set(vocabularies)), towers)


def _renamed(spec: FeatureSpec | DenseSpec, name: str) -> FeatureSpec | DenseSpec:
    several = isinstance(spec.entry, EmbeddedFeature) and isinstance(spec.entry.ids, MultiInputIds)
    inputs = () if spec.reads == (name,) and not several else spec.reads
    return _with_entry(replace(spec, name=name), inputs=inputs)


def _with_entry(spec: FeatureSpec | DenseSpec, **changed: Any) -> FeatureSpec | DenseSpec:
    """Returns a feature with changes of its entry."""
    entry: Any = spec.entry.model_copy(update=changed)
    return replace(spec, entry=entry)


def _tower(tower: TowerSpec, names: Mapping[str, str]) -> TowerSpec:
    finals = [names.get(tensor.feature, tensor.feature) for tensor in tower.inputs]
    tensors = distinct_identifiers(finals)
    inputs = tuple(
        tensor.model_copy(update={"name": tensors[final], "feature": final})
        for tensor, final in zip(tower.inputs, finals, strict=True)
    )
    return replace(tower, inputs=inputs)


def _vocabularies_named(features: Features, taken: set[str]) -> dict[str, FeatureSpec | DenseSpec]:
    """Names the model's own vocabularies; equal ones share a name."""
    known: dict[Keys, str] = {}
    named: dict[str, FeatureSpec | DenseSpec] = {}
    for name, spec in features.items():
        named[name] = spec
        if not isinstance(spec, FeatureSpec) or spec.rule is None or not spec.keys:
            continue
        for keys, read in zip(spec.keys, _readers(spec.rule, spec.reads), strict=True):
            if keys not in known:
                known[keys] = free_name(table_name(read, "vocabulary of input"), taken)
                taken.add(known[keys])
        rule = _with_names(spec.rule, iter([known[keys] for keys in spec.keys]))
        named[name] = _with_entry(spec, ids=rule)
    return named


def _readers(rule: IdRule, reads: Sequence[str]) -> list[str]:
    """Returns the input of each lookup table of a rule; of several inputs all of them."""
    if isinstance(rule, CrossedIds):
        return [
            read
            for read, key in zip(reads, rule.keys, strict=True)
            if key.ids is not None
            for _ in key.ids.tables
        ]
    return ["_".join(reads) for _ in lookup_tables_of(rule)]


def _with_names(rule: IdRule, names: Iterator[str]) -> IdRule:
    """Returns a rule with these names for the vocabularies that it reads."""

    def named(graph: GraphIds | None) -> GraphIds | None:
        if graph is None:
            return None
        tables = [table.model_copy(update={"vocabulary": next(names)}) for table in graph.tables]
        return graph.model_copy(update={"tables": tuple(tables)})

    if isinstance(rule, GraphIds):
        return named(rule) or rule
    changes: dict[str, Any] = {}
    if isinstance(rule, CrossedIds):
        keys = [key.model_copy(update={"ids": named(key.ids)}) for key in rule.keys]
        changes["keys"] = tuple(keys)
    if isinstance(rule, TextIds):
        changes["text"] = named(rule.text)
    if isinstance(rule, JoinedIds | TextIds):
        changes["ids"] = named(rule.ids)
    return rule.model_copy(update=changes)
