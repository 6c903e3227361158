"""The preparation of a job, which writes nothing: it reads the recipe, opens the checkpoint, traces
and arranges the towers, and plans the tables.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bundle.format import manifest
from export.checkpoint.inventory.specs import Inventory, TableSpec
from export.checkpoint.reader import SMALL_BYTES_MAX, Checkpoint
from export.corpora.files import locate_corpus
from export.corpora.size_estimates import IndexForecast, forecast_index
from export.corpora.stages import check_stage, required_inputs
from export.errors import NotConvertible, UsageError
from export.front_end.finite_weights import check_finite_weights
from export.front_end.interface import PartitionedModel, TracedTower
from export.front_end.manifest_features import describe_features
from export.front_end.roles import check_candidate_inputs, note_absent_roles
from export.front_end.specs import FeatureSpec, ModelSpec
from export.front_end.unread_inputs import note_unread_inputs, unread_inputs
from export.front_end_choice import open_job
from export.graphs.functions import bytes_of, constants_of
from export.jobs.destinations import Destination, open_destination
from export.jobs.executors import encoder_count
from export.jobs.likely_mistakes import likely_mistakes
from export.jobs.progress import Progress
from export.jobs.recipe_checks import check_recipe, mistakes_of_heads
from export.jobs.table_steps import plan_copy
from export.jobs.warm_up import locate_requests
from export.model_code.factories import code_notes
from export.recipe.questions import open_questions
from export.recipe.schema import ExportJob, FeatureSection, TableSection
from export.recipe.settings import ExportSettings
from export.report_text import count_text, size_text
from export.tables.conversions import ErrorLimits
from export.tables.plan import ExportPlan, WriteOptions
from export.towers.compiled import reason_not_compiled
from export.towers.division import Split
from export.towers.manifest_towers import (
    check_formulas,
    check_limits,
    check_rankings,
    check_vectors,
    note_matrices,
)
from export.towers.prepared_towers import arrange_towers
from export.user_lines import at_line
from export.verify.own_rows import check_own_rows
from export.verify.trained_ids import trained_rows


@dataclass(frozen=True)
class TracedJob:
    """A recipe with its checkpoint, its traced model and its destination; nothing is written.

    Attributes:
      job: The recipe.
      base: The recipe's folder, which its paths are relative to.
      checkpoint: The open checkpoint.
      inventory: The tables, slot variables and weights that the checkpoint holds.
      traced: The model, divided into towers and features.
      entries: The features, as a manifest describes them.
      also_stored: Notes on variables of the checkpoint that the model's code does not have.
      destination: Where the version goes.
      version: The number of the version.
    """

    job: ExportJob
    base: Path
    checkpoint: Checkpoint
    inventory: Inventory
    traced: PartitionedModel
    entries: dict[str, manifest.Feature]
    also_stored: tuple[str, ...]
    destination: Destination
    version: int

    @property
    def staging(self) -> Path:
        """Where the version will be staged."""
        return self.destination.staging(self.job.model, self.version)

    @property
    def unread_inputs(self) -> tuple[str, ...]:
        """Inputs that the recipe declares and no tower reads."""
        return unread_inputs(self.traced.spec, self.job)


@dataclass(frozen=True)
class Prepared(TracedJob):
    """The job of a bundle that is known to be possible as far as that can be checked without
    writing.

    Attributes:
      splits: The parts of the rankers that are divided by context and candidate, by tower.
      plan: The tables, and how each is copied.
      forecasts: The expected size and build time of each index, by its name.
      warm_up_requests: The file of requests for the warm-up; None: there is none.
    """

    splits: Mapping[str, Split]
    plan: ExportPlan
    forecasts: Mapping[str, IndexForecast]
    warm_up_requests: Path | None

    @property
    def stays(self) -> tuple[str, ...]:
        """Notes on the lookups that stay inside towers, and on rankers that stay whole."""
        undivided = [note for split in self.splits.values() for note in split.notes]
        return (*self.traced.stays, *undivided)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of what is going to be written."""
        traced = self.traced
        return (
            *self.plan.notes,
            *traced.stays,
            *traced.notes,
            *self.also_stored,
            *self.warnings,
        )

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about likely mistakes in the recipe."""
        unread = note_unread_inputs(
            self.unread_inputs, "a request may send them, and the service ignores them"
        )
        spec = self.traced.spec
        return (
            *open_questions(self.job),
            *likely_mistakes(self.entries, spec),
            *note_absent_roles(spec, self.job),
            *note_matrices(spec, self.job),
            *unread,
        )

    @cached_property
    def not_in_litert(self) -> dict[str, str]:
        """By tower, the reason why LiteRT cannot run it; "": it can.

        Each tower is compiled with the weights that the code initializes: the graph decides, and
        the trained weights may not have been read yet.
        """
        return {tower.spec.name: reason_not_compiled(tower) for tower in self.traced.towers}


def trace_job(
    job: ExportJob,
    base: Path,
    settings: ExportSettings,
    version: int | None,
    progress: Progress,
    *,
    inside: bool = False,
) -> TracedJob:
    """Opens the checkpoint and the destination, and traces the model.

    Args:
      job: The recipe.
      base: Its folder.
      settings: How the job runs.
      version: The version to be written; None: the next free one.
      progress: Shows the steps.
      inside: Whether lookups stay inside the towers.

    Raises:
      ExportError: The job cannot be done as requested; the message names what, and the remedy.
    """
    destination = open_destination(job.output.root, base, settings.scratch)
    # Mistakes in the recipe are reported first: to trace a model can take minutes.
    check_recipe(job, base)
    with progress.step("read checkpoint"):
        front_end, job, checkpoint = open_job(job, base)
    with progress.step(f"build and trace {count_text(len(job.towers), 'tower')}"):
        traced = front_end.partition(job, base, checkpoint, inside)
        notes = (*checkpoint.storage.notes, *code_notes(job, base), *traced.notes)
        traced = replace(traced, notes=notes)
    with progress.step("compare ids"):
        traced = check_own_rows(job, traced, describe_features(traced.spec, job))
    with progress.step("find tables, weights"):
        return _with_inventory(job, base, version, destination, checkpoint, traced)


def _with_inventory(
    job: ExportJob,
    base: Path,
    version: int | None,
    destination: Destination,
    checkpoint: Checkpoint,
    traced: PartitionedModel,
) -> TracedJob:
    """Finds the tables and weights of a traced model in its checkpoint; see `trace_job`."""
    entries = describe_features(traced.spec, job)
    unread_tables = set(job.tables) - set(traced.spec.tables)
    if unread_tables:
        name = min(unread_tables)
        read_tables = ", ".join(sorted(traced.spec.tables)) or "none"
        reasons = "".join(f"; {note}" for note in traced.stays if repr(name) in note)
        raise UsageError(
            f"tables.{name}: no table of that name leaves the towers, only {read_tables}{reasons}"
        )
    # Towers of PyTorch come in files, whose weights are constants.
    if checkpoint.storage.kind != "PyTorch":
        _check_constants(traced.towers, job)

    original = traced.original
    # Rows that training read can prove layouts that the checkpoint does not record.
    inventory = original.find_tables(trained_rows(job, base, traced.spec, entries))
    _check_combiners(traced.spec, inventory.tables)
    # Towers may share variables, which have no hash; each is checked once.
    variables = {id(variable): variable for tower in traced.towers for variable in tower.variables}
    weights = original.find_weights(variables.values())
    _check_weights(checkpoint, inventory, traced.spec, weights, job)
    dense = {entry.key for entry in inventory.dense}
    also_stored = original.note_unmatched_weights(dense)
    number = version or destination.next_version(job.model)
    return TracedJob(
        job, base, checkpoint, inventory, traced, entries, also_stored, destination, number
    )


def _check_weights(
    checkpoint: Checkpoint,
    inventory: Inventory,
    model: ModelSpec,
    weights: Iterable[tuple[Any, str]],
    job: ExportJob,
) -> None:
    """Checks that the weights of towers are finite; rows of tables are checked while they are
    copied.

    Args:
      checkpoint: The checkpoint that holds the weights.
      inventory: The tables of the checkpoint.
      model: The model, whose tables are copied.
      weights: Each variable with its key; "" if a tower's file holds it, which was checked.
      job: The recipe.

    Raises:
      NotConvertible: A weight is not finite.
      UsageError: The recipe allows such values for a variable that the checkpoint lacks.
    """
    allowed = job.checkpoint.allow_non_finite
    for key in allowed:
        if key not in checkpoint.entries and checkpoint.storage.kind != "PyTorch":
            similar_keys = difflib.get_close_matches(key, checkpoint.entries, n=1)
            hint = ""
            if similar_keys:
                hint = f"; did you mean {similar_keys[0]!r}?"
            raise UsageError(
                f"checkpoint.allow_non_finite: checkpoint {checkpoint.name} has no variable "
                f"{key!r}{hint}"
            )
    table_keys = {table.key for table in inventory.tables if table.name in model.tables}
    weight_keys = dict.fromkeys(key for _, key in weights if key and key not in table_keys)
    # `read_all` reads no larger variables.
    small_keys = (key for key in weight_keys if checkpoint.entries[key].bytes <= SMALL_BYTES_MAX)
    values = ((key, checkpoint.read_all(key)) for key in small_keys)
    check_finite_weights(f"checkpoint {checkpoint.name}", values, allowed)


def _check_constants(towers: Iterable[TracedTower], job: ExportJob) -> None:
    """Checks that no constant is larger than a variable that stays inside a tower may be.

    Raises:
      NotConvertible: A constant is larger; the message names the user's line.
    """
    limit = job.code.inline_bytes_max
    for tower in towers:
        for constant in constants_of(tower.function):
            size = bytes_of(constant)
            if size > limit:
                lines = (tower.lines.get(reader.type, "") for reader in constant.consumers())
                line = at_line(next(filter(None, lines), ""))
                raise NotConvertible(
                    f"tower {tower.spec.name!r} holds a constant {constant.dtype.name} "
                    f"{constant.shape.as_list()} ({size_text(size)}){line}, which is larger than "
                    f"code.inline_bytes_max ({size_text(limit)}) allows; hold its rows in a "
                    "variable that lookups read, so that they become a table; or raise the limit"
                )


def prepare(
    job: ExportJob,
    base: Path,
    settings: ExportSettings,
    version: int | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Opens the checkpoint, divides the model and plans the tables; writes nothing.

    Args:
      job, base, settings, version: See `trace_job`.
      progress: Shows the steps; None: nothing shows them.

    Raises:
      ExportError: The job cannot be done as requested; the message names what, and the remedy.
    """
    progress = progress or Progress()
    opened = trace_job(job, base, settings, version, progress)
    job = opened.job
    traced = opened.traced
    model = traced.spec
    with progress.step("divide and plan"):
        # The checkpoint may be that of a SavedModel that has requests of its own.
        requests = locate_requests(job, base, opened.checkpoint)
        check_rankings(model, job)
        check_vectors(model, job)
        check_candidate_inputs(model, opened.entries)
        _check_corpus_features(job, model)
        # The model says more of its inputs than the recipe does: these are the features of the
        # bundle.
        for mistake in mistakes_of_heads(job, base, opened.entries):
            raise mistake
        _check_stages(job, model, opened.entries)
        check_formulas(job, model)
        plan = plan_copy(
            opened.checkpoint,
            opened.inventory,
            opened.destination,
            opened.staging,
            _writing(opened),
            settings,
            # Rows that are read for each candidate would cost a request each in a store (ADR 39),
            # so these tables stay on the local disk.
            _tables_of_candidates(opened),
        )
        # The plan shows which tables are converted: towers that read them may have limits for
        # float32.
        converted = [table.spec.name for table in plan.tables if table.dtype != table.spec.dtype]
        check_limits(job, model, converted)
        traced, splits = arrange_towers(traced, job, opened.entries)
        forecasts = {}
        for name, section in job.indexes.items():
            files = locate_corpus(base, section.corpus, job.corpora[section.corpus])
            tower = model.towers[section.candidate_tower]
            shape = next(entry.shape for entry in tower.outputs if entry.name == tower.result)
            # The graph may leave the size of a vector open: then the forecast is too low.
            dim = shape[-1] or 1
            encoders = encoder_count(settings.workers)
            forecasts[name] = forecast_index(name, section, files, dim, encoders)
    return Prepared(
        **vars(opened) | {"traced": traced},
        splits=splits,
        plan=plan,
        forecasts=forecasts,
        warm_up_requests=requests,
    )


def _writing(opened: TracedJob) -> dict[str, WriteOptions]:
    """Returns how each table is written that a tower reads."""
    job = opened.job
    writing = {}
    for table in opened.inventory.tables:
        name = table.name
        if name not in opened.traced.spec.tables:
            continue
        section = job.tables.get(name, TableSection())
        writing[name] = WriteOptions(
            section.segment_rows,
            section.dtype,
            ErrorLimits(section.max_abs_error, section.rms_error, section.cosine_min),
            job.output.tables == "link",
            allow_non_finite=section.allow_non_finite,
        )
    return writing


def _tables_of_candidates(opened: TracedJob) -> set[str]:
    """Returns the tables that the candidate towers of indexes read, once for each candidate."""
    towers = {section.candidate_tower for section in opened.job.indexes.values()}
    sources = {
        source
        for tower in towers
        for tensor in opened.traced.spec.towers[tower].inputs
        for source in tensor.sources
    }
    return {getattr(opened.entries[source], "table", "") for source in sources}


def _check_corpus_features(job: ExportJob, model: ModelSpec) -> None:
    """Checks that a corpus has a column for each input of the candidate towers over it."""
    for name, section in job.indexes.items():
        corpus = job.corpora[section.corpus]
        inputs = model.read_by(model.towers[section.candidate_tower])
        missing = []
        for input_name in inputs:
            default = job.features.get(input_name, FeatureSection()).default
            if input_name not in corpus.features and default is None:
                missing.append(input_name)
        if missing:
            raise UsageError(
                f"corpora.{section.corpus}.features has no column for {', '.join(missing)}, which "
                f"tower {section.candidate_tower!r} of index {name!r} reads; add it, as in "
                f'features = {{ {missing[0]} = "COLUMN" }}, or set features.{missing[0]}.default'
            )


def _check_stages(
    job: ExportJob, model: ModelSpec, features: Mapping[str, manifest.Feature]
) -> None:
    """Checks that corpora have the inputs of candidates that stages read."""
    required = {}
    for name, tower in model.towers.items():
        sources = [source for tensor in tower.inputs for source in tensor.sources]
        required[name] = required_inputs(sources, features)
    for name, section in job.stages.items():
        check_stage(name, section, required, job.corpora)


def _check_combiners(model: ModelSpec, tables: Iterable[TableSpec]) -> None:
    """Checks that the bags of a model combine rows as training did by the checkpoint's
    record: another combiner would serve other vectors.

    Args:
      model: The model, which states the combiner of each bag.
      tables: The tables of the checkpoint.

    Raises:
      NotConvertible: A bag has another combiner than its table in the checkpoint.
    """
    recorded = {table.name: table.combiner for table in tables if table.combiner}
    for name, feature in model.features.items():
        if not isinstance(feature, FeatureSpec) or feature.entry.kind != "bag":
            continue
        table = feature.entry.table
        combiner = recorded.get(table, feature.entry.combiner)
        if combiner != feature.entry.combiner:
            raise NotConvertible(
                f"feature {name!r} combines rows of table {table!r} by {feature.entry.combiner!r}, "
                f"and the checkpoint records that training combined them by {combiner!r}: write "
                f"{combiner!r} in the model"
            )
