"""`rowcast-serve ctl`: an operator's commands to a running service, through its admin API."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import SplitResult, quote, urlsplit

import orjson
import typer

from service.exit_codes import EXIT_OK, EXIT_USAGE

if TYPE_CHECKING:
    import ssl

EXIT_UNREACHABLE, EXIT_REJECTED, EXIT_NOT_IN_EFFECT = 3, 4, 5
_USAGE_CODES = {"INVALID_ARGUMENT", "NOT_FOUND", "TOO_LARGE"}
_TIMEOUT_S, _POLL_S = 30.0, 0.05
_Status = dict[str, Any]

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name of a model.")]
Version = Annotated[int, typer.Argument(metavar="VERSION", help="Version number.")]
OptionalVersion = Annotated[
    int | None,
    typer.Argument(metavar="[VERSION]", help="Version number; default: the whole model."),
]
Older = Annotated[
    int | None,
    typer.Argument(metavar="[VERSION]", help="Version number; default: the previous one."),
]
Versions = Annotated[list[int], typer.Argument(metavar="VERSION...", help="Version numbers.")]
Level = Annotated[
    str, typer.Argument(metavar="LEVEL", help="debug, info, warning, error; setting: as started.")
]
Label = Annotated[str, typer.Argument(metavar="LABEL", help="Name of the label.")]
Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID...]", help="Ids; one that begins with - after --."),
]
IdsFile = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="File with one id a line; -: stdin.")
]

CTL = typer.Typer(
    help="Sends commands to a running service through its admin API.\n\n"
    "Exit codes: 0 in effect, 1 a bug, 2 usage, or no such model, version or label, 3 the service cannot be reached, "
    "4 it rejects the command (token, a state file that cannot be written), 5 the command was accepted, but is not in "
    "effect yet or a version cannot be loaded, 130 interrupted.",
    no_args_is_help=True,
)


DENY = typer.Typer(
    help="Withdraws candidates of a model, and returns them again.", no_args_is_help=True
)
CTL.add_typer(DENY, name="deny")


class CtlError(Exception):
    """What went wrong, in one line, and its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class _Admin:
    """The admin listener of a service, and how to talk to it."""

    url: str
    ports_file: Path | None
    token_file: Path | None
    ca: Path | None
    cert: Path | None
    wait_s: float
    as_json: bool

    def request(self, path: str, body: _Status | None = None) -> _Status:
        """Gets what is at a path, or (with a body) sends a command; returns the status after it. Follows no redirects.

        Raises:
          CtlError: the service cannot be reached, or rejects the command.
        """
        from http.client import HTTPConnection, HTTPException, HTTPSConnection

        url, token, tls = self._read_files()
        headers = {"content-type": "application/json"} | (
            {"authorization": f"Bearer {token}"} if token else {}
        )
        try:
            https = (
                HTTPSConnection(url.netloc, timeout=_TIMEOUT_S, context=tls)
                if url.scheme == "https"
                else None
            )
            connection = https or HTTPConnection(url.netloc, timeout=_TIMEOUT_S)
            with closing(connection):
                method, given = ("GET", None) if body is None else ("POST", orjson.dumps(body))
                connection.request(method, url.path.rstrip("/") + path, given, headers)
                answer = connection.getresponse()
                content = answer.read()
        except (OSError, HTTPException) as problem:
            reason = str(problem).encode("unicode_escape").decode()[:200]
            raise CtlError(
                f"{url.geturl()} cannot be reached: {reason}", EXIT_UNREACHABLE
            ) from None
        try:
            status: _Status = orjson.loads(content)
            if answer.status in {200, 202}:
                return status
            code, message = status["error"]["code"], status["error"]["message"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            what = f"{url.geturl()} is no admin API of rowcast: status {answer.status}"
            raise CtlError(what, EXIT_UNREACHABLE) from None
        raise CtlError(f"{code}: {message}", EXIT_USAGE if code in _USAGE_CODES else EXIT_REJECTED)

    def _read_files(self) -> tuple[SplitResult, str, ssl.SSLContext]:
        """Returns the URL, the token and what TLS needs."""
        import ssl

        url, token, file = self.url, os.environ.get("ROWCAST_CTL_TOKEN", ""), self.ports_file
        try:
            if file is not None:
                port = orjson.loads(file.read_bytes())["admin"]
                url = f"{'http' if self.ca is None else 'https'}://127.0.0.1:{port}"
            if (file := self.token_file) is not None:
                token = file.read_text().strip()
            file = self.ca
            tls = ssl.create_default_context(cafile=file)
            if (file := self.cert) is not None:
                tls.load_cert_chain(file)
        except (OSError, ValueError, KeyError, TypeError) as problem:
            reason = (
                getattr(problem, "reason", None)
                or getattr(problem, "strerror", None)
                or repr(problem)
            )
            raise CtlError(f"{file} cannot be used: {reason}", EXIT_USAGE) from None
        split = urlsplit(url)
        if split.scheme not in {"http", "https"}:
            raise CtlError(f"--admin is {url!r}; http://HOST:PORT was expected", EXIT_USAGE)
        return split, token, tls


def _option(variable: str, text: str) -> Any:
    return typer.Option(envvar=f"ROWCAST_CTL_{variable}", help=text)


@CTL.callback()
def _connect(
    context: typer.Context,
    admin: Annotated[str, _option("ADMIN", "URL of the admin API.")] = "http://127.0.0.1:8090",
    ports_file: Annotated[
        Path | None, _option("PORTS_FILE", "Ports file of the service, instead of --admin.")
    ] = None,
    token_file: Annotated[
        Path | None, _option("TOKEN_FILE", "File that holds only the token.")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="Certificate authorities of the admin API, PEM.")
    ] = None,
    cert: Annotated[Path | None, typer.Option(help="Client certificate with its key, PEM.")] = None,
    wait_s: Annotated[
        float, typer.Option(min=0, help="Seconds to wait until a command is in effect.")
    ] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print the status as JSON.")] = False,
) -> None:
    context.obj = _Admin(admin, ports_file, token_file, ca, cert, wait_s, as_json)


@CTL.command("status")
def _status(context: typer.Context) -> None:
    """Shows the desired state, what is served, and what is not in effect yet."""
    _run(context, "status", None)


@CTL.command("load")
def _load(context: typer.Context, model: Model, version: OptionalVersion = None) -> None:
    """Loads a version beside the current one, or serves an unloaded model again."""
    _run(context, "load", {"version": version}, model)


@CTL.command("unload")
def _unload(context: typer.Context, model: Model, version: OptionalVersion = None) -> None:
    """Unloads a version, or all of a model; the current version goes once another can replace it."""
    _run(context, "unload", {"version": version}, model)


@CTL.command("pin")
def _pin(context: typer.Context, model: Model, versions: Versions) -> None:
    """Serves only these versions, the newest of them as the current one."""
    _run(context, "pin", {"versions": versions}, model)


@CTL.command("unpin")
def _unpin(context: typer.Context, model: Model) -> None:
    """Serves the newest version again, after a pin or a rollback."""
    _run(context, "unpin", {}, model)


@CTL.command("label")
def _label(context: typer.Context, model: Model, name: Label, version: Version) -> None:
    """Sets a label on a version; it moves once that version is loaded."""
    _run(context, "label", {"label": name, "version": version}, model)


@CTL.command("unlabel")
def _unlabel(context: typer.Context, model: Model, name: Label) -> None:
    """Removes a label."""
    _run(context, "unlabel", {"label": name}, model)


@CTL.command("rollback")
def _rollback(context: typer.Context, model: Model, version: Older = None) -> None:
    """Returns to the previous version, until a version arrives that is newer than all present ones."""
    _run(context, "rollback", {"version": version}, model)


@DENY.command("add")
def _deny_add(context: typer.Context, model: Model, ids: Ids = None, file: IdsFile = None) -> None:
    """Withdraws candidates: retrieve and recommend return them no more, from no version."""
    _change_denied(context, "deny/add", model, ids, file)


@DENY.command("remove")
def _deny_remove(
    context: typer.Context, model: Model, ids: Ids = None, file: IdsFile = None
) -> None:
    """Returns withdrawn candidates again."""
    _change_denied(context, "deny/remove", model, ids, file)


@DENY.command("list")
def _deny_list(context: typer.Context, model: Model) -> None:
    """Prints the deny list of a model, one id a line."""
    with _reported_errors():
        found = context.obj.request(f"/v1/models/{quote(model, safe='')}/deny")
    sys.stdout.write(
        _json(found) if context.obj.as_json else "".join(f"{each}\n" for each in found["ids"])
    )


def _change_denied(
    context: typer.Context, command: str, model: str, ids: list[str] | None, file: Path | None
) -> None:
    given = list(ids or ())
    with _reported_errors():
        if file is not None:
            try:
                text = sys.stdin.read() if str(file) == "-" else file.read_text()
            except (OSError, UnicodeDecodeError) as problem:
                reason = getattr(problem, "strerror", None) or problem
                raise CtlError(f"--file {file} cannot be read: {reason}", EXIT_USAGE) from None
            given += [line.strip() for line in text.splitlines() if line.strip()]
        if not given:
            raise CtlError("no id is given: name ids, or a --file with one a line", EXIT_USAGE)
    _run(context, command, {"ids": given}, model)


@CTL.command("drain")
def _drain(context: typer.Context) -> None:
    """Rejects calls and fails health checks; loaded versions stay."""
    _run(context, "drain", {})


@CTL.command("undrain")
def _undrain(context: typer.Context) -> None:
    """Accepts calls again."""
    _run(context, "undrain", {})


@CTL.command("log-level")
def _log_level(context: typer.Context, level: Level) -> None:
    """Sets the least severity that is logged."""
    _run(context, "log-level", {"level": None if level == "setting" else level})


@CTL.command("topology")
def _topology(context: typer.Context) -> None:
    """Shows which address holds which part of large tables and indexes, as a front sees it."""
    with _reported_errors():
        found = context.obj.request("/v1/topology")
    sys.stdout.write(
        _json(found) if context.obj.as_json else "\n".join(_topology_lines(found)) + "\n"
    )


def _topology_lines(found: _Status) -> Iterator[str]:
    if found["role"] != "front":
        yield (
            f"shard {found['shard']}; its fronts show who holds what"
            if found["shard"]
            else "no shards: all is here"
        )
        return
    for process in found["processes"][:1]:
        for each in process["shards"]:
            yield f"{each['shard'] or '?':<6} {each['address']}  {each['problem'] or 'ok'}"
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
        Path | None, typer.Option(metavar="FILE", help="File to write it to, instead of stdout.")
    ] = None,
) -> None:
    """Collects what an issue needs, without secrets, as JSON: versions, machine, settings, status, recent problems."""
    with _reported_errors():
        text = _json(context.obj.request("/v1/report"))
        if output is None:
            sys.stdout.write(text)
            return
        try:
            output.write_text(text)
        except OSError as problem:
            raise CtlError(
                f"--output {output} cannot be written: {problem.strerror}", EXIT_USAGE
            ) from None


@contextmanager
def _reported_errors() -> Iterator[None]:
    try:
        yield
    except CtlError as problem:
        sys.stderr.write(f"rowcast-serve ctl: {problem}\n")
        raise typer.Exit(problem.exit_code) from None


def _json(document: _Status) -> str:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n"


def _run(context: typer.Context, command: str, body: _Status | None, model: str = "") -> None:
    """Sends a command, waits until it is in effect, prints the status and exits."""
    admin: _Admin = context.obj
    with _reported_errors():
        scope = f"/v1/models/{quote(model, safe='')}/" if model else "/v1/"
        status = admin.request(scope + command, body)
        if not status.get("changed", True):
            sys.stderr.write("rowcast-serve ctl: nothing changed: that was desired already\n")
        end = time.monotonic() + admin.wait_s
        while body is not None and _is_pending(status, model) and time.monotonic() < end:
            time.sleep(_POLL_S)
            status = admin.request("/v1/status")
    sys.stdout.write(_json(status) if admin.as_json else _text(status))
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
        f"{status['root']}: revision {status['revision']}, {resident:,} MiB resident, {free:,} MiB free"
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
            mib = -(-version["memory_bytes"] >> 20)
            memory = f", up to {mib:,} MiB beside its tables" if mib else ""
            current = ", current" if version["current"] else ""
            problem = f": {version['problem']}" if version["problem"] else ""
            lines.append(
                f"  {version['version']}{labels} {version['state']}{current}{memory}{problem}"
            )
    return "\n".join(lines) + "\n"
