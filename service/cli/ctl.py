"""`rowcast-serve ctl`: sends an operator's commands to a running service, through its admin API."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from bundle.arithmetic import ceil_div
from bundle.storage.output_file import OutputRejected, output_named
from command_line.program import OptionsAnywhere, Program, check_variables
from service.cli.admin_client import Admin, CtlError, json_text, scope
from service.cli.change_batches import read_lines
from service.cli.ctl_changes import GROUPS, Model, first_ids
from service.exit_codes import EXIT_OK, EXIT_USAGE

EXIT_NOT_IN_EFFECT = 5
_POLL_S = 0.05
"""Time between two requests for the status while a command is not in effect."""
_Status = dict[str, Any]

Version = Annotated[int, typer.Argument(metavar="VERSION", help="Version number.")]
OptionalVersion = Annotated[
    int | None,
    typer.Argument(metavar="[VERSION]", help="Version number. Default: the whole model."),
]
Older = Annotated[
    int | None,
    typer.Argument(metavar="[VERSION]", help="Version number. Default: the previous version."),
]
Versions = Annotated[list[int], typer.Argument(metavar="VERSION...", help="Version numbers.")]
Level = Annotated[
    str,
    typer.Argument(
        metavar="LEVEL",
        help="debug, info, warning, error, or setting (the level with which the service started).",
    ),
]
Label = Annotated[str, typer.Argument(metavar="LABEL", help="Name of the label.")]
Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID...]", help="Ids of candidates. Write -- before an id that begins with -."
    ),
]
IdsFile = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="File with one id per line. - reads from stdin."),
]


CTL = typer.Typer(
    help="Send commands to a running service through its admin API.\n\n"
    "Write the options before or after the name of the command.\n\n"
    "Exit codes: 0 the command is in effect, 1 a bug, 2 invalid usage, or an unknown model, "
    "version or label, 3 the service cannot be reached, 4 the service rejects the command (the "
    "token is not valid, or the state file or the changes cannot be written), 5 the service "
    "accepted the command, but it is not in effect yet or a version cannot be loaded, 6 "
    "the command is in effect, but its output cannot be written, 130 interrupted.",
    epilog="Example: rowcast-serve ctl status",
    cls=OptionsAnywhere,
    no_args_is_help=True,
)


DENY = typer.Typer(
    help="Withdraw candidates of a model, and restore them.",
    epilog="Example: rowcast-serve ctl deny add movielens 5 12",
    cls=Program,
    no_args_is_help=True,
)
CTL.add_typer(DENY, name="deny")
for _kind, _commands in GROUPS.items():
    CTL.add_typer(_commands, name=_kind)


_VARIABLES = ("ADMIN", "PORTS_FILE", "ROOT", "TOKEN", "TOKEN_FILE")
"""The variables of the environment that the commands read, behind ROWCAST_CTL_."""


def _option(variable: str, text: str) -> Any:
    return typer.Option(envvar=f"ROWCAST_CTL_{variable}", help=text)


@CTL.callback()
def _connect(
    context: typer.Context,
    root: Annotated[
        Path | None,
        typer.Option(
            envvar=["ROWCAST_CTL_ROOT", "ROWCAST_ROOT"],
            help="Root of the service, if several run on this machine.",
        ),
    ] = None,
    admin: Annotated[
        str, _option("ADMIN", "URL of the admin API of a service on another machine.")
    ] = "",
    ports_file: Annotated[
        Path | None, _option("PORTS_FILE", "Ports file of the service, which replaces --root.")
    ] = None,
    token_file: Annotated[
        Path | None, _option("TOKEN_FILE", "File that contains only the token.")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="File of certificate authorities for the admin API, PEM.")
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(help="File of the client certificate and its key, PEM.")
    ] = None,
    wait_s: Annotated[
        float,
        typer.Option(min=0, help="Maximum time to wait until a command is in effect, in seconds."),
    ] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print the status as JSON.")] = False,
) -> None:
    check_variables("ROWCAST_CTL_", _VARIABLES, EXIT_USAGE)
    context.obj = Admin(admin, root, ports_file, token_file, ca, cert, wait_s, as_json)


@CTL.command("status", epilog="Example: rowcast-serve ctl status --json")
def _status(context: typer.Context) -> None:
    """Show the desired state, the versions that are served, and what is not in effect yet."""
    _run(context, "status", None)


@CTL.command("load", epilog="Example: rowcast-serve ctl load movielens 2")
def _load(context: typer.Context, model: Model, version: OptionalVersion = None) -> None:
    """Load a version in addition to the current one, or serve an unloaded model again."""
    _run(context, "load", {"version": version}, model)


@CTL.command("unload", epilog="Example: rowcast-serve ctl unload movielens 1")
def _unload(context: typer.Context, model: Model, version: OptionalVersion = None) -> None:
    """Unload a version, or all versions of a model. The current version is unloaded once another
    version can replace it.
    """
    _run(context, "unload", {"version": version}, model)


@CTL.command("pin", epilog="Example: rowcast-serve ctl pin movielens 3")
def _pin(context: typer.Context, model: Model, versions: Versions) -> None:
    """Serve only these versions. The newest of them becomes the current version."""
    _run(context, "pin", {"versions": versions}, model)


@CTL.command("unpin", epilog="Example: rowcast-serve ctl unpin movielens")
def _unpin(context: typer.Context, model: Model) -> None:
    """Serve the newest version again, after a pin or a rollback."""
    _run(context, "unpin", {}, model)


@CTL.command("label", epilog="Example: rowcast-serve ctl label movielens stable 3")
def _label(context: typer.Context, model: Model, name: Label, version: Version) -> None:
    """Set a label on a version. The label moves once that version is loaded."""
    _run(context, "label", {"label": name, "version": version}, model)


@CTL.command("unlabel", epilog="Example: rowcast-serve ctl unlabel movielens stable")
def _unlabel(context: typer.Context, model: Model, name: Label) -> None:
    """Remove a label."""
    _run(context, "unlabel", {"label": name}, model)


@CTL.command("rollback", epilog="Example: rowcast-serve ctl rollback movielens")
def _rollback(context: typer.Context, model: Model, version: Older = None) -> None:
    """Return to the previous version, until a version appears that is newer than all present
    versions.
    """
    _run(context, "rollback", {"version": version}, model)


@DENY.command("add", epilog="Example: rowcast-serve ctl deny add movielens 5 12")
def _deny_add(context: typer.Context, model: Model, ids: Ids = None, file: IdsFile = None) -> None:
    """Withdraw candidates: retrieve and recommend no longer return them, whatever the version."""
    _change_denied(context, "deny/add", model, ids, file)


@DENY.command("remove", epilog="Example: rowcast-serve ctl deny remove movielens 5")
def _deny_remove(
    context: typer.Context, model: Model, ids: Ids = None, file: IdsFile = None
) -> None:
    """Restore withdrawn candidates."""
    _change_denied(context, "deny/remove", model, ids, file)


@DENY.command("list", epilog="Example: rowcast-serve ctl deny list movielens")
def _deny_list(context: typer.Context, model: Model) -> None:
    """Print the deny list of a model, one id per line."""
    admin: Admin = context.obj
    deny_list = admin.request(f"{scope(model)}deny")
    admin.print(deny_list, lambda document: "".join(f"{key}\n" for key in document["ids"]))
    _say_in_no_corpus(deny_list)


def _change_denied(
    context: typer.Context, command: str, model: str, ids: list[str] | None, file: Path | None
) -> None:
    """Sends the ids of the command line and of a file."""
    all_ids = list(ids or ())
    if file is not None:
        all_ids += _ids_in(file)
    if not all_ids:
        raise CtlError("no ids were given; name ids, or a --file with one id per line", EXIT_USAGE)
    _run(context, command, {"ids": all_ids}, model)


def _ids_in(file: Path) -> list[str]:
    """Returns the lines of a file that are not blank; -: of standard input.

    Raises:
      CtlError: The file cannot be read.
    """
    try:
        text = b"".join(read_lines(file)).decode()
    except UnicodeDecodeError as problem:
        raise CtlError(f"--file {file} cannot be read: {problem}", EXIT_USAGE) from None
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line]


@CTL.command("drain", epilog="Example: rowcast-serve ctl drain")
def _drain(context: typer.Context) -> None:
    """Reject calls and fail health checks. Keep the loaded versions."""
    _run(context, "drain", {})


@CTL.command("undrain", epilog="Example: rowcast-serve ctl undrain")
def _undrain(context: typer.Context) -> None:
    """Accept calls again."""
    _run(context, "undrain", {})


@CTL.command("log-level", epilog="Example: rowcast-serve ctl log-level debug")
def _log_level(context: typer.Context, level: Level) -> None:
    """Set the minimum severity of log lines."""
    # The service takes null for the level of its settings, and checks all others.
    level_or_null = None
    if level != "setting":
        level_or_null = level
    _run(context, "log-level", {"level": level_or_null})


@CTL.command("topology", epilog="Example: rowcast-serve ctl topology")
def _topology(context: typer.Context) -> None:
    """Show which address holds which part of large tables and indexes, as the router sees it."""
    admin: Admin = context.obj
    topology = admin.request("/v1/topology")
    admin.print(topology, lambda document: "\n".join(_topology_lines(document)) + "\n")


def _topology_lines(topology: _Status) -> Iterator[str]:
    """Yields the lines of a topology, as one process of a router sees it."""
    if topology["role"] != "router":
        if topology["shard"]:
            yield f"this process is shard {topology['shard']}; send the command to a router"
        else:
            yield "no shards: this service holds everything"
        return

    # All processes of a router follow the same shards.
    for process in topology["processes"][:1]:
        for shard in process["shards"]:
            state = "ok"
            if shard["problem"]:
                state = shard["problem"]
            elif shard["holds"] and not shard["serves"]:
                state = "ok, another division serves"
            yield f"{shard['shard'] or '?':<6} {shard['address']}  {state}"
            for version, parts in shard["holds"].items():
                ranges = [
                    f"{name} {first:,} to {end:,}"
                    for name, (first, end) in parts.items()
                    if end > first
                ]
                yield f"       {version}: {', '.join(ranges) or 'nothing'}"


@CTL.command("report", epilog="Example: rowcast-serve ctl report --output report.json")
def _report(
    context: typer.Context,
    output: Annotated[Path, typer.Option(metavar="FILE", help="File to write; -: stdout.")] = Path(
        "-"
    ),
) -> None:
    """Collect the facts that a bug report needs, without secrets, as JSON: versions, machine,
    settings, status, live recall and drift, and recent problems.
    """
    # The file is checked first, and written only once there is a report.
    try:
        file = output_named(output)
        file.write(json_text(context.obj.request("/v1/report")).encode())
    except OutputRejected as problem:
        raise CtlError(f"--output: {problem}", EXIT_USAGE) from None
    except OSError as problem:
        raise CtlError(
            f"--output {output} cannot be written: {problem.strerror}", EXIT_USAGE
        ) from None


def _run(context: typer.Context, command: str, body: _Status | None, model: str = "") -> None:
    """Sends a command, waits until it is in effect, prints the status and exits."""
    admin: Admin = context.obj
    prefix = "/v1/"
    if model:
        prefix = scope(model)
    status = admin.request(prefix + command, body)
    if not status.get("changed", True):
        reason = "the desired state is the same already"
        if command == "load" and body == {"version": None}:
            reason = f"{model} is not unloaded; name a version to load it as well"
        sys.stderr.write(f"rowcast-serve ctl: nothing changed: {reason}\n")
    _say_in_no_corpus(status)

    # A load goes on after the response of the service, and other workers follow a moment later.
    end = time.monotonic() + admin.wait_s
    while body is not None and _is_pending(status, model) and time.monotonic() < end:
        time.sleep(_POLL_S)
        status = admin.request("/v1/status")

    admin.print(status, _status_text)
    unmet = _unmet(status, model)
    for wish in unmet:
        line = f"version {wish['version']} should be {wish['wanted']}, but is {wish['state']}"
        if wish["problem"]:
            line += f": {wish['problem']}"
        sys.stderr.write(f"rowcast-serve ctl: {line}\n")

    # For a query, such as `status`, the state of the workers is the result, and no failure.
    if unmet or (body is not None and _is_behind(status)):
        raise typer.Exit(EXIT_NOT_IN_EFFECT)
    raise typer.Exit(EXIT_OK)


def _say_in_no_corpus(document: _Status) -> None:
    """Says which ids of a deny list no candidate has now: they may be misspelt."""
    ids = document.get("in_no_corpus")
    if ids:
        listed = first_ids([*map(repr, ids)])
        sys.stderr.write(f"rowcast-serve ctl: ids in no corpus now: {len(ids):,}{listed}\n")


def _unmet(status: _Status, model: str) -> list[_Status]:
    """Returns the wishes for a model that are not in effect; "": those for no model."""
    unmet: list[_Status] = []
    for model_status in status["models"]:
        if model_status["name"] == model:
            unmet += model_status["unmet"]
    return unmet


def _is_behind(status: _Status) -> bool:
    """Returns whether a worker is behind the newest revision of the desired state."""
    return any(process["revision"] < status["revision"] for process in status["processes"])


def _is_pending(status: _Status, model: str) -> bool:
    """Returns whether waiting may help: it does not for a version that cannot be loaded."""
    if _is_behind(status):
        return True
    return any(wish["state"] != "failed" for wish in _unmet(status, model))


def _status_text(status: _Status) -> str:
    """Returns a status as lines for a person."""
    free_mib = status["memory"]["free_bytes"] >> 20
    resident_mib = status["memory"]["resident_bytes"] >> 20
    lines = [
        f"{status['root']}: revision {status['revision']}, {resident_mib:,} MiB resident, "
        f"{free_mib:,} MiB free"
    ]
    if status["draining"]:
        lines.append("draining: calls are rejected")
    if status["state_problem"]:
        lines.append(f"problem: {status['state_problem']}")
    for model in status["models"]:
        wanted = ", ".join(_wanted_texts(model["wanted"]))
        lines.append(f"{model['name']}: {wanted or 'newest version'}")
        lines += [_version_line(version) for version in model["versions"]]
    return "\n".join(lines) + "\n"


def _wanted_texts(wanted: _Status) -> Iterator[str]:
    """Yields a phrase for each part of what is wanted of a model."""
    if "stopped" in wanted:
        yield "unloaded"
    for name in ("pinned", "loaded", "unloaded"):
        if name in wanted:
            yield f"{name} {' and '.join(map(str, wanted[name]))}"
    if "rolled_back" in wanted:
        rollback = wanted["rolled_back"]
        yield f"rolled back to {rollback['to']} until a version above {rollback['above']} appears"
    if "labels" in wanted:
        labels = [f"{label} = {version}" for label, version in wanted["labels"].items()]
        yield f"labels {' and '.join(labels)}"
    if "denied" in wanted:
        yield f"denied {wanted['denied']:,}"


def _version_line(version: _Status) -> str:
    line = f"  {version['version']}"
    if version["labels"]:
        line += f" [{', '.join(version['labels'])}]"
    line += f" {version['state']}"
    if version["current"]:
        line += ", current"
    if version["memory_bytes"]:
        mib = ceil_div(version["memory_bytes"], 1 << 20)
        line += f", up to {mib:,} MiB in addition to its tables"
    if version["problem"]:
        line += f": {version['problem']}"
    return line
