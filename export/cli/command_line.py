"""The arguments and options of `rowcast-export`, each defined once: name, value and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

CheckpointPath = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="A checkpoint: directory (its newest one), prefix or .index file, as a path or URL.",
    ),
]
RecipePath = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="A recipe, TOML; see docs/reference/recipe.md.")
]
Explained = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE", help="A recipe, or a published bundle's directory: ROOT/MODEL/VERSION."
    ),
]
Out = Annotated[str, typer.Argument(metavar="OUT", help="Root to write under, a path or URL.")]
BundlePath = Annotated[
    str, typer.Argument(metavar="BUNDLE", help="A bundle's directory: ROOT/MODEL/VERSION.")
]
Root = Annotated[
    Path, typer.Argument(metavar="ROOT", help="Directory of the bundles, or one under --scratch.")
]

Html = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="FILE", help="Also write the drawing as a self-contained HTML page."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Named = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="NAME=KEY", help="Variable KEY is table NAME; repeatable."),
]
Mod = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="TF1 spread table NAME over partitions by `mod`; repeatable."
    ),
]
LayoutFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Where tables lie in variables; see docs/reference/checkpoints.md."
    ),
]
OtherCheckpoint = Annotated[
    str | None,
    typer.Option(
        metavar="PATH", help="Read this checkpoint, a path or URL, instead of the recipe's."
    ),
]
Compared = Annotated[
    str | None, typer.Option(metavar="PATH", help="Also compare the tables with this checkpoint.")
]
ComparedRecipe = Annotated[
    Path | None,
    typer.Option(
        metavar="RECIPE",
        help="Also compare with the recipe's checkpoint and model, and measure recall again.",
    ),
]
OtherRoot = Annotated[
    str | None,
    typer.Option(
        metavar="ROOT", help="Write under this root, a path or URL, instead of the recipe's."
    ),
]
Version = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Version to write; default: the next free one."),
]
Workers = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Table workers; 0: one per core.")
]
Executor = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="Where table workers run: local, ray-local, or a Ray cluster: HOST:PORT, ray://HOST:PORT.",
    ),
]
Scratch = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Stage a bundle for a URL here; default: .rowcast-scratch.",
        show_default=False,
    ),
]
Budget = Annotated[
    int | None,
    typer.Option(
        min=16 << 20, metavar="N", help="Memory of one table worker beyond its libraries, bytes."
    ),
]
How = Annotated[
    Literal["copy", "link", "inline", "inline-link"] | None,
    typer.Option("--tables", help="How tables are written, instead of the recipe's way."),
]
Shards = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=9999,
        metavar="N",
        help="plan: also show what each of N shards of a service would hold.",
    ),
]
ShardLeastBytes = Annotated[
    int,
    typer.Option(
        min=1, metavar="N", help="With --shards: least size of the tables that shards hold."
    ),
]
Chosen = Annotated[
    list[str] | None,
    typer.Option(
        "--tables",
        metavar="HOW|A,B",
        help="How tables are written (copy or link), or which ones (names, separated by commas); repeatable.",
    ),
]
Full = Annotated[
    bool, typer.Option("--full", help="Compare every row with the checkpoint, not only a sample.")
]
Model = Annotated[str, typer.Option(metavar="NAME", help="Name of the bundle under the root.")]
Dtypes = Annotated[
    list[str] | None,
    typer.Option(
        "--dtype",
        metavar="[NAME=]DTYPE",
        help="Type of the stored rows: float32, bfloat16, float16 or int8 (with a scale for each row); repeatable.",
    ),
]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Show the plan; write nothing.")]
OlderThan = Annotated[
    float, typer.Option(min=0, help="Remove only what no run has written to for this many days.")
]
