"""The arguments and options of `rowcast-export`, each defined once: name, value and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

CheckpointPath = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="Path or URL of a checkpoint: its prefix, the .index file of the prefix, or a "
        "directory, of which the newest checkpoint is read.",
    ),
]
FactoryName = Annotated[
    str,
    typer.Argument(
        metavar="FACTORY",
        help="The function or class that builds the model: file.py:function, file.py:Class, "
        "notebook.ipynb:Class or package.module:function.",
    ),
]
ExamplesFile = Annotated[
    Path | None,
    typer.Option(
        "--examples",
        metavar="FILE",
        help="Parquet or JSON-lines file of raw examples, with a column for each input.",
    ),
]
Statements = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Key of code or vocabularies that the draft begins with, and its value in TOML, such "
        "as code.arguments.units=32. Repeatable.",
    ),
]
DraftFile = Annotated[
    Path,
    typer.Option("--out", metavar="FILE", help="New file to write the draft to; -: stdout."),
]
SchemaFile = Annotated[
    Path,
    typer.Option("--out", metavar="FILE", help="File to write the schema to; -: stdout."),
]
CandidatesFile = Annotated[
    Path, typer.Option("--out", metavar="FILE", help="File to write; -: stdout.")
]
VectorFormat = Annotated[
    Literal["parquet", "vertex"],
    typer.Option(
        "--format",
        help="What to write: a Parquet file, or the JSON lines that Vertex AI Vector Search "
        "ingests.",
    ),
]
IndexName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Index whose vectors to write. Default: the only one."),
]
Attributes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME,...",
        help="Write only these attributes, separated by commas. Repeatable. Default: all.",
        show_default=False,
    ),
]
Crowding = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="For --format vertex: attribute whose value is the crowding tag of a candidate.",
    ),
]
RecipePath = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="Recipe (TOML); see docs/reference/recipe.md.")
]
ExplainedPath = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE",
        help="Recipe, or the directory of a published bundle: ROOT/MODEL/VERSION.",
    ),
]
OutputRoot = Annotated[
    str, typer.Argument(metavar="OUT", help="Path or URL of the root to write the bundle under.")
]
BundlePath = Annotated[
    str, typer.Argument(metavar="BUNDLE", help="Directory of the bundle: ROOT/MODEL/VERSION.")
]
Root = Annotated[
    str,
    typer.Argument(
        metavar="ROOT", help="Root of the bundles, a path or URL, or a directory under --scratch."
    ),
]

HtmlFile = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="FILE", help="Also write the drawing as a self-contained HTML page."
    ),
]
SvgFile = Annotated[
    Path | None,
    typer.Option("--svg", metavar="FILE", help="Also write the drawing as an SVG image."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
NamedTables = Annotated[
    list[str] | None,
    typer.Option(
        "--table", metavar="NAME=KEY", help="Read table NAME from the variable KEY. Repeatable."
    ),
]
ModTables = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="State that TF1 distributed the rows of table NAME by the `mod` strategy. Repeatable.",
    ),
]
LayoutFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Layout file: where variables hold the rows of tables; see docs/reference/layouts.md.",
    ),
]
TrainedIds = Annotated[
    list[str] | None,
    typer.Option(
        "--trained-ids",
        metavar="NAME=FILE",
        help="Rows of table NAME that occur in training: a text file with one per line, or a CSV, "
        "Parquet or JSON-lines file with the column id. They prove or contradict "
        'layouts, and derive those of kind "derive". Repeatable.',
    ),
]
AcceptStated = Annotated[
    bool,
    typer.Option(
        "--accept-stated-layouts",
        help="Publish tables even if nothing verifies the layout that --mod or --layout states.",
    ),
]
AllowNonFinite = Annotated[
    bool,
    typer.Option(
        "--allow-non-finite",
        help="Publish tables although rows hold NaN or infinities. The manifest counts them.",
    ),
]
OtherCheckpoint = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Read this checkpoint (a path or URL) instead of the one in the recipe.",
    ),
]
ComparedCheckpoint = Annotated[
    str | None, typer.Option(metavar="PATH", help="Also compare the tables with this checkpoint.")
]
ComparedRecipe = Annotated[
    Path | None,
    typer.Option(
        metavar="RECIPE",
        help="Also compare the bundle with the checkpoint and the model of this recipe, and "
        "measure recall again.",
    ),
]
OtherRoot = Annotated[
    str | None,
    typer.Option(
        metavar="ROOT",
        help="Write under this root (a path or URL) instead of the one in the recipe.",
    ),
]
Version = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Version to write. Default: the next free version."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", help="Number of table workers. 0 (the default): one per core."
    ),
]
Executor = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="Where table workers run: local (the default), ray-local, or the address of a Ray "
        "cluster: HOST:PORT or `ray://HOST:PORT`.",
    ),
]
Scratch = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Stage a bundle for a URL in this directory. Default: .rowcast-scratch.",
        show_default=False,
    ),
]
Budget = Annotated[
    int | None,
    typer.Option(
        min=16 << 20,
        metavar="N",
        help="Maximum memory of a table worker in bytes, without its libraries. Default: 256 MiB.",
    ),
]
Load = Annotated[
    bool | None,
    typer.Option(
        "--load/--no-load",
        help="Before a bundle is published, load it as a service does, in a process of its own. "
        "Default: --load.",
        show_default=False,
    ),
]
Reuse = Annotated[
    bool | None,
    typer.Option(
        "--reuse/--no-reuse",
        help="Share what equals the newest version under the root: segments of tables as hard "
        "links, or blocks in a store. Otherwise, write all of it. Default: --reuse.",
        show_default=False,
    ),
]
WithChanges = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Changes file of the model's service, or a backup of it. The bundle contains its "
        "changes of candidates and contexts.",
    ),
]
SignKey = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Sign the bundle with this private key: PEM without a password, of the curve P-256, "
        "P-384 or P-521. Needs the extra `sign`.",
    ),
]
RequiredSignKey = Annotated[
    Path,
    typer.Option(
        "--sign-key",
        metavar="FILE",
        help="Private key: PEM without a password, of the curve P-256, P-384 or P-521.",
    ),
]
SignCertificates = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Certificate of the key of --sign-key, and behind it those that lead from its issuer "
        "to the authority, PEM. Without it, the public key verifies the signature.",
    ),
]
VerifySignatures = Annotated[
    list[Path] | None,
    typer.Option(
        "--verify-signatures",
        metavar="KEY",
        help="Also verify that this public key, or a certificate of these authorities (PEM), has "
        "signed the bundle. Repeatable: one of them must have signed it. Needs the extra `sign`.",
    ),
]
TableMode = Annotated[
    Literal["copy", "link", "inline", "inline-link"] | None,
    typer.Option("--tables", help="How to write tables, instead of the way in the recipe."),
]
BundleTableMode = Annotated[
    Literal["copy", "link"] | None,
    typer.Option("--tables", help="How to write tables, instead of the way in the recipe."),
]
RequiredTableMode = Annotated[
    Literal["copy", "link"],
    typer.Option(
        "--tables",
        help="How to write tables: copy the rows, or create hard links to the checkpoint where the "
        "rows are stored in order.",
    ),
]
Shards = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=9999,
        metavar="N",
        help="Also show what each of N shards of a service would hold.",
    ),
]
ShardMinBytes = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="For --shards: minimum size in bytes of the tables that are divided among shards. "
        "Default: 1 GiB, as that of the service.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="NAME,...",
        help="Export only these tables, separated by commas. Repeatable.",
    ),
]
Full = Annotated[
    bool,
    typer.Option("--full", help="Compare every row with the checkpoint instead of a sample."),
]
Model = Annotated[str, typer.Option(metavar="NAME", help="Name of the model under the root.")]
Unproved = Annotated[
    bool,
    typer.Option(
        "--unproved",
        help="Publish a self-contained SavedModel even if memory is too short to compare it with "
        "the original model.",
    ),
]
Dtypes = Annotated[
    list[str] | None,
    typer.Option(
        "--dtype",
        metavar="[NAME=]DTYPE",
        help="Type of the rows of all tables, or of table NAME: float32, bfloat16, float16 or int8 "
        "(with a scale per row). Repeatable.",
    ),
]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Show the plan without writing anything.")]
OlderThan = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="DAYS",
        help="Remove only files that no run has written to for DAYS days. Default: 0, in a store "
        "7.",
        show_default=False,
    ),
]
