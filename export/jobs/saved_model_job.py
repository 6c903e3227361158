"""The order of steps of a self-contained SavedModel: `output.tables = "inline"` or "inline-link".

prepare_inline: recipe, checkpoint, trace, graph, plan      touches nothing
run_inline: graph, variables, proof, report, publish

What is published is no bundle: it has no manifest. `assets.extra/rowcast.json` lists its content and its proofs.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from bundle.features.reader import FeatureReader
from bundle.format import manifest
from bundle.storage import staging
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from export.checkpoint.inventory.specs import Inventory, TableSpec
from export.checkpoint.layouts import stored_rows
from export.checkpoint.reader import Checkpoint
from export.errors import DestinationError, UsageError, VerificationFailed
from export.figures import size_text
from export.graph.specs import ModelSpec
from export.jobs import executors
from export.jobs.destinations import Destination, open_destination
from export.jobs.progress import Progress
from export.jobs.staged import created, provenance, staged
from export.model.dense_copy import local_prefix
from export.model.manifest_features import describe_features, model_vocabularies
from export.model.roots import open_job
from export.model.tables import recognise_tables
from export.model.tracing import TracedModel, trace_towers
from export.model.vocabularies import as_array, read_keys
from export.model.weights import find_weights, restore_weights, trained_beside
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from export.saved_model import proofs
from export.saved_model.files import (
    COPY_BYTES,
    Chunk,
    VariablesPlan,
    copy_chunk,
    link_files,
    plan_variables,
    write_variables,
    written,
)
from export.saved_model.graph import InlineGraph, build_graph, open_vocabularies, variable_key, write_graph
from export.saved_model.lookups import Lookups
from export.steps import key_of
from export.towers.manifest_towers import check_limits
from export.verify import parity
from export.verify.examples import make_examples, read_examples
from export.verify.reference_model import Replay, replay_finite

REPORT = "assets.extra/rowcast.json"
REPORT_FORMAT = 1
SMALL_BYTES_MAX = 64 << 20
"""A variable of a tower up to this size is copied with the dense ones; a larger one is treated as a table."""

WITNESSES_MAX = 8

Errors = dict[str, dict[str, float]]
"""Tower -> output -> largest difference from the original model."""


@dataclass(frozen=True)
class PreparedInline:
    """A job that is known to be possible as far as can be told without writing."""

    job: ExportJob
    base: Path
    checkpoint: Checkpoint
    inventory: Inventory
    traced: TracedModel
    pages: dict[str, manifest.Feature]
    tables: dict[str, TableSpec]
    graph: InlineGraph
    small: dict[str, str]
    root: Path
    version: int
    variables: VariablesPlan
    notes: tuple[str, ...]

    @property
    def kept_bytes(self) -> int:
        """Bytes of large variables that are no table: Keras Embeddings that stay in their towers."""
        tables = {variable_key(attribute) for attribute in self.graph.tables}
        return sum(entry.bytes for key, entry in self.variables.streamed.items() if key not in tables)

    @property
    def destination(self) -> Path:
        """Where the SavedModel will lie."""
        return self.root / self.job.model / str(self.version)


@dataclass(frozen=True)
class PublishedInline:
    """A published SavedModel, and the page that tells of it."""

    directory: Path
    report: dict[str, Any]


def prepare_inline(job: ExportJob, base: Path, settings: ExportSettings, version: int | None = None) -> PreparedInline:
    """Opens the checkpoint, traces the model with its lookups and plans the variables; writes nothing.

    Args:
      job: the recipe.
      base: its folder, which its paths are relative to.
      settings: how the job runs.
      version: of the SavedModel; None: the next free one.
    Raises:
      ExportError: the job cannot be done as asked; names what and the cure.
    """
    checkpoint, job = open_job(job, base)
    traced = trace_towers(job, base, inside=True)
    _check_tables(job, traced.spec)
    check_limits(job, traced.spec)
    pages = describe_features(traced.spec, job)
    inventory = recognise_tables(checkpoint, traced, job, base)
    tables = {name: inventory.table(name) for name in traced.spec.tables}
    for part in job.vocabularies.values():
        read_keys(base / part.file, part.dtype)  # its mistakes are told before anything is written
    graph = build_graph(job, traced, pages, tables, _vocabulary_files(job, base))
    keys = dict(graph.tables)
    found = find_weights(graph.weights.values(), traced.root, checkpoint, job.checkpoint.object_path)
    keys |= {attribute: key for attribute, (_, key) in zip(graph.weights, found, strict=True)}
    dense = {entry.key for entry in inventory.dense}
    notes = (*trained_beside(traced.root, checkpoint, job.checkpoint.object_path, dense), *_left_out(job))
    large = {
        variable_key(attribute): checkpoint.entries[key]
        for attribute, key in keys.items()
        if attribute in graph.tables or checkpoint.entries[key].bytes > SMALL_BYTES_MAX
    }
    small = {variable_key(attribute): key for attribute, key in keys.items() if variable_key(attribute) not in large}
    destination = open_destination(job.output.root, base, settings.scratch)
    if destination.store is not None:
        raise UsageError(
            f"output.root is {destination.store}; a self-contained SavedModel is written to a path of this machine: "
            "give one, and send the directory with your store's own tool"
        )
    root = destination.root
    number = version or destination.next_version(job.model)
    prefix = root / job.model / f".staging-{number}" / "variables" / "variables"
    plan = plan_variables(prefix, large, job.output.tables == "inline-link", settings.full)
    prepared = PreparedInline(
        job, base, checkpoint, inventory, traced, pages, tables, graph, small, root, number, plan, notes
    )
    _check_space(prepared)
    return prepared


def run_inline(prepared: PreparedInline, settings: ExportSettings, progress: Progress) -> PublishedInline:
    """Writes, proves and publishes a SavedModel; resumes where an earlier run of the same job stopped copying.

    Raises:
      VerificationFailed: it does not answer as the original model does.
      ExportError: nothing is published; what is copied stays staged for the next run.
    """
    job = prepared.job
    with staged(Destination(prepared.root, None), job.model, prepared.version) as draft:
        stage, directory = draft.stage, draft.stage.directory
        begun = created(stage, key_of(job, prepared.inventory.fingerprint))
        with progress.step("graph"):
            _clear(directory)
            objects = write_graph(prepared.graph, directory)
        with progress.step("variables", sum(chunk.bytes for chunk in prepared.variables.chunks)) as moved:
            sums = _move(prepared, settings, stage, moved)
            write_variables(prepared.variables, prepared.checkpoint, prepared.small, objects, sums)
            prepared.checkpoint.check_unchanged()
        with progress.step("proof"):
            proof = _prove(prepared, directory)
        report = _report(prepared, begun, proof)
        page = directory / REPORT
        page.parent.mkdir()
        page.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
        with progress.step("publish"):
            return PublishedInline(stage.publish(), report)


def _check_tables(job: ExportJob, model: ModelSpec) -> None:
    for name, part in job.tables.items():
        beyond = part.model_fields_set - {"key", "mod", "shard_rows"}
        if beyond:
            raise UsageError(
                f"tables.{name}.{min(beyond)} is for bundles; a self-contained SavedModel holds tables as they were "
                "trained: leave it out"
            )
        if name not in model.tables:
            known = ", ".join(sorted(model.tables))
            raise UsageError(f"tables.{name}: no tower reads a table of that name; they read {known}")


def _vocabulary_files(job: ExportJob, base: Path) -> dict[str, Path]:
    return {name: (base / part.file).resolve() for name, part in job.vocabularies.items()}


def _check_space(prepared: PreparedInline) -> None:
    plan, root = prepared.variables, prepared.root.absolute()
    existing = next(place for place in (root, *root.parents) if place.is_dir())
    free = shutil.disk_usage(existing).free
    staged_bytes = plan.own.stat().st_blocks * 512 if plan.own.exists() else 0
    if plan.end - staged_bytes > free:
        raise DestinationError(
            f"{root} has {size_text(free)} free, the tables need {size_text(plan.end - staged_bytes)}; free some, "
            'export to another disk, or set output.tables = "inline-link" where the checkpoint lies on the same '
            "filesystem"
        )


def _clear(directory: Path) -> None:
    """Removes all that earlier runs left but tables: TensorFlow does not write a graph twice alike."""
    for path in directory.iterdir():
        if path.is_file():
            path.unlink()
        elif path.name != "variables" and not path.name.startswith("."):
            shutil.rmtree(path)


def _move(
    prepared: PreparedInline, settings: ExportSettings, stage: staging.Staging, moved: Callable[[int], None]
) -> dict[Chunk, int]:
    """Links or streams the tables; returns the crc32c of every chunk."""
    plan = prepared.variables
    plan.own.parent.mkdir(exist_ok=True)
    for stale in set(plan.own.parent.iterdir()) - {plan.own}:
        stale.unlink()
    link_files(plan)
    with plan.own.open("ab") as file:
        file.truncate(plan.end)
    sums: dict[Chunk, int] = {}
    keys = {chunk: key_of(prepared.inventory.fingerprint, repr(chunk)) for chunk in plan.chunks}
    for chunk in plan.chunks:
        finished = stage.finished(chunk.step, keys[chunk]) if chunk.destination else None
        if finished is not None and copy_chunk(written(chunk)) == finished.payload:
            sums[chunk] = finished.payload
            moved(chunk.bytes)

    def note(chunk: Chunk, crc: int) -> None:
        if chunk.destination:
            stage.finish(chunk.step, keys[chunk], crc, [])
        sums[chunk] = crc
        moved(chunk.bytes)

    pending = [chunk for chunk in plan.chunks if chunk not in sums]
    few = sum(chunk.bytes for chunk in pending) <= SMALL_BYTES_MAX
    executor = executors.open_executor(settings.executor, settings.workers or (1 if few else 0))
    seen = stage.attempts / "seen"  # by which a worker on another machine tells that it sees this run
    seen.write_text(secrets.token_hex())
    sources = list(dict.fromkeys(chunk.source for chunk in pending))[:WITNESSES_MAX]
    executor.run(copy_chunk, pending, note, memory_bytes=COPY_BYTES, shared=[str(seen), *sources])
    return sums


def _prove(prepared: PreparedInline, directory: Path) -> dict[str, Any]:
    """Asks what was written raw examples, and holds its answers to those of the original model."""
    job, model = prepared.job, prepared.traced.spec
    keys = {name: read_keys(prepared.base / part.file, part.dtype) for name, part in job.vocabularies.items()}
    keys |= {name: as_array(held) for name, held in model_vocabularies(model).items()}
    free = proofs.available_bytes()
    held = 2 * prepared.kept_bytes + proofs.RESERVE_BYTES
    proof: dict[str, Any] = {"examples": 0, "tolerance": parity.TOLERANCE, "loaded_by": [], "max_abs_error": {}}
    if held > free:
        note = f"not replayed: the original model holds its large Keras Embeddings, {held} bytes, and {free} are free"
        return proof | {"note": f"{note}; the index holds the checkpoint's own entries"}
    if job.verify.examples is not None:
        part, file = job.verify, prepared.base / job.verify.examples
        examples = read_examples(file, model, prepared.pages, part.count, recorded=part.expected)
    else:
        examples = make_examples(model, prepared.pages, keys, job.verify.count)
    features = _features(prepared, keys)

    def read_rows(table: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        spec = prepared.tables[table]
        stored = proofs.stored_vectors(prepared.checkpoint, spec, stored_rows(spec.layout, rows))
        return stored[:, : spec.dim].astype(np.float32)

    with tempfile.TemporaryDirectory() as aside:
        prefix = local_prefix(prepared.checkpoint, prepared.inventory, Path(aside))
        asked = Replay(job, prepared.base, model, prefix, examples, features)
        asked, expected = replay_finite(asked, read_rows)
    examples = asked.examples
    inputs = proofs.signature_inputs(job, model, prepared.pages, prepared.graph, examples, features)
    needed = prepared.variables.load_bytes + proofs.RESERVE_BYTES
    note = ""
    if needed <= free:
        answers = proofs.load_and_ask(directory, inputs)
        proof["loaded_by"] = list(answers)
    else:
        answers = {"the graph over the rows of the examples": _ask_rows(prepared, inputs)}
        note = (
            f"not loaded here: that needs {needed} bytes of memory, {free} are free; the same graph answered over the "
            "rows that the examples read, and the index holds the checkpoint's own entries"
        )
    return proof | {"examples": examples.n, "max_abs_error": _compare(job, answers, expected), "note": note}


def _ask_rows(prepared: PreparedInline, inputs: Mapping[str, proofs.Tensors]) -> proofs.Results:
    job, traced = prepared.job, prepared.traced
    towers = {tower.spec.name: tower for tower in traced.towers}
    restore_weights(prepared.graph.weights.values(), traced.root, prepared.checkpoint, job.checkpoint.object_path)
    files = _vocabulary_files(job, prepared.base)
    vocabularies = open_vocabularies(job, traced, prepared.pages, files)

    def build(gather: Callable[[str, Any], Any]) -> Lookups:
        return Lookups(job, traced, prepared.pages, prepared.tables, vocabularies, gather)

    return proofs.ask_rows(prepared.checkpoint, prepared.tables, build, towers, prepared.graph, inputs)


def _features(prepared: PreparedInline, keys: Mapping[str, NDArray[Any]]) -> FeatureReader:
    """Returns the bundle's reader of features, which resolves ids as a service would; it reads no table here."""
    tables = {name: cast(TableReader, proofs.KnownTable(spec.rows, spec.dim)) for name, spec in prepared.tables.items()}
    vocabularies = {
        name: Vocabulary(IntegerKeys(values) if values.dtype == np.int64 else StringKeys(values.tolist()))
        for name, values in keys.items()
    }
    return FeatureReader(prepared.pages, tables, vocabularies)


def _compare(job: ExportJob, answers: Mapping[str, proofs.Results], expected: proofs.Results) -> Errors:
    errors: Errors = {name: dict.fromkeys(outputs, 0.0) for name, outputs in expected.items()}
    for how, results in answers.items():
        for name, outputs in expected.items():
            limit = job.towers[name].max_abs_error.get("f32")
            for output, right in outputs.items():
                got = results[name][output]
                where = f"signature {name!r}, output {output!r}, by {how}"
                if got.shape != right.shape:
                    raise VerificationFailed(f"{where}: shape {got.shape}; the original model gives {right.shape}")
                difference = np.abs(got.astype(np.float64) - right)
                wrong = ~(difference <= parity.allowed(right, limit))  # not a number is wrong too
                if wrong.any():
                    at = tuple(int(place) for place in np.argwhere(wrong)[0])
                    raise VerificationFailed(
                        f"{where}: example {at[0]} is {got[at]:.9g}, the original model gives {right[at]:.9g}; "
                        f"{int(wrong.sum())} of {wrong.size} values break "
                        f"{parity.TOLERANCE if limit is None else f'towers.{name}.max_abs_error.f32 = {limit:g}'}: "
                        "it would not answer as the model does, so nothing is published"
                    )
                errors[name][output] = max(errors[name][output], float(difference.max(initial=0.0)))
    return errors


def _left_out(job: ExportJob) -> tuple[str, ...]:
    parts = [what for what in ("candidates", "indexes") if getattr(job, what)]
    return (f"{' and '.join(parts)} of the recipe are not part of a SavedModel",) if parts else ()


def _report(prepared: PreparedInline, begun: str, proof: dict[str, Any]) -> dict[str, Any]:
    job, plan = prepared.job, prepared.variables
    attributes = {key: attribute for attribute, key in prepared.graph.tables.items()}
    return {
        "format": REPORT_FORMAT,
        "model": job.model,
        "version": prepared.version,
        "created": begun,
        "provenance": provenance(prepared.inventory, job.code.factory).model_dump(mode="json"),
        "data": "linked" if plan.links else "copied",
        "links": {path.name: os.path.basename(source) for path, source in plan.links.items()},
        "table_bytes": sum(entry.bytes for entry in plan.streamed.values()),
        "load_bytes": plan.load_bytes,
        "signatures": {
            name: {"inputs": inputs, "outputs": list(prepared.graph.signatures[name].structured_outputs)}
            for name, inputs in prepared.graph.inputs.items()
        },
        "tables": {
            name: {
                "rows": spec.rows,
                "dim": spec.dim,
                "dtype": spec.dtype,
                "key": spec.key,
                "layout": spec.layout.kind,
                "variable": attributes[spec.key],
                "stored": list(spec.stored),
            }
            for name, spec in prepared.tables.items()
        },
        "verification": proof,
        "notes": list(prepared.notes),
    }
