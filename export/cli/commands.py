"""The commands of `rowcast-export`: results go to stdout (as JSON with --json), progress and errors to stderr."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console

from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.reader import open_checkpoint
from export.cli.command_line import (
    AsJson,
    Budget,
    Checkpoint,
    CheckpointPath,
    Chosen,
    Dtypes,
    Executor,
    Explained,
    Full,
    Html,
    LayoutFile,
    Mod,
    Model,
    Named,
    Out,
    PlanOnly,
    RecipePath,
    Root,
    Scratch,
    Slots,
    Tables,
    Version,
    Workers,
)
from export.cli.inspect import inventory_json, inventory_table, plan_table
from export.cli.terminal import kept_clean, print_page, sentence
from export.errors import CheckpointError, ExportError, UsageError
from export.jobs.progress import Progress
from export.places import place_of
from runtime.object_store import RemotePath

if TYPE_CHECKING:
    from export.checkpoint.inventory.specs import Statements
    from export.recipe.schema import ExportJob
    from export.recipe.settings import ExportSettings

app = typer.Typer(
    help="Turns training checkpoints into verified bundles that rowcast-serve answers from.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
INTERRUPTED = 130  # as typer tells it
_UsageMistake: Any = typer.BadParameter.__mro__[1]
"""What typer raises for an option or argument that cannot be meant; it does not export the class."""
errors = Console(stderr=True, highlight=False, soft_wrap=True)


@app.command()
def inspect(
    checkpoint: CheckpointPath,
    named: Named = None,
    mod: Mod = None,
    layout: LayoutFile = None,
    as_json: AsJson = False,
) -> None:
    """Tells what is in a checkpoint: tables, slot variables, dense variables, step. Reads no table."""
    said = None
    if named or mod or layout:
        from export.cli import options

        said = options.read_statements(named, mod, layout)
    problems = _inspected(checkpoint, said, as_json)  # uncollected: 10^5 variables are a million objects, no cycle
    if problems:
        raise CheckpointError(problems[0])


def _inspected(checkpoint: str, said: Statements | None, as_json: bool) -> tuple[str, ...]:
    """Prints what is in a checkpoint; returns what is wrong with its data files."""
    opened = open_checkpoint(place_of(checkpoint), complete=False)
    problems = opened.problems
    try:
        inventory = recognise(opened, said)
    except CheckpointError as problem:
        raise CheckpointError(problems[0] if problems else str(problem)) from problem
    if as_json:
        print_page(inventory_json(inventory, problems), None, as_json)
    else:
        print_page({}, inventory_table(inventory, problems), as_json)
    return problems


@app.command()
def plan(
    recipe: RecipePath,
    checkpoint: Checkpoint = None,
    root: Root = None,
    version: Version = None,
    workers: Workers = None,
    budget_bytes: Budget = None,
    scratch: Scratch = None,
    tables: Tables = None,
    as_json: AsJson = False,
) -> None:
    """Tells what `run` would read and write, in bytes, files and memory. Touches nothing."""
    from export.cli import options
    from export.recipe.schema import read_recipe

    settings = options.read_settings(workers=workers, budget_bytes=budget_bytes, scratch=scratch)
    job = options.overridden(read_recipe(recipe), checkpoint, root, tables)
    with _at_work() as progress, progress.step("model and plan"):
        if _is_inline(job):
            from export.cli.saved_model_page import inline_plan_json, inline_plan_page
            from export.jobs.saved_model_job import prepare_inline

            alone = prepare_inline(job, recipe.parent, settings, version)
            page, table = inline_plan_json(alone, settings), inline_plan_page(alone, settings)
        else:
            from export.cli import plan_page
            from export.jobs import bundle_job

            prepared = bundle_job.prepare(job, recipe.parent, settings, version)
            page, table = plan_page.plan_json(prepared), plan_page.plan_page(prepared)
    print_page(page, table, as_json)


@app.command()
def run(
    recipe: RecipePath,
    checkpoint: Checkpoint = None,
    root: Root = None,
    version: Version = None,
    full: Full = False,
    workers: Workers = None,
    executor: Executor = None,
    budget_bytes: Budget = None,
    scratch: Scratch = None,
    tables: Tables = None,
    as_json: AsJson = False,
) -> None:
    """Writes, verifies and publishes a bundle. A run that was stopped resumes; a failed check publishes nothing."""
    from export.cli import options
    from export.recipe.schema import read_recipe

    settings = options.read_settings(
        workers=workers, executor=executor, budget_bytes=budget_bytes, scratch=scratch, full=full
    )
    job = options.overridden(read_recipe(recipe), checkpoint, root, tables)
    with _at_work() as progress:
        if _is_inline(job):
            page, table = _run_inline(job, recipe.parent, settings, version, progress)
        else:
            with progress.step("model and plan"):
                from export.cli import plan_page
                from export.jobs import bundle_job

                prepared = bundle_job.prepare(job, recipe.parent, settings, version)
            published = bundle_job.run(prepared, settings, progress)
            page, table = plan_page.published_json(published), plan_page.published_page(published)
    print_page(page | {"seconds": progress.seconds}, table, as_json)


@app.command()
def tables(
    checkpoint: CheckpointPath,
    out: Out,
    named: Named = None,
    mod: Mod = None,
    layout: LayoutFile = None,
    slots: Slots = False,
    model: Model = "tables",
    version: Version = None,
    full: Full = False,
    workers: Workers = None,
    executor: Executor = None,
    budget_bytes: Budget = None,
    scratch: Scratch = None,
    chosen: Chosen = None,
    dtypes: Dtypes = None,
    plan_only: PlanOnly = False,
    as_json: AsJson = False,
) -> None:
    """Exports only the tables, without model code: those that the metadata identifies or the user names."""
    from export.cli import options, plan_page
    from export.jobs import tables_job
    from export.jobs.destinations import open_destination
    from export.tables.conversions import read_dtypes
    from export.tables.plan import Writing

    settings = options.read_settings(
        workers=workers, executor=executor, budget_bytes=budget_bytes, scratch=scratch, full=full
    )
    with _at_work() as progress:
        how, names = options.read_chosen(chosen or ())
        every, single = read_dtypes(dtypes or ())
        writing = Writing(dtype=every, link=how == "link")
        job = tables_job.TablesJob(
            model, version, options.read_statements(named, mod, layout), names, writing, single, slots
        )
        destination = open_destination(out, Path(), settings.scratch)
        prepared = tables_job.prepare_tables(place_of(checkpoint), destination, job, settings)
        if plan_only:
            page = prepared.plan.to_json() | {"notes": list(prepared.notes)}
            table = plan_table(prepared.plan, prepared.notes)
        else:
            published = tables_job.export_tables(prepared, settings, progress)
            page = plan_page.published_json(published) | {"seconds": progress.seconds}
            table = plan_page.published_page(published)
    print_page(page, table, as_json)


@app.command()
def verify(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="A bundle's directory: ROOT/MODEL/VERSION.")],
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="PATH", help="Compare the tables with this checkpoint too.")
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="RECIPE", help="Compare with its checkpoint and its model too, and measure recall anew."),
    ] = None,
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """Checks a published bundle again: every byte against its checksum, and that everything in it opens."""
    from export.cli import options
    from export.recipe.schema import read_recipe

    place = place_of(bundle)
    if isinstance(place, RemotePath):
        raise UsageError(
            f"{place} is a URL; bring the bundle here with `rowcast-serve pull {place} ROOT`, then verify it"
        )
    job = None if recipe is None else options.overridden(read_recipe(recipe), checkpoint)
    with _at_work() as progress:
        from export.verify import audit

        with progress.step("verify"):
            source = None if checkpoint is None else open_checkpoint(place_of(checkpoint))
            if job is not None and recipe is not None:
                from export.model.roots import open_job

                source, job = open_job(job, recipe.parent)
            report = audit.audit(place, source, full)
        if job is not None and recipe is not None:
            with progress.step("model"):
                from export.verify import model_checks

                report = model_checks.audit_model(report, place, job, recipe.parent)
    print_page(report.to_json(), report.to_table(), as_json)


@app.command()
def clean(
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="Directory of the bundles, or one under --scratch.")],
    days: Annotated[float, typer.Option("--older-than", min=0, help="Only what no run wrote to for so many days.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Removes what runs left staged that were stopped and will not be resumed. Bundles stay."""
    from bundle.storage import retention

    if not root.is_dir():
        raise UsageError(f"{root} is no directory")
    removed, busy = retention.clean(root, days * 86_400)
    lines = [f"removed {path}" for path in removed] + [f"kept {path}: a run is writing it" for path in busy]
    page = {"removed": [*map(str, removed)], "busy": [*map(str, busy)]}
    print_page(page, "\n".join(lines) or "nothing is staged", as_json)


@app.command()
def explain(
    recipe: Explained,
    html: Html = None,
    checkpoint: Checkpoint = None,
    tables: Tables = None,
    as_json: AsJson = False,
) -> None:
    """Draws what is cut out of a model: features, tables, towers, outputs. Of a bundle, no model code is needed."""
    from rich.text import Text

    from export.explain.text import explain_text

    with _at_work() as progress:
        if recipe.is_dir():
            from export.explain.drawing import drawing_of_bundle

            drawing = drawing_of_bundle(recipe)
        else:
            from export.cli import options
            from export.explain.drawing import draw_prepared
            from export.recipe.schema import read_recipe

            job = options.overridden(read_recipe(recipe), checkpoint, tables=tables)
            if _is_inline(job):
                raise UsageError("explain draws what is cut out; a self-contained SavedModel keeps its tables inside")
            with progress.step("model and plan"):
                from export.jobs.preparation import prepare

                prepared = prepare(job, recipe.parent, options.read_settings())
                drawing = draw_prepared(prepared, recipe.name)
    told = explain_text(drawing)
    if html is not None:
        from export.explain.page import write_page

        write_page(drawing, html)
        told += f"\n\nand as a page: {html}"
    print_page(asdict(drawing), Text(told), as_json)


def _is_inline(job: ExportJob) -> bool:
    return job.output.tables in ("inline", "inline-link")


def _run_inline(
    job: ExportJob, base: Path, settings: ExportSettings, version: int | None, progress: Progress
) -> tuple[dict[str, Any], Any]:
    with progress.step("model and plan"):
        from export.cli.saved_model_page import inline_json, inline_page
        from export.jobs.saved_model_job import prepare_inline, run_inline

        prepared = prepare_inline(job, base, settings, version)
    published = run_inline(prepared, settings, progress)
    return inline_json(published), inline_page(published)


@contextmanager
def _at_work() -> Iterator[Progress]:
    """Keeps native output aside and tells progress; garbage is looked for again, which `main` put off to begin fast."""
    gc.freeze()  # modules stay
    gc.enable()
    with kept_clean(), Progress(errors) as progress:
        yield progress


@contextmanager
def _told_once() -> Iterator[None]:
    """Turns whatever ends a command into one line on stderr and its exit code."""
    try:
        yield
    except ExportError as problem:
        errors.print(f"rowcast-export: {sentence(str(problem))}", markup=False)
        raise SystemExit(problem.exit_code) from problem
    except _UsageMistake as problem:
        page = f"{problem.ctx.command_path} --help" if problem.ctx else "rowcast-export --help"
        told = sentence(problem.format_message()).rstrip(".")
        errors.print(f"rowcast-export: {told} (`{page}` tells what there is)", markup=False)
        raise SystemExit(UsageError.exit_code) from problem
    except SystemExit as finished:
        if finished.code == INTERRUPTED:
            errors.print("rowcast-export: interrupted; run the same command again to resume", markup=False)
        raise


def run_commands() -> NoReturn:
    """Runs the command line; the exit codes are those of `export.errors`, 130 when interrupted."""
    with _told_once():
        raise SystemExit(app(sys.argv[1:] or ["--help"], prog_name="rowcast-export", standalone_mode=False) or 0)
