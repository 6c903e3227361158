"""The arguments and options of `rowcast-export`, each said once: name, value, help, and its heading in --help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

WHAT, HOW = "What is exported", "How it is written"

CheckpointPath = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT", help="A checkpoint's directory (its newest), prefix or .index file: a path or a URL."
    ),
]
RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe, TOML; see docs/reference/recipe.md.")]
Explained = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="A recipe, or a published bundle's directory: ROOT/MODEL/VERSION.")
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Also write a page with a drawing; it loads nothing.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Named = Annotated[
    list[str] | None,
    typer.Option(
        "--table", metavar="NAME=KEY", help="Variable KEY is table NAME; several times.", rich_help_panel=WHAT
    ),
]
Mod = Annotated[
    list[str] | None,
    typer.Option(
        "--mod",
        metavar="NAME",
        help="TF1 spread table NAME over its partitions by `mod`; several times.",
        rich_help_panel=WHAT,
    ),
]
LayoutFile = Annotated[
    Path | None,
    typer.Option(
        "--layout",
        metavar="FILE",
        help="How tables lie in variables; see docs/reference/checkpoints.md.",
        rich_help_panel=WHAT,
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="PATH",
        help="Read this checkpoint, a path or a URL, instead of the recipe's.",
        rich_help_panel=WHAT,
    ),
]
Root = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="ROOT",
        help="Write under this root, a path or a URL, instead of the recipe's.",
        rich_help_panel=HOW,
    ),
]
Version = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Version to write; the next free one by default.", rich_help_panel=HOW),
]
Workers = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Table workers; 0: one per core.", rich_help_panel=HOW)
]
Executor = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="Where table workers run: local, ray-local, or a Ray cluster: HOST:PORT, ray://HOST:PORT.",
        rich_help_panel=HOW,
    ),
]
Scratch = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Stage here what goes to a URL; .rowcast-scratch by default.",
        show_default=False,
        rich_help_panel=HOW,
    ),
]
Tables = Annotated[
    Literal["copy", "link", "inline", "inline-link"] | None,
    typer.Option("--tables", help="How tables are written, instead of the recipe's.", rich_help_panel=HOW),
]
Chosen = Annotated[
    list[str] | None,
    typer.Option(
        "--tables",
        metavar="HOW|A,B",
        help="How tables are written: copy or link; or which: names with commas. Several times.",
        rich_help_panel=WHAT,
    ),
]
Budget = Annotated[
    int | None,
    typer.Option(
        "--budget-bytes",
        min=16 << 20,
        metavar="N",
        help="Memory of one table worker beside its libraries, bytes.",
        rich_help_panel=HOW,
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Compare every row with the checkpoint instead of a sample.")]
Out = Annotated[str, typer.Argument(metavar="OUT", help="Root to write under: a path or a URL.")]
Slots = Annotated[
    bool, typer.Option("--with-slots", help="Export slot variables too, for a warm restart.", rich_help_panel=WHAT)
]
Model = Annotated[str, typer.Option(metavar="NAME", help="Name of the bundle under the root.", rich_help_panel=HOW)]
Dtypes = Annotated[
    list[str] | None,
    typer.Option(
        "--dtype",
        metavar="[NAME=]DTYPE",
        help="What rows become: float32, bfloat16, float16 or int8 (with a scale for each row). Several times.",
        rich_help_panel=WHAT,
    ),
]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Tell what would be done; touch nothing.")]
