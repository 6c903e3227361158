"""What is known of a job before anything is written: recipe, checkpoint, traced and arranged towers, plan of tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bundle.format import manifest
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import Checkpoint
from export.corpora.files import locate_corpus
from export.errors import UsageError
from export.jobs import executors
from export.jobs.destinations import Destination, open_destination
from export.jobs.space import check_space
from export.model.manifest_features import describe_features
from export.model.roots import open_job
from export.model.tables import recognise_tables
from export.model.tracing import TracedModel, trace_towers
from export.model.weights import find_weights, trained_beside
from export.recipe.schema import ExportJob, TablePart
from export.recipe.settings import ExportSettings
from export.tables.conversions import ErrorLimits
from export.tables.plan import ExportPlan, Writing, plan_tables
from export.towers.arranged import arrange_towers
from export.towers.manifest_towers import check_formulas, check_limits, check_rankings
from export.towers.parts import Split
from export.towers.trials import why_not_compiled


@dataclass(frozen=True)
class Prepared:
    """A job that is known to be possible as far as can be told without writing."""

    job: ExportJob
    base: Path
    checkpoint: Checkpoint
    inventory: Inventory
    traced: TracedModel
    splits: Mapping[str, Split]
    pages: dict[str, manifest.Feature]
    destination: Destination
    version: int
    plan: ExportPlan
    also_stored: tuple[str, ...]
    """What the checkpoint holds of the model that its code has not."""

    @property
    def stays(self) -> tuple[str, ...]:
        """What stays inside towers, or together, and why."""
        split = [note for found in self.splits.values() for note in found.notes]
        return (*self.traced.notes, *split)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of what is going to be written."""
        return (*self.plan.notes, *self.traced.notes, *self.also_stored, *self.warnings)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What of the recipe is likely a mistake."""
        return tuple(_unlike_first_rows(self.pages))

    @cached_property
    def not_in_litert(self) -> dict[str, str]:
        """By tower, what keeps it from LiteRT, or "": told by compiling it with the weights that it was built with."""
        return {tower.spec.name: why_not_compiled(tower) for tower in self.traced.towers}


def prepare(job: ExportJob, base: Path, settings: ExportSettings, version: int | None = None) -> Prepared:
    """Opens the checkpoint, cuts the model and plans the tables; writes nothing.

    Args:
      job: the recipe.
      base: its folder, which its paths are relative to.
      settings: how the job runs.
      version: of the bundle; None: the next free one.

    Raises:
      ExportError: the job cannot be done as asked; names what and the cure.
    """
    checkpoint, job = open_job(job, base)
    _check_indexes(job)
    traced = trace_towers(job, base)
    _check_files(job, base)
    pages = describe_features(traced.spec, job)
    check_rankings(traced.spec)
    check_formulas(job, traced.spec)
    inventory = recognise_tables(checkpoint, traced, job, base)
    read = {id(variable): variable for tower in traced.towers for variable in tower.variables}
    find_weights(read.values(), traced.root, checkpoint, job.checkpoint.object_path)
    dense = {entry.key for entry in inventory.dense}
    also_stored = trained_beside(traced.root, checkpoint, job.checkpoint.object_path, dense)
    destination = open_destination(job.output.root, base, settings.scratch)
    number = version or destination.next_version(job.model)
    unknown = set(job.tables) - set(traced.spec.tables)
    if unknown:
        known = ", ".join(sorted(traced.spec.tables))
        raise UsageError(f"tables.{min(unknown)}: no tower reads a table of that name; they read {known}")
    exported = [table for table in inventory.tables if (table.slot_of or table.name) in traced.spec.tables]
    plan = plan_tables(
        checkpoint,
        inventory,
        destination.root / job.model / f".staging-{number}",
        tables=[table.name for table in exported],
        writing=_writing(job, [table.name for table in exported]),
        budget_bytes=settings.budget_bytes,
        workers=executors.worker_count(settings.workers),
    )
    check_limits(job, traced.spec, [table.spec.name for table in plan.tables if table.dtype != table.spec.dtype])
    destination.refuse_links(plan)
    check_space(plan, destination.root)
    traced, splits = arrange_towers(traced, job, pages)
    return Prepared(job, base, checkpoint, inventory, traced, splits, pages, destination, number, plan, also_stored)


def _writing(job: ExportJob, tables: Iterable[str]) -> dict[str, Writing]:
    parts = {name: job.tables.get(name, TablePart()) for name in tables}
    link = job.output.tables == "link"
    return {
        name: Writing(
            part.shard_rows, part.dtype, ErrorLimits(part.max_abs_error, part.rms_error, part.cosine_min), link
        )
        for name, part in parts.items()
    }


def _check_files(job: ExportJob, base: Path) -> None:
    """Finds files that the recipe names and that are not there, before anything is written."""
    named = {f"vocabularies.{name}.file": part.file for name, part in job.vocabularies.items()}
    if job.verify.examples is not None:
        named["verify.examples"] = job.verify.examples
    for key, file in named.items():
        if not (base / file).is_file():
            raise UsageError(f"{key}: file {base / file} does not exist")
    corpus_files(job, base)


def corpus_files(job: ExportJob, base: Path) -> list[Path]:
    """Returns the files of all candidates and contexts.

    Raises:
      UsageError: one is not there, or its format cannot be told.
    """
    rooms = (("candidates", job.candidates), ("contexts", job.contexts))
    found = [locate_corpus(base, name, part, room) for room, parts in rooms for name, part in parts.items()]
    return [file.path for files in found for file in files]


def _unlike_first_rows(pages: Mapping[str, manifest.Feature]) -> list[str]:
    """Warns of features that read one table by one vocabulary, and begin at different rows of it."""
    firsts: dict[tuple[str, str], dict[int, str]] = {}
    for name, page in pages.items():
        if isinstance(page, manifest.EmbeddedFeature) and isinstance(page.ids, manifest.VocabularyIds):
            firsts.setdefault((page.table, page.ids.vocabulary), {}).setdefault(page.ids.first_row, name)
    return [
        f"features {' and '.join(map(repr, rows.values()))} read table {table!r} by vocabulary {vocabulary!r} from "
        f"rows {' and '.join(map(str, rows))} on (first_row): one is likely wrong, which verify.expected would tell"
        for (table, vocabulary), rows in firsts.items()
        if len(rows) > 1
    ]


def _check_indexes(job: ExportJob) -> None:
    for name, part in job.indexes.items():
        limits = sorted({"value", "of_tables"} & part.recall.model_fields_set)
        if limits and job.verify.examples is None:
            raise UsageError(
                f"indexes.{name}.recall.{limits[0]} is a limit, which needs real queries: name a file of raw examples "
                "as verify.examples, or leave the limit out; recall on invented queries stops nothing"
            )
        if part.corpus not in job.candidates:
            known = ", ".join(sorted(job.candidates)) or "no candidates"
            raise UsageError(f"indexes.{name}.corpus names {part.corpus!r}; the recipe has {known}")
        for role, tower in (("query", part.query_tower), ("candidate", part.candidate_tower)):
            known = ", ".join(sorted(each for each, spec in job.towers.items() if spec.role == role)) or "none"
            if tower not in job.towers or job.towers[tower].role != role:
                raise UsageError(
                    f"indexes.{name}.{role}_tower names {tower!r}; the recipe's towers with role = {role!r}: {known}"
                )
