"""Finds the inputs and the id rule of each lookup of a traced call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bundle.format.manifest import (
    ChainedIds,
    ComputedIds,
    CrossedIds,
    EmbeddedFeature,
    GraphIds,
    HashIds,
    IdentityIds,
    IdRule,
    TextIds,
    Unknown,
    VocabularyIds,
)
from export.errors import NotConvertible, UsageError
from export.front_end.specs import FeatureSpec
from export.graphs.loading import tf
from export.id_rules.operations import links_of
from export.recipe.schema import InputPart
from export.tensorflow_models.graph.input_paths import CallGraph, Values
from export.tensorflow_models.graph.origins import Source, sources_of
from export.tensorflow_models.graph.pruning import TracedCall
from export.tensorflow_models.id_rules import crosses, texts
from export.tensorflow_models.id_rules.chains import (
    chained,
    followed_by,
    may_be_none,
)
from export.tensorflow_models.id_rules.graphs import find_rule
from export.tensorflow_models.id_rules.integers import reach_of
from export.tensorflow_models.id_rules.remedies import cure_of, unexplained_operation
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds
from export.tensorflow_models.id_rules.texts import changed_text
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


def _resolve(lookup: Lookup, parts: Mapping[str, InputPart], call: CallGraph) -> list[Lookup]:
    """Resolves a lookup; one whose ids are several values of wide inputs becomes a
    lookup of each.
    """
    changed = _from_changed_text(lookup, call)
    if changed is not None:
        lookup = replace(lookup, rule=None, unknown=None, keys=())
    call = replace(call, from_end=lookup.outside.from_end)
    # With a rule of the lookup's own, its ids are not rows of the table yet.
    rows = lookup.table.rows if lookup.rule is None else None
    found = [_ids(ids, call, rows) for ids in lookup.ids] if changed is None else [changed]
    known = [each for each in found if isinstance(each, ResolvedIds)]
    why = next((each for each in found if isinstance(each, NoRule)), None)
    one = _one_row_per_id(lookup) and lookup.length in (None, 1) and why is not None
    made = crosses.find(lookup.ids[0], call, lookup.table.rows) if one else None
    if made is not None:
        joined = replace(
            lookup, kind="single", length=None, rule=made.rule, unknown=made.unknown, keys=made.keys
        )
        return [_resolved(joined, parts, call, list(map(ResolvedIds, made.sources)))]
    why = why or _computed_weights(lookup, call)
    if not _one_row_per_id(lookup) or (why and why.cure == _COMBINE):
        return _inlined(lookup, why) if why else [_resolved(lookup, parts, call, known)]
    return _resolve_per_id(lookup, known, why, parts, call)


def _resolve_per_id(
    lookup: Lookup,
    known: list[ResolvedIds],
    why: NoRule | None,
    parts: Mapping[str, InputPart],
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


def _ids_per_example(found: ResolvedIds, parts: Mapping[str, InputPart]) -> int:
    """Returns how many ids an example has in a source."""
    return math.prod(parts[found.source.name].shape) if found.source.place is None else 1


def _columns(
    lookup: Lookup, size: int, parts: Mapping[str, InputPart], call: CallGraph
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
    return _no_rule_for(computed[0] if computed else Values(ids), call, rows)


def _resolved(
    lookup: Lookup, parts: Mapping[str, InputPart], call: CallGraph, known: list[ResolvedIds]
) -> Lookup:
    names = tuple(each.source.name for each in known)
    first = known[0]
    part = parts[names[0]]
    made = _combined_rule(known, lookup)
    rule = made.rule
    if rule is not None and made.unknown is None:
        rule = _within_table(rule, lookup)
    if lookup.ids_max is not None and isinstance(rule, TextIds):
        rule = rule.model_copy(update={"length": lookup.ids_max})
    if rule is None and (
        part.dtype == "string" or (part.dtype == "float32" and first.cast is None)
    ):
        raise NotConvertible(
            f"input {names[0]!r} is {part.dtype}, and feature {lookup.path!r} takes it as ids"
        )
    # Padding is an id as it is sent: what a rule computes is compared with nothing.
    as_sent = first.rule is None or isinstance(first.rule, TextIds)
    place = first.source.place
    entry = EmbeddedFeature.model_construct(
        kind=lookup.kind,
        table=lookup.table.name,
        role="context",
        inputs=names,
        ids=rule or IdentityIds(),
        unknown=made.unknown or lookup.outside.unknown,
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
        cast=made.cast,
        filler_row=lookup.filler_row,
        ordinal=lookup.variable is None and lookup.table.dim < lookup.table.rows,
        from_end=lookup.outside.from_end and _may_be_negative(rule, first.unknown),
    )
    dense_bag = lookup.encoding == "dense" and lookup.kind == "bag"
    feature = FeatureSpec(
        name="",
        entry=entry,
        weights=_weights(lookup, names[0], parts, call),
        encoding=lookup.encoding,
        ids_dtype=part.dtype,
        ids_max=math.prod(part.shape) if dense_bag else None,
        has_rule=rule is not None,
        has_unknown=made.unknown is not None,
        outside=lookup.outside,
        keys=made.keys,
        config=lookup.config,
    )
    return replace(lookup, feature=feature)


def _within_table(rule: IdRule, lookup: Lookup) -> IdRule:
    """Returns the rule of a lookup whose computed ids may be outside of its table, and then read
    the nearest row.
    """
    links = links_of(rule)
    if lookup.outside.others != "nearest" or not links:
        return rule
    rows = lookup.table.rows
    limits = lookup.outside.limits(rows)
    last = links[-1]
    if not isinstance(last, ComputedIds):
        always: IdRule = chained((*links, ComputedIds(operations=limits)))
        return always
    low, high = reach_of(last)
    if low >= (-rows if lookup.outside.from_end else 0) and high < rows:
        return rule
    limited: IdRule = chained((*links[:-1], ComputedIds(operations=(*last.operations, *limits))))
    return limited


def _may_be_negative(rule: IdRule | None, unknown: Unknown | None) -> bool:
    if rule is None:
        return unknown is None  # else the model gives ids below 0 the row of unknown ids
    last = rule.rules[-1] if isinstance(rule, ChainedIds) else rule
    if isinstance(last, GraphIds):
        return True
    return isinstance(last, ComputedIds) and reach_of(last)[0] < 0


def _from_changed_text(lookup: Lookup, call: CallGraph) -> ResolvedIds | None:
    """Returns the text that a column of strings reads after changes, with one rule for both; else
    None.
    """
    ids = lookup.ids[0]
    rule = lookup.rule
    if lookup.kind != "single" or not isinstance(rule, HashIds | VocabularyIds):
        return None
    changed = changed_text(ids, call) if ids.dtype.name == "string" else None
    if changed is None or not changed[1]:
        return None
    source, steps = changed
    if lookup.padding is not None and any(step.do not in ("lower", "upper") for step in steps):
        return None  # a change may produce the padding
    return ResolvedIds(source, TextIds(steps=steps, ids=rule), lookup.unknown, lookup.keys)


def _combined_rule(known: list[ResolvedIds], lookup: Lookup) -> ResolvedIds:
    """Combines what the model computes from an input with the lookup's own rule.

    Raises:
      NotConvertible: no rule describes both; names the feature.
    """
    own = ResolvedIds(known[0].source, lookup.rule, lookup.unknown, lookup.keys)
    if own == ResolvedIds(own.source):
        return known[0]
    plain = [each.rule is None and each.cast is None for each in known]
    # One feature has one row of unknown ids.
    alike = [each.unknown in (None, own.unknown) for each in known]
    if all(plain) and all(alike):
        return own
    crossed = isinstance(own.rule, CrossedIds)
    paddings = (
        [key.padding for key in own.rule.keys]
        if isinstance(own.rule, CrossedIds)
        else [lookup.padding]
    )
    computed = (
        f"ids of feature {lookup.path!r} are computed in front of a column that has a rule "
        "of its own"
    )
    for each, padding in zip(known, paddings, strict=True):
        if padding is not None and each.rule is not None and may_be_none(each):
            raise NotConvertible(
                f"{computed}, and may be {padding!r}, which it takes for no id; compute a value "
                "that never is, e.g. a remainder, or give the column the unchanged input"
            )
    made = crosses.crossed_by(known, own) if crossed else followed_by(known[0], own)
    if made is None:
        raise NotConvertible(
            f"{computed}, which no rule describes together; give the column the unchanged input"
        )
    return made


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
    lookup: Lookup, name: str, parts: Mapping[str, InputPart], call: CallGraph
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
        text = None if rows is None else texts.find(values, call, rows, structure.get("splits"))
        return text or _no_rule_for(found, call, rows)
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


def _no_rule_for(values: Values, call: CallGraph, rows: int | None) -> NoRule:
    operation = unexplained_operation(values, call, rows)
    return NoRule(f"computed by {_origin_text(operation)} of the model", cure_of(operation))


def _origin_text(found: Source | Values) -> str:
    if isinstance(found, Source):
        return f"{found.name!r} ({found.part})"
    operation = found.tensor.op
    return f"operation {operation.name!r} ({operation.type}){at_line(line_of_operation(operation))}"
