"""The plan of a bundle's job, for a terminal and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from export.cli.inspect import plan_table
from export.cli.shard_sizes import shard_table
from export.explain.drawing import draw_prepared
from export.explain.text import explain_text
from export.jobs.preparation import Prepared
from export.towers.parts import TracedPart


def plan_json(prepared: Prepared) -> dict[str, Any]:
    """Returns the plan as JSON values: the tables' plan, the inputs and outputs of each tower, and
    whether LiteRT can run it.
    """
    job = prepared.job
    return prepared.plan.to_json() | {
        "destination": str(prepared.destination.location(job.model, prepared.version)),
        "staged_in": str(prepared.destination.root),
        "features": {
            name: entry.model_dump(mode="json", exclude_none=True)
            for name, entry in prepared.entries.items()
        },
        "towers": {name: _tower_json(prepared, name) for name in prepared.traced.spec.towers},
        "corpora": sorted(job.corpora),
        "contexts": sorted(job.contexts),
        "indexes": sorted(job.indexes),
        "stages": {name: stage.model_dump(mode="json") for name, stage in job.stages.items()},
        "index_forecasts": {
            name: asdict(forecast) for name, forecast in prepared.forecasts.items()
        },
        "stays": list(prepared.stays),
        "also_stored": list(prepared.also_stored),
    }


def _tower_json(prepared: Prepared, name: str) -> dict[str, Any]:
    tower = prepared.traced.spec.towers[name]
    parts: Sequence[TracedPart] = ()
    # Only ranking towers are split.
    if name in prepared.splits:
        parts = prepared.splits[name].parts
    return {
        "role": tower.role,
        "features": [source for tensor in tower.inputs for source in tensor.sources],
        "inputs": {tensor.name: len(tensor.sources) for tensor in tower.inputs},
        "outputs": [tensor.name for tensor in tower.outputs],
        "weights": list(tower.variables),
        "formula": prepared.job.towers[name].formula,
        "parts": [_part_json(part) for part in parts],
        "not_in_litert": prepared.not_in_litert[name],
    }


def _part_json(part: TracedPart) -> dict[str, Any]:
    inputs = part.spec.inputs
    return {
        "name": part.spec.name,
        "per": part.spec.per,
        "features": [source for tensor in inputs for source in tensor.sources],
        # Tensors of earlier parts have no features.
        "tensors": [tensor.tensor for tensor in inputs if tensor.tensor],
        "outputs": [tensor.name for tensor in part.spec.outputs],
        "multiply_adds": part.cost,
    }


def plan_report(
    prepared: Prepared, source: str, sizes: Sequence[Mapping[str, Any]] = ()
) -> RenderableType:
    """Returns the plan for a terminal.

    Args:
      prepared: The prepared job.
      source: The name of the recipe.
      sizes: The sizes of shards; (): they are not shown.
    """
    destination = str(prepared.destination.location(prepared.job.model, prepared.version))
    if prepared.destination.store is not None:
        destination += f", staged in {prepared.destination.root} until it is sent"
    parts: list[RenderableType] = [
        plan_table(prepared.plan),
        Text(explain_text(draw_prepared(prepared, source)) + "\n"),
    ]
    notes = (*prepared.also_stored, *prepared.warnings)
    parts += [Text(f"note: {note}") for note in notes]
    if sizes:
        parts.append(shard_table(sizes))
    # The destination comes last, where a reader of a long report looks.
    parts.append(Text(f"to be written: {destination}"))
    return Group(*parts)
