"""Decides which tables stay inside the towers: small plain ones, and those that a tower reads as a
whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from export.errors import NotConvertible
from export.graphs.functions import bytes_of
from export.graphs.placeholders import line_of_variable, name_of
from export.graphs.walks import needed, resource
from export.partition.features.inline_lookups import can_be_inlined
from export.partition.ids.remedies import cure_of_words
from export.partition.lookups.records import MissingRule, TracedLookup
from export.recipe.schema import ExportJob
from export.report_text import size_text
from export.user_lines import at_line, line_of_operation

_NESTED = frozenset(
    {"If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase", "PartitionedCall"}
)
"""Operations that run graphs of their own, in which no lookup is recorded."""
_OUTSIDE = "look rows up outside of tf.cond, tf.map_fn and loops"
_LOOKUPS_ONLY = (
    "read it by lookups only: where every row is scored, return the vector, and let an index of "
    "the rows find the best"
)
_FIXED = (
    "give the lookup as many ids of each example, as to_tensor(shape=[None, LENGTH]) does, or "
    "ragged ones"
)


Read = tuple[Any, MissingRule]
"""A variable that a tower reads other than by a recorded lookup; `cure` is "" if it is read as a
whole.
"""


def find_inline_lookups(
    lookups: Sequence[TracedLookup], reads: Iterable[Read], job: ExportJob, inline_all: bool
) -> tuple[dict[TracedLookup, TracedLookup], tuple[str, ...]]:
    """Finds the lookups that stay inside the towers.

    A table either leaves the towers or stays, with all of its lookups: rows that a service changes
    would otherwise change in the lookups alone.

    Args:
      lookups: The resolved lookups of every call.
      reads: The variables that towers read other than by lookups.
      job: The recipe, with its limits.
      inline_all: Whether tables that plain gathers read stay, whatever their size.

    Returns:
      Each such lookup with the one that runs inside its tower, and notes for the plan about large
      tables that stay.

    Raises:
      NotConvertible: A table cannot be extracted, and is too large to stay or has a lookup that
        cannot run inside a tower; the message names the user's line and the remedy.
    """
    looked_up = {_key(lookup): lookup for lookup in lookups if lookup.variable is not None}
    reasons = _reasons_of_computed_ids(lookups)
    notes = []
    # A variable that is read several times has one note: that of the last read.
    last_reads = {resource(variable.handle): (variable, read) for variable, read in reads}
    for key, (variable, read) in last_reads.items():
        if key in looked_up:
            reasons.setdefault(key, read._replace(cure=read.cure or _LOOKUPS_ONLY))
        elif not inline_all:
            notes += _notes_on_matrix(variable, read, job)
    for key, reason in reasons.items():
        table = looked_up[key].table
        variable = looked_up[key].variable
        # It is no table of the bundle: TensorFlow restores it with the weights.
        variable.restored = True
        if inline_all:
            continue
        note = _within_limit(f"table {table.name!r} of {table.rows} rows", variable, reason, job)
        if table.rows > job.code.table_threshold:
            notes.append(note)
    return _inlined(lookups, reasons, job, inline_all), tuple(notes)


def _notes_on_matrix(variable: Any, read: MissingRule, job: ExportJob) -> list[str]:
    """Returns notes about a variable without lookups that a tower reads.

    Raises:
      NotConvertible: It is larger than the recipe allows.
    """
    if variable.shape[0] <= job.code.table_threshold:
        return []
    name = name_of(variable)
    line = at_line(line_of_variable(variable))
    subject = f"variable {name!r} {variable.shape.as_list()}{line}"
    note = _within_limit(subject, variable, read._replace(cure=read.cure or _OUTSIDE), job)
    # A read of the whole variable is an ordinary matrix of the model.
    if not read.cure:
        return []
    return [note]


def _inlined(
    lookups: Sequence[TracedLookup],
    reasons: Mapping[str, MissingRule],
    job: ExportJob,
    inline_all: bool,
) -> dict[TracedLookup, TracedLookup]:
    """Returns the lookups that stay, each with the one that runs inside its tower.

    Args:
      lookups: The resolved lookups of every call.
      reasons: Why tables stay, by their resources.
      job: The recipe.
      inline_all: Whether tables that plain gathers read stay, whatever their size.
    """
    extracted_keys = {_key(lookup) for lookup in lookups if not _can_be_inlined(lookup, job)}
    inlined = {}
    for lookup in lookups:
        key = _key(lookup)
        is_small = inline_all or lookup.table.rows <= job.code.table_threshold
        if lookup.missing_rule is not None:
            inlined[lookup] = lookup
        elif key in reasons:
            inlined[lookup] = _run_inside(lookup, reasons[key])
        elif is_small and lookup.gather and key not in extracted_keys:
            inlined[lookup] = lookup
    return inlined


def _run_inside(lookup: TracedLookup, reason: MissingRule) -> TracedLookup:
    """Returns a resolved lookup as it runs inside a tower, since its table stays there.

    Raises:
      NotConvertible: It cannot run there.
    """
    is_plain = lookup.gather and lookup.feature is not None and lookup.feature.plain
    # Inside a tower the `mod` strategy would read other rows.
    if is_plain and not lookup.variable.mod:
        return lookup
    # The model's own operations compute the ids, so the lookup is the one that the model made.
    original = lookup.unresolved
    if original is None or not can_be_inlined(original):
        raise NotConvertible(
            f"table {lookup.table.name!r} of {lookup.table.rows} rows would stay inside the "
            f"towers, since {reason.reason}, where its lookup {lookup.path!r}"
            f"{at_line(lookup.line)} cannot run; {reason.cure}"
        )
    return replace(
        original,
        activation=lookup.activation,
        position=lookup.position,
        positions=lookup.positions,
        missing_rule=reason,
    )


def _reasons_of_computed_ids(lookups: Iterable[TracedLookup]) -> dict[str, MissingRule]:
    """Returns why tables stay whose ids a tower computes, by their resources: the first reason."""
    reasons: dict[str, MissingRule] = {}
    for lookup in lookups:
        missing = lookup.missing_rule
        if missing is None:
            continue
        # The operation that computes the ids often is in the line of the lookup.
        line = ""
        if lookup.line not in missing.reason:
            line = at_line(lookup.line)
        reason = missing._replace(reason=f"its ids are {missing.reason}{line}")
        reasons.setdefault(_key(lookup), reason)
    return reasons


def _key(lookup: TracedLookup) -> str:
    """Returns the resource of a lookup's table; "" for an indicator, which has none."""
    if lookup.variable is None:
        return ""
    return resource(lookup.variable.handle)


def _can_be_inlined(lookup: TracedLookup, job: ExportJob) -> bool:
    """Returns whether the model's own graph computes a lookup fully, and the recipe does not change
    it.
    """
    if lookup.feature is None:
        return True
    # The variable of an embedding layer is no placeholder, and none of its lookups is a gather.
    if not lookup.gather or not lookup.feature.plain:
        return False
    name = lookup.feature.reads[0]
    recipe_has_rule = False
    if name in job.features:
        recipe_has_rule = bool({"ids", "unknown"} & job.features[name].model_fields_set)
    # Inside a tower the `mod` strategy would read other rows.
    return not (recipe_has_rule or lookup.variable.mod or lookup.table.name in job.tables)


def _within_limit(subject: str, variable: Any, missing: MissingRule, job: ExportJob) -> str:
    """Returns a note about a variable that stays inside the towers.

    Raises:
      NotConvertible: It is larger than the recipe allows.
    """
    size = bytes_of(variable)
    limit = job.code.inline_bytes_max
    if size > limit:
        raise NotConvertible(
            f"{subject} ({size_text(size)}) would stay inside the towers, since {missing.reason}, "
            f"and is larger than code.inline_bytes_max ({size_text(limit)}) allows; "
            f"{missing.cure}; or raise the limit"
        )
    return (
        f"{subject} ({size_text(size)}) stays inside the towers: {missing.reason}; to take it out, "
        f"{missing.cure}"
    )


def find_other_reads(
    tower: str, results: Iterable[Any], stops: Iterable[Any], graph: Any, tables: Mapping[str, Any]
) -> list[Read]:
    """Finds the reads of tables by a tower other than recorded lookups.

    Args:
      tower: The name of the tower.
      results, stops: The outputs of the tower, and the placeholders of lookups.
      graph: The graph of the call.
      tables: The variables that lookups read, by their resources.
    """
    captured = {
        inner.name: tables[resource(outer)]
        for outer, inner in graph.captures
        if resource(outer) in tables
    }
    reads = []
    for operation in needed(results, stops).operations:
        for tensor in operation.inputs:
            if tensor.name not in captured:
                continue
            reader = _reader(operation)
            cure = ""
            extent = " as a whole"
            if reader.type in _NESTED:
                cure = _OUTSIDE
                extent = ""
            elif reader.type == "ResourceGather":
                cure = cure_of_words(reader.inputs[1]) or _FIXED
                extent = ""
            reason = (
                f"tower {tower!r} reads it{extent} by operation {reader.name!r} "
                f"({reader.type}){at_line(line_of_operation(reader))}"
            )
            reads.append((captured[tensor.name], MissingRule(reason, cure)))
    return reads


def _reader(operation: Any) -> Any:
    """Returns the operation that computes with the value of a variable, past the operations that
    only read or move the value.
    """
    while (
        operation.type in ("ReadVariableOp", "Identity", "Cast", "Transpose")
        and operation.outputs[0].consumers()
    ):
        operation = operation.outputs[0].consumers()[0]
    return operation
