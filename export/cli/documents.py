"""What commands found, planned, wrote and verified, as JSON values: `--json` prints these
documents, and `report` shows them on a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from bundle.format.features import inputs_of
from bundle.format.indexes import RecallCurve
from bundle.format.manifest import DenseFeature, EmbeddedFeature, GraphIds, Manifest
from bundle.format.towers import state_bytes
from export.checkpoint.formats.object_graph import VARIABLE_SUFFIX, ObjectGraph
from export.checkpoint.inventory.specs import Inventory, TableSpec
from export.id_graphs.limits import limits_of
from export.jobs.executors import worker_count

# At run time, these would load TensorFlow, which takes seconds.
if TYPE_CHECKING:
    from export.jobs.preparation import Prepared
    from export.jobs.saved_model_job import PreparedInline
    from export.jobs.staged import Published
    from export.jobs.tables_job import PreparedTables
    from export.recipe.settings import ExportSettings
    from export.towers.division import Split
    from export.verify.published import Verified

Document = dict[str, Any]


def inspected(
    inventory: Inventory, problems: Sequence[str] = (), graph: ObjectGraph | None = None
) -> Document:
    """Returns the content of a checkpoint; every variable is in it once.

    Args:
      inventory: The inventory that `recognize` returned.
      problems: The problems of the checkpoint's data files; none if it is complete.
      graph: The object graph, by which variables have the names of their layers; None: there is
        none.
    """
    dense = []
    for entry in inventory.dense:
        # The shortest name by which `--table` finds the variable: its path by the layers if its
        # key leads through an optimizer, else its key without the suffix of TensorFlow.
        name = entry.key.removesuffix(VARIABLE_SUFFIX)
        path = ""
        if graph is not None:
            path = graph.paths_by_key.get(entry.key, "")
        if path and path != name.replace("/", "."):
            name = path
        dense.append(
            {
                "key": entry.key,
                "name": name,
                "shape": entry.shape,
                "dtype": entry.dtype,
                "bytes": entry.bytes,
            }
        )
    return {
        "checkpoint": inventory.checkpoint,
        "fingerprint": inventory.fingerprint,
        "storage": inventory.storage,
        "saved_by": "objects" if inventory.objects else "names",
        "step": inventory.step,
        "complete": not problems,
        "problems": list(problems),
        "notes": list(inventory.notes),
        "tables": {spec.name: _table(spec) for spec in inventory.tables},
        "rejected": [asdict(rejected) for rejected in inventory.rejected],
        # Empty texts of the inventory are null in JSON.
        "slots": [
            {
                "name": slot.name,
                "key": slot.key,
                "of": slot.trained_key or None,
                "bytes": slot.bytes,
            }
            for slot in inventory.slots
        ],
        "slot_bytes": inventory.slot_bytes,
        "duplicates": [
            {"key": duplicate.key, "of": duplicate.original_key, "bytes": duplicate.bytes}
            for duplicate in inventory.duplicates
        ],
        "dense": dense,
        "candidates": [entry.key for entry in inventory.candidates],
    }


def _table(spec: TableSpec) -> Document:
    values = asdict(replace(spec, slots=()))
    # The name is the key of this object. `inspect` reads no rows, so it proves no layout.
    del values["name"]
    del values["proof"]
    return values | {
        "layout": spec.layout_json,
        "slots": [slot.name for slot in spec.slots],
        "keys": spec.keys or None,
        "note": spec.note or None,
        "combiner": spec.combiner or None,
    }


def planned_tables(prepared: PreparedTables) -> Document:
    """Returns the plan of tables without a model."""
    document = prepared.plan.to_json()
    document["notes"] += prepared.notes
    return document


def planned(prepared: Prepared) -> Document:
    """Returns the plan of a bundle: that of its tables, the inputs and outputs of each tower, and
    whether LiteRT can run it.
    """
    job = prepared.job
    document = prepared.plan.to_json()
    document["notes"] += (*prepared.also_stored, *prepared.warnings)
    return document | {
        "destination": str(prepared.destination.location(job.model, prepared.version)),
        "staged_in": str(prepared.destination.root),
        "features": {
            name: entry.model_dump(mode="json", exclude_none=True)
            for name, entry in prepared.entries.items()
        },
        "towers": {name: _tower(prepared, name) for name in prepared.traced.spec.towers},
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


def _tower(prepared: Prepared, name: str) -> Document:
    tower = prepared.traced.spec.towers[name]
    parts = []
    extension = None
    # Only ranking towers are split.
    if name in prepared.splits:
        for part in prepared.splits[name].parts:
            inputs = part.spec.inputs
            parts.append(
                {
                    "name": part.spec.name,
                    "per": part.spec.per,
                    "features": [source for tensor in inputs for source in tensor.sources],
                    # Tensors of earlier parts have no features.
                    "tensors": [tensor.tensor for tensor in inputs if tensor.tensor],
                    "outputs": [tensor.name for tensor in part.spec.outputs],
                    "multiply_adds": part.cost,
                }
            )
        extension = _extension(prepared.splits[name])
    return {
        "role": tower.role,
        "features": [source for tensor in tower.inputs for source in tensor.sources],
        "inputs": {tensor.name: len(tensor.sources) for tensor in tower.inputs},
        "outputs": [tensor.name for tensor in tower.outputs],
        "weights": list(tower.variables),
        "formula": prepared.job.towers[name].formula,
        "parts": parts,
        "extension": extension,
        "not_in_litert": prepared.not_in_litert[name],
    }


def _extension(split: Split) -> Document | None:
    """Returns how the state of a context is extended; None: it is computed anew."""
    extension = split.extension
    if extension is None:
        return None
    (part,) = [part for part in split.parts if part.spec.name == extension.of]
    size = state_bytes(part.spec)
    return {
        "part": extension.of,
        "events": extension.events,
        "multiply_adds": extension.part.cost,
        "state_bytes": size,
        "bytes_per_event": size and size // extension.positions,
    }


def planned_inline(prepared: PreparedInline, settings: ExportSettings) -> Document:
    """Returns the plan of a self-contained SavedModel."""
    plan = prepared.variables
    workers = worker_count(settings.workers)
    return prepared.description() | {
        "checkpoint": prepared.inventory.checkpoint,
        "destination": str(prepared.destination.location(prepared.job.model, prepared.version)),
        "read_bytes": plan.moved_bytes,
        "written_bytes": plan.end,
        "files": plan.file_count,
        "tasks": len(plan.tasks),
        "workers": workers,
        "peak_memory_bytes": plan.peak_memory_bytes(workers),
        "left_out_bytes": prepared.inventory.slot_bytes,
    }


def published(published: Published) -> Document:
    """Returns what was published in a bundle, and how it was verified."""
    manifest = published.manifest
    rejecting = _rejecting_inputs(manifest)
    indexes = {name: index.model_dump(mode="json") for name, index in manifest.indexes.items()}
    extents = [extent for table in manifest.tables.values() for extent in table.extents()]
    return {
        "model": manifest.model,
        "version": manifest.version,
        "verification": manifest.verification.model_dump(mode="json", exclude_none=True),
        "bundle": str(published.directory),
        "table_bytes": sum(table.bytes for table in manifest.tables.values()),
        # Only segments that were written have checksums of blocks.
        "linked_bytes": sum(size for segment, size in extents if not segment.blocks),
        "reused": {
            "segments": published.reused.segments,
            "bytes": published.reused.bytes,
            "changed_rows": published.reused.changed_rows,
            "written_bytes": published.reused.written_bytes,
        },
        "table_errors": _table_errors(manifest),
        "indexes": {
            name: {
                "kind": index.kind,
                "partitions": index.partitions,
                # Of the k of the recipe, `recall` has it.
                "depths": [_depth(curve, index.recall.target) for curve in index.recall_curves[1:]],
            }
            for name, index in manifest.indexes.items()
        },
        # By index, for those where it was measured.
        **{
            recall: {name: index[recall] for name, index in indexes.items() if index[recall]}
            for recall in ("recall", "recall_of_tables", "recall_of_cold_users")
        },
        "stages": {name: stage.model_dump(mode="json") for name, stage in manifest.stages.items()},
        "max_abs_error": {
            name: {f"{form.kind} {form.precision}": form.max_abs_error for form in tower.forms}
            for name, tower in manifest.towers.items()
        },
        "rejects_unknown_ids": list(rejecting),
        "can_state_unknown_ids": [name for name, can_state in rejecting.items() if can_state],
        "notes": list(published.notes),
    }


def _depth(curve: RecallCurve, target: float) -> Document:
    """Returns how deep is searched for a k to reach a recall, or else the highest one measured."""
    point = curve.cheapest(target) or curve.points[-1]
    return {"k": curve.k} | point.model_dump(exclude={"low"})


def _table_errors(manifest: Manifest) -> Document:
    """Returns the dtype of each converted table, and how its rows differ from the checkpoint's."""
    return {
        name: {"dtype": table.dtype} | table.error.model_dump(mode="json")
        for name, table in manifest.tables.items()
        if table.error is not None
    }


def _rejecting_inputs(manifest: Manifest) -> dict[str, bool]:
    """Returns the inputs that have a feature which rejects unknown ids, and whether the recipe can
    state instead what they read.
    """
    rejecting: dict[str, bool] = {}
    for name, feature in manifest.features.items():
        if isinstance(feature, DenseFeature):
            rejects = feature.below is not None and feature.outside == "refuse"
        else:
            rejects = feature.unknown.rule == "refuse" and _has_unknown_ids(feature, manifest)
        if rejects:
            # A table inside a tower has no rule but the model's own.
            can_state = not isinstance(feature, DenseFeature)
            for input_name in inputs_of(name, feature):
                rejecting[input_name] = rejecting.get(input_name, False) or can_state
    return rejecting


def _has_unknown_ids(feature: EmbeddedFeature, manifest: Manifest) -> bool:
    """Returns whether some id has no row: of a hash, for example, each has one."""
    if not isinstance(feature.ids, GraphIds):
        return True
    tables = feature.ids.tables
    if any(table.is_complete for table in tables):
        return True
    limits = limits_of(
        feature.ids, [manifest.vocabularies[table.vocabulary].size for table in tables]
    )
    rows = feature.indicator or manifest.tables[feature.table].rows
    first = 0
    if feature.from_end:
        first = -rows
    return not limits.dtype or limits.low < first or limits.high >= rows


def verified(verified: Verified) -> Document:
    """Returns what the checks of a published bundle found."""
    manifest = verified.manifest
    findings = verified.findings
    # Without a recipe, the model is not called.
    model_check: Document | None = None
    if findings.examples:
        model_check = {"examples": findings.examples, "recall": findings.recall}
    return {
        "bundle": str(verified.bundle),
        "model": manifest.model,
        "version": manifest.version,
        "files": findings.files,
        "bytes": findings.bytes,
        "unlisted": findings.unlisted,
        "opened": findings.opened,
        "tables": {
            name: check.model_dump(mode="json", exclude_none=True)
            for name, check in findings.tables.items()
        },
        "table_errors": _table_errors(manifest),
        "model_check": model_check,
        "unverified": manifest.verification.unverified,
    }
