"""Finds the inputs and the id rule of each lookup of a traced call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bundle.format.manifest import (
    CrossedIds,
    EmbeddedFeature,
    GraphIds,
    IdentityIds,
    IdRule,
    JoinedIds,
    TextIds,
    Unknown,
)
from export.errors import NotConvertible, UsageError
from export.front_end.specs import FeatureSpec, Keys
from export.graphs.loading import tf
from export.id_graphs.limits import limits_of
from export.recipe.schema import InputSection
from export.tensorflow_models.graph.input_paths import CallGraph, Values
from export.tensorflow_models.graph.origins import Source, sources_of
from export.tensorflow_models.graph.pruning import TracedCall
from export.tensorflow_models.id_graphs import crosses, texts
from export.tensorflow_models.id_graphs.capture import find_rule, only_casts, row_of_others
from export.tensorflow_models.id_graphs.remedies import cure_of
from export.tensorflow_models.id_graphs.resolved_ids import ResolvedIds
from export.tensorflow_models.lookups.records import Lookup, NoRule
from export.tensorflow_models.model.inline_lookups import can_be_inlined
from export.tensorflow_models.model.multi_valued_ids import by_example, columns_of, flattened_from
from export.user_lines import at_line, line_of_operation

_COMBINE = (
    "make the rows dense by tf.reduce_sum or tf.reduce_mean with axis=1, or by "
    "to_tensor(shape=[None, LENGTH]), right after the lookup"
)


def resolve_lookups(call: TracedCall, lookups: Iterable[Lookup]) -> list[Lookup]:
    """Resolves lookups of a call; its tables already have the bundle's names.

    Returns:
      The lookups, each with its feature, or with the reason why it stays in the graph.
    Raises:
      NotConvertible: a lookup that cannot stay in the graph reads computed ids; names the user's
        line.
      UsageError: weights are not declared as such.
    """
    captured = {inner.name: outer for outer, inner in call.function.graph.captures}
    followed = CallGraph(sources_of(call.inputs), captured)
    return [
        replace(resolved, traced=lookup)
        for lookup in lookups
        for resolved in _resolve(lookup, call.parts, followed)
    ]


def _resolve(lookup: Lookup, parts: Mapping[str, InputSection], call: CallGraph) -> list[Lookup]:
    """Resolves a lookup; one whose ids are several values of wide inputs becomes a
    lookup of each.
    """
    call = replace(call, from_end=lookup.outside.from_end)
    # With a rule of the lookup's own, its ids are not rows of the table yet.
    rows = lookup.table.rows if lookup.rule is None else None
    found = [_ids(ids, call, rows) for ids in lookup.ids]
    known = [each for each in found if isinstance(each, ResolvedIds)]
    why = next((each for each in found if isinstance(each, NoRule)), None)
    one = _one_row_per_id(lookup) and lookup.length in (None, 1) and why is not None
    made = crosses.find(lookup.ids[0], call) if one else None
    if made is not None:
        joined = replace(
            lookup, kind="single", length=None, rule=made.rule, unknown=made.unknown, keys=made.keys
        )
        return [_resolved(joined, parts, call, list(map(ResolvedIds, made.sources)))]
    padded = None if why else _computed_padding(lookup, known)
    if padded is not None:
        return _inlined(lookup, padded)
    why = why or _computed_weights(lookup, call)
    if not _one_row_per_id(lookup) or (why and why.cure == _COMBINE):
        return _inlined(lookup, why) if why else [_resolved(lookup, parts, call, known)]
    return _resolve_per_id(lookup, known, why, parts, call)


def _resolve_per_id(
    lookup: Lookup,
    known: list[ResolvedIds],
    why: NoRule | None,
    parts: Mapping[str, InputSection],
    call: CallGraph,
) -> list[Lookup]:
    """Resolves a lookup with a row per id: as one feature if the ids are one input, else as one for
    each position.
    """
    size = lookup.length or 1
    flat = lookup.gather and lookup.ids[0].shape.rank == 1
    if flat and (why or known[0].source.place is None):
        size = flattened_from(lookup.ids[0]) if why else _ids_per_example(known[0], parts)
    if not why and _ids_per_example(known[0], parts) == size:
        whole = lookup if size == (lookup.length or 1) else by_example(lookup, size)
        return [_resolved(whole, parts, call, known)]
    several = _columns(lookup, size, parts, call)
    if not isinstance(several, NoRule):
        several = _computed_padding(lookup, several) or several
    if not isinstance(several, NoRule):
        columns = columns_of(lookup, size)
        return [
            _resolved(each, parts, call, [ids]) for each, ids in zip(columns, several, strict=True)
        ]
    if not why:
        name = known[0].source.name
        shape = lookup.ids[0].shape
        how = (
            f"those of input {name!r}, {parts[name].shape} in each example, in a tensor of shape "
            f"{shape}"
        )
        return _inlined(lookup, NoRule(how, "keep each example's ids together"))
    return _inlined(lookup, several)


def _inlined(lookup: Lookup, why: NoRule) -> list[Lookup]:
    """Returns a lookup that stays in its tower, if it can."""
    if lookup.gather or can_be_inlined(lookup):
        return [replace(lookup, no_rule=why)]
    raise NotConvertible(
        f"ids of feature {lookup.path!r} are {why.why}, not an unchanged input; {why.cure}; your "
        "own rule from id to row can be stated in the recipe's features.<input>.ids"
    )


def _one_row_per_id(lookup: Lookup) -> bool:
    """Returns whether a lookup returns a row per id, for a fixed number of ids per example."""
    return lookup.encoding == "dense" and lookup.kind != "bag" and len(lookup.ids) == 1


def _ids_per_example(found: ResolvedIds, parts: Mapping[str, InputSection]) -> int:
    """Returns how many ids an example has in a source."""
    return math.prod(parts[found.source.name].shape) if found.source.place is None else 1


def _columns(
    lookup: Lookup, size: int, parts: Mapping[str, InputSection], call: CallGraph
) -> list[ResolvedIds] | NoRule:
    """Returns the source and rule of each id of an example, or why one has none."""
    ids = lookup.ids[0]
    rows = lookup.table.rows
    found = [find_rule(Values(ids, place, size), call, rows) for place in range(size)]
    known = [
        each
        for each in found
        if isinstance(each, ResolvedIds) and _ids_per_example(each, parts) == 1
    ]
    if len(known) == size:
        return known
    computed = [each for each in found if isinstance(each, Values)]
    return _no_rule_for(computed[0] if computed else Values(ids))


def _resolved(
    lookup: Lookup, parts: Mapping[str, InputSection], call: CallGraph, known: list[ResolvedIds]
) -> Lookup:
    names = tuple(each.source.name for each in known)
    first = known[0]
    part = parts[names[0]]
    made = _combined_rule(known, lookup)
    rule = _within_table(made, lookup)
    if lookup.ids_max is not None and isinstance(rule, TextIds):
        rule = rule.model_copy(update={"length": lookup.ids_max})
    if rule is None and part.sent_dtype in ("string", "float32"):
        raise NotConvertible(
            f"input {names[0]!r} is {part.sent_dtype}, and feature {lookup.path!r} takes it as ids"
        )
    can_be_stated, unknown = _outside(made, lookup)
    # Padding is an id as it is sent: what the model computes is compared with nothing.
    as_sent = first.rule is None or isinstance(first.rule, TextIds) or _keeps_padding(first, lookup)
    place = first.source.place
    entry = EmbeddedFeature.model_construct(
        kind=lookup.kind,
        table=lookup.table.name,
        role="context",
        inputs=names,
        ids=rule or IdentityIds(),
        unknown=unknown or lookup.outside.unknown,
        combiner=lookup.combiner,
        encoding="ragged" if lookup.encoding == "ragged" else "sparse",
        padding=lookup.padding if as_sent else None,
        weighted=lookup.weights is not None,
        length=lookup.length if lookup.kind == "sequence" else None,
        indicator=lookup.table.rows if lookup.variable is None else None,
        max_norm=lookup.max_norm if lookup.kind == "bag" else None,
        empty_row=lookup.empty_row,
        place=place,
        places=None if place is None else math.prod(part.shape),
        filler_row=lookup.filler_row,
        ordinal=lookup.variable is None and lookup.table.dim < lookup.table.rows,
        from_end=lookup.outside.from_end and _may_be_negative(rule, made),
    )
    dense_bag = lookup.encoding == "dense" and lookup.kind == "bag"
    feature = FeatureSpec(
        name="",
        entry=entry,
        weights=_weights(lookup, names[0], parts, call),
        encoding=lookup.encoding,
        ids_dtype=part.sent_dtype,
        ids_max=math.prod(part.shape) if dense_bag else None,
        has_rule=rule is not None and not can_be_stated,
        has_unknown=unknown is not None,
        outside=lookup.outside,
        keys=made.keys,
        config=lookup.config,
    )
    return replace(lookup, feature=feature)


def _within_table(made: ResolvedIds, lookup: Lookup) -> IdRule | None:
    """Returns the rule of a lookup whose computed ids may be outside of its table, and then read
    the nearest row.
    """
    rule = made.rule
    if lookup.outside.outcome != "nearest" or made.unknown is not None:
        return rule
    graph = rule if isinstance(rule, GraphIds) else None
    if isinstance(rule, JoinedIds):
        graph = rule.ids
    rows = lookup.table.rows
    if graph is None or only_casts(graph, rows):
        return rule
    limits = limits_of(graph, _sizes(made.keys))
    if limits.low >= (-rows if lookup.outside.from_end else 0) and limits.high < rows:
        return rule
    nearest = lookup.outside.nearest(rows, graph)
    return rule.model_copy(update={"ids": nearest}) if isinstance(rule, JoinedIds) else nearest


def _sizes(keys: tuple[Keys, ...]) -> list[int]:
    return [len(one) for one in keys]


def _outside(made: ResolvedIds, lookup: Lookup) -> tuple[bool, Unknown | None]:
    """Returns whether a recipe's rule can take the place of what the model computes, since that
    keeps the rows of the table, and what the model does with ids that are no rows.
    """
    if not isinstance(made.rule, GraphIds):
        return made.rule is None, made.unknown
    rows = lookup.table.rows
    if made.unknown is not None or lookup.rule is not None:
        return False, made.unknown
    if only_casts(made.rule, rows):
        return True, None
    row = row_of_others(made.rule, rows)
    return row is not None, Unknown(rule="row", row=row) if row is not None and row >= 0 else None


def _may_be_negative(rule: IdRule | None, made: ResolvedIds) -> bool:
    if rule is None:
        return made.unknown is None  # else the model gives ids below 0 the row of unknown ids
    return isinstance(rule, GraphIds) and limits_of(rule, _sizes(made.keys)).low < 0


def _keeps_padding(first: ResolvedIds, lookup: Lookup) -> bool:
    """Returns whether what the model computes is the padding where the padding was sent, and only
    there.
    """
    if not isinstance(first.rule, GraphIds):
        return False
    if lookup.padding == "":
        operations = {node.op for node in first.rule.nodes}
        return operations <= {"Input", "StringLower", "StringUpper"}
    return only_casts(first.rule, lookup.table.rows) and first.rule.dtype != "float32"


def _combined_rule(known: list[ResolvedIds], lookup: Lookup) -> ResolvedIds:
    """Combines what the model computes from an input with the lookup's own rule."""
    own = ResolvedIds(known[0].source, lookup.rule, lookup.unknown, lookup.keys)
    if own == ResolvedIds(own.source):
        return known[0]
    if isinstance(own.rule, JoinedIds):
        return own  # it computes all that lies between the inputs and the rows
    if all(ids.rule is None for ids in known):
        return own
    if isinstance(own.rule, CrossedIds):
        return crosses.crossed_by(known, own)
    return crosses.followed_by(known[0], own)


def _computed_padding(lookup: Lookup, known: list[ResolvedIds]) -> NoRule | None:
    """Returns why a column's ids have no rule: the model computes them, and they may be what the
    column takes for no id.
    """
    is_cross = isinstance(lookup.rule, CrossedIds)
    paddings = [lookup.padding for _ in known]
    if isinstance(lookup.rule, CrossedIds):
        paddings = [key.padding for key in lookup.rule.keys]
    for ids, padding in zip(known, paddings, strict=True):
        is_kept = not is_cross and _keeps_padding(ids, lookup)
        if padding is not None and not is_kept and _may_be(padding, ids):
            return NoRule(
                f"computed, and may be {padding!r}, which their column takes for no id",
                "compute a value that never is, e.g. a remainder, or give the column the unchanged "
                "input",
            )
    return None


def _may_be(padding: int | str, ids: ResolvedIds) -> bool:
    """Returns whether ids that the model computes may be the padding of a column."""
    if not isinstance(ids.rule, GraphIds):
        return False
    limits = limits_of(ids.rule, _sizes(ids.keys))
    return isinstance(padding, str) or limits.low <= padding <= limits.high


def _computed_weights(lookup: Lookup, call: CallGraph) -> NoRule | None:
    """Returns why a lookup stays inside: the model computes its weights; None if it does not, or
    cannot stay.
    """
    if lookup.weights is None or not can_be_inlined(lookup):
        return None
    found = call.origin(Values(getattr(lookup.weights, "values", lookup.weights)))
    if isinstance(found, Source):
        return None
    return NoRule(
        f"looked up with weights that are computed by {_origin_text(found)} of the model",
        "give it an input of weights",
    )


def _weights(
    lookup: Lookup, name: str, parts: Mapping[str, InputSection], call: CallGraph
) -> str | None:
    if lookup.weights is None:
        return None
    values = lookup.weights.values if hasattr(lookup.weights, "values") else lookup.weights
    source = call.origin(Values(values))
    if not isinstance(source, Source):
        raise NotConvertible(
            f"weights of feature {lookup.path!r} are computed by {_origin_text(source)} of the "
            "model, not an unchanged input; give the model an input that holds them"
        )
    if parts[source.name].weights_for != name:
        raise UsageError(
            f"input {source.name!r} holds the weights of {name!r} in feature {lookup.path!r}; "
            f'write inputs.{source.name}.weights_for = "{name}"'
        )
    return source.name


def _ids(value: Any, call: CallGraph, rows: int | None) -> ResolvedIds | NoRule:
    """Returns the source and rule of ids, or why they have none."""
    if isinstance(value, tf.RaggedTensor):
        values = value.values
        structure = {"splits": value.row_splits}
        part = "values"
    elif isinstance(value, tf.SparseTensor):
        values = value.values
        structure = {"indices": value.indices}
        part = "values"
    else:
        values = value
        structure = {}
        part = "dense"
    found = find_rule(Values(values), call, rows)
    if not isinstance(found, ResolvedIds):
        splits = structure.get("splits")
        text = None if rows is None or splits is None else texts.find(values, call, splits)
        return text or _no_rule_for(found)
    if found.source.part != part and part == "dense":
        return NoRule(f"those of input {found.source.name!r}, whose ragged rows it reads", _COMBINE)
    if found.source.part != part:
        return NoRule(f"computed by {found.source.name!r} of the model")
    for what, tensor in structure.items():
        source = call.origin(Values(tensor))
        if not isinstance(source, Source) or source.part != what:
            return NoRule(f"computed by {_origin_text(source)} of the model")
        if source.name != found.source.name:
            both = " and ".join(sorted({source.name, found.source.name}))
            return NoRule(f"put together from inputs {both}")
    return found


def _no_rule_for(values: Values) -> NoRule:
    return NoRule(f"computed by {_origin_text(values)} of the model", cure_of(values))


def _origin_text(found: Source | Values) -> str:
    if isinstance(found, Source):
        return f"{found.name!r} ({found.part})"
    operation = found.tensor.op
    return f"operation {operation.name!r} ({operation.type}){at_line(line_of_operation(operation))}"
