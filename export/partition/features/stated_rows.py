"""Inputs that a tower reads as numbers beside a rule of the recipe: the service sends their rows.

Where the recipe states how ids become rows, the model was trained on rows: not only its lookups,
but also what it compares, masks or counts of the same input. Callers send ids, so these numbers
become a feature of their own: an indicator of one number per id, by the same rule.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from export.errors import UsageError
from export.front_end.manifest_features import unknown_of
from export.front_end.specs import FeatureSpec
from export.graphs.internals import join
from export.graphs.walks import needed
from export.partition.features.looked_up_numbers import (
    EXACT_MAX,
    indicator_of_numbers,
    numbers_of,
)
from export.partition.features.traced_lookups import resolve_lookups
from export.partition.graph.pruning import TracedCall
from export.partition.lookups.records import TracedLookup
from export.recipe.schema import ExportJob, FeatureSection
from export.user_lines import at_line, line_of_operation

_REMEDIES = (
    "let the model itself make rows of the ids, in training too; or let it compare what it looked "
    "up instead of the ids"
)


def replace_stated_rows(
    call: TracedCall,
    results: Sequence[Any],
    features: Collection[FeatureSpec],
    rows: Mapping[str, int],
    job: ExportJob,
) -> Iterator[tuple[TracedLookup, FeatureSpec]]:
    """Replaces inputs that a call reads as numbers, where the recipe states which rows they are.

    Args:
      call: The traced call, whose lookups have their placeholders.
      results: The outputs of its towers.
      features: Those of all calls.
      rows: The number of rows of each table.
      job: The recipe.

    Yields:
      Each indicator, with the placeholder of its result, and its feature.

    Raises:
      UsageError: The recipe does not determine the numbers; names the input, the user's line, and
        what to state.
    """
    for name, tensor in call.inputs.items():
        section = job.features.get(name, FeatureSection())
        readers = [
            feature
            for feature in features
            if feature.reads == (name,) and _is_stated(feature, section)
        ]
        if not readers:
            continue
        line = _line_of_reader(tensor, call, results)
        if line is None:
            continue

        count = _row_count(name, readers, rows, section, line)
        size = math.prod(call.sections[name].shape)
        lookup = indicator_of_numbers(name, tensor, count, size)
        (resolved,) = resolve_lookups(call, [lookup])
        assert resolved.feature is not None  # noqa: S101 - its ids are an unchanged input
        join(tensor, numbers_of(lookup, tensor))
        yield resolved, resolved.feature


def _is_stated(spec: FeatureSpec, section: FeatureSection) -> bool:
    """Returns whether the rows that a feature reads are not the ids that callers send."""
    if spec.rule is not None or spec.entry.place is not None:
        return False
    # Rows that are found by key have no numbers of their own: the model takes the keys.
    if section.ids.kind != "identity":
        return section.ids.kind != "keyed"
    # Identities are rows, but for the ids to which the recipe gives a row of unknown ids.
    return spec.unknown is None and section.unknown.rule == "row"


def _line_of_reader(tensor: Any, call: TracedCall, results: Sequence[Any]) -> str | None:
    """Returns the user's line that reads the values of an input, "" if it is unknown; None if
    nothing reads them.
    """
    # A shape depends on no value: the walk ends there.
    operations = call.function.graph.get_operations()
    shapes = [operation.outputs[0] for operation in operations if operation.type == "Shape"]
    values = getattr(tensor, "values", tensor)
    stops = [*call.activations.values(), *shapes]
    for operation in needed(results, stops).operations:
        if any(operand is values for operand in operation.inputs):
            return line_of_operation(operation)
    return None


def _row_count(
    name: str,
    readers: Sequence[FeatureSpec],
    rows: Mapping[str, int],
    section: FeatureSection,
    line: str,
) -> int:
    """Returns how many rows the ids of an input may have, whose numbers a tower reads.

    Raises:
      UsageError: The recipe does not determine the numbers.
    """
    counts = {reader.entry.indicator or rows[reader.entry.table] for reader in readers}
    conflict = (
        f"features.{name}: the recipe makes rows of the ids of this input, and the model also "
        f"reads it as numbers{at_line(line)}"
    )
    first = readers[0]
    if first.encoding != "dense" or first.weights is not None:
        raise UsageError(
            f"{conflict}, which the service computes for dense inputs only; {_REMEDIES}"
        )
    if len(counts) > 1:
        listed = ", ".join(map(str, sorted(counts)))
        raise UsageError(
            f"{conflict}, which are not determined, since it reads tables of {listed} rows; "
            f"{_REMEDIES}"
        )
    (count,) = counts
    if count > EXACT_MAX:
        raise UsageError(
            f"{conflict}, which are exact for up to {EXACT_MAX} rows, and the table has {count}; "
            f"{_REMEDIES}"
        )
    if section.ids.kind == "identity" and first.outside.from_end:
        raise UsageError(
            f"{conflict}; it counts ids below 0 from the end of the table, so that the row of "
            f"unknown ids does not determine the number of each; {_REMEDIES}"
        )
    # Hashes and buckets have a row for every id, so that none is unknown.
    has_row_for_all = section.ids.kind in ("hash", "buckets")
    if not has_row_for_all and unknown_of(first, section).rule == "zeros":
        raise UsageError(
            f"{conflict}; an unknown id, which reads zeros, is no number: state the row that "
            f"unknown ids had in training, as features.{name}.unknown = "
            '{ rule = "row", row = N }, or reject them by { rule = "refuse" }'
        )
    return count
