"""`rowcast-serve ctl candidates`, `contexts` and `changes`: changes of what is served."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from command_line.program import Program
from service.cli.admin_client import Admin, CtlError, Document, scope
from service.cli.change_batches import ChangeBatch, read_batches
from service.cli.command_options import CHANGES, ChangeCommand
from service.exit_codes import EXIT_USAGE

_TARGET_HELP = {
    "corpus": "Name of the corpus. Default: the only one.",
    "store": "Name of the context store. Default: the only one.",
}
_SHOWN_MAX = 10
"""Maximum number of ids of each kind that are printed."""
_ITEM = re.compile(r"(?:items|ids|expires_s|vectors(?:\.[^\[]+)?)\[(\d+)\]")
"""The beginning of the path of a field that belongs to one item."""

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name of a model.")]
File = Annotated[
    Path,
    typer.Option(
        "--file",
        metavar="FILE",
        help="File with one item per line, each a JSON object. - reads from stdin.",
    ),
]
OptionalFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help='File with one item per line, such as {"id": 7}. - reads from stdin.',
    ),
]
Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID...]", help="Ids to delete. Write -- before an id that begins with -."
    ),
]
Backup = Annotated[Path, typer.Argument(metavar="PATH", help="The copy, where nothing is yet.")]
Stream = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Name of the stream that the file is a part of. The service remembers up to which "
        "offset it has applied a stream, and lines before that are left out.",
    ),
]
Offset = Annotated[
    int,
    typer.Option(metavar="N", min=0, help="Offset in the stream of the first line of the file."),
]
BatchSize = Annotated[
    int,
    typer.Option(
        "--batch", metavar="N", min=1, help="Maximum number of items that are sent together."
    ),
]


GROUPS: dict[str, typer.Typer] = {
    "candidates": typer.Typer(
        help="Add, change and delete candidates while they are served.",
        epilog="Example: rowcast-serve ctl candidates delete movielens 5 12",
        cls=Program,
        no_args_is_help=True,
    ),
    "contexts": typer.Typer(
        help="Add, change and delete stored contexts while they are served.",
        epilog="Example: rowcast-serve ctl contexts delete movielens 7",
        cls=Program,
        no_args_is_help=True,
    ),
    "changes": typer.Typer(
        help="Show and back up the changes of a model.",
        epilog="Example: rowcast-serve ctl changes status movielens",
        cls=Program,
        no_args_is_help=True,
    ),
}
"""The commands by what they change, and those of the changes file."""


@dataclass(frozen=True)
class _Sending:
    """The parts of a request that are the same for every batch.

    Attributes:
      path: The path of the admin API.
      target: The fields of the body that name what is changed.
      stream: The name of the stream; "": the items belong to none.
      offset: The offset of the first line of the file in the stream.
    """

    path: str
    target: dict[str, str]
    stream: str
    offset: int


@dataclass
class _Totals:
    """The results of the batches that were sent so far.

    Attributes:
      model: The name of the model.
      version: The version that the last batch was checked against; 0: none was sent.
      sequence: The sequence of the last change; 0: nothing was changed.
      changed: The number of ids that were changed.
      outdated_count: The number of ids that were left alone, because a later state of them was
        applied before.
      unknown_count: The number of ids to delete, or to give attributes to, that do not exist.
      repeated: The number of lines of the stream that were applied before.
      outdated: The first ids that are outdated.
      unknown: The first ids that are unknown.
    """

    model: str
    version: int = 0
    sequence: int = 0
    changed: int = 0
    outdated_count: int = 0
    unknown_count: int = 0
    repeated: int = 0
    outdated: list[int | str] = field(default_factory=list)
    unknown: list[int | str] = field(default_factory=list)

    def add(self, result: Document, size: int) -> None:
        """Adds the result of a batch of `size` items."""
        self.version = result["version"]
        self.sequence = result["sequence"] or self.sequence
        self.changed += result["changed"]
        self.outdated_count += result.get("outdated_count", 0)
        self.unknown_count += result.get("unknown_count", 0)
        self.outdated += result.get("outdated", [])
        self.unknown += result.get("unknown", [])
        if result.get("is_repeated"):
            self.repeated += size

    def text(self) -> str:
        """Returns the totals as one line."""
        parts = [f"{self.changed:,} changed"]
        if self.sequence:
            parts[0] += f" (sequence {self.sequence})"
        if self.outdated_count:
            parts.append(f"{self.outdated_count:,} outdated{first_ids(self.outdated)}")
        if self.unknown_count:
            parts.append(f"{self.unknown_count:,} unknown{first_ids(self.unknown)}")
        if self.repeated:
            parts.append(f"{self.repeated:,} applied before")
        return f"{self.model}: {', '.join(parts)}\n"


def _add_command(change: ChangeCommand) -> None:
    """Adds the command that makes a change to its group, with its options."""

    def send(
        context: typer.Context,
        model: str,
        file: Path | None,
        stream: str,
        offset: int,
        batch: int,
        ids: list[str] | None = None,
        **target: str,
    ) -> None:
        if bool(ids) == (file is not None):
            raise CtlError("name either ids or a --file with one item per line", EXIT_USAGE)
        # Offsets count lines, and ids of the command line have none.
        if ids and stream:
            raise CtlError("--stream is accepted only together with --file", EXIT_USAGE)
        if offset and not stream:
            raise CtlError("--offset is accepted only together with --stream", EXIT_USAGE)
        # A target without a name is the only one: its field is left out.
        named_target = {name: value for name, value in target.items() if value}
        path = f"{scope(model)}{change.kind}/{change.action}"
        admin: Admin = context.obj
        totals = _Totals(model)
        if file is not None:
            _send_file(admin, _Sending(path, named_target, stream, offset), file, batch, totals)
        else:
            items = [{"id": key} for key in dict.fromkeys(ids or ())]
            totals.add(admin.request(path, {**named_target, "items": items}), len(items))
        admin.print(asdict(totals), lambda _: totals.text())

    parameters = _parameters_of(change)
    # typer reads the options of a command from the signature of its function.
    keyword = Parameter.KEYWORD_ONLY
    send.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, keyword, annotation=annotation, default=default)
            for name, (annotation, default) in parameters.items()
        ]
    )
    send.__annotations__ = {name: annotation for name, (annotation, _) in parameters.items()}
    send.__doc__ = change.text
    what = "--file changes.jsonl"
    if change.action == "delete":
        what = "5 12"
    GROUPS[change.kind].command(
        change.action,
        epilog=f"Example: rowcast-serve ctl {change.kind} {change.action} movielens {what}",
    )(send)


def _parameters_of(change: ChangeCommand) -> dict[str, tuple[Any, Any]]:
    """Returns the annotation and the default of each argument of a change's command."""
    parameters: dict[str, tuple[Any, Any]] = {
        "context": (typer.Context, Parameter.empty),
        "model": (Model, Parameter.empty),
        "file": (File, Parameter.empty),
    }
    if change.action == "delete":
        parameters |= {"ids": (Ids, None), "file": (OptionalFile, None)}
    for name in change.options:
        if name in _TARGET_HELP:
            option = typer.Option(metavar="NAME", help=_TARGET_HELP[name])
            parameters[name] = (Annotated[str, option], "")
    parameters |= {"stream": (Stream, ""), "offset": (Offset, 0), "batch": (BatchSize, 500)}
    return parameters


for _change in CHANGES:
    _add_command(_change)


@GROUPS["changes"].command("status", epilog="Example: rowcast-serve ctl changes status movielens")
def _show_status(context: typer.Context, model: Model) -> None:
    """Show the changes file of a model, the offsets of its streams, and what each version has of
    it.
    """
    admin: Admin = context.obj
    status = admin.request(f"{scope(model)}changes")
    admin.print(status, _status_text)


@GROUPS["changes"].command(
    "backup", epilog="Example: rowcast-serve ctl changes backup movielens /backups/changes.sqlite"
)
def _back_up(context: typer.Context, model: Model, target: Backup) -> None:
    """Write a copy of the changes of a model as they are now to a new file, on the host of the
    service. To go back to it, stop the service, remove changes.sqlite-wal, and put it in the place
    of changes.sqlite.
    """
    admin: Admin = context.obj
    query = urlencode({"path": target.absolute()})
    backup = admin.request(f"{scope(model)}changes/backup?{query}", {})
    admin.print(backup, lambda written: f"{written['path']}: {written['bytes']:,} bytes\n")


def _send_file(
    admin: Admin, sending: _Sending, file: Path, batch_size: int, totals: _Totals
) -> None:
    """Sends the items of a file, and adds the results."""
    applied = _applied_lines(admin, totals.model, sending)
    last_line_sent = 0
    try:
        for batch in read_batches(file, batch_size, applied):
            # The service would leave them out, too: they need not be sent.
            if batch.lines[-1] <= applied:
                totals.repeated += len(batch.items)
                continue
            _send(admin, sending, file, batch, totals)
            last_line_sent = batch.lines[-1]
    except CtlError as problem:
        # The user repairs the line, and goes on behind those that are applied.
        if not last_line_sent:
            raise
        raise CtlError(
            f"{problem}; the lines up to {last_line_sent} are applied", problem.exit_code
        ) from None


def _applied_lines(admin: Admin, model: str, sending: _Sending) -> int:
    """Returns how many lines of a file the service has applied before, by the offset of their
    stream.
    """
    # The service has the offset of each stream: a file that was sent in part goes on there.
    if not sending.stream:
        return 0
    offsets: dict[str, int] = admin.request(f"{scope(model)}changes")["streams"]
    return max(0, offsets.get(sending.stream, 0) - sending.offset)


def _send(admin: Admin, sending: _Sending, file: Path, batch: ChangeBatch, totals: _Totals) -> None:
    """Sends a batch of lines.

    Raises:
      CtlError: The service rejects it; the message names the line.
    """
    body: Document = {**sending.target, "items": batch.items}
    # The offset behind the batch. Sent again, the batch is known to be applied.
    if sending.stream:
        body |= {"stream": sending.stream, "offset": sending.offset + batch.lines[-1]}
    try:
        result = admin.request(sending.path, body)
    except CtlError as problem:
        # Without details, this program rejects the command, and no line of the file is at fault.
        if problem.exit_code != EXIT_USAGE or not problem.details:
            raise
        raise CtlError(f"{file}:{_line(problem, batch)}: {problem}", EXIT_USAGE) from None
    totals.add(result, len(batch.items))


def _line(problem: CtlError, batch: ChangeBatch) -> str:
    """Returns the line of the item that is at fault; the first and the last of the batch if the
    service does not say which one is.
    """
    # The service names positions in the batch; the user looks for a line of the file.
    for field_path in problem.fields:
        item = _ITEM.match(field_path)
        if item is not None:
            return str(batch.lines[int(item[1])])
    first = batch.lines[0]
    last = batch.lines[-1]
    if first == last:
        return str(first)
    return f"{first}-{last}"


def first_ids(ids: Sequence[int | str]) -> str:
    """Returns the first ids, in brackets."""
    listed = ", ".join(map(str, ids[:_SHOWN_MAX]))
    if len(ids) > _SHOWN_MAX:
        listed += ", ..."
    return f" ({listed})"


def _status_text(status: Document) -> str:
    lines = [
        f"{status['model']}: sequence {status['sequence']} of {status['file']}, "
        f"{status['bytes']:,} bytes"
    ]
    if status["problem"]:
        lines.append(f"problem: {status['problem']}")
    if "follows" in status:
        lag = status["lag"]
        behind = "not known how far behind" if lag is None else f"{lag:,} sequences behind"
        lines.append(f"  follows {status['follows']}: {behind}")
    for stream, offset in status["streams"].items():
        lines.append(f"  stream {stream}: applied up to offset {offset}")
    for version in status["versions"]:
        lines += _version_lines(version)
    return "\n".join(lines) + "\n"


def _version_lines(version: Document) -> Iterator[str]:
    changed = ", ".join(f"{count:,} in {name}" for name, count in version["changed"].items())
    number = version["version"]
    yield f"  version {number}: sequence {version['sequence']}; {changed or 'no changes'}"
    for reason, dropped in version["dropped"].items():
        yield f"    {dropped['items']:,} dropped, such as {dropped['first_id']}: {reason}"
