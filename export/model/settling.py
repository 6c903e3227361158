"""Which tables leave the towers, and which stay: large ones leave, what is read whole stays, small plain ones stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from export.errors import NotConvertible
from export.figures import size_text
from export.frameworks.internals import join
from export.frameworks.loading import load_tensorflow
from export.frameworks.placeholders import bytes_of, line_of_variable
from export.graph.origins import needed, resource
from export.graph.specs import TableFacts
from export.id_rules.recognition import cure_of_words
from export.model.inline_lookups import look_up
from export.model.traced_lookups import Odd, Resolved, Unresolved
from export.recipe.schema import ExportJob
from export.user_lines import at_line, line_of_operation


@dataclass(frozen=True)
class Settled:
    """A call whose lookups are divided.

    Attributes:
      outside: lookups that become features.
      inside: lookups that the towers do themselves.
    """

    outside: tuple[Resolved, ...]
    inside: tuple[Resolved | Unresolved, ...]


@dataclass(frozen=True)
class Read:
    """A tower that reads a table otherwise than by a lookup that can be cut out; `why` ends a sentence.

    `cure`: what to do that it is one; "" where the tower does not look rows up.
    """

    tower: str
    variable: Any
    why: str
    cure: str


def divide(
    calls: Sequence[Sequence[Resolved | Unresolved]], reads: Iterable[Read], job: ExportJob, inside: bool
) -> tuple[list[Settled], tuple[str, ...]]:
    """Decides about the tables of every call at once.

    Args:
      calls: the lookups of each call.
      reads: what towers read of tables beside them.
      job: the recipe, with its limits.
      inside: what plain gathers read stays, whatever its size.
    Returns:
      For each call its division, and notes for the plan: tables that stay though they are not small.
    Raises:
      NotConvertible: a table cannot leave, and is too large to stay; names the user's line and the cure.
    """
    if inside:
        gathered = {_key(each) for call in calls for each in call if isinstance(each, Resolved)}
        gathered -= {_key(each) for call in calls for each in call if not _stays(each, job)}
        every = [[each for each in call if isinstance(each, Unresolved) or _key(each) in gathered] for call in calls]
        return [_divided(*pair) for pair in zip(calls, every, strict=True)], ()
    lookups = [each for call in calls for each in call if each.recorded.gather or isinstance(each, Unresolved)]
    facts = {resource(each.recorded.lookup.variable.handle): each.table for each in lookups}
    because: dict[str, Odd] = {}
    notes = []
    for each in lookups:
        if isinstance(each, Unresolved):
            line = "" if each.recorded.line in each.odd.why else at_line(each.recorded.line)
            because.setdefault(_key(each), each.odd._replace(why=f"its ids are {each.odd.why}{line}"))
    for read in {resource(each.variable.handle): each for each in reads}.values():
        key, why = resource(read.variable.handle), f"tower {read.tower!r} {read.why}"
        if key in facts:
            because.setdefault(key, Odd(why, "read it by lookups only"))
        elif read.variable.shape[0] > job.code.table_threshold:
            told = _checked_weight(read, why, job)
            notes += [f"{told} stays inside the towers; to take it out, {read.cure}"] if read.cure else []
    for key, odd in because.items():
        variable = next(each.recorded.lookup.variable for each in lookups if _key(each) == key)
        notes += _kept(facts[key], variable, odd, job)
    kept = set(because) | _small([each for call in calls for each in call], job)
    divided = []
    for call in calls:
        stay = [
            each
            for each in call
            if isinstance(each, Unresolved) or (each.recorded.gather and _key(each) in kept and each.plain)
        ]
        divided.append(_divided(call, stay))
    return divided, tuple(notes)


def _divided(call: Sequence[Resolved | Unresolved], stay: Sequence[Resolved | Unresolved]) -> Settled:
    leave = [each for each in call if isinstance(each, Resolved) and not any(each is other for other in stay)]
    return Settled(tuple(leave), tuple(stay))


def put_inside(settled: Settled, graph: Any) -> None:
    """Lets the graph of a call do the lookups that stay inside."""
    tf = load_tensorflow()
    for each in settled.inside:
        lookup, activation = each.recorded.lookup, each.recorded.activation
        with graph.as_default():
            values = tf.reshape(look_up(lookup), [-1, *activation.shape.as_list()[1:]])
        if not any(each is lookup.variable for each in graph.variables):
            graph.variables = (*graph.variables, lookup.variable)
        join(activation, values)


def reads_beside(
    tower: str, results: Iterable[Any], stops: Iterable[Any], graph: Any, tables: Mapping[str, Any]
) -> list[Read]:
    """Finds what a tower reads of tables otherwise than by a recorded lookup.

    Args:
      tower: its name.
      results, stops: what it returns, and the placeholders of lookups.
      graph: of the call.
      tables: variables that are gathered from, by their resources.
    """
    found = needed(results, stops)
    captured = {inner.name: tables[resource(outer)] for outer, inner in graph.captures if resource(outer) in tables}
    reads = []
    for operation in found.operations:
        for tensor in operation.inputs:
            if tensor.name not in captured:
                continue
            by = _reader(operation)
            how = f"reads it by operation {by.name!r} ({by.type}){at_line(line_of_operation(by))}"
            cure = _OUTSIDE if by.type in _NESTED else ""
            if by.type == "ResourceGather":
                cure = cure_of_words(by.inputs[1]) or _FIXED
            reads.append(Read(tower, captured[tensor.name], how, cure))
    return reads


def _reader(operation: Any) -> Any:
    """Returns what uses the value of a variable, instead of what merely reads it."""
    while operation.type in ("ReadVariableOp", "Identity", "Cast", "Transpose") and operation.outputs[0].consumers():
        operation = operation.outputs[0].consumers()[0]
    return operation


def _key(each: Resolved | Unresolved) -> str:
    variable = each.recorded.lookup.variable
    return "" if variable is None else resource(variable.handle)


def _kept(table: TableFacts, variable: Any, odd: Odd, job: ExportJob) -> list[str]:
    size, limit = bytes_of(variable), job.code.inline_bytes_max
    told = f"table {table.name!r} of {table.rows} rows ({size_text(size)})"
    if size > limit:
        raise NotConvertible(
            f"{told} cannot be taken out of the model, since {odd.why}, and is larger than code.inline_bytes_max "
            f"({size_text(limit)}) allows inside a tower; {odd.cure}; or raise the limit"
        )
    variable.restored = True
    return (
        [f"{told} stays inside the towers: {odd.why}; to take it out, {odd.cure}"]
        if table.rows > job.code.table_threshold
        else []
    )


_NESTED = frozenset({"If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase", "PartitionedCall"})
_OUTSIDE = "look rows up outside of tf.cond, tf.map_fn and loops"
_FIXED = "give the lookup as many ids of each example, as to_tensor(shape=[None, LENGTH]) does, or ragged ones"


def _checked_weight(read: Read, why: str, job: ExportJob) -> str:
    """Holds a matrix that is never gathered from, or where it cannot be seen, to the same limit; tells what it is."""
    variable = read.variable
    rows, dim = variable.shape.as_list()
    name = variable.name.partition(":")[0]
    size, limit = bytes_of(variable), job.code.inline_bytes_max
    if size > limit:
        raise NotConvertible(
            f"variable {name!r} [{rows}, {dim}]{at_line(line_of_variable(variable))} of {size_text(size)} would stay "
            f"inside, since {why}, and is larger than code.inline_bytes_max ({size_text(limit)}) allows; "
            f"{read.cure or _OUTSIDE}, or raise the limit"
        )
    return f"variable {name!r} [{rows}, {dim}]{at_line(line_of_variable(variable))} of {size_text(size)}, since {why},"


def _stays(each: Resolved | Unresolved, job: ExportJob) -> bool:
    """Tells whether the model's own graph does all that a lookup is, and the recipe says nothing of it."""
    if isinstance(each, Unresolved):
        return True
    told = each.table.name in job.tables or _told_in_recipe(each.feature.inputs[0], job)
    return each.recorded.gather and each.plain and not told and not getattr(each.recorded.lookup.variable, "mod", False)


def _small(lookups: Sequence[Resolved | Unresolved], job: ExportJob) -> set[str]:
    """Returns the tables that stay because they are small and nothing but plain gathers read them."""
    small = {_key(each) for each in lookups if each.recorded.gather and each.table.rows <= job.code.table_threshold}
    for each in lookups:
        if getattr(each.recorded.lookup.variable, "mod", False):  # a tower would find other rows under its ids
            small.discard(_key(each))
        plain = isinstance(each, Resolved) and each.recorded.gather and each.plain
        if not plain or (isinstance(each, Resolved) and _told_in_recipe(each.feature.inputs[0], job)):
            small.discard(_key(each))
    return small


def _told_in_recipe(name: str, job: ExportJob) -> bool:
    """Tells whether the recipe says what ids of an input are: then they are no rows, and cannot go into a tower."""
    return name in job.features and bool({"ids", "unknown"} & job.features[name].model_fields_set)
