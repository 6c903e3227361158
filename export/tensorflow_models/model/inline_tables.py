"""Decides which tables stay inside the towers: small plain ones, and those that a tower reads as a
whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from export.errors import NotConvertible
from export.graphs.functions import bytes_of
from export.graphs.walks import needed, resource
from export.recipe.schema import ExportJob
from export.report_text import size_text
from export.tensorflow_models.frameworks.placeholders import line_of_variable
from export.tensorflow_models.id_graphs.remedies import cure_of_words
from export.tensorflow_models.lookups.records import Lookup, NoRule
from export.user_lines import at_line, line_of_operation

_NESTED = frozenset(
    {"If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase", "PartitionedCall"}
)
_OUTSIDE = "look rows up outside of tf.cond, tf.map_fn and loops"
_FIXED = (
    "give the lookup as many ids of each example, as to_tensor(shape=[None, LENGTH]) does, or "
    "ragged ones"
)


Read = tuple[Any, NoRule]
"""A variable that a tower reads other than by a recorded lookup; `cure` is "" if it reads no rows.
"""


def find_inline_lookups(
    lookups: Sequence[Lookup], reads: Iterable[Read], job: ExportJob, inline_all: bool
) -> tuple[set[Lookup], tuple[str, ...]]:
    """Returns the lookups that stay inside the towers.

    Args:
      lookups: of every call, resolved.
      reads: how towers read tables other than by lookups.
      job: the recipe, with its limits.
      inline_all: tables that plain gathers read stay, whatever their size.
    Returns:
      The lookups, and notes for the plan about large tables that stay.
    Raises:
      NotConvertible: a table cannot be extracted and is too large to stay; names the user's line
        and the cure.
    """
    leaving = {_key(each) for each in lookups if not _can_be_inlined(each, job)}
    if inline_all:
        return {each for each in lookups if each.no_rule or _key(each) not in leaving}, ()
    gathered = {_key(each): each for each in lookups if each.gather or each.no_rule}
    reasons: dict[str, NoRule] = {}
    notes = []
    for each in lookups:
        if each.no_rule:
            line = "" if each.line in each.no_rule.why else at_line(each.line)
            reasons.setdefault(
                _key(each), each.no_rule._replace(why=f"its ids are {each.no_rule.why}{line}")
            )
    for key, (variable, read) in {
        resource(variable.handle): (variable, read) for variable, read in reads
    }.items():
        if key in gathered:
            reasons.setdefault(key, read._replace(cure="read it by lookups only"))
        elif variable.shape[0] > job.code.table_threshold:
            name = variable.name.partition(":")[0]
            line = at_line(line_of_variable(variable))
            what = f"variable {name!r} {variable.shape.as_list()}{line}"
            note = _within_limit(what, variable, read._replace(cure=read.cure or _OUTSIDE), job)
            notes += [note] if read.cure else []
    for key, reason in reasons.items():
        table = gathered[key].table
        variable = gathered[key].variable
        note = _within_limit(f"table {table.name!r} of {table.rows} rows", variable, reason, job)
        variable.restored = True
        notes += [note] if table.rows > job.code.table_threshold else []
    small = {
        _key(each)
        for each in lookups
        if each.gather and each.table.rows <= job.code.table_threshold
    }
    stay = set(reasons) | (small - leaving)
    plain = {
        each
        for each in lookups
        if each.gather and _key(each) in stay and each.feature and each.feature.plain
    }
    return plain | {each for each in lookups if each.no_rule}, tuple(notes)


def _key(lookup: Lookup) -> str:
    return "" if lookup.variable is None else resource(lookup.variable.handle)


def _can_be_inlined(lookup: Lookup, job: ExportJob) -> bool:
    """Returns whether the model's own graph computes a lookup fully, and the recipe does not change
    it.
    """
    if lookup.feature is None:
        return True
    name = lookup.feature.reads[0]
    ruled = name in job.features and bool({"ids", "unknown"} & job.features[name].model_fields_set)
    # Inside a tower the `mod` strategy would read other rows.
    return (
        lookup.gather
        and lookup.feature.plain
        and not (ruled or lookup.variable.mod or lookup.table.name in job.tables)
    )


def _within_limit(what: str, variable: Any, why: NoRule, job: ExportJob) -> str:
    """Returns a note about a variable that stays inside the towers.

    Raises:
      NotConvertible: it is larger than the recipe allows.
    """
    size = bytes_of(variable)
    limit = job.code.inline_bytes_max
    if size > limit:
        raise NotConvertible(
            f"{what} ({size_text(size)}) would stay inside the towers, since {why.why}, and is "
            "larger than "
            f"code.inline_bytes_max ({size_text(limit)}) allows; {why.cure}; or raise the limit"
        )
    return (
        f"{what} ({size_text(size)}) stays inside the towers: {why.why}; to take it out, {why.cure}"
    )


def find_other_reads(
    tower: str, results: Iterable[Any], stops: Iterable[Any], graph: Any, tables: Mapping[str, Any]
) -> list[Read]:
    """Finds how a tower reads tables other than by a recorded lookup.

    Args:
      tower: its name.
      results, stops: its outputs, and the placeholders of lookups.
      graph: the graph of the call.
      tables: variables that lookups read, by their resources.
    """
    found = needed(results, stops)
    captured = {
        inner.name: tables[resource(outer)]
        for outer, inner in graph.captures
        if resource(outer) in tables
    }
    reads = []
    for operation, tensor in [
        (each, tensor) for each in found.operations for tensor in each.inputs
    ]:
        if tensor.name not in captured:
            continue
        by = _reader(operation)
        how = (
            f"tower {tower!r} reads it by operation {by.name!r} "
            f"({by.type}){at_line(line_of_operation(by))}"
        )
        cure = _OUTSIDE if by.type in _NESTED else ""
        if by.type == "ResourceGather":
            cure = cure_of_words(by.inputs[1]) or _FIXED
        reads.append((captured[tensor.name], NoRule(how, cure)))
    return reads


def _reader(operation: Any) -> Any:
    """Returns the operation that uses the value of a variable, past those that only read or move
    it.
    """
    while (
        operation.type in ("ReadVariableOp", "Identity", "Cast", "Transpose")
        and operation.outputs[0].consumers()
    ):
        operation = operation.outputs[0].consumers()[0]
    return operation
