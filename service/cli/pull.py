"""`rowcast-serve pull`: options, progress bar and exit codes. What it needs is imported when it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from service.exit_codes import EXIT_USAGE

if TYPE_CHECKING:
    from bundle.format.manifest import Manifest
    from service.cli.bundle_download import Pulled


def pull_command(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="A root in a store, a model's directory or a bundle."),
    ],
    root: Annotated[
        str,
        typer.Argument(metavar="ROOT", help="Directory of the local bundles; created if missing."),
    ],
    model: Annotated[
        str | None, typer.Option(help="Model of a root; required if it holds several.")
    ] = None,
    version: Annotated[
        str, typer.Option(metavar="N", help="Version: a number, or latest.")
    ] = "latest",
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Then remove versions that are not among the newest N and that nothing uses.",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER/TOTAL",
            envvar="ROWCAST_SHARD",
            help="Only the files that this shard reads.",
        ),
    ] = None,
    front: Annotated[
        bool, typer.Option("--front", help="Only the files that a front of shards reads.")
    ] = False,
    shard_least_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            envvar="ROWCAST_SHARD_LEAST_BYTES",
            help="Least size of the tables that shards hold; default: that of the service.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Downloads a bundle from an object store (s3://, gs://, ...) into a local root.

    A pull that was stopped is resumed; the bundle appears by one rename. A version that was pulled for another shard
    gets the files that it lacks.

    Exit codes: 0 the bundle is there, 1 a bug, 2 usage, 3 the store or the bundle cannot be read, 5 a file differs from
    its checksum, 6 the destination exists, is full, busy, or cannot be written, 130 interrupted.
    """
    from service.cli.bundle_source import PullError

    if version != "latest" and not (version.isascii() and version.isdigit()):
        raise typer.BadParameter(f"--version is {version!r}; a number or `latest` was expected")
    if shard and front:
        raise typer.BadParameter(
            "a process is a shard or a front of shards; leave --shard or --front out"
        )
    try:
        held = _held(shard, front, shard_least_bytes)
    except ValueError as problem:
        raise typer.BadParameter(f"--shard: {problem}") from problem
    began = time.monotonic()
    try:
        pulled = _with_progress(
            url, root, model, None if version == "latest" else int(version), keep, held
        )
    except PullError as problem:
        message = str(problem).replace("local://", "")  # a path, which is read like a store
        sys.stderr.write(f"rowcast-serve pull: {message}\n")
        raise typer.Exit(problem.exit_code) from None
    if as_json:
        result = asdict(pulled) | {
            "bundle": str(pulled.bundle),
            "seconds": time.monotonic() - began,
        }
        sys.stdout.write(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.write(_summary(pulled))


def _held(
    shard: str | None, front: bool, least_bytes: int | None
) -> Callable[[Manifest], Manifest]:
    """Returns what gives the part of a bundle that is needed."""
    from bundle.tables.sharding import ShardNumber, held_here
    from service.config import ServiceSettings

    number = ShardNumber.parse(shard) if shard else None
    least = least_bytes or ServiceSettings.model_fields["shard_least_bytes"].default
    return lambda manifest: held_here(manifest, number, front, least)


def _with_progress(
    url: str,
    root: str,
    model: str | None,
    version: int | None,
    keep: int | None,
    held: Callable[[Manifest], Manifest],
) -> Pulled:
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress

    from runtime.object_store import is_url
    from service.cli.bundle_download import pull
    from service.cli.bundle_source import PullError, find_bundle

    if is_url(root):
        raise PullError(f"ROOT is the URL {root!r}; a local path was expected", EXIT_USAGE)
    source, console = find_bundle(url, model, version), Console(stderr=True)
    columns = *Progress.get_default_columns(), DownloadColumn(binary_units=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("pull")
        progressed = lambda total, size: progress.update(task, total=total, advance=size)  # noqa: E731
        return pull(source, Path(root), keep, progressed, held)


def _summary(pulled: Pulled) -> str:
    total, downloaded, kept = (
        f"{count / (1 << 20):,.1f} MiB"
        for count in (pulled.bytes, pulled.downloaded_bytes, pulled.kept_bytes)
    )
    lines = [f"{pulled.bundle}: {total}, {downloaded} fetched, {kept} already there"]
    if pulled.removed:
        lines.append(f"old versions removed: {', '.join(map(str, pulled.removed))}")
    if pulled.in_use:
        lines.append(
            f"old versions kept, because they are in use: {', '.join(map(str, pulled.in_use))}"
        )
    return "\n".join(lines) + "\n"
