"""The commands of `rowcast-export`: results go to stdout (as JSON with --json), progress and errors
to stderr.

A command imports its modules when it runs: `inspect` and `--help` need no model code, and start
without TensorFlow.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from bundle.storage.output_file import OutputFile, OutputRejected, OutputStream, output_named
from command_line.program import Program, sentence, show_version
from export.cli import command_line as cl
from export.cli import options
from export.cli.terminal import error_console, native_output_hidden, print_report
from export.errors import CheckpointError, DestinationError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from export.jobs.preparation import Prepared
    from export.jobs.progress import Progress
    from export.jobs.saved_model_job import PreparedInline
    from export.recipe.schema import ExportJob
    from export.recipe.settings import ExportSettings

app = typer.Typer(
    cls=Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # rich would take longer than all else that `--help` needs.
    rich_markup_mode=None,
)
_SECONDS_PER_DAY = 86_400
_STDOUT = Path("-")
_SHARD_MIN_BYTES = 1 << 30
"""The default of the service's setting `shard_min_bytes`."""


def _show_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        show_version(f"rowcast-export {version('rowcast')}")


@app.callback(epilog="Example: rowcast-export run recipe.toml")
def program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Export training checkpoints to verified bundles, which rowcast-serve serves."""


@app.command(epilog="Example: rowcast-export inspect checkpoints/model")
def inspect(
    checkpoint: cl.CheckpointPath,
    named: cl.NamedTables = None,
    mod: cl.ModTables = None,
    layout: cl.LayoutFile = None,
    as_json: cl.AsJson = False,
) -> None:
    """List what is in a checkpoint: tables, slot variables, dense variables and the step. Read no
    table.
    """
    from export.checkpoint.inventory.recognition import recognize
    from export.checkpoint.reader import open_checkpoint
    from export.cli.documents import inspected
    from export.cli.report import render
    from export.locations import location_of

    opened = open_checkpoint(location_of(checkpoint), complete=False)
    problems = opened.problems
    try:
        inventory = recognize(opened, options.read_statements(named, mod, layout))
    except CheckpointError as problem:
        # A missing data file is likely the cause of what is not recognized.
        if problems:
            raise CheckpointError(problems[0]) from problem
        raise
    document = inspected(inventory, problems, opened.graph)
    print_report(document, render(document), as_json)
    # An incomplete checkpoint is shown, and is an error for programs all the same.
    if problems:
        raise CheckpointError(problems[0])


@app.command(
    epilog="Example: rowcast-export init model.py:build_model checkpoints/model --out recipe.toml"
)
def init(
    factory: cl.FactoryName,
    checkpoint: cl.CheckpointPath,
    examples: cl.ExamplesFile = None,
    stated: cl.Statements = None,
    out: cl.DraftFile = _STDOUT,
) -> None:
    """Write the first draft of a recipe: what the model, its examples and its checkpoint show, with
    a comment at each line that none of them does, and a question where it would change outputs. Run
    it where the recipe will be.
    """
    base = Path.cwd()
    # Rejected before the model is built, which may take minutes.
    output = _output(out, "--out")
    name = "the draft"
    if isinstance(output, OutputFile):
        name = str(out)
        if output.path.exists():
            raise UsageError(f"--out {out} exists; a recipe is not overwritten: name another file")
        if output.path.parent != base.resolve():
            raise UsageError(
                f"--out {out} is in another directory; the paths of a recipe are relative to it: "
                "run the command there"
            )
    with _showing_progress() as progress, progress.step("try calls of the model"):
        from export.drafts.drafting import draft_recipe

        draft = draft_recipe(factory, checkpoint, examples, base, stated or ())
    _write_output(draft.text, output, "--out")
    if draft.problem:
        problem = sentence(draft.problem)
        sys.stderr.write(f"{name} is not complete yet: {problem}\n")
        raise typer.Exit(1)
    if isinstance(output, OutputFile):
        read = "read it"
        if draft.questions:
            keys = ", ".join(f"inputs.{input_name}" for input_name in draft.questions)
            read = f"read it, and settle the questions of {keys}"
        sys.stderr.write(f"wrote {out}; {read}, then run `rowcast-export plan {out}`\n")


@app.command(epilog="Example: rowcast-export schema --out recipe-schema.json")
def schema(out: cl.SchemaFile = _STDOUT) -> None:
    """Print the JSON Schema of recipes, with which editors complete keys and mark mistakes. The
    first line of a draft names the file: write it beside the recipe.
    """
    from export.recipe.json_schema import schema_text

    output = _output(out, "--out")
    _write_output(schema_text(), output, "--out")
    if isinstance(output, OutputFile):
        sys.stderr.write(f"wrote {out}\n")


@app.command(epilog="Example: rowcast-export check recipe.toml")
def check(
    recipe: cl.RecipePath, checkpoint: cl.OtherCheckpoint = None, as_json: cl.AsJson = False
) -> None:
    """Find mistakes in a recipe and in the files that it names, without running model code: names,
    defaults, vocabularies, examples, and the first rows of corpora. `plan` and `run` begin with it.
    """
    job = options.read_job(recipe, checkpoint)
    # Imported after the recipe was read, in which most mistakes are.
    from rich.text import Text

    from export.jobs.recipe_checks import mistakes_of

    mistakes = list(mistakes_of(job, recipe.parent))
    sentences = [sentence(str(mistake)) for mistake in mistakes]
    report = {"recipe": str(recipe), "mistakes": sentences}
    text = "\n".join(sentences) or f"{recipe}: no mistake found; `plan` builds the model as well"
    print_report(report, Text(text), as_json)
    if mistakes:
        raise typer.Exit(mistakes[0].exit_code)


@app.command(epilog="Example: rowcast-export plan recipe.toml --shards 4")
def plan(
    recipe: cl.RecipePath,
    checkpoint: cl.OtherCheckpoint = None,
    root: cl.OtherRoot = None,
    version: cl.Version = None,
    full: cl.Full = False,
    workers: cl.Workers = None,
    executor: cl.Executor = None,
    budget_bytes: cl.Budget = None,
    scratch: cl.Scratch = None,
    reuse: cl.Reuse = None,
    table_mode: cl.TableMode = None,
    shards: cl.Shards = None,
    shard_min_bytes: cl.ShardMinBytes = None,
    as_json: cl.AsJson = False,
) -> None:
    """Show what `run` would read and write: bytes, files and memory. Write nothing."""
    settings = options.read_settings(
        workers=workers,
        executor=executor,
        budget_bytes=budget_bytes,
        scratch=scratch,
        reuse=reuse,
        full=full,
    )
    job = options.read_job(recipe, checkpoint, root, table_mode)
    # Rejected before the model is built, which may take minutes.
    if shards and job.output.tables in options.INLINE:
        raise UsageError(
            f"--shards was given, and tables are written {job.output.tables}; shards serve bundles"
        )
    if shard_min_bytes is not None and shards is None:
        raise UsageError("--shard-min-bytes belongs to --shards, which is missing")

    with _showing_progress() as progress:
        prepared = _prepare(job, recipe, settings, version, progress)
        # Imported after `_prepare`, whose step covers the seconds that TensorFlow takes to load.
        from rich.console import Group
        from rich.text import Text

        from export.cli import documents
        from export.cli.report import render
        from export.cli.shard_sizes import shard_sizes
        from export.explain.drawing import draw_prepared
        from export.explain.text import explain_text
        from export.jobs.preparation import Prepared

        if isinstance(prepared, Prepared):
            document = documents.planned(prepared)
            if shards:
                document["shards"] = shard_sizes(
                    prepared, shards, shard_min_bytes or _SHARD_MIN_BYTES
                )
            partition = explain_text(draw_prepared(prepared, recipe.name))
            report: RenderableType = Group(Text(f"{partition}\n"), render(document))
        else:
            document = documents.planned_inline(prepared, settings)
            report = render(document)
    print_report(document, report, as_json)


@app.command(epilog="Example: rowcast-export run recipe.toml")
def run(
    recipe: cl.RecipePath,
    checkpoint: cl.OtherCheckpoint = None,
    root: cl.OtherRoot = None,
    version: cl.Version = None,
    full: cl.Full = False,
    unproved: cl.Unproved = False,
    workers: cl.Workers = None,
    executor: cl.Executor = None,
    budget_bytes: cl.Budget = None,
    scratch: cl.Scratch = None,
    with_changes: cl.WithChanges = None,
    reuse: cl.Reuse = None,
    load: cl.Load = None,
    sign_key: cl.SignKey = None,
    sign_certificates: cl.SignCertificates = None,
    table_mode: cl.TableMode = None,
    as_json: cl.AsJson = False,
) -> None:
    """Write, verify and publish a bundle. To resume an interrupted run, run the same command again.
    If verification fails, nothing is published.
    """
    settings = options.read_settings(
        workers=workers,
        executor=executor,
        budget_bytes=budget_bytes,
        scratch=scratch,
        with_changes=with_changes,
        reuse=reuse,
        load=load,
        sign_key=sign_key,
        sign_certificates=sign_certificates,
        full=full,
        unproved=unproved,
    )
    from export.recipe.questions import check_settled

    job = options.read_job(recipe, checkpoint, root, table_mode)
    # Rejected before the model is built, which may take minutes.
    check_settled(job)
    if unproved and job.output.tables not in options.INLINE:
        raise UsageError(
            "--unproved is for a self-contained SavedModel; a bundle is always compared with the "
            "original model"
        )

    if with_changes is not None and job.output.tables in options.INLINE:
        raise UsageError(
            "--with-changes is for a bundle; a self-contained SavedModel has no candidates"
        )

    if settings.sign_key is not None and job.output.tables in options.INLINE:
        raise UsageError("--sign-key is for a bundle; a self-contained SavedModel is not signed")

    with _showing_progress() as progress:
        prepared = _prepare(job, recipe, settings, version, progress)
        # Imported after `_prepare`, whose step covers the seconds that TensorFlow takes to load.
        from export.cli import documents
        from export.cli.report import render
        from export.jobs import bundle_job, saved_model_job
        from export.jobs.preparation import Prepared

        if isinstance(prepared, Prepared):
            document = documents.published(bundle_job.run(prepared, settings, progress))
        else:
            document = saved_model_job.run_inline(prepared, settings, progress)
    document["seconds"] = progress.seconds
    print_report(document, render(document), as_json)


def _prepare(
    job: ExportJob,
    recipe: Path,
    settings: ExportSettings,
    version: int | None,
    progress: Progress,
) -> Prepared | PreparedInline:
    """Reads the model and the checkpoint of a recipe, and plans the export."""
    with progress.step("check"):
        # Here, and not only where jobs are prepared: to import TensorFlow takes seconds, too.
        from export.jobs.recipe_checks import check_recipe

        check_recipe(job, recipe.parent)
    with progress.step("load TensorFlow"):
        from export.jobs import bundle_job, saved_model_job

    base = recipe.parent
    if job.output.tables in options.INLINE:
        return saved_model_job.prepare_inline(job, base, settings, version, progress)
    return bundle_job.prepare(job, base, settings, version, progress)


@app.command(epilog="Example: rowcast-export tables checkpoints/model bundles --only users,movies")
def tables(
    checkpoint: cl.CheckpointPath,
    out: cl.OutputRoot,
    named: cl.NamedTables = None,
    mod: cl.ModTables = None,
    layout: cl.LayoutFile = None,
    trained_ids: cl.TrainedIds = None,
    accept_stated: cl.AcceptStated = False,
    allow_non_finite: cl.AllowNonFinite = False,
    model: cl.Model = "tables",
    version: cl.Version = None,
    full: cl.Full = False,
    workers: cl.Workers = None,
    executor: cl.Executor = None,
    budget_bytes: cl.Budget = None,
    scratch: cl.Scratch = None,
    reuse: cl.Reuse = None,
    sign_key: cl.SignKey = None,
    sign_certificates: cl.SignCertificates = None,
    table_mode: cl.RequiredTableMode = "copy",
    only: cl.Only = None,
    dtypes: cl.Dtypes = None,
    plan_only: cl.PlanOnly = False,
    as_json: cl.AsJson = False,
) -> None:
    """Export tables without model code: the tables that the metadata identifies or that you
    name.
    """
    from export.cli import documents
    from export.cli.report import render
    from export.jobs import tables_job
    from export.jobs.destinations import open_destination
    from export.locations import location_of
    from export.tables.conversions import read_dtypes
    from export.tables.plan import WriteOptions

    settings = options.read_settings(
        workers=workers,
        executor=executor,
        budget_bytes=budget_bytes,
        scratch=scratch,
        reuse=reuse,
        sign_key=sign_key,
        sign_certificates=sign_certificates,
        full=full,
    )
    with _showing_progress() as progress:
        common_dtype, table_dtypes = read_dtypes(dtypes or ())
        writing = WriteOptions(
            dtype=common_dtype, link=table_mode == "link", allow_non_finite=allow_non_finite
        )
        job = tables_job.TablesJob(
            model,
            version,
            options.read_statements(named, mod, layout),
            options.read_names("--only", only or ()),
            writing,
            table_dtypes,
            accept_stated,
            options.read_trained_ids(trained_ids),
        )
        # OUT is relative to the working directory, unlike the root that a recipe states.
        destination = open_destination(out, Path(), settings.scratch)
        prepared = tables_job.prepare_tables(location_of(checkpoint), destination, job, settings)
        if plan_only:
            document = documents.planned_tables(prepared)
        else:
            document = documents.published(tables_job.export_tables(prepared, settings, progress))
            document["seconds"] = progress.seconds
    print_report(document, render(document), as_json)


@app.command(epilog="Example: rowcast-export verify bundles/movielens/1 --full")
def verify(
    bundle: cl.BundlePath,
    checkpoint: cl.ComparedCheckpoint = None,
    recipe: cl.ComparedRecipe = None,
    with_changes: cl.WithChanges = None,
    full: cl.Full = False,
    verify_signatures: cl.VerifySignatures = None,
    as_json: cl.AsJson = False,
) -> None:
    """Verify a published bundle again: compare every byte with its checksum, and open every
    part.
    """
    from export.locations import location_of
    from object_store.remote_path import RemotePath

    directory = location_of(bundle)
    if isinstance(directory, RemotePath):
        raise UsageError(
            f"{directory} is a URL; download the bundle with `rowcast-serve pull {directory} "
            "ROOT`, then verify it"
        )
    # Each would be ignored, as if it had been checked.
    if recipe is None:
        if with_changes is not None:
            raise UsageError(
                "--with-changes names what --recipe is compared with; name the recipe, too"
            )
        if full and checkpoint is None:
            raise UsageError(
                "--full compares every row with a checkpoint; name it by --checkpoint or --recipe"
            )
    with _showing_progress() as progress, progress.step("verify"):
        from export.checkpoint.reader import open_checkpoint
        from export.cli import documents
        from export.cli.report import render
        from export.verify.published import verify_against_recipe, verify_bundle
        from export.verify.signature import verify_signature

        # First: before any library reads what somebody else may have put there.
        if verify_signatures:
            verify_signature(directory, verify_signatures)
        # Without a recipe, no model code runs.
        if recipe is not None:
            job = options.read_job(recipe, checkpoint)
            verified = verify_against_recipe(
                directory, job, recipe.parent, full=full, with_changes=with_changes
            )
        else:
            source = None
            if checkpoint is not None:
                source = open_checkpoint(location_of(checkpoint))
            verified = verify_bundle(directory, source, full=full)
    document = documents.verified(verified)
    document["signature_verified"] = bool(verify_signatures)
    print_report(document, render(document), as_json)


@app.command(epilog="Example: rowcast-export sign bundles/movielens/1 --sign-key key.pem")
def sign(
    bundle: cl.BundlePath,
    sign_key: cl.RequiredSignKey,
    sign_certificates: cl.SignCertificates = None,
    as_json: cl.AsJson = False,
) -> None:
    """Sign a published bundle, or sign it again with another key. With --sign-key, `run` and
    `tables` sign what they publish.
    """
    from rich.text import Text

    from export.locations import location_of
    from object_store.remote_path import RemotePath

    directory = location_of(bundle)
    if isinstance(directory, RemotePath):
        raise UsageError(
            f"{directory} is a URL; an export signs what it publishes there: add --sign-key to it"
        )
    with _showing_progress() as progress, progress.step("sign"):
        from bundle.storage.signatures import Signer
        from export.jobs.signing import sign_bundle

        signed = sign_bundle(directory, Signer(sign_key, sign_certificates))
    document = {
        "bundle": str(directory),
        "files": len(signed.files),
        "bytes": sum(file.bytes for file in signed.files.values()),
    }
    print_report(document, Text(f"signed {directory} ({len(signed.files)} files)"), as_json)


@app.command(epilog="Example: rowcast-export vectors bundles/movielens/1 --out movies.parquet")
def vectors(
    bundle: cl.BundlePath,
    out: cl.CandidatesFile,
    output_format: cl.VectorFormat = "parquet",
    index: cl.IndexName = None,
    attributes: cl.Attributes = None,
    crowding: cl.Crowding = None,
    as_json: cl.AsJson = False,
) -> None:
    """Write the candidates of an index for another engine: ids, vectors and attributes. No model
    code runs.
    """
    from export.locations import location_of
    from object_store.remote_path import RemotePath

    directory = location_of(bundle)
    if isinstance(directory, RemotePath):
        raise UsageError(
            f"{directory} is a URL; download the bundle with `rowcast-serve pull {directory} "
            "ROOT`, then run this command on the copy"
        )
    output = _output(out, "--out")
    is_vertex = output_format == "vertex"
    if crowding is not None and not is_vertex:
        raise UsageError("--crowding belongs to --format vertex, which is missing")
    # By this ending, Vertex AI knows the format.
    if is_vertex and isinstance(output, OutputFile) and out.suffix != ".json":
        raise UsageError(f"--out {out}: Vertex AI ingests files whose names end in .json")
    from export.corpora.vector_files import open_candidates, write_parquet, write_vertex

    names = options.read_names("--attributes", attributes or ())
    candidates = open_candidates(directory, index, names)
    with _writing(output, "--out") as stream:
        if is_vertex:
            write_vertex(candidates, stream, crowding)
        else:
            write_parquet(candidates, stream)
    if isinstance(output, OutputStream) and output.is_standard_output:
        return
    document = {
        "index": candidates.name,
        "corpus": candidates.index.corpus,
        "candidates": candidates.columns.size,
        "dim": candidates.index.dim,
        "distance": candidates.index.distance,
        "attributes": list(candidates.attributes),
        "out": str(out),
    }
    text = (
        f"wrote {document['candidates']} candidates of index {candidates.name} to {out}: "
        f"{candidates.index.dim} dims, {candidates.index.distance}"
    )
    print_report(document, text, as_json)


@app.command(epilog="Example: rowcast-export clean bundles")
def clean(root: cl.Root, older_than: cl.OlderThan = None, as_json: cl.AsJson = False) -> None:
    """Remove the staged files of interrupted runs, and from a store the objects that no bundle
    names. Keep all bundles.
    """
    from export.locations import location_of
    from object_store.remote_path import RemotePath

    location = location_of(root)
    removed: Sequence[object]
    busy: Sequence[object]
    if isinstance(location, RemotePath):
        from export.jobs.store_cleaning import GRACE_DAYS, clean_store

        # A run may be about to name an object that was written within the grace period.
        days = GRACE_DAYS
        if older_than is not None:
            days = older_than
        with _showing_progress():
            removed, busy = clean_store(location, days)
        busy_reason = f"written to in the last {days:g} days"
        nothing_removed = "no unused object is old enough"
    else:
        from bundle.storage import retention

        if not location.is_dir():
            raise UsageError(f"{location} is not a directory")
        # A run locks what it stages, so that no grace period is needed.
        removed, busy = retention.clean(location, (older_than or 0) * _SECONDS_PER_DAY)
        busy_reason = "a run is writing it"
        nothing_removed = "nothing is staged"
    lines = [f"removed {path}" for path in removed]
    lines += [f"kept {path}: {busy_reason}" for path in busy]
    report = {"removed": [*map(str, removed)], "busy": [*map(str, busy)]}
    print_report(report, "\n".join(lines) or nothing_removed, as_json)


@app.command(epilog="Example: rowcast-export explain recipe.toml --html model.html")
def explain(
    recipe: cl.ExplainedPath,
    html: cl.HtmlFile = None,
    svg: cl.SvgFile = None,
    checkpoint: cl.OtherCheckpoint = None,
    table_mode: cl.BundleTableMode = None,
    as_json: cl.AsJson = False,
) -> None:
    """Show how a model is partitioned: features, tables, towers and outputs. A bundle can be
    explained without model code.
    """
    from rich.text import Text

    from export.explain import drawing as drawings
    from export.explain.text import explain_text

    # Rejected before the model is traced, which may take minutes.
    outputs = {
        option: _output(path, option)
        for option, path in (("--html", html), ("--svg", svg))
        if path is not None
    }
    with _showing_progress() as progress:
        # A recipe is a file. A directory is that of a bundle, for which no model code runs.
        if recipe.is_dir():
            if checkpoint is not None or table_mode is not None:
                raise UsageError(
                    f"{recipe} is the directory of a bundle, whose checkpoint and tables are "
                    "fixed; --checkpoint and --tables belong to a recipe"
                )
            drawing = drawings.drawing_of_bundle(recipe)
        else:
            job = options.read_job(recipe, checkpoint, table_mode=table_mode)
            if job.output.tables in options.INLINE:
                raise UsageError(
                    f"tables are written {job.output.tables}, into a SavedModel; explain shows the "
                    "parts of a bundle: add --tables copy"
                )
            # Self-contained SavedModels were rejected above.
            prepared = cast(
                "Prepared", _prepare(job, recipe, options.read_settings(), None, progress)
            )
            drawing = drawings.draw_prepared(prepared, recipe.name)
    text = explain_text(drawing)
    for option, output in outputs.items():
        from export.explain.picture import explain_image, explain_page

        picture, form = explain_image(drawing), "an image"
        if option == "--html":
            picture, form = explain_page(drawing), "a page"
        _write_output(picture, output, option)
        text += f"\n\nand as {form}: {output.path}"
    # A picture on standard output is not to be mixed with a text.
    if not any(
        isinstance(output, OutputStream) and output.is_standard_output
        for output in outputs.values()
    ):
        # A Text, because rich takes brackets in a plain string for styles.
        print_report(asdict(drawing), Text(text), as_json)


def _output(path: Path, option: str) -> OutputFile | OutputStream:
    """Returns the file or stream that an option names.

    Raises:
      UsageError: Nothing can be written there.
      DestinationError: It cannot be examined.
    """
    try:
        return output_named(path)
    except OutputRejected as problem:
        raise UsageError(f"{option}: {problem}") from problem
    except OSError as problem:
        raise DestinationError(
            f"{option} {path}: {problem.strerror}; choose a file that can be written"
        ) from problem


def _write_output(content: str, output: OutputFile | OutputStream, option: str) -> None:
    """Writes the result of a command to the file or stream that an option names.

    Raises:
      DestinationError: It cannot be written there.
    """
    with _writing(output, option) as stream:
        # Names of files need not be UTF-8.
        stream.write(content.encode(errors="backslashreplace"))


@contextmanager
def _writing(output: OutputFile | OutputStream, option: str) -> Iterator[BinaryIO]:
    """Lends the file or stream that an option names to a block; raises as `_write_output`."""
    try:
        with output.writing() as stream:
            yield stream
    except OutputRejected as problem:
        raise UsageError(f"{option}: {problem}") from problem
    except OSError as problem:
        raise DestinationError(
            f"{option} {output.path}: {problem.strerror}; choose a file that can be written"
        ) from problem


@contextmanager
def _showing_progress() -> Iterator[Progress]:
    """Hides native output and shows progress while a command works."""
    from export.jobs.progress import Progress

    # Of the terminal, and not of what the block redirects.
    console = error_console()
    with native_output_hidden():
        yield Progress(console)
