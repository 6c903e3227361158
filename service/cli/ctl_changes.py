"""`rowcast-serve ctl rows`, `candidates`, `contexts` and `changes`: changes of what is served."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from bundle.changes.records import Action, Kind
from service.cli.admin_client import Admin, CtlError, Document, json_text, reported_errors, scope
from service.cli.change_batches import Batch, read_batches
from service.exit_codes import EXIT_USAGE

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
Table = Annotated[
    str, typer.Option(metavar="NAME", help="Name of the table. Default: the only one.")
]
Feature = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Feature that reads the table: the ids of the items are ids of this feature. Default: "
        "they are row numbers.",
    ),
]
Corpus = Annotated[
    str, typer.Option(metavar="NAME", help="Name of the corpus. Default: the only one.")
]
Store = Annotated[
    str, typer.Option(metavar="NAME", help="Name of the context store. Default: the only one.")
]
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

ROWS = typer.Typer(help="Change rows of tables while they are served.", no_args_is_help=True)
CANDIDATES = typer.Typer(
    help="Add, change and delete candidates while they are served.", no_args_is_help=True
)
CONTEXTS = typer.Typer(
    help="Add, change and delete stored contexts while they are served.", no_args_is_help=True
)
CHANGES = typer.Typer(help="Show the change log of a model, and recover it.", no_args_is_help=True)


@dataclass(frozen=True)
class _Change:
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
      sequence: The sequence of the last change in the log; 0: nothing was changed.
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
            parts.append(f"{self.outdated_count:,} outdated{_first_ids(self.outdated)}")
        if self.unknown_count:
            parts.append(f"{self.unknown_count:,} unknown{_first_ids(self.unknown)}")
        if self.repeated:
            parts.append(f"{self.repeated:,} applied before")
        return f"{self.model}: {', '.join(parts)}\n"


@ROWS.command("upsert")
def _upsert_rows(
    context: typer.Context,
    model: Model,
    file: File,
    table: Table = "",
    feature: Feature = "",
    stream: Stream = "",
    offset: Offset = 0,
    batch: BatchSize = 500,
) -> None:
    """Replace the vectors of rows. An item has id and vector, and optionally sequence."""
    target = {"table": table, "feature": feature}
    change = _change("rows", "upsert", model, target, stream, offset)
    _send_file(context, model, change, file, batch)


@CANDIDATES.command("upsert")
def _upsert_candidates(
    context: typer.Context,
    model: Model,
    file: File,
    corpus: Corpus = "",
    stream: Stream = "",
    offset: Offset = 0,
    batch: BatchSize = 500,
) -> None:
    """Add candidates, or replace those with the same ids. An item has id, features and attributes,
    and optionally vectors (by index), expires_s and sequence.
    """
    change = _change("candidates", "upsert", model, {"corpus": corpus}, stream, offset)
    _send_file(context, model, change, file, batch)


@CANDIDATES.command("delete")
def _delete_candidates(
    context: typer.Context,
    model: Model,
    ids: Ids = None,
    file: OptionalFile = None,
    corpus: Corpus = "",
    stream: Stream = "",
    offset: Offset = 0,
    batch: BatchSize = 500,
) -> None:
    """Delete candidates. Ids that are not there are counted, and are no error."""
    change = _change("candidates", "delete", model, {"corpus": corpus}, stream, offset)
    _delete(context, model, change, ids, file, batch)


@CANDIDATES.command("attributes")
def _set_candidate_attributes(
    context: typer.Context,
    model: Model,
    file: File,
    corpus: Corpus = "",
    stream: Stream = "",
    offset: Offset = 0,
    batch: BatchSize = 500,
) -> None:
    """Change some attributes of candidates. An item has id and attributes, and optionally
    sequence.
    """
    change = _change("candidates", "attributes", model, {"corpus": corpus}, stream, offset)
    _send_file(context, model, change, file, batch)


@CONTEXTS.command("upsert")
def _upsert_contexts(
    context: typer.Context,
    model: Model,
    file: File,
    store: Store = "",
    stream: Stream = "",
    offset: Offset = 0,
    batch: BatchSize = 500,
) -> None:
    """Add contexts, or replace those with the same ids. An item has id, features and attributes,
    and optionally sequence.
    """
    change = _change("contexts", "upsert", model, {"store": store}, stream, offset)
    _send_file(context, model, change, file, batch)


@CONTEXTS.command("delete")
def _delete_contexts(
    context: typer.Context,
    model: Model,
    ids: Ids = None,
    file: OptionalFile = None,
    store: Store = "",
    stream: Stream = "",
    offset: Offset = 0,
    batch: BatchSize = 500,
) -> None:
    """Delete contexts. Ids that are not there are counted, and are no error."""
    change = _change("contexts", "delete", model, {"store": store}, stream, offset)
    _delete(context, model, change, ids, file, batch)


@CONTEXTS.command("attributes")
def _set_context_attributes(
    context: typer.Context,
    model: Model,
    file: File,
    store: Store = "",
    stream: Stream = "",
    offset: Offset = 0,
    batch: BatchSize = 500,
) -> None:
    """Change some attributes of contexts. An item has id and attributes, and optionally
    sequence.
    """
    change = _change("contexts", "attributes", model, {"store": store}, stream, offset)
    _send_file(context, model, change, file, batch)


@CHANGES.command("status")
def _show_status(context: typer.Context, model: Model) -> None:
    """Show the change log of a model, the offsets of its streams, and what each version has of
    it.
    """
    admin: Admin = context.obj
    with reported_errors():
        status = admin.request(f"{scope(model)}changes")
    if admin.as_json:
        sys.stdout.write(json_text(status))
    else:
        sys.stdout.write(_status_text(status))


@CHANGES.command("recover")
def _recover(context: typer.Context, model: Model) -> None:
    """Leave out of the change log of a model what is damaged in it. The damaged file is kept."""
    admin: Admin = context.obj
    with reported_errors():
        recovery = admin.request(f"{scope(model)}changes/recover", {})
    if admin.as_json:
        sys.stdout.write(json_text(recovery))
    else:
        sys.stdout.write(_recovery_text(recovery))


def _change(
    kind: Kind, action: Action, model: str, target: dict[str, str], stream: str, offset: int
) -> _Change:
    # A target without a name is the only one: its field is left out.
    path = f"{scope(model)}{kind}/{action}"
    named_target = {field_name: name for field_name, name in target.items() if name}
    return _Change(path, named_target, stream, offset)


def _delete(
    context: typer.Context,
    model: str,
    change: _Change,
    ids: list[str] | None,
    file: Path | None,
    batch_size: int,
) -> None:
    """Deletes the ids of the command line, or the items of a file."""
    with reported_errors():
        if bool(ids) == (file is not None):
            raise CtlError("name either ids or a --file with one item per line", EXIT_USAGE)
        # Offsets count lines, and ids of the command line have none.
        if ids and change.stream:
            raise CtlError("--stream is accepted only together with --file", EXIT_USAGE)
    if file is not None:
        _send_file(context, model, change, file, batch_size)
        return
    items = [{"id": key} for key in dict.fromkeys(ids or ())]
    admin: Admin = context.obj
    totals = _Totals(model)
    with reported_errors():
        totals.add(admin.request(change.path, {**change.target, "items": items}), len(items))
    _print(admin, totals)


def _send_file(
    context: typer.Context, model: str, change: _Change, file: Path, batch_size: int
) -> None:
    """Sends the items of a file, and prints the totals."""
    admin: Admin = context.obj
    totals = _Totals(model)
    with reported_errors():
        if change.offset and not change.stream:
            raise CtlError("--offset is accepted only together with --stream", EXIT_USAGE)
        applied = _applied_lines(admin, model, change)
        last_line_sent = 0
        try:
            for batch in read_batches(file, batch_size, applied):
                # The service would leave them out, too: they need not be sent.
                if batch.lines[-1] <= applied:
                    totals.repeated += len(batch.items)
                    continue
                _send(admin, change, file, batch, totals)
                last_line_sent = batch.lines[-1]
        except CtlError as problem:
            # The user repairs the line, and goes on behind those that are applied.
            if not last_line_sent:
                raise
            raise CtlError(
                f"{problem}; the lines up to {last_line_sent} are applied", problem.exit_code
            ) from None
    _print(admin, totals)


def _applied_lines(admin: Admin, model: str, change: _Change) -> int:
    """Returns how many lines of a file the service has applied before, by the offset of their
    stream.
    """
    # The log has the offset of each stream: a file that was sent in part goes on there.
    if not change.stream:
        return 0
    offsets: dict[str, int] = admin.request(f"{scope(model)}changes")["streams"]
    return max(0, offsets.get(change.stream, 0) - change.offset)


def _send(admin: Admin, change: _Change, file: Path, batch: Batch, totals: _Totals) -> None:
    """Sends a batch of lines.

    Raises:
      CtlError: The service rejects it; the message names the line.
    """
    body: Document = {**change.target, "items": batch.items}
    # The offset behind the batch. Sent again, the batch is known to be applied.
    if change.stream:
        body |= {"stream": change.stream, "offset": change.offset + batch.lines[-1]}
    try:
        result = admin.request(change.path, body)
    except CtlError as problem:
        if problem.exit_code != EXIT_USAGE:
            raise
        raise CtlError(f"{file}:{_line(problem, batch)}: {problem}", EXIT_USAGE) from None
    totals.add(result, len(batch.items))


def _line(problem: CtlError, batch: Batch) -> str:
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


def _print(admin: Admin, totals: _Totals) -> None:
    if admin.as_json:
        sys.stdout.write(json_text(asdict(totals)))
    else:
        sys.stdout.write(totals.text())


def _first_ids(ids: Sequence[int | str]) -> str:
    """Returns the first ids, in brackets."""
    listed = ", ".join(map(str, ids[:_SHOWN_MAX]))
    if len(ids) > _SHOWN_MAX:
        listed += ", ..."
    return f" ({listed})"


def _status_text(status: Document) -> str:
    lines = [f"{status['model']}: sequence {status['sequence']} of {status['log']}"]
    if status["problem"]:
        lines.append(f"problem: {status['problem']}")
    if "follows" in status:
        lines.append(f"  follows {status['follows']}: {status['lag']:,} sequences behind")
    for stream, offset in status["streams"].items():
        lines.append(f"  stream {stream}: applied up to offset {offset}")
    for version in status["versions"]:
        lines += _version_lines(version)
    return "\n".join(lines) + "\n"


def _version_lines(version: Document) -> Iterator[str]:
    changed = ", ".join(f"{count:,} in {name}" for name, count in version["changed"].items())
    number = version["version"]
    yield f"  version {number}: sequence {version['sequence']}; {changed or 'no changes'}"
    for reason, count in version["dropped"].items():
        yield f"    {count:,} changes dropped: {reason}"


def _recovery_text(recovery: Document) -> str:
    log = recovery["log"]
    if recovery["damaged_log"] is None:
        return f"{log}: {recovery['changes']:,} changes, and nothing is damaged\n"
    lost = ", ".join(_range(*sequences) for sequences in recovery["lost_sequences"])
    return (
        f"{log}: {recovery['changes']:,} changes kept, {recovery['dropped_bytes']:,} bytes left "
        f"out, sequences that are lost: {lost or 'not known'}; the damaged log is "
        f"{recovery['damaged_log']}\n"
    )


def _range(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {last}"
