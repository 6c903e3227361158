"""The order of steps of a self-contained SavedModel: `output.tables = "inline"` or "inline-link".

prepare_inline: recipe, checkpoint, trace, graph, plan      touches nothing
run_inline: graph, variables, proof, report, publish

What is published is no bundle: it has no manifest. `assets.extra/rowcast.json` lists its content
and its proofs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from bundle.format import manifest
from bundle.storage import staging
from export.checkpoint.inventory.specs import TableSpec
from export.errors import UsageError, VerificationFailed
from export.front_end.unread_inputs import note_unread_inputs
from export.jobs.preparation import TracedJob, trace_job
from export.jobs.progress import Progress
from export.jobs.space import STAT_BLOCK_BYTES, check_space
from export.jobs.staged import open_staged, provenance
from export.jobs.table_steps import TaskRun
from export.jobs.warm_up import locate_requests
from export.locations import location_of
from export.recipe.questions import open_questions
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from export.saved_model import proofs
from export.saved_model.files import (
    VariablesPlan,
    link_files,
    plan_variables,
    write_variables,
)
from export.saved_model.graph import InlineGraph, build_graph, variable_key, write_graph
from export.tables.finite_rows import check_finite, joined
from export.tables.segments import Receipt
from export.tables.vocabularies import read_keys
from export.towers.manifest_towers import check_limits
from export.verify.stated_layouts import judge_recipe
from export.verify.unverified import features_behind, unverified_ids, unverified_layouts
from object_store.remote_path import RemotePath

REPORT = "assets.extra/rowcast.json"
REPORT_FORMAT = 1
SMALL_BYTES_MAX = 64 << 20
"""A variable of a tower up to this size is copied with the dense ones; a larger one is treated as a
table.
"""


@dataclass(frozen=True)
class PreparedInline(TracedJob):
    """A job that is known to be possible as far as that can be checked without writing.

    Attributes:
      tables: Where the checkpoint stores each table.
      graph: The graph of the SavedModel.
      small: The keys in the checkpoint of the variables that are copied by this process, by their
        keys in the SavedModel.
      variables: The plan of the other variables.
      notes: What the user should know of the SavedModel.
    """

    tables: dict[str, TableSpec]
    graph: InlineGraph
    small: dict[str, str]
    variables: VariablesPlan
    notes: tuple[str, ...]

    def description(self) -> dict[str, Any]:
        """Returns the values that both the plan and the report contain, as JSON."""
        plan = self.variables
        graph = self.graph
        attributes = {key: attribute for attribute, key in graph.tables.items()}
        return {
            "data": "linked" if plan.links else "copied",
            "table_bytes": sum(entry.bytes for entry in plan.large.values()),
            "load_bytes": plan.load_bytes,
            "signatures": {
                name: {"inputs": inputs, "outputs": list(graph.signatures[name].structured_outputs)}
                for name, inputs in graph.inputs.items()
            },
            "tables": {
                name: {
                    "rows": spec.rows,
                    "dim": spec.dim,
                    "dtype": spec.dtype,
                    "key": spec.key,
                    "layout": spec.layout_json,
                    "stated": spec.stated,
                    "variable": attributes[spec.key],
                    "stored": list(spec.stored),
                }
                for name, spec in self.tables.items()
            },
            "notes": list(self.notes),
        }


def prepare_inline(
    job: ExportJob,
    base: Path,
    settings: ExportSettings,
    version: int | None = None,
    progress: Progress | None = None,
) -> PreparedInline:
    """Opens the checkpoint, traces the model with its lookups and plans the variables; writes
    nothing.

    Args:
      job: The recipe.
      base: Its folder, which its paths are relative to.
      settings: How the job runs.
      version: The version of the SavedModel; None: the next free one.
      progress: Shows the steps; None: nothing shows them.

    Raises:
      ExportError: The job cannot be done as requested; the message names what, and the remedy.
    """
    _check_recipe(job, base)
    opened = trace_job(job, base, settings, version, progress or Progress(), inside=True)
    job = opened.job
    traced = opened.traced
    checkpoint = opened.checkpoint
    root = opened.destination.root
    check_limits(job, traced.spec)
    for section in job.vocabularies.values():
        # Mistakes in its file are reported before anything is written.
        read_keys(base / section.file, section.dtype)
    tables = {name: opened.inventory.table(name) for name in traced.spec.tables}
    graph = build_graph(job, base, traced, opened.entries, tables)
    stored_weights = traced.original.find_weights(graph.weights.values())
    weights = {
        variable_key(attribute): key
        for attribute, (_, key) in zip(graph.weights, stored_weights, strict=True)
    }
    small = {
        name: key
        for name, key in weights.items()
        if checkpoint.entries[key].bytes <= SMALL_BYTES_MAX
    }
    # Large variables are linked or copied by tasks, as tables are; the others go through memory.
    keys = {variable_key(attribute): key for attribute, key in graph.tables.items()} | weights
    large = {name: checkpoint.entries[key] for name, key in keys.items() if name not in small}
    link = job.output.tables == "inline-link"
    plan = plan_variables(opened.staging, large, settings.budget_bytes, link, settings.full)
    # What an earlier run has staged is written over. The file may have holes, so its blocks count.
    staged_bytes = 0
    if plan.written_file.exists():
        staged_bytes = plan.written_file.stat().st_blocks * STAT_BLOCK_BYTES
    check_space(
        root,
        plan.end - staged_bytes,
        ', or set output.tables = "inline-link" where the checkpoint lies there',
    )
    unread = note_unread_inputs(opened.unread_inputs, "the signatures leave them out")
    left_out = tuple(_left_out(job))
    requests = locate_requests(job, base, checkpoint)
    if requests is not None:
        left_out += (
            f"the requests for the warm-up in {requests.name} are not copied: copy the file to "
            "assets.extra/tf_serving_warmup_requests of the SavedModel",
        )
    layouts = (
        f"table {name}: {spec.note}"
        for name, spec in tables.items()
        if spec.stated or spec.proof is not None
    )
    return PreparedInline(
        **vars(opened),
        tables=tables,
        graph=graph,
        small=small,
        variables=plan,
        notes=(
            *open_questions(opened.job),
            *traced.notes,
            *opened.also_stored,
            *unread,
            *left_out,
            *layouts,
        ),
    )


def run_inline(
    prepared: PreparedInline, settings: ExportSettings, progress: Progress
) -> dict[str, Any]:
    """Writes, proves and publishes a SavedModel; resumes where an earlier run of the same job
    stopped copying.

    Returns:
      Its report, and where it lies.
    Raises:
      VerificationFailed: The SavedModel does not return what the original model does, or cannot be
        compared with it here.
      ExportError: Nothing is published; what is copied stays staged for the next run.
    """
    job = prepared.job
    base = prepared.base
    model = prepared.traced.spec
    judged = judge_recipe(job, prepared.checkpoint, prepared.inventory, model, prepared.entries)
    with open_staged(prepared.destination, job.model, prepared.version) as staged_version:
        stage = staged_version.stage
        directory = staged_version.stage.directory
        created = staged_version.start_time(job, prepared.inventory.fingerprint)
        # Whether the SavedModel can be compared here is known before hours of copying.
        proofs.check_comparable(prepared.graph, prepared.variables, settings.unproved)
        with progress.step("graph"):
            _clear(directory)
            objects = write_graph(prepared.graph, directory)
        plan = prepared.variables
        with progress.step("variables", plan.moved_bytes) as moved:
            receipts = _write_tables(plan, settings, stage, moved)
            _check_finite(prepared, receipts)
            write_variables(plan, prepared.checkpoint, prepared.small, objects, receipts)
            prepared.checkpoint.check_unchanged()
        with progress.step("proof"):
            proof = proofs.prove(
                directory,
                prepared.graph,
                base,
                prepared.checkpoint,
                prepared.inventory,
                prepared.variables,
                settings.unproved,
            )
        judgements = {
            name: layout.judgement
            for name, layout in judged.items()
            if layout.judgement is not None
        }
        # A layout that the recorded outputs were to prove is not proved if nothing was run.
        if "expected" in judgements.values() and not proof["examples"]:
            raise VerificationFailed(
                f"verify.expected cannot verify the stated layouts: {proof['note']}; free memory, "
                'or accept them with verify.stated_layouts = "accept"'
            )
        report = prepared.description() | {
            "format": REPORT_FORMAT,
            "model": job.model,
            "version": prepared.version,
            "created": created,
            "provenance": provenance(prepared.inventory, job.code.factory).model_dump(mode="json"),
            "links": {
                path.name: os.path.basename(source)
                for path, source in prepared.variables.links.items()
            },
            "verification": proof
            | {
                "stated_layouts": judgements,
                "unverified": _unverified(prepared, proof, judgements),
            },
        }
        file = directory / REPORT
        file.parent.mkdir()
        file.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
        with progress.step("publish"):
            return {"saved_model": str(stage.publish())} | report


def _left_out(job: ExportJob) -> Iterator[str]:
    """Yields notes on the sections of a recipe that a SavedModel does not have."""
    sections = ("corpora", "indexes", "lists", "stages")
    left_out = [section for section in sections if getattr(job, section)]
    if job.warm_up.examples:
        left_out.append("warm_up.examples")
    if left_out:
        yield f"{' and '.join(left_out)} of the recipe are not part of a SavedModel"
    padded = []
    for name, section in job.inputs.items():
        if section.pad is not None or section.keep is not None:
            padded.append(name)
    if padded:
        yield (
            f"lists of {', '.join(padded)} are neither padded nor cut by a SavedModel, whose "
            "signature fixes their length: clients do it (pad and keep of the recipe)"
        )


def _unverified(
    prepared: PreparedInline, proof: Mapping[str, Any], judgements: Mapping[str, str | None]
) -> list[str]:
    """Returns what was not verified of a SavedModel, each with the reason or the remedy."""
    if not proof["proved"]:
        return ["outputs of signatures: not compared with the original model (--unproved)"]
    lookups = prepared.graph.lookups
    recorded = features_behind(lookups.job.verify.expected, lookups.traced.spec.towers)
    accepted = [name for name, judgement in judgements.items() if judgement == "accepted"]
    return [
        *unverified_ids(lookups.entries, recorded),
        *unverified_layouts(accepted),
        "rows that no example reads",
    ]


def _check_recipe(job: ExportJob, base: Path) -> None:
    """Rejects a recipe with settings that only bundles have."""
    root = location_of(job.output.root, base)
    if isinstance(root, RemotePath):
        raise UsageError(
            f"output.root is {root}; a self-contained SavedModel is written to a path of this "
            "machine: give one, and send the directory with your store's own tool"
        )
    for name, section in job.tables.items():
        bundle_keys = section.model_fields_set - {"key", "mod", "segment_rows", "allow_non_finite"}
        if bundle_keys:
            raise UsageError(
                f"tables.{name}.{min(bundle_keys)} is for bundles; a self-contained SavedModel "
                "holds tables as they were trained: leave it out"
            )


def _check_finite(prepared: PreparedInline, receipts: Iterable[Receipt]) -> None:
    """Checks that the variables that tasks copied are finite, but for tables where the recipe
    allows others.

    Raises:
      NotConvertible: A variable is not finite.
    """
    non_finite: dict[str, list[manifest.NonFiniteRows | None]] = {}
    for receipt in receipts:
        non_finite.setdefault(receipt.key, []).append(receipt.non_finite)
    tables = {spec.key: name for name, spec in prepared.tables.items()}
    for key, counts in non_finite.items():
        name = tables.get(key, key)
        section = prepared.job.tables.get(name)
        allowed = section is not None and section.allow_non_finite
        check_finite(name, joined(counts), allowed=allowed)


def _clear(directory: Path) -> None:
    """Removes files of earlier runs, but no tables: TensorFlow never writes a graph twice alike."""
    for path in directory.iterdir():
        if path.is_file():
            path.unlink()
        elif path.name != "variables" and not path.name.startswith("."):
            shutil.rmtree(path)


def _write_tables(
    plan: VariablesPlan,
    settings: ExportSettings,
    stage: staging.Staging,
    moved: Callable[[int], None],
) -> list[Receipt]:
    """Links the data files of the checkpoint, or copies the tables; returns the receipts of all
    tasks.
    """
    plan.written_file.parent.mkdir(exist_ok=True)
    # An earlier run of another plan may have left links, or an index.
    for stale in set(plan.written_file.parent.iterdir()) - {plan.written_file}:
        stale.unlink()
    link_files(plan)
    # Tasks fill their ranges of it, some of which an earlier run may have filled.
    with plan.written_file.open("ab") as file:
        file.truncate(plan.end)
    files = [table_slice.file for source in plan.sources for table_slice in source.slices]
    return TaskRun(stage, settings, files, moved).run_checked(plan.tasks, plan.sources)
