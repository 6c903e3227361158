"""Finds the inputs and the id rule behind each lookup of a traced call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export.cuts.graph_rules import FoundIds, find_ids
from export.cuts.places import PARTS, with_places
from export.errors import NotConvertible, UsageError
from export.frameworks import load_tensorflow
from export.model.calling import RawTrace, Recorded
from export.model.origins import Source, Sources, origin, sources_of
from export.settings import InputPart
from export.towers.descriptions import FeatureSpec, TableFacts
from export.user_lines import at_line, line_of_operation


@dataclass(frozen=True, eq=False)
class Resolved:
    """A lookup whose ids are known.

    Attributes:
      recorded: the lookup.
      table: what it reads, under its name in the bundle.
      feature: what it is; without a name as yet.
    """

    recorded: Recorded
    table: TableFacts
    feature: FeatureSpec

    @property
    def plain(self) -> bool:
        """Whether its ids are the rows, taken from a dense input of integers as they are."""
        spec = self.feature
        as_they_are = spec.rule is None and spec.unknown is None and spec.ids_dtype in ("int32", "int64")
        return as_they_are and spec.place is None and len(spec.inputs) == 1 and spec.encoding == "dense"


@dataclass(frozen=True, eq=False)
class Unresolved:
    """A gather whose ids the model computes in a way that no rule tells; `why` ends a sentence."""

    recorded: Recorded
    table: TableFacts
    why: str
    plain = True
    """It can be done nowhere but in the graph."""


def resolve_lookups(
    trace: RawTrace, parts: Mapping[str, InputPart], tables: Mapping[int, TableFacts]
) -> list[Resolved | Unresolved]:
    """Finds what every lookup of a call reads.

    Args:
      trace: the call.
      parts: its inputs.
      tables: by the place of the lookup, what its table is called.
    Raises:
      NotConvertible: a lookup that cannot stay in the graph has ids that are computed; names the user's line.
      UsageError: weights are not declared as such.
    """
    sources = with_places(trace.inputs, sources_of(trace.inputs))
    handles = {inner.name: outer for outer, inner in trace.function.graph.captures}
    return [_resolve(each, tables[place], parts, sources, handles) for place, each in enumerate(trace.lookups)]


def _resolve(
    recorded: Recorded,
    table: TableFacts,
    parts: Mapping[str, InputPart],
    sources: Sources,
    handles: Mapping[str, Any],
) -> Resolved | Unresolved:
    lookup = recorded.lookup
    found = [_ids(lookup.path, ids, sources, handles, table.rows) for ids in lookup.ids]
    for each in found:
        if isinstance(each, str):
            if recorded.gather:
                return Unresolved(recorded, table, each)
            raise NotConvertible(
                f"ids of feature {lookup.path!r} are {each}, not taken from an input as it is; give the embedding "
                "layer an input that holds the rows, and state the rule from id to row in the recipe's "
                "features.<input>.ids"
            )
    known = [each for each in found if isinstance(each, FoundIds)]
    names = tuple(each.source.name for each in known)
    first, part = known[0], parts[names[0]]
    rule, unknown, keys = lookup.rule or first.rule, lookup.unknown or first.unknown, lookup.keys or first.keys
    if lookup.rule is not None and first.rule is not None:
        why = "computed twice over, in front of a column that has a rule of its own"
        raise NotConvertible(f"ids of feature {lookup.path!r} are {why}; give the column the input as it is")
    if rule is None and (part.dtype == "string" or (part.dtype == "float32" and not _cast(lookup.ids[0]))):
        raise NotConvertible(f"input {names[0]!r} is {part.dtype}, and feature {lookup.path!r} takes it as ids")
    one_each = lookup.encoding == "dense" and lookup.kind != "bag"
    places = math.prod(part.shape)
    if one_each and (places if first.source.place is None else 1) != (lookup.length or 1):
        raise NotConvertible(
            f"input {names[0]!r} has shape {part.shape} in each example, and feature {lookup.path!r} is given ids of "
            f"shape {lookup.ids[0].shape}; each example's ids must stay together"
        )
    one_of_them = first.source.place is not None
    feature = FeatureSpec(
        name="",
        table=table.name,
        indicator=table.rows if lookup.variable is None else None,
        kind=lookup.kind,
        encoding=lookup.encoding,
        combiner=lookup.combiner,
        length=lookup.length if lookup.kind == "sequence" else None,
        weights=_weights(recorded, names[0], parts, sources),
        ids_dtype=part.dtype,
        inputs=names,
        rule=rule,
        unknown=unknown,
        keys=keys,
        padding=lookup.padding,
        places=places if lookup.encoding == "dense" and (lookup.kind == "bag" or one_of_them) else None,
        place=first.source.place,
        max_norm=lookup.max_norm if lookup.kind == "bag" else None,
        empty_row=lookup.empty_row,
    )
    return Resolved(recorded, table, feature)


def _cast(ids: Any) -> bool:
    return getattr(ids, "dtype", None) is not None and ids.dtype.is_integer


def _weights(recorded: Recorded, name: str, parts: Mapping[str, InputPart], sources: Sources) -> str | None:
    lookup = recorded.lookup
    if lookup.weights is None:
        return None
    values = lookup.weights.values if hasattr(lookup.weights, "values") else lookup.weights
    source = origin(values, sources)
    if not isinstance(source, Source):
        raise NotConvertible(
            f"weights of feature {lookup.path!r} are computed by {_told(source)} of the model, not taken from an input "
            "as it is; give the model an input that holds them"
        )
    if parts[source.name].weights_for != name:
        raise UsageError(
            f"input {source.name!r} holds the weights of {name!r} in feature {lookup.path!r}; "
            f'write inputs.{source.name}.weights_for = "{name}"'
        )
    return source.name


def _ids(path: str, value: Any, sources: Sources, handles: Mapping[str, Any], rows: int) -> FoundIds | str:
    """Returns where ids come from, or by what they are computed."""
    tf = load_tensorflow()
    if isinstance(value, tf.RaggedTensor):
        values, structure, part = value.values, {"splits": value.row_splits}, "values"
    elif isinstance(value, tf.SparseTensor):
        values, structure, part = value.values, {"indices": value.indices}, "values"
    else:
        values, structure, part = value, {}, "dense"
    found = find_ids(values, sources, handles, rows)
    if not isinstance(found, FoundIds):
        whole = _cut_from(found, sources)
        how = (
            "computed" if whole is None else f"a part of input {whole!r}, which should be an input of its own, cut out"
        )
        return f"{how} by {_told(found)} of the model"
    if found.source.part != part:
        return f"computed by {found.source.name!r} of the model"
    for what, tensor in structure.items():
        source = origin(tensor, sources)
        if not isinstance(source, Source) or source.part != what:
            return f"computed by {_told(source)} of the model"
        if source.name != found.source.name:
            both = ", ".join(sorted({source.name, found.source.name}))
            raise NotConvertible(f"ids of feature {path!r} are put together from inputs {both}")
    return found


def _cut_from(operation: Source | Any, sources: Sources) -> str | None:
    """Returns the input that an operation takes columns out of."""
    if isinstance(operation, Source):
        return operation.name
    found = [_cut_from(origin(tensor, sources), sources) for tensor in operation.inputs if operation.type in PARTS]
    return next((each for each in found if each is not None), None)


def _told(found: Any) -> str:
    if isinstance(found, Source):
        return f"{found.name!r} ({found.part})"
    return f"operation {found.name!r} ({found.type}){at_line(line_of_operation(found))}"
