"""The command line of `rowcast-serve pull`: options, progress, exit codes.

What it works with is imported when it is called: a service, which has the same command line, starts without.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

if TYPE_CHECKING:
    from service.pull import Pulled

EXIT_INTERRUPTED = 130


def add_pull(app: typer.Typer) -> None:
    """Adds the command to the program's."""

    @app.command("pull")
    def command(
        url: Annotated[str, typer.Argument(metavar="URL", help="A root in a store, a model's directory or a bundle.")],
        root: Annotated[str, typer.Argument(metavar="ROOT", help="Directory of the bundles here; made if missing.")],
        model: Annotated[str | None, typer.Option(help="Which model of a root; needed if it holds several.")] = None,
        version: Annotated[str, typer.Option(metavar="N", help="Which version: a number, or latest.")] = "latest",
        keep: Annotated[
            int | None,
            typer.Option(min=1, help="Then remove versions that are not among the newest N and that nothing uses."),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    ) -> None:
        """Brings a bundle from a store (s3://, gs://, ...) to a root of this machine.

        What was fetched by a pull that was stopped is kept; the bundle appears by one rename.

        Exit codes: 0 it is there, 1 a bug, 2 usage, 3 the store or the bundle cannot be read, 5 a file differs from its
        checksum, 6 the destination exists, is full, busy, or cannot be written, 130 interrupted.
        """
        raise typer.Exit(_told(lambda: _pull(url, root, model, _number(version), keep, as_json)))


def _told(work: Callable[[], None]) -> int:
    """Runs the work; returns the exit code, having told what went wrong in one line."""
    from service.remote_bundles import PullError

    try:
        work()
    except PullError as problem:
        told = str(problem).replace("local://", "")  # a path, which is read as a store is
        sys.stderr.write(f"rowcast-serve pull: {told}\n")
        return problem.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("rowcast-serve pull: interrupted; run the same command again to resume\n")
        return EXIT_INTERRUPTED
    return 0


def _number(version: str) -> int | None:
    if version == "latest":
        return None
    if not (version.isascii() and version.isdigit()):
        raise typer.BadParameter(f"--version {version!r}: a number or `latest` was expected")
    return int(version)


def _pull(url: str, root: str, model: str | None, version: int | None, keep: int | None, as_json: bool) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from runtime.remote import is_url
    from service.pull import pull
    from service.remote_bundles import UsageProblem, find_bundle

    if is_url(root):
        raise UsageProblem(f"ROOT {root!r} is a URL; a path of this machine was expected")
    began = time.monotonic()
    columns = (TextColumn("pull"), BarColumn(24), DownloadColumn(binary_units=True), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        found = find_bundle(url, model, version)

        def begin(wanted: int) -> Callable[[int], None]:
            task = bar.add_task("pull", total=wanted)
            return lambda moved: bar.update(task, advance=moved)

        pulled = pull(found, Path(root), keep, begin)
    page: dict[str, Any] = asdict(pulled) | {"bundle": str(pulled.bundle), "seconds": time.monotonic() - began}
    sys.stdout.write(orjson.dumps(page, option=orjson.OPT_INDENT_2).decode() + "\n" if as_json else _sentence(pulled))


def _sentence(pulled: Pulled) -> str:
    all_of_it, fetched, kept = (
        f"{count / (1 << 20):,.1f} MiB" for count in (pulled.bytes, pulled.downloaded_bytes, pulled.kept_bytes)
    )
    told = f"{pulled.bundle}: {all_of_it}, {fetched} fetched, {kept} were there\n"
    if pulled.removed:
        told += f"old versions removed: {', '.join(map(str, pulled.removed))}\n"
    if pulled.in_use:
        told += f"old versions left, because they are in use: {', '.join(map(str, pulled.in_use))}\n"
    return told
