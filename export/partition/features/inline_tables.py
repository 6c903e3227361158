"""Decides which tables stay inside the towers: small plain ones, and those that a tower reads as a
whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from export.errors import NotConvertible
from export.graphs.functions import bytes_of
from export.graphs.placeholders import line_of_variable, name_of
from export.graphs.walks import needed, resource
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
_FIXED = (
    "give the lookup as many ids of each example, as to_tensor(shape=[None, LENGTH]) does, or "
    "ragged ones"
)


Read = tuple[Any, MissingRule]
"""A variable that a tower reads other than by a recorded lookup; `cure` is "" if it reads no rows.
"""


def find_inline_lookups(
    lookups: Sequence[TracedLookup], reads: Iterable[Read], job: ExportJob, inline_all: bool
) -> tuple[set[TracedLookup], tuple[str, ...]]:
    """Returns the lookups that stay inside the towers.

    Args:
      lookups: The resolved lookups of every call.
      reads: The variables that towers read other than by lookups.
      job: The recipe, with its limits.
      inline_all: Whether tables that plain gathers read stay, whatever their size.

    Returns:
      The lookups, and notes for the plan about large tables that stay.

    Raises:
      NotConvertible: A table cannot be extracted and is too large to stay; the message names the
        user's line and the remedy.
    """
    computed = {lookup for lookup in lookups if lookup.missing_rule}
    extracted_keys = {_key(lookup) for lookup in lookups if not _can_be_inlined(lookup, job)}
    if inline_all:
        inlined = {lookup for lookup in lookups if _key(lookup) not in extracted_keys}
        return computed | inlined, ()

    gathered = {_key(lookup): lookup for lookup in lookups if lookup.gather or lookup.missing_rule}
    reasons = _reasons_of_computed_ids(lookups)
    notes = []
    # A variable that is read several times has one note: that of the last read.
    last_reads = {resource(variable.handle): (variable, read) for variable, read in reads}
    for key, (variable, read) in last_reads.items():
        if key in gathered:
            reasons.setdefault(key, read._replace(cure="read it by lookups only"))
        elif variable.shape[0] > job.code.table_threshold:
            name = name_of(variable)
            line = at_line(line_of_variable(variable))
            subject = f"variable {name!r} {variable.shape.as_list()}{line}"
            reason = read._replace(cure=read.cure or _OUTSIDE)
            note = _within_limit(subject, variable, reason, job)
            # A read of the whole variable is an ordinary matrix of the model.
            if read.cure:
                notes.append(note)
    for key, reason in reasons.items():
        table = gathered[key].table
        variable = gathered[key].variable
        note = _within_limit(f"table {table.name!r} of {table.rows} rows", variable, reason, job)
        # It is no table of the bundle: TensorFlow restores it with the weights.
        variable.restored = True
        if table.rows > job.code.table_threshold:
            notes.append(note)

    small_keys = {
        _key(lookup)
        for lookup in lookups
        if lookup.gather and lookup.table.rows <= job.code.table_threshold
    }
    inline_keys = set(reasons) | (small_keys - extracted_keys)
    inlined = set()
    for lookup in lookups:
        is_plain = lookup.gather and lookup.feature is not None and lookup.feature.plain
        if is_plain and _key(lookup) in inline_keys:
            inlined.add(lookup)
    return inlined | computed, tuple(notes)


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
            reason = (
                f"tower {tower!r} reads it by operation {reader.name!r} "
                f"({reader.type}){at_line(line_of_operation(reader))}"
            )
            cure = ""
            if reader.type in _NESTED:
                cure = _OUTSIDE
            elif reader.type == "ResourceGather":
                cure = cure_of_words(reader.inputs[1]) or _FIXED
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
