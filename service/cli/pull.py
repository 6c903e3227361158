"""`rowcast-serve pull`: options, progress bar and exit codes. The modules that download are
imported when it runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
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
        typer.Argument(
            metavar="URL", help="URL of a root, of the directory of a model, or of a bundle."
        ),
    ],
    root: Annotated[
        str,
        typer.Argument(
            metavar="ROOT",
            help="Directory of the local bundles. It is created if it does not exist.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Model to download. Required if the root contains several models."),
    ] = None,
    version: Annotated[
        str, typer.Option(metavar="N", help="Version to download: a number, or latest.")
    ] = "latest",
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="After the download, remove all versions except the newest N and those in use.",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER/TOTAL",
            envvar="ROWCAST_SHARD",
            help="Download only the files that this shard reads.",
        ),
    ] = None,
    router: Annotated[
        bool, typer.Option("--router", help="Download only the files that a router reads.")
    ] = False,
    shard_min_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            envvar="ROWCAST_SHARD_MIN_BYTES",
            help="Minimum size in bytes of the tables that are divided among shards. Default: that "
            "of the service.",
        ),
    ] = None,
    verify_signatures: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            envvar="ROWCAST_VERIFY_SIGNATURES",
            help="File of a public key, or of certificate authorities, PEM. Only a bundle that one "
            "of them has signed is downloaded. Repeatable; in the environment, separate the files "
            "with commas. Needs the extra `sign`.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Download a bundle from an object store (s3://, gs://, ...) to a local root.

    To resume an interrupted download, run the same command again. The bundle appears under ROOT
    only when it is complete. If ROOT has the files of another shard, the missing files are added.
    What the newest version under ROOT contains is not downloaded again.

    Exit codes: 0 the bundle is complete, 1 a bug, 2 invalid usage, 3 the store or the bundle cannot
    be read, 5 a file differs from its checksum, or the bundle from what a key has signed, 6 the
    destination contains another bundle, is full or busy, or cannot be written, 130 interrupted.
    """
    if version != "latest" and not (version.isascii() and version.isdigit()):
        raise typer.BadParameter(f"--version is {version!r}; a number or `latest` was expected")
    if shard and router:
        raise typer.BadParameter(
            "a process is either a shard or a router; omit --shard or --router"
        )
    try:
        select_part = _part_selection(shard, router, shard_min_bytes)
    except ValueError as problem:
        raise typer.BadParameter(f"--shard: {problem}") from problem
    version_number = None
    if version != "latest":
        version_number = int(version)
    began = time.monotonic()
    pulled = _with_progress(
        url, root, model, version_number, keep, select_part, _key_files(verify_signatures)
    )
    if as_json:
        result = asdict(pulled) | {
            "bundle": str(pulled.bundle),
            "seconds": time.monotonic() - began,
        }
        sys.stdout.write(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.write(_summary(pulled))


def _key_files(options: Sequence[str] | None) -> tuple[Path, ...]:
    """Returns the files that the options name, several of them separated by commas."""
    names = [name.strip() for option in options or () for name in option.split(",")]
    return tuple(Path(name) for name in names if name)


def _part_selection(
    shard: str | None, router: bool, min_bytes: int | None
) -> Callable[[Manifest], Manifest]:
    """Returns a function that selects the part of a bundle to download.

    Raises:
      ValueError: The number of the shard is invalid.
    """
    from bundle.tables.shard_number import ShardNumber
    from bundle.tables.sharding import manifest_of_process
    from service.config import ServiceSettings

    number = None
    if shard:
        number = ShardNumber.parse(shard)
    table_bytes_min = min_bytes or ServiceSettings.model_fields["shard_min_bytes"].default
    return lambda manifest: manifest_of_process(manifest, number, router, table_bytes_min)


def _with_progress(
    url: str,
    root: str,
    model: str | None,
    version: int | None,
    keep: int | None,
    select_part: Callable[[Manifest], Manifest],
    signing_keys: Sequence[Path],
) -> Pulled:
    """Finds and pulls a bundle, with a progress bar on a terminal. See `find_bundle` and `pull`."""
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress

    from object_store.locations import is_url
    from service.cli.bundle_download import pull
    from service.cli.bundle_source import PullError, find_bundle

    if is_url(root):
        raise PullError(f"ROOT is the URL {root!r}; a local path was expected", EXIT_USAGE)
    if Path(root).exists() and not Path(root).is_dir():
        raise PullError(f"ROOT {root!r} is not a directory; name one, or a new path", EXIT_USAGE)
    source = find_bundle(url, model, version)
    # On stderr, and only on a terminal: stdout has the result, for programs.
    console = Console(stderr=True)
    columns = *Progress.get_default_columns(), DownloadColumn(binary_units=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("pull")

        def report(total: int, size: int) -> None:
            progress.update(task, total=total, advance=size)

        return pull(source, Path(root), keep, report, select_part, signing_keys)


def _summary(pulled: Pulled) -> str:
    lines = [
        f"{pulled.bundle}: {_mib(pulled.bytes)}, {_mib(pulled.downloaded_bytes)} downloaded, "
        f"{_mib(pulled.kept_bytes)} already there"
    ]
    if pulled.removed:
        lines.append(f"old versions removed: {', '.join(map(str, pulled.removed))}")
    if pulled.in_use:
        lines.append(
            f"old versions kept, because they are in use: {', '.join(map(str, pulled.in_use))}"
        )
    return "\n".join(lines) + "\n"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.1f} MiB"
