"""Completes the entries of traced features by what the recipe states of them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from bundle.format import manifest
from bundle.format.graph_builder import GraphBuilder
from export.errors import UsageError
from export.front_end.input_lengths import input_lengths
from export.front_end.roles import input_roles
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec
from export.recipe import schema

Roles = Mapping[str, manifest.Role]
Lengths = Mapping[str, manifest.InputLength]


def describe_features(model: ModelSpec, job: schema.ExportJob) -> dict[str, manifest.Feature]:
    """Returns the manifest's features from the traced model and the recipe.

    Raises:
      UsageError: the recipe names an unknown input or vocabulary, gives an id rule to an input of
        numbers, or must state the role of an input.
    """
    named = [("features", name) for name in job.features]
    for kind, parts in (("corpora", job.corpora), ("contexts", job.contexts)):
        named += [
            (f"{kind}.{store}.features", name)
            for store, part in parts.items()
            for name in part.features
        ]
    for where, name in named:
        _check_known(name, model, where)
    roles = input_roles(model, job)
    lengths = input_lengths(model, job)
    for store, part in job.contexts.items():
        for name in part.features:
            if roles[name] != "context":
                raise UsageError(
                    f"contexts.{store}.features.{name}: features.{name}.role states that it "
                    "belongs to a candidate"
                )
    return {
        name: _dense(spec, model, job, roles, lengths)
        if isinstance(spec, DenseSpec)
        else _embedded(spec, model, job, roles, lengths)
        for name, spec in model.features.items()
    }


def _check_known(name: str, model: ModelSpec, where: str) -> None:
    if name in model.inputs:
        return
    weighted = [f.name for f in model.features.values() if f.weights == name]
    if weighted:
        raise UsageError(
            f"{where}.{name}: this input holds the weights of feature {weighted[0]!r}, and is sent "
            "with it"
        )
    close = difflib.get_close_matches(name, model.inputs, n=1)
    hint = (
        f"did you mean {close[0]!r}?"
        if close
        else f"they take {', '.join(sorted(model.inputs)) or 'none'}"
    )
    raise UsageError(f"{where}.{name}: no tower takes a feature of that name; {hint}")


def _dense(
    spec: DenseSpec, model: ModelSpec, job: schema.ExportJob, roles: Roles, lengths: Lengths
) -> manifest.DenseFeature:
    (name,) = spec.reads
    part = job.features.get(name, schema.FeatureSection())
    numbers = all(isinstance(each, DenseSpec) for each in model.inputs[name])
    if numbers and {"ids", "unknown"} & part.model_fields_set:
        raise UsageError(
            f"features.{name}: it reads no table, so it has neither 'ids' nor 'unknown'"
        )
    stated = {
        "role": roles[name],
        "default": part.default,
        "input_length": lengths.get(name),
    }
    return manifest.DenseFeature(**dict(spec.entry) | stated)


def _embedded(
    spec: FeatureSpec, model: ModelSpec, job: schema.ExportJob, roles: Roles, lengths: Lengths
) -> manifest.EmbeddedFeature:
    first = spec.reads[0]
    part = job.features.get(first, schema.FeatureSection())
    rows = model.rows_of(spec)
    if part.unknown.row is not None and part.unknown.row >= rows:
        what = f"table {spec.entry.table!r}" if spec.entry.table else "its indicator"
        raise UsageError(
            f"features.{first}.unknown.row is {part.unknown.row}; {what} has {rows} rows"
        )
    _check_one_rule(spec, model, job)
    rule = spec.rule or describe_ids(spec, part, rows, job)
    _check_keyed(spec, rule, job)
    states_rule = not (spec.has_rule or isinstance(rule, manifest.IdentityIds))
    if not states_rule:
        rule = spec.entry.ids
    unknown = unknown_of(spec, part)
    reads_nearest = spec.outside.others == "nearest" and spec.unknown is None
    if reads_nearest and not (states_rule or spec.has_rule):
        rule = spec.outside.nearest(rows, rule if isinstance(rule, manifest.GraphIds) else None)
    by_candidate = any(roles[name] == "candidate" for name in spec.reads)
    stated: dict[str, Any] = {
        "role": "candidate" if by_candidate else "context",
        "ids": rule,
        "unknown": unknown,
        "default": part.default,
        "input_length": lengths.get(first),
    }
    if isinstance(rule, manifest.MultiInputIds):
        # Several inputs: each has a role, a default and a length of its own.
        keys = _with_stated_keys(rule, spec, job, roles, lengths)
        stated |= {"ids": keys, "default": None, "input_length": None}
    elif states_rule:
        # The model takes rows, and its padding is one of rows; callers send ids.
        stated |= {"padding": None, "from_end": False}
    return manifest.EmbeddedFeature(**dict(spec.entry) | stated)


def unknown_of(spec: FeatureSpec, part: schema.FeatureSection) -> manifest.Unknown:
    """Returns what becomes of a feature's unknown ids: what the model defines, else what the recipe
    states.

    Raises:
      UsageError: The recipe states what the model contradicts.
    """
    if spec.unknown is not None:
        return spec.unknown
    if "unknown" not in part.model_fields_set:
        return spec.outside.unknown
    others = spec.outside.others
    takes_rows = not spec.has_rule and part.ids.kind != "identity"
    where = f"features.{spec.reads[0]}.unknown"
    if others == "nearest" and not takes_rows:
        raise UsageError(
            f"{where}: the model itself reads the nearest row of table {spec.entry.table!r} for "
            "an id outside of it; leave it out"
        )
    if others == "nearest" and part.unknown.rule == "zeros":
        raise UsageError(
            f"{where} is 'zeros', and the model reads a row of table {spec.entry.table!r} for "
            "every id; state 'row' with the row that unknown ids had in training, or 'refuse'"
        )
    if others == "zeros" and not takes_rows and part.unknown.rule == "row":
        raise UsageError(
            f"{where} is row {part.unknown.row}, and the model itself reads zeros for an id "
            f"outside of table {spec.entry.table!r}; state 'zeros' or 'refuse', or leave it out"
        )
    return part.unknown


def _with_stated_keys(
    rule: manifest.MultiInputIds,
    spec: FeatureSpec,
    job: schema.ExportJob,
    roles: Roles,
    lengths: Lengths,
) -> manifest.MultiInputIds:
    """Returns a rule of several inputs with their roles, defaults and lengths."""
    keys = []
    for key, name in zip(rule.keys, spec.reads, strict=True):
        part = job.features.get(name, schema.FeatureSection())
        stated = {
            "role": roles[name],
            "default": part.default,
            "input_length": lengths.get(name),
        }
        keys.append(key.model_copy(update=stated))
    return rule.model_copy(update={"keys": tuple(keys)})


def _check_keyed(spec: FeatureSpec, rule: manifest.IdRule, job: schema.ExportJob) -> None:
    """Checks that keyed ids have a table with keys, and a table with keys has keyed ids."""
    name = spec.reads[0]
    table = spec.entry.table
    dump = job.tables.get(table, schema.TableSection()).dump
    if isinstance(rule, manifest.KeyedIds) and dump is None:
        raise UsageError(
            f"features.{name}.ids: table {table!r} has no keys; name the dump that has them "
            f"as tables.{table}.dump"
        )
    if dump is not None and not isinstance(rule, manifest.KeyedIds):
        cure = (
            'write ids = { kind = "keyed" }'
            if spec.rule is None
            else "but the model makes rows of it"
        )
        raise UsageError(
            f"features.{name}.ids: rows of table {table!r}, a dump, are found by key; {cure}"
        )


def _check_one_rule(spec: FeatureSpec, model: ModelSpec, job: schema.ExportJob) -> None:
    """Rejects a recipe's rule where the model has its own for all that reads the input."""
    for name in spec.reads:
        stated = job.features[name].model_fields_set if name in job.features else set()
        readers = [each for each in model.inputs[name] if isinstance(each, FeatureSpec)]
        if "ids" in stated and spec.entry.place is not None:
            raise UsageError(
                f"features.{name}.ids: the model takes ids out of this input by their places, and "
                "each may have a rule "
                "of its own; let the model make rows of them, or give each an input of its own"
            )
        if "ids" in stated and all(each.rule is not None for each in readers):
            raise UsageError(
                f"features.{name}.ids: the model itself makes rows of this input; leave it out"
            )
        if "unknown" in stated and all(each.unknown is not None for each in readers):
            raise UsageError(
                f"features.{name}.unknown: the model itself defines what unknown ids become; leave "
                "it out"
            )


def describe_ids(
    spec: FeatureSpec, part: schema.FeatureSection, rows: int, job: schema.ExportJob
) -> manifest.IdRule:
    """Returns the manifest's form of an id rule that the recipe states.

    Raises:
      UsageError: the rule names no vocabulary, or does not fit it or the table of so many rows.
    """
    rule = part.ids
    if isinstance(rule, schema.HashRule):
        _check_reach(spec, "buckets", (rule.buckets or rows) - 1, rows)
        builder = GraphBuilder("int64_or_string")
        builder.hashed(builder.last, rule.buckets or rows)
        return builder.graph()
    if isinstance(rule, schema.BucketRule):
        _check_reach(spec, "boundaries", len(rule.boundaries), rows)
        builder = GraphBuilder("float32")
        builder.buckets(builder.last, rule.boundaries)
        return builder.graph()
    if isinstance(rule, schema.KeyedRule):
        return manifest.KeyedIds(keys=spec.entry.table)
    if isinstance(rule, schema.VocabularyRule):
        return _by_vocabulary(spec, rule, rows, job)
    return rule


def _by_vocabulary(
    spec: FeatureSpec, rule: schema.VocabularyRule, rows: int, job: schema.ExportJob
) -> manifest.GraphIds:
    """Returns the rule of a vocabulary that the recipe names; raises as `describe_ids`."""
    if rule.vocabulary not in job.vocabularies:
        known = ", ".join(sorted(job.vocabularies)) or "none"
        raise UsageError(
            f"features.{spec.reads[0]}.ids.vocabulary is {rule.vocabulary!r}; the recipe's "
            f"vocabularies: {known}"
        )
    keys = job.vocabularies[rule.vocabulary].dtype
    if rule.mask is not None and isinstance(rule.mask, str) != (keys == "string"):
        raise UsageError(
            f"features.{spec.reads[0]}.ids.mask is {rule.mask!r}; the vocabulary's keys are {keys}"
        )
    _check_reach(spec, "oov_buckets", (rule.oov_first_row or 0) + rule.oov_buckets - 1, rows)
    builder = GraphBuilder(keys)
    builder.vocabulary(
        builder.last,
        keys,
        manifest.LookupTable(vocabulary=rule.vocabulary, first_value=rule.first_row),
        rule.oov_buckets,
        rule.oov_first_row or 0,
        rule.oov_hash,
        rule.mask,
    )
    return builder.graph()


def _check_reach(spec: FeatureSpec, key: str, last: int, rows: int) -> None:
    if last >= rows:
        raise UsageError(
            f"features.{spec.reads[0]}.ids.{key} reaches row {last}, table "
            f"{spec.entry.table!r} has {rows} rows; these are not the ones of training"
        )
