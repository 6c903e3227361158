"""`rowcast-serve ctl`: sends an operator's commands to a running service, through its admin API."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import orjson
import typer
from typer.core import TyperGroup, TyperOption

from bundle.arithmetic import ceil_div
from bundle.errors import OutputRejected
from bundle.storage.output_file import OutputFile
from service.cli.admin_client import Admin, CtlError, json_text, reported_errors
from service.cli.ctl_changes import CANDIDATES, CHANGES, CONTEXTS, ROWS, Model
from service.exit_codes import EXIT_OK, EXIT_USAGE

EXIT_NOT_IN_EFFECT = 5
_POLL_S = 0.05
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


class _OptionsAnywhere(TyperGroup):
    """Accepts the options of the group also after the name of a command, as in `status --json`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments, with the options of the group first."""
        takes_value = {
            flag: not option.is_flag
            for option in self.params
            if isinstance(option, TyperOption)
            for flag in option.opts
            if flag != "--help"
        }
        return super().parse_args(ctx, _options_first(args, takes_value))


def _options_first(arguments: Sequence[str], takes_value: Mapping[str, bool]) -> list[str]:
    """Moves options to the front. What follows `--` stays, because it can look like an option."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options: list[str] = []
    others: list[str] = []
    remaining = iter(arguments[:end])
    for argument in remaining:
        name, has_value, _ = argument.partition("=")
        if name not in takes_value:
            others.append(argument)
            continue
        options.append(argument)
        if takes_value[name] and not has_value:
            options.extend(itertools.islice(remaining, 1))
    return [*options, *others, *arguments[end:]]


CTL = typer.Typer(
    help="Send commands to a running service through its admin API.\n\n"
    "Write the options before or after the name of the command.\n\n"
    "Exit codes: 0 the command is in effect, 1 a bug, 2 invalid usage, or an unknown model, "
    "version or label, 3 the service cannot be reached, 4 the service rejects the command (the "
    "token is not valid, or the state file or the change log cannot be written), 5 the service "
    "accepted the command, but it is not in effect yet or a version cannot be loaded, 130 "
    "interrupted.",
    cls=_OptionsAnywhere,
    no_args_is_help=True,
)


DENY = typer.Typer(help="Withdraw candidates of a model, and restore them.", no_args_is_help=True)
CTL.add_typer(DENY, name="deny")
CTL.add_typer(ROWS, name="rows")
CTL.add_typer(CANDIDATES, name="candidates")
CTL.add_typer(CONTEXTS, name="contexts")
CTL.add_typer(CHANGES, name="changes")


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
    context.obj = Admin(admin, root, ports_file, token_file, ca, cert, wait_s, as_json)


@CTL.command("status")
def _status(context: typer.Context) -> None:
    """Show the desired state, the versions that are served, and what is not in effect yet."""
    _run(context, "status", None)


@CTL.command("load")
def _load(context: typer.Context, model: Model, version: OptionalVersion = None) -> None:
    """Load a version in addition to the current one, or serve an unloaded model again."""
    _run(context, "load", {"version": version}, model)


@CTL.command("unload")
def _unload(context: typer.Context, model: Model, version: OptionalVersion = None) -> None:
    """Unload a version, or all versions of a model. The current version is unloaded once another
    version can replace it.
    """
    _run(context, "unload", {"version": version}, model)


@CTL.command("pin")
def _pin(context: typer.Context, model: Model, versions: Versions) -> None:
    """Serve only these versions. The newest of them becomes the current version."""
    _run(context, "pin", {"versions": versions}, model)


@CTL.command("unpin")
def _unpin(context: typer.Context, model: Model) -> None:
    """Serve the newest version again, after a pin or a rollback."""
    _run(context, "unpin", {}, model)


@CTL.command("label")
def _label(context: typer.Context, model: Model, name: Label, version: Version) -> None:
    """Set a label on a version. The label moves once that version is loaded."""
    _run(context, "label", {"label": name, "version": version}, model)


@CTL.command("unlabel")
def _unlabel(context: typer.Context, model: Model, name: Label) -> None:
    """Remove a label."""
    _run(context, "unlabel", {"label": name}, model)


@CTL.command("rollback")
def _rollback(context: typer.Context, model: Model, version: Older = None) -> None:
    """Return to the previous version, until a version appears that is newer than all present
    versions.
    """
    _run(context, "rollback", {"version": version}, model)


@DENY.command("add")
def _deny_add(context: typer.Context, model: Model, ids: Ids = None, file: IdsFile = None) -> None:
    """Withdraw candidates: retrieve and recommend no longer return them, whatever the version."""
    _change_denied(context, "deny/add", model, ids, file)


@DENY.command("remove")
def _deny_remove(
    context: typer.Context, model: Model, ids: Ids = None, file: IdsFile = None
) -> None:
    """Restore withdrawn candidates."""
    _change_denied(context, "deny/remove", model, ids, file)


@DENY.command("list")
def _deny_list(context: typer.Context, model: Model) -> None:
    """Print the deny list of a model, one id per line."""
    with reported_errors():
        found = context.obj.request(f"/v1/models/{quote(model, safe='')}/deny")
    sys.stdout.write(
        json_text(found) if context.obj.as_json else "".join(f"{each}\n" for each in found["ids"])
    )


def _change_denied(
    context: typer.Context, command: str, model: str, ids: list[str] | None, file: Path | None
) -> None:
    given = list(ids or ())
    with reported_errors():
        if file is not None:
            try:
                text = sys.stdin.read() if str(file) == "-" else file.read_text()
            except (OSError, UnicodeDecodeError) as problem:
                reason = getattr(problem, "strerror", None) or problem
                raise CtlError(f"--file {file} cannot be read: {reason}", EXIT_USAGE) from None
            given += [line.strip() for line in text.splitlines() if line.strip()]
        if not given:
            raise CtlError(
                "no ids were given; name ids, or a --file with one id per line", EXIT_USAGE
            )
    _run(context, command, {"ids": given}, model)


@CTL.command("drain")
def _drain(context: typer.Context) -> None:
    """Reject calls and fail health checks. Keep the loaded versions."""
    _run(context, "drain", {})


@CTL.command("undrain")
def _undrain(context: typer.Context) -> None:
    """Accept calls again."""
    _run(context, "undrain", {})


@CTL.command("log-level")
def _log_level(context: typer.Context, level: Level) -> None:
    """Set the minimum severity of log lines."""
    _run(context, "log-level", {"level": None if level == "setting" else level})


@CTL.command("topology")
def _topology(context: typer.Context) -> None:
    """Show which address holds which part of large tables and indexes, as the router sees it."""
    with reported_errors():
        found = context.obj.request("/v1/topology")
    sys.stdout.write(
        json_text(found) if context.obj.as_json else "\n".join(_topology_lines(found)) + "\n"
    )


def _topology_lines(found: _Status) -> Iterator[str]:
    if found["role"] != "router":
        yield (
            f"this process is shard {found['shard']}; send the command to a router"
            if found["shard"]
            else "no shards: this service holds everything"
        )
        return
    for process in found["processes"][:1]:
        for each in process["shards"]:
            unused = each["holds"] and not each["serves"]
            state = each["problem"] or ("ok, another division serves" if unused else "ok")
            yield f"{each['shard'] or '?':<6} {each['address']}  {state}"
            for version, parts in each["holds"].items():
                held = ", ".join(
                    f"{name} {first:,} to {end:,}"
                    for name, (first, end) in parts.items()
                    if end > first
                )
                yield f"       {version}: {held or 'nothing'}"


@CTL.command("report")
def _report(
    context: typer.Context,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write, instead of stdout.")
    ] = None,
) -> None:
    """Collect the facts that a bug report needs, without secrets, as JSON: versions, machine,
    settings, status, live recall and drift, and recent problems.
    """
    with reported_errors():
        try:
            file = None if output is None else OutputFile(output)
            text = json_text(context.obj.request("/v1/report"))
            if file is None:
                sys.stdout.write(text)
            else:
                file.write(text.encode())
        except OutputRejected as problem:
            raise CtlError(f"--output: {problem}", EXIT_USAGE) from None
        except OSError as problem:
            raise CtlError(
                f"--output {output} cannot be written: {problem.strerror}", EXIT_USAGE
            ) from None


def _run(context: typer.Context, command: str, body: _Status | None, model: str = "") -> None:
    """Sends a command, waits until it is in effect, prints the status and exits."""
    admin: Admin = context.obj
    with reported_errors():
        scope = f"/v1/models/{quote(model, safe='')}/" if model else "/v1/"
        status = admin.request(scope + command, body)
        if not status.get("changed", True):
            sys.stderr.write(
                "rowcast-serve ctl: nothing changed: the desired state is the same already\n"
            )
        end = time.monotonic() + admin.wait_s
        while body is not None and _is_pending(status, model) and time.monotonic() < end:
            time.sleep(_POLL_S)
            status = admin.request("/v1/status")
    sys.stdout.write(json_text(status) if admin.as_json else _text(status))
    unmet = _unmet(status, model)
    for each in unmet:
        reason = f": {each['problem']}" if each["problem"] else ""
        wanted = f"version {each['version']} should be {each['wanted']}, but is {each['state']}"
        sys.stderr.write(f"rowcast-serve ctl: {wanted}{reason}\n")
    raise typer.Exit(
        EXIT_NOT_IN_EFFECT if unmet or (body is not None and _is_behind(status)) else EXIT_OK
    )


def _unmet(status: _Status, model: str) -> list[_Status]:
    return [unmet for each in status["models"] if each["name"] == model for unmet in each["unmet"]]


def _is_behind(status: _Status) -> bool:
    """Whether a worker does not follow the newest revision of the desired state yet."""
    return any(process["revision"] < status["revision"] for process in status["processes"])


def _is_pending(status: _Status, model: str) -> bool:
    return _is_behind(status) or any(each["state"] != "failed" for each in _unmet(status, model))


def _text(status: _Status) -> str:
    free, resident = (status["memory"][name] >> 20 for name in ("free_bytes", "resident_bytes"))
    lines = [
        f"{status['root']}: revision {status['revision']}, {resident:,} MiB resident, {free:,} MiB "
        "free"
    ]
    if status["draining"]:
        lines.append("draining: calls are rejected")
    if status["state_problem"]:
        lines.append(f"problem: {status['state_problem']}")
    for model in status["models"]:
        wanted = ", ".join(
            f"{name} {orjson.dumps(value).decode()}" for name, value in model["wanted"].items()
        )
        lines.append(f"{model['name']}: {wanted or 'newest version'}")
        for version in model["versions"]:
            labels = f" [{', '.join(version['labels'])}]" if version["labels"] else ""
            mib = ceil_div(version["memory_bytes"], 1 << 20)
            memory = f", up to {mib:,} MiB in addition to its tables" if mib else ""
            current = ", current" if version["current"] else ""
            problem = f": {version['problem']}" if version["problem"] else ""
            lines.append(
                f"  {version['version']}{labels} {version['state']}{current}{memory}{problem}"
            )
    return "\n".join(lines) + "\n"
