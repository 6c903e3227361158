"""Finds the inputs and the id rule of each lookup of a traced call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bundle.format.manifest import (
    IDENTITY,
    EmbeddedFeature,
    GraphIds,
    JointInput,
    Unknown,
)
from export.errors import NotConvertible, UsageError
from export.front_end.specs import FeatureSpec, Keys
from export.graphs.loading import tf
from export.id_graphs.limits import limits_of
from export.partition.features.inline_lookups import can_be_inlined
from export.partition.features.multi_valued_ids import by_example, columns_of, flattened_from
from export.partition.graph.input_paths import CallGraph, Values
from export.partition.graph.origins import Source, sources_of
from export.partition.graph.pruning import TracedCall
from export.partition.ids import crosses, texts
from export.partition.ids.capture import find_rule, only_casts, row_of_others
from export.partition.ids.remedies import cure_of
from export.partition.ids.resolved_ids import ResolvedIds
from export.partition.lookups.records import MissingRule, TracedLookup
from export.recipe.schema import InputSection
from export.user_lines import at_line, line_of_operation

_COMBINE = (
    "make the rows dense by tf.reduce_sum or tf.reduce_mean with axis=1, or by "
    "to_tensor(shape=[None, LENGTH]), right after the lookup"
)


def resolve_lookups(call: TracedCall, lookups: Iterable[TracedLookup]) -> list[TracedLookup]:
    """Resolves lookups of a call; its tables already have the bundle's names.

    Returns:
      The lookups, each with its feature, or with the reason why it stays in the graph.

    Raises:
      NotConvertible: A lookup that cannot stay in the graph reads computed ids; the message names
        the user's line.
      UsageError: Weights are not declared as such.
    """
    captured = {inner.name: outer for outer, inner in call.function.graph.captures}
    call_graph = CallGraph(sources_of(call.inputs), captured)
    resolved_lookups: list[TracedLookup] = []
    for lookup in lookups:
        resolved_lookups += [
            replace(resolved_lookup, unresolved=lookup)
            for resolved_lookup in _resolve(lookup, call.sections, call_graph)
        ]
    return resolved_lookups


def _resolve(
    lookup: TracedLookup, sections: Mapping[str, InputSection], call: CallGraph
) -> list[TracedLookup]:
    """Resolves a lookup; one whose ids are several values of wide inputs becomes a
    lookup of each.
    """
    call = replace(call, from_end=lookup.outside.from_end)
    # With a rule of the lookup's own, its ids are not rows of the table yet.
    rows = lookup.table.rows if lookup.rule is None else None
    resolved: list[ResolvedIds] = []
    missing: MissingRule | None = None
    for ids in lookup.ids:
        ids_or_reason = _ids(ids, call, rows)
        if isinstance(ids_or_reason, ResolvedIds):
            resolved.append(ids_or_reason)
        elif missing is None:
            missing = ids_or_reason

    # No single input has these ids, but several inputs together may.
    if missing is not None and _one_row_per_id(lookup) and lookup.length in (None, 1):
        joined_ids = crosses.find(lookup.ids[0], call)
        if joined_ids is not None:
            return [_resolved_jointly(lookup, joined_ids, sections, call)]

    if missing is None:
        padded = _computed_padding(lookup, resolved)
        if padded is not None:
            return _inlined(lookup, padded)
        missing = _computed_weights(lookup, call)

    # Bags and the values of ragged ids cannot be divided into columns.
    if not _one_row_per_id(lookup) or (missing is not None and missing.cure == _COMBINE):
        if missing is not None:
            return _inlined(lookup, missing)
        return [_resolved(lookup, sections, call, resolved)]
    return _resolve_per_id(lookup, resolved, missing, sections, call)


def _resolved_jointly(
    lookup: TracedLookup,
    joined_ids: ResolvedIds,
    sections: Mapping[str, InputSection],
    call: CallGraph,
) -> TracedLookup:
    """Returns a resolved lookup of one id per example that is computed from several inputs."""
    joined = replace(
        lookup,
        kind="single",
        length=None,
        rule=joined_ids.rule,
        unknown=joined_ids.unknown,
        keys=joined_ids.keys,
    )
    # The rule is the lookup's now: its inputs have none of their own.
    inputs = [ResolvedIds(source) for source in joined_ids.sources]
    return _resolved(joined, sections, call, inputs)


def _resolve_per_id(
    lookup: TracedLookup,
    resolved: list[ResolvedIds],
    missing: MissingRule | None,
    sections: Mapping[str, InputSection],
    call: CallGraph,
) -> list[TracedLookup]:
    """Resolves a lookup with a row per id: as one feature if the ids are one input, else as one for
    each position.
    """
    size = lookup.length or 1
    is_flat = lookup.gather and lookup.ids[0].shape.rank == 1
    # The model may have flattened its ids, as by `tf.reshape(ids, [-1])`: the batch of the lookup
    # is then that of the examples times their number of ids.
    if is_flat and missing is not None:
        size = flattened_from(lookup.ids[0])
    elif is_flat and resolved[0].source.position is None:
        size = _ids_per_example(resolved[0], sections)

    if missing is None and _ids_per_example(resolved[0], sections) == size:
        whole = lookup
        if size != (lookup.length or 1):
            whole = by_example(lookup, size)
        return [_resolved(whole, sections, call, resolved)]

    columns = _columns(lookup, size, sections, call)
    if not isinstance(columns, MissingRule):
        columns = _computed_padding(lookup, columns) or columns
    if not isinstance(columns, MissingRule):
        return [
            _resolved(column_lookup, sections, call, [ids])
            for column_lookup, ids in zip(columns_of(lookup, size), columns, strict=True)
        ]
    if missing is not None:
        return _inlined(lookup, columns)

    name = resolved[0].source.name
    reason = (
        f"those of input {name!r}, {sections[name].shape} in each example, in a tensor of shape "
        f"{lookup.ids[0].shape}"
    )
    return _inlined(lookup, MissingRule(reason, "keep each example's ids together"))


def _inlined(lookup: TracedLookup, missing: MissingRule) -> list[TracedLookup]:
    """Returns a lookup that stays in its tower, if it can.

    Raises:
      NotConvertible: It cannot.
    """
    if lookup.gather or can_be_inlined(lookup):
        return [replace(lookup, missing_rule=missing)]
    raise NotConvertible(
        f"ids of feature {lookup.path!r} are {missing.reason}, not an unchanged input; "
        f"{missing.cure}; your own rule from id to row can be stated in the recipe's "
        "features.<input>.ids"
    )


def _one_row_per_id(lookup: TracedLookup) -> bool:
    """Returns whether a lookup returns a row per id, for a fixed number of ids per example."""
    return lookup.encoding == "dense" and lookup.kind != "bag" and len(lookup.ids) == 1


def _ids_per_example(ids: ResolvedIds, sections: Mapping[str, InputSection]) -> int:
    """Returns how many ids an example has in a source."""
    if ids.source.position is not None:
        return 1
    return math.prod(sections[ids.source.name].shape)


def _columns(
    lookup: TracedLookup, size: int, sections: Mapping[str, InputSection], call: CallGraph
) -> list[ResolvedIds] | MissingRule:
    """Returns the source and rule of each id of an example, or why one has none."""
    ids = lookup.ids[0]
    columns = []
    first_computed: Values | None = None
    for position in range(size):
        column = find_rule(Values(ids, position, size), call, lookup.table.rows)
        if isinstance(column, Values):
            # A message names one operation: the one of the first id without a rule.
            first_computed = first_computed or column
        elif _ids_per_example(column, sections) == 1:
            columns.append(column)
    if len(columns) == size:
        return columns
    return _missing_rule_for(first_computed or Values(ids))


def _resolved(
    lookup: TracedLookup,
    sections: Mapping[str, InputSection],
    call: CallGraph,
    resolved: list[ResolvedIds],
) -> TracedLookup:
    """Returns a lookup with the feature that reads the rows of its resolved ids.

    Raises:
      NotConvertible: The input is no integer, and nothing makes integers of it.
      UsageError: Weights are not declared as such.
    """
    names = tuple(ids.source.name for ids in resolved)
    first = resolved[0]
    section = sections[names[0]]
    combined = _combined_rule(resolved, lookup)
    rule = _within_table(combined, lookup)
    if rule is not None and rule.split is not None and lookup.ids_max is not None:
        rule = rule.cut(lookup.ids_max)
    if rule is None and section.sent_dtype in ("string", "float32"):
        raise NotConvertible(
            f"input {names[0]!r} is {section.sent_dtype}, and feature {lookup.path!r} takes it as "
            f'ids: write inputs.{names[0]}.dtype = "int64" and, if clients send keys, the file of '
            f"these as vocabularies.NAME.file and features.{names[0]}.ids = "
            '{ kind = "vocabulary", vocabulary = "NAME" }'
        )

    can_be_stated, unknown = _outside(combined, lookup)
    entry = EmbeddedFeature.model_construct(
        kind=lookup.kind,
        table=lookup.table.name,
        role="context",
        inputs=names,
        joint=_joint_inputs(resolved, lookup),
        ids=rule or IDENTITY,
        unknown=unknown or lookup.outside.unknown,
        combiner=lookup.combiner,
        weighted=lookup.weights is not None,
        empty_row=lookup.empty_row,
        filler_row=lookup.filler_row,
        ordinal=lookup.variable is None and lookup.table.dim < lookup.table.rows,
        from_end=lookup.outside.from_end and _may_be_negative(rule, combined),
        **_layout(lookup, first, section),
    )
    ids_max = None
    if lookup.encoding == "dense" and lookup.kind == "bag":
        ids_max = math.prod(section.shape)
    feature = FeatureSpec(
        name="",
        entry=entry,
        weights=_weights(lookup, names[0], sections, call),
        encoding=lookup.encoding,
        ids_dtype=section.sent_dtype,
        ids_max=ids_max,
        has_rule=rule is not None and not can_be_stated,
        has_unknown=unknown is not None,
        outside=lookup.outside,
        keys=combined.keys,
        config=lookup.config,
    )
    return replace(lookup, feature=feature)


def _layout(lookup: TracedLookup, first: ResolvedIds, section: InputSection) -> dict[str, Any]:
    """Returns the fields of a feature's entry that say which values an example has.

    Args:
      lookup: The lookup.
      first: Its first ids.
      section: The input that these come from.
    """
    fields: dict[str, Any] = dict.fromkeys(
        ("padding", "length", "indicator", "max_norm", "place", "places")
    )
    fields["encoding"] = "sparse"
    if lookup.encoding == "ragged":
        fields["encoding"] = "ragged"
    # Padding is an id as it is sent: what the model computes is compared with nothing.
    if first.rule is None or first.is_text or _keeps_padding(first, lookup):
        fields["padding"] = lookup.padding
    if lookup.kind == "sequence":
        fields["length"] = lookup.length
    if lookup.variable is None:
        fields["indicator"] = lookup.table.rows
    # Only the service clips rows of bags; towers clip all others.
    if lookup.kind == "bag":
        fields["max_norm"] = lookup.max_norm
    if first.source.position is not None:
        fields["place"] = first.source.position
        fields["places"] = math.prod(section.shape)
    return fields


def _within_table(combined: ResolvedIds, lookup: TracedLookup) -> GraphIds | None:
    """Returns the rule of a lookup whose computed ids may be outside of its table, and then read
    the nearest row.
    """
    rule = combined.rule
    if lookup.outside.outcome != "nearest" or combined.unknown is not None:
        return rule
    rows = lookup.table.rows
    if rule is None or rule.cross is not None or only_casts(rule, rows):
        return rule

    limits = limits_of(rule, _sizes(combined.keys))
    low = -rows if lookup.outside.from_end else 0
    if low <= limits.low and limits.high < rows:
        return rule
    return lookup.outside.nearest(rows, rule)


def _sizes(vocabularies: tuple[Keys, ...]) -> list[int]:
    return [len(keys) for keys in vocabularies]


def _outside(combined: ResolvedIds, lookup: TracedLookup) -> tuple[bool, Unknown | None]:
    """Returns whether a recipe's rule can take the place of what the model computes, since that
    keeps the rows of the table, and what the model does with ids that are no rows.
    """
    if combined.rule is None or combined.other_sources or combined.is_text:
        return combined.rule is None, combined.unknown
    rows = lookup.table.rows
    if combined.unknown is not None or lookup.rule is not None:
        return False, combined.unknown
    if only_casts(combined.rule, rows):
        return True, None
    # A check of bounds in the user's code, such as tf.where(ids < ROWS, ids, 0).
    row = row_of_others(combined.rule, rows)
    if row is None:
        return False, None
    if row < 0:
        return True, None
    return True, Unknown(rule="row", row=row)


def _may_be_negative(rule: GraphIds | None, combined: ResolvedIds) -> bool:
    if rule is None:
        # Otherwise the model gives ids below 0 the row of unknown ids.
        return combined.unknown is None
    return limits_of(rule, _sizes(combined.keys)).low < 0


def _keeps_padding(first: ResolvedIds, lookup: TracedLookup) -> bool:
    """Returns whether what the model computes is the padding where the padding was sent, and only
    there.
    """
    if first.rule is None:
        return False
    if lookup.padding == "":
        operations = {node.op for node in first.rule.nodes}
        return operations <= {"Input", "StringLower", "StringUpper"}
    return only_casts(first.rule, lookup.table.rows) and first.rule.dtype != "float32"


def _combined_rule(resolved: list[ResolvedIds], lookup: TracedLookup) -> ResolvedIds:
    """Combines what the model computes from an input with the lookup's own rule."""
    first, *following = (ids.source for ids in resolved)
    lookup_rule = ResolvedIds(
        first, lookup.rule, lookup.unknown, lookup.keys, other_sources=tuple(following)
    )
    if lookup_rule == ResolvedIds(first):
        return resolved[0]
    if all(ids.rule is None for ids in resolved):
        return lookup_rule
    return crosses.followed_by(resolved, lookup_rule)


def _joint_inputs(
    resolved: list[ResolvedIds], lookup: TracedLookup
) -> tuple[JointInput, ...] | None:
    """Returns the several inputs of a lookup; None if it has one."""
    if len(resolved) == 1:
        return None
    paddings = list(lookup.paddings or (None,) * len(resolved))
    for position, ids in enumerate(resolved):
        # Callers send what the model takes; a padding would be compared with that.
        if ids.rule is not None:
            paddings[position] = None
    return tuple(JointInput(padding=padding) for padding in paddings)


def _computed_padding(lookup: TracedLookup, resolved: list[ResolvedIds]) -> MissingRule | None:
    """Returns why a column's ids have no rule: the model computes them, and they may be what the
    column takes for no id.
    """
    paddings = lookup.paddings or [lookup.padding for _ in resolved]
    for ids, padding in zip(resolved, paddings, strict=True):
        is_kept = not lookup.paddings and _keeps_padding(ids, lookup)
        if padding is not None and not is_kept and _may_be(padding, ids):
            return MissingRule(
                f"computed, and may be {padding!r}, which their column takes for no id",
                "compute a value that never is, e.g. a remainder, or give the column the unchanged "
                "input",
            )
    return None


def _may_be(padding: int | str, ids: ResolvedIds) -> bool:
    """Returns whether ids that the model computes may be the padding of a column."""
    if ids.rule is None:
        return False
    limits = limits_of(ids.rule, _sizes(ids.keys))
    return isinstance(padding, str) or limits.low <= padding <= limits.high


def _computed_weights(lookup: TracedLookup, call: CallGraph) -> MissingRule | None:
    """Returns why a lookup stays inside: the model computes its weights; None if it does not, or
    cannot stay.
    """
    if lookup.weights is None or not can_be_inlined(lookup):
        return None
    origin = call.origin(Values(getattr(lookup.weights, "values", lookup.weights)))
    if isinstance(origin, Source):
        return None
    return MissingRule(
        f"looked up with weights that are computed by {_origin_text(origin)} of the model",
        "give it an input of weights",
    )


def _weights(
    lookup: TracedLookup, name: str, sections: Mapping[str, InputSection], call: CallGraph
) -> str | None:
    """Returns the input of a lookup's weights; None if it has none.

    Raises:
      NotConvertible: The model computes them.
      UsageError: The recipe does not declare them as weights of the ids in input `name`.
    """
    if lookup.weights is None:
        return None
    source = call.origin(Values(getattr(lookup.weights, "values", lookup.weights)))
    if not isinstance(source, Source):
        raise NotConvertible(
            f"weights of feature {lookup.path!r} are computed by {_origin_text(source)} of the "
            "model, not an unchanged input; give the model an input that holds them"
        )
    if sections[source.name].weights_for != name:
        raise UsageError(
            f"input {source.name!r} holds the weights of {name!r} in feature {lookup.path!r}; "
            f'write inputs.{source.name}.weights_for = "{name}"'
        )
    return source.name


def _ids(value: Any, call: CallGraph, rows: int | None) -> ResolvedIds | MissingRule:
    """Returns the source and rule of ids, or why they have none."""
    values = value
    structure: dict[str, Any] = {}
    if isinstance(value, tf.RaggedTensor):
        values = value.values
        structure = {"splits": value.row_splits}
    elif isinstance(value, tf.SparseTensor):
        values = value.values
        structure = {"indices": value.indices}
    expected_source_part = "values" if structure else "dense"

    resolved = find_rule(Values(values), call, rows)
    if not isinstance(resolved, ResolvedIds):
        words = None
        if rows is not None and "splits" in structure:
            words = texts.find(values, call, structure["splits"])
        return words or _missing_rule_for(resolved)

    name = resolved.source.name
    if resolved.source.part != expected_source_part and not structure:
        return MissingRule(f"those of input {name!r}, whose ragged rows it reads", _COMBINE)
    if resolved.source.part != expected_source_part:
        return MissingRule(f"computed by {name!r} of the model")
    # The ids of an example must be those that callers send for it, not regrouped ones.
    for expected_part, tensor in structure.items():
        source = call.origin(Values(tensor))
        if not isinstance(source, Source) or source.part != expected_part:
            return MissingRule(f"computed by {_origin_text(source)} of the model")
        if source.name != name:
            names = " and ".join(sorted({source.name, name}))
            return MissingRule(f"put together from inputs {names}")
    return resolved


def _missing_rule_for(values: Values) -> MissingRule:
    return MissingRule(f"computed by {_origin_text(values)} of the model", cure_of(values))


def _origin_text(origin: Source | Values) -> str:
    """Returns an input, or the operation that computes values with its line, for a message."""
    if isinstance(origin, Source):
        return f"{origin.name!r} ({origin.part})"
    operation = origin.tensor.op
    return f"operation {operation.name!r} ({operation.type}){at_line(line_of_operation(operation))}"
