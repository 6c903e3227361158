"""What the job of a bundle would do, for a terminal and for programs."""

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


def plan_json(prepared: Prepared) -> dict[str, Any]:
    """Returns the plan as JSON values: the tables' plan, what each tower takes and gives, and how
    it is to be run.
    """
    job = prepared.job
    return prepared.plan.to_json() | {
        "destination": str(prepared.destination.location(job.model, prepared.version)),
        "staged_in": str(prepared.destination.root),
        "features": {
            name: entry.model_dump(mode="json", exclude_none=True)
            for name, entry in prepared.entries.items()
        },
        "towers": {
            name: {
                "role": tower.role,
                "features": [source for tensor in tower.inputs for source in tensor.sources],
                "inputs": {tensor.name: len(tensor.sources) for tensor in tower.inputs},
                "outputs": [tensor.name for tensor in tower.outputs],
                "weights": list(tower.variables),
                "formula": job.towers[name].formula,
                "parts": [
                    {
                        "name": part.spec.name,
                        "per": part.spec.per,
                        "features": [
                            source for tensor in part.spec.inputs for source in tensor.sources
                        ],
                        "tensors": [tensor.tensor for tensor in part.spec.inputs if tensor.tensor],
                        "outputs": [tensor.name for tensor in part.spec.outputs],
                        "multiply_adds": part.cost,
                    }
                    for part in (prepared.splits[name].parts if name in prepared.splits else ())
                ],
                "not_in_litert": prepared.not_in_litert[name],
            }
            for name, tower in prepared.traced.spec.towers.items()
        },
        "corpora": sorted(job.corpora),
        "contexts": sorted(job.contexts),
        "indexes": sorted(job.indexes),
        "stages": {name: part.model_dump(mode="json") for name, part in job.stages.items()},
        "index_forecasts": {
            name: asdict(forecast) for name, forecast in prepared.forecasts.items()
        },
        "stays": list(prepared.stays),
        "also_stored": list(prepared.also_stored),
    }


def plan_report(
    prepared: Prepared, source: str, sizes: Sequence[Mapping[str, Any]] = ()
) -> RenderableType:
    """Returns the plan for a terminal: the tables' plan, what `explain` draws of the recipe
    `source`, shards' sizes.
    """
    destination = str(prepared.destination.location(prepared.job.model, prepared.version))
    if prepared.destination.store is not None:
        destination += f", staged in {prepared.destination.root} until it is sent"
    return Group(
        plan_table(prepared.plan),
        Text(explain_text(draw_prepared(prepared, source)) + "\n"),
        *[Text(f"note: {note}") for note in (*prepared.also_stored, *prepared.warnings)],
        *([shard_table(sizes)] if sizes else []),
        Text(f"to be written: {destination}"),
    )
