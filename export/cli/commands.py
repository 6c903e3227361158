"""The commands of `rowcast-export`: results go to stdout (as JSON with --json), progress and errors to stderr.

What a command needs is imported when it runs: `inspect` and `--help` need no model code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from export.cli import command_line as cl
from export.cli import options
from export.cli.terminal import kept_clean, print_report
from export.errors import CheckpointError, UsageError
from export.jobs.progress import Progress
from export.places import place_of
from runtime.object_store import RemotePath

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rowcast-export {installed_version('rowcast')}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Turns training checkpoints into verified bundles that rowcast-serve answers from."""


@app.command()
def inspect(
    checkpoint: cl.CheckpointPath,
    named: cl.Named = None,
    mod: cl.Mod = None,
    layout: cl.LayoutFile = None,
    as_json: cl.AsJson = False,
) -> None:
    """Lists what is in a checkpoint: tables, slot variables, dense variables, step. Reads no table."""
    from export.checkpoint.inventory.recognition import recognise
    from export.checkpoint.reader import open_checkpoint
    from export.cli.inspect import inventory_json, inventory_table

    opened = open_checkpoint(place_of(checkpoint), complete=False)
    problems = opened.problems
    try:
        inventory = recognise(opened, options.read_statements(named, mod, layout))
    except CheckpointError as problem:
        raise CheckpointError(problems[0] if problems else str(problem)) from problem
    print_report(inventory_json(inventory, problems), inventory_table(inventory, problems), as_json)
    if problems:
        raise CheckpointError(problems[0])


@app.command(
    "run",
    help="Writes, verifies and publishes a bundle. A stopped run resumes; a failed check publishes nothing.",
)
@app.command(
    "plan", help="Shows what `run` would read and write: bytes, files and memory. Writes nothing."
)
def plan_or_run(
    context: typer.Context,
    recipe: cl.RecipePath,
    checkpoint: cl.OtherCheckpoint = None,
    root: cl.OtherRoot = None,
    version: cl.Version = None,
    full: cl.Full = False,
    workers: cl.Workers = None,
    executor: cl.Executor = None,
    budget_bytes: cl.Budget = None,
    scratch: cl.Scratch = None,
    how: cl.How = None,
    shards: cl.Shards = None,
    shard_least_bytes: cl.ShardLeastBytes = 1 << 30,
    as_json: cl.AsJson = False,
) -> None:
    """Prepares the job of a recipe, and runs it unless it is only planned."""
    settings = options.read_settings(
        workers=workers, executor=executor, budget_bytes=budget_bytes, scratch=scratch, full=full
    )
    job, planned = options.read_job(recipe, checkpoint, root, how), context.info_name == "plan"
    if shards and (not planned or job.output.tables in options.INLINE):
        raise UsageError(
            "--shards is for the plan of a bundle: the same bundle is served by any number of shards"
        )
    with _at_work() as progress:
        with progress.step("model and plan"):
            from export.jobs import bundle_job, saved_model_job

            inline = job.output.tables in options.INLINE
            prepare = saved_model_job.prepare_inline if inline else bundle_job.prepare
            prepared = prepare(job, recipe.parent, settings, version)
        from export.cli import plan_report, published_report, saved_model_report
        from export.cli.shard_sizes import shard_sizes

        if isinstance(prepared, bundle_job.Prepared):
            if planned:
                sizes = shard_sizes(prepared, shards, shard_least_bytes) if shards else []
                report = plan_report.plan_json(prepared) | ({"shards": sizes} if shards else {})
                table = plan_report.plan_report(prepared, recipe.name, sizes)
            else:
                published = bundle_job.run(prepared, settings, progress)
                report, table = (
                    published_report.published_json(published),
                    published_report.published_report(published),
                )
        elif planned:
            report = saved_model_report.plan_json(prepared, settings)
            table = saved_model_report.plan_report(prepared, report)
        else:
            report = saved_model_job.run_inline(prepared, settings, progress)
            table = saved_model_report.published_report(report)
    print_report(report if planned else report | {"seconds": progress.seconds}, table, as_json)


@app.command()
def tables(
    checkpoint: cl.CheckpointPath,
    out: cl.Out,
    named: cl.Named = None,
    mod: cl.Mod = None,
    layout: cl.LayoutFile = None,
    model: cl.Model = "tables",
    version: cl.Version = None,
    full: cl.Full = False,
    workers: cl.Workers = None,
    executor: cl.Executor = None,
    budget_bytes: cl.Budget = None,
    scratch: cl.Scratch = None,
    chosen: cl.Chosen = None,
    dtypes: cl.Dtypes = None,
    plan_only: cl.PlanOnly = False,
    as_json: cl.AsJson = False,
) -> None:
    """Exports only tables, without model code: those that the metadata identifies or that you name."""
    from export.cli import published_report
    from export.cli.inspect import plan_table
    from export.jobs import tables_job
    from export.jobs.destinations import open_destination
    from export.tables.conversions import read_dtypes
    from export.tables.plan import Writing

    settings = options.read_settings(
        workers=workers, executor=executor, budget_bytes=budget_bytes, scratch=scratch, full=full
    )
    with _at_work() as progress:
        link, names = options.read_chosen(chosen or [])
        every, single = read_dtypes(dtypes or ())
        said = options.read_statements(named, mod, layout)
        job = tables_job.TablesJob(
            model, version, said, names, Writing(dtype=every, link=link), single
        )
        destination = open_destination(out, Path(), settings.scratch)
        prepared = tables_job.prepare_tables(place_of(checkpoint), destination, job, settings)
        if plan_only:
            report = prepared.plan.to_json() | {"notes": list(prepared.notes)}
            table = plan_table(prepared.plan, prepared.notes)
        else:
            published = tables_job.export_tables(prepared, settings, progress)
            report = published_report.published_json(published) | {"seconds": progress.seconds}
            table = published_report.published_report(published)
    print_report(report, table, as_json)


@app.command()
def verify(
    bundle: cl.BundlePath,
    checkpoint: cl.Compared = None,
    recipe: cl.ComparedRecipe = None,
    full: cl.Full = False,
    as_json: cl.AsJson = False,
) -> None:
    """Checks a published bundle again: every byte against its checksum, and that every part opens."""
    place = place_of(bundle)
    if isinstance(place, RemotePath):
        raise UsageError(
            f"{place} is a URL; bring the bundle here with `rowcast-serve pull {place} ROOT`, then verify it"
        )
    with _at_work() as progress:
        from export.checkpoint.reader import open_checkpoint
        from export.verify import audit

        with progress.step("verify"):
            source = None if checkpoint is None else open_checkpoint(place_of(checkpoint))
            if recipe is not None:
                from export.model.roots import open_job

                source, job = open_job(options.read_job(recipe, checkpoint), recipe.parent)
            report = audit.audit(place, source, full)
        if recipe is not None:
            with progress.step("model"):
                from export.verify import model_checks

                report = model_checks.audit_model(report, place, job, recipe.parent)
    print_report(report.to_json(), report.to_table(), as_json)


@app.command()
def clean(root: cl.Root, older_than: cl.OlderThan = 0, as_json: cl.AsJson = False) -> None:
    """Removes the staged files of stopped runs. Bundles stay."""
    from bundle.storage import retention

    if not root.is_dir():
        raise UsageError(f"{root} is no directory")
    removed, busy = retention.clean(root, older_than * 86_400)
    lines = [f"removed {path}" for path in removed] + [
        f"kept {path}: a run is writing it" for path in busy
    ]
    report = {"removed": [*map(str, removed)], "busy": [*map(str, busy)]}
    print_report(report, "\n".join(lines) or "nothing is staged", as_json)


@app.command()
def explain(
    recipe: cl.Explained,
    html: cl.Html = None,
    checkpoint: cl.OtherCheckpoint = None,
    how: cl.How = None,
    as_json: cl.AsJson = False,
) -> None:
    """Shows how a model is partitioned: features, tables, towers, outputs. A bundle needs no model code."""
    from rich.text import Text

    from export.explain import drawing as drawings
    from export.explain.text import explain_text

    with _at_work() as progress:
        if recipe.is_dir():
            drawing = drawings.drawing_of_bundle(recipe)
        else:
            job = options.read_job(recipe, checkpoint, how=how)
            if job.output.tables in options.INLINE:
                raise UsageError(
                    "explain draws what is cut out; a self-contained SavedModel keeps its tables inside"
                )
            with progress.step("model and plan"):
                from export.jobs.preparation import prepare

                prepared = prepare(job, recipe.parent, options.read_settings())
                drawing = drawings.draw_prepared(prepared, recipe.name)
    text = explain_text(drawing)
    if html is not None:
        from export.explain.page import write_page

        write_page(drawing, html)
        text += f"\n\nand as a page: {html}"
    print_report(asdict(drawing), Text(text), as_json)


@contextmanager
def _at_work() -> Iterator[Progress]:
    """Puts native output aside and tells progress while a command works."""
    with kept_clean():
        yield Progress(errors)
