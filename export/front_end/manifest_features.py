"""Completes the entries of traced features by what the recipe states about them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
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
      UsageError: The recipe names an unknown input or vocabulary, gives an id rule to an input of
        numbers, or must state the role of an input.
    """
    _check_names(model, job)
    # Roles and lengths belong to inputs, which several features may read: they are found once.
    roles = input_roles(model, job)
    lengths = input_lengths(model, job)
    for store, context in job.contexts.items():
        for name in context.features:
            if roles[name] != "context":
                raise UsageError(
                    f"contexts.{store}.features.{name}: features.{name}.role states that it "
                    "belongs to a candidate"
                )

    features: dict[str, manifest.Feature] = {}
    for name, spec in model.features.items():
        if isinstance(spec, DenseSpec):
            features[name] = _dense(spec, model, job, roles, lengths)
        else:
            features[name] = _embedded(spec, model, job, roles, lengths)
    return features


def _check_names(model: ModelSpec, job: schema.ExportJob) -> None:
    """Checks that every feature that the recipe names is an input of the model."""
    for name in job.features:
        _check_input(name, model, job, "features")
    for store, corpus in job.corpora.items():
        for name in corpus.features:
            _check_input(name, model, job, f"corpora.{store}.features")
    for store, context in job.contexts.items():
        for name in context.features:
            _check_input(name, model, job, f"contexts.{store}.features")


def _check_input(name: str, model: ModelSpec, job: schema.ExportJob, section: str) -> None:
    """Checks that a name in a section of the recipe is an input of a feature."""
    if name in model.inputs:
        return
    weighted = [feature.name for feature in model.features.values() if feature.weights == name]
    if weighted:
        raise UsageError(
            f"{section}.{name}: this input holds the weights of feature {weighted[0]!r}, and is "
            "sent with it"
        )
    if name in job.inputs:
        raise UsageError(
            f"{section}.{name}: the recipe declares this input, but no tower's result depends on "
            "it, so the service ignores it; leave this entry out, or, if the call of a tower "
            "needs the input, list it in the tower's 'inputs'"
        )
    close = difflib.get_close_matches(name, model.inputs, n=1)
    if close:
        hint = f"did you mean {close[0]!r}?"
    else:
        hint = f"they take {', '.join(sorted(model.inputs)) or 'none'}"
    raise UsageError(f"{section}.{name}: no tower takes a feature of that name; {hint}")


def _dense(
    spec: DenseSpec, model: ModelSpec, job: schema.ExportJob, roles: Roles, lengths: Lengths
) -> manifest.DenseFeature:
    (name,) = spec.reads
    section = job.features.get(name, schema.FeatureSection())
    reads_no_table = all(isinstance(reader, DenseSpec) for reader in model.inputs[name])
    if reads_no_table and {"ids", "unknown"} & section.model_fields_set:
        raise UsageError(
            f"features.{name}: it reads no table outside of the towers, so it has neither 'ids' "
            "nor 'unknown'"
        )
    stated = {
        "role": roles[name],
        "default": section.default,
        "input_length": lengths.get(name),
    }
    # Built anew, not copied: the constructor validates what the model and the recipe state
    # together.
    return manifest.DenseFeature(**dict(spec.entry) | stated)


def _embedded(
    spec: FeatureSpec, model: ModelSpec, job: schema.ExportJob, roles: Roles, lengths: Lengths
) -> manifest.EmbeddedFeature:
    """Returns the entry of a feature that is looked up, or an indicator.

    Raises:
      UsageError: The recipe contradicts the model, or states a rule that cannot be followed.
    """
    first_input = spec.reads[0]
    section = job.features.get(first_input, schema.FeatureSection())
    rows = model.rows_of(spec)
    unknown_row = section.unknown.row
    if unknown_row is not None and unknown_row >= rows:
        looked_up = f"table {spec.entry.table!r}" if spec.entry.table else "its indicator"
        raise UsageError(
            f"features.{first_input}.unknown.row is {unknown_row}; {looked_up} has {rows} rows"
        )

    # The recipe's rule counts only where the model has none, and its default, identity, states
    # nothing.
    _check_one_rule(spec, model, job)
    rule = spec.rule or describe_ids(spec, section, rows, job)
    _check_keyed(spec, rule, job)
    states_rule = not (spec.has_rule or rule == manifest.IDENTITY)
    if not states_rule:
        rule = spec.entry.ids
    unknown = unknown_of(spec, section)
    # To read the nearest row is a part of the rule: it limits ids, so that none is unknown.
    reads_nearest = spec.outside.outcome == "nearest" and spec.unknown is None
    is_stated = states_rule or spec.has_rule
    if reads_nearest and not is_stated and isinstance(rule, manifest.GraphIds):
        rule = spec.outside.nearest(rows, rule)

    # A feature of several inputs differs between the candidates of a request if any input does.
    role: manifest.Role = "context"
    if any(roles[name] == "candidate" for name in spec.reads):
        role = "candidate"
    stated: dict[str, Any] = {
        "role": role,
        "ids": rule,
        "unknown": unknown,
        "default": section.default,
        "input_length": lengths.get(first_input),
    }
    if spec.entry.joint is not None:
        # Several inputs: each has a role, a default and a length of its own.
        joint = _stated_inputs(spec, spec.entry.joint, job, roles, lengths)
        stated |= {"joint": joint, "default": None, "input_length": None}
    elif states_rule:
        # The model reads rows, and its padding is a row; callers send ids.
        stated |= {"padding": None, "from_end": False}
    return manifest.EmbeddedFeature(**dict(spec.entry) | stated)


def unknown_of(spec: FeatureSpec, section: schema.FeatureSection) -> manifest.Unknown:
    """Returns the rule for a feature's unknown ids: the model's, or else the recipe's.

    Raises:
      UsageError: The model contradicts the recipe's rule.
    """
    if spec.unknown is not None:
        return spec.unknown
    # Nothing is stated: the service does what the model's lookup does, if it defines it.
    if "unknown" not in section.model_fields_set:
        return spec.outside.unknown

    # Ids that a rule of the recipe makes rows of do not reach the model's lookup: only rows do.
    outcome = spec.outside.outcome
    reads_rows = not spec.has_rule and section.ids.kind != "identity"
    where = f"features.{spec.reads[0]}.unknown"
    if outcome == "nearest" and not reads_rows:
        raise UsageError(
            f"{where}: the model itself reads the nearest row of table {spec.entry.table!r} for "
            "an id outside of it; leave it out"
        )
    if outcome == "nearest" and section.unknown.rule == "zeros":
        raise UsageError(
            f"{where} is 'zeros', and the model reads a row of table {spec.entry.table!r} for "
            "every id; state 'row' with the row that unknown ids had in training, or 'refuse'"
        )
    if outcome == "zeros" and not reads_rows and section.unknown.rule == "row":
        raise UsageError(
            f"{where} is row {section.unknown.row}, and the model itself reads zeros for an id "
            f"outside of table {spec.entry.table!r}; state 'zeros' or 'refuse', or leave it out"
        )
    return section.unknown


def _stated_inputs(
    spec: FeatureSpec,
    joint: Sequence[manifest.JointInput],
    job: schema.ExportJob,
    roles: Roles,
    lengths: Lengths,
) -> tuple[manifest.JointInput, ...]:
    """Returns the several inputs of a feature with their roles, defaults and lengths."""
    stated_inputs = []
    for joint_input, name in zip(joint, spec.reads, strict=True):
        section = job.features.get(name, schema.FeatureSection())
        stated = {
            "role": roles[name],
            "default": section.default,
            "input_length": lengths.get(name),
        }
        stated_inputs.append(joint_input.model_copy(update=stated))
    return tuple(stated_inputs)


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
        cure = "but the model makes rows of it"
        if spec.rule is None:
            cure = 'write ids = { kind = "keyed" }'
        raise UsageError(
            f"features.{name}.ids: rows of table {table!r}, a dump, are found by key; {cure}"
        )


def _check_one_rule(spec: FeatureSpec, model: ModelSpec, job: schema.ExportJob) -> None:
    """Rejects a recipe's rule where the model has its own for all that reads the input."""
    for name in spec.reads:
        if name not in job.features:
            continue
        # A rule that one of the readers needs is no contradiction.
        stated = job.features[name].model_fields_set
        readers = [reader for reader in model.inputs[name] if isinstance(reader, FeatureSpec)]
        if "ids" in stated and spec.entry.place is not None:
            raise UsageError(
                f"features.{name}.ids: the model reads ids of this input by their positions, and "
                "each position may have a rule of its own; let the model make rows of them, or "
                "give each position an input of its own"
            )
        if "ids" in stated and all(reader.rule is not None for reader in readers):
            raise UsageError(
                f"features.{name}.ids: the model itself makes rows of this input; leave it out"
            )
        if "unknown" in stated and all(reader.unknown is not None for reader in readers):
            raise UsageError(
                f"features.{name}.unknown: the model itself defines what unknown ids become; leave "
                "it out"
            )


def describe_ids(
    spec: FeatureSpec, section: schema.FeatureSection, rows: int, job: schema.ExportJob
) -> manifest.IdRule:
    """Returns the manifest's form of an id rule that the recipe states.

    Args:
      spec: The feature.
      section: The feature's section of the recipe.
      rows: Number of rows of the feature's table.
      job: The recipe.

    Raises:
      UsageError: The rule names no vocabulary, or does not fit the vocabulary or the table.
    """
    # Rules of a recipe are written as graphs of operations: all ids are computed in one way,
    # whoever states the rule.
    rule = section.ids
    if isinstance(rule, schema.HashRule):
        buckets = rule.buckets or rows
        _check_reach(spec, "buckets", buckets - 1, rows)
        builder = GraphBuilder("int64_or_string")
        builder.hashed(builder.last, buckets)
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
    return manifest.IDENTITY


def _by_vocabulary(
    spec: FeatureSpec, rule: schema.VocabularyRule, rows: int, job: schema.ExportJob
) -> manifest.GraphIds:
    """Returns the rule of a vocabulary that the recipe names; raises as `describe_ids`."""
    key_dtype = job.vocabularies[rule.vocabulary].dtype
    last_oov_row = (rule.oov_first_row or 0) + rule.oov_buckets - 1
    _check_reach(spec, "oov_buckets", last_oov_row, rows)
    builder = GraphBuilder(key_dtype)
    builder.vocabulary(
        builder.last,
        key_dtype,
        manifest.LookupTable(vocabulary=rule.vocabulary, first_value=rule.first_row),
        rule.oov_buckets,
        rule.oov_first_row or 0,
        rule.oov_hash,
        rule.mask,
    )
    return builder.graph()


def _check_reach(spec: FeatureSpec, key: str, last_row: int, rows: int) -> None:
    if last_row >= rows:
        raise UsageError(
            f"features.{spec.reads[0]}.ids.{key} reaches row {last_row}, and table "
            f"{spec.entry.table!r} has {rows} rows; use the {key} that training used"
        )
