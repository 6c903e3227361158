"""The command line of `rowcast-serve ctl`: what an operator tells a service that runs, over its admin listener."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlsplit

import orjson
import typer

from service.exits import EXIT_DONE, EXIT_INTERRUPTED, EXIT_USAGE

if TYPE_CHECKING:  # what speaks HTTP is of no use to a service, which has these commands in its command line
    import ssl

EXIT_UNREACHABLE, EXIT_REFUSED, EXIT_NOT_YET = 3, 4, 5
_USAGE = {"INVALID_ARGUMENT", "NOT_FOUND"}
_TIMEOUT_S = 30.0
_LOOK_S = 0.05
_Page = dict[str, Any]

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name of a model.")]
AVersion = Annotated[int, typer.Argument(metavar="VERSION", help="Its number.")]
Maybe = Annotated[int | None, typer.Argument(metavar="[VERSION]", help="Its number; left out: all of the model.")]


class CtlError(Exception):
    """What went wrong, in one line, and the exit code of it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class _Service:
    """Where a service listens to operators, and how long to wait for it."""

    url: str
    token: str
    context: ssl.SSLContext | None
    wait_s: float
    as_json: bool

    def ask(self, path: str, body: _Page | None = None) -> _Page:
        """Asks for the status, or (with a body) gives an order; returns the status after it.

        Raises:
          CtlError: the service cannot be reached, or refuses.
        """
        import urllib.error
        import urllib.request
        from http.client import HTTPException

        headers = {
            "content-type": "application/json",
            **({"authorization": f"Bearer {self.token}"} if self.token else {}),
        }
        data = None if body is None else orjson.dumps(body)
        request = urllib.request.Request(f"{self.url}{path}", data, headers)  # noqa: S310 - the scheme is checked
        try:
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self.context)
            )
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                page: _Page = orjson.loads(answer.read())
                return page
        except urllib.error.HTTPError as problem:
            raise _refusal(problem.code, problem.read()) from None
        except urllib.error.URLError as problem:
            raise CtlError(f"{self.url} cannot be reached: {problem.reason}", EXIT_UNREACHABLE) from None
        except (OSError, HTTPException, orjson.JSONDecodeError) as problem:
            told = str(problem).encode("unicode_escape").decode()[:200]  # of another program, which may send anything
            raise CtlError(f"{self.url} gave no answer of an admin listener: {told}", EXIT_UNREACHABLE) from None


def _refusal(status: int, body: bytes) -> CtlError:
    try:
        error = orjson.loads(body)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return CtlError(f"status {status} without an error of rowcast", EXIT_UNREACHABLE)
    return CtlError(f"{code}: {message}", EXIT_USAGE if code in _USAGE else EXIT_REFUSED)


CTL = typer.Typer(
    help="Tells a service that runs what to serve, over its admin listener.\n\n"
    "Exit codes: 0 done, 1 a bug, 2 usage, or no such model, version or label, 3 the service cannot be reached, "
    "4 it refuses (token, a state file that cannot be written), 5 it was told, but what was asked for is not in "
    "effect yet or cannot be loaded, 130 interrupted.",
    no_args_is_help=True,
)


@CTL.callback()
def _where(
    context: typer.Context,
    admin: Annotated[
        str, typer.Option(envvar="ROWCAST_CTL_ADMIN", help="Where the service listens to operators.")
    ] = "http://127.0.0.1:8090",
    ports_file: Annotated[
        Path | None,
        typer.Option(envvar="ROWCAST_CTL_PORTS_FILE", help="File of its ports, instead of --admin; https with --ca."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(envvar="ROWCAST_CTL_TOKEN_FILE", help="File that holds the token, and nothing else."),
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="Authorities of its certificate, PEM.")] = None,
    cert: Annotated[Path | None, typer.Option(help="Certificate to show, with its key, PEM.")] = None,
    wait_s: Annotated[float, typer.Option(min=0, help="Seconds to wait until what was asked for is in effect.")] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print the status as JSON.")] = False,
) -> None:
    """Tells the commands where the service is."""
    context.obj = lambda: _service(admin, ports_file, token_file, (ca, cert), wait_s, as_json)


@CTL.command("status")
def _status(context: typer.Context) -> None:
    """Tells what is wanted, what there is, and what is still to come."""
    _run(context, lambda service: service.ask("/v1/status"))


@CTL.command("load")
def _load(context: typer.Context, model: Model, version: Maybe = None) -> None:
    """Loads a version beside the one that answers, or serves a model again that was unloaded."""
    _order(context, "load", {"version": version}, model)


@CTL.command("unload")
def _unload(context: typer.Context, model: Model, version: Maybe = None) -> None:
    """Takes a version out, or all of a model; what answers now goes once another version does."""
    _order(context, "unload", {"version": version}, model)


@CTL.command("pin")
def _pin(
    context: typer.Context,
    model: Model,
    versions: Annotated[list[int], typer.Argument(metavar="VERSION...", help="Their numbers.")],
) -> None:
    """Serves only these versions, the newest of them unless a request names one."""
    _order(context, "pin", {"versions": versions}, model)


@CTL.command("unpin")
def _unpin(context: typer.Context, model: Model) -> None:
    """Serves the newest version again, also after a rollback."""
    _order(context, "unpin", {}, model)


@CTL.command("label")
def _label(
    context: typer.Context,
    model: Model,
    name: Annotated[str, typer.Argument(metavar="LABEL", help="As requests name it.")],
    version: AVersion,
) -> None:
    """Has a label stand for a version; it moves once that version is loaded."""
    _order(context, "label", {"label": name, "version": version}, model)


@CTL.command("unlabel")
def _unlabel(
    context: typer.Context,
    model: Model,
    name: Annotated[str, typer.Argument(metavar="LABEL", help="As requests name it.")],
) -> None:
    """Takes a label off."""
    _order(context, "unlabel", {"label": name}, model)


@CTL.command("rollback")
def _rollback(context: typer.Context, model: Model, version: Maybe = None) -> None:
    """Goes back to the version that answered before, at once, until one comes that is newer than all there are."""
    _order(context, "rollback", {"version": version}, model)


@CTL.command("drain")
def _drain(context: typer.Context) -> None:
    """Has the service refuse calls and say that it is not ready; what is loaded stays."""
    _order(context, "drain", {})


@CTL.command("undrain")
def _undrain(context: typer.Context) -> None:
    """Has the service take calls again."""
    _order(context, "undrain", {})


@CTL.command("log-level")
def _log_level(
    context: typer.Context,
    level: Annotated[
        str, typer.Argument(metavar="LEVEL", help="debug, info, warning, error; setting: as it was started.")
    ],
) -> None:
    """Sets the least severity that is logged."""
    _order(context, "log-level", {"level": None if level == "setting" else level})


def add_ctl(app: typer.Typer) -> None:
    """Adds the commands to the program's."""
    app.add_typer(CTL, name="ctl")


def _order(context: typer.Context, name: str, body: _Page, model: str | None = None) -> None:
    """Gives an order, and waits until it is in effect."""

    def give(service: _Service) -> _Page:
        path = f"/v1/{name}" if model is None else f"/v1/models/{quote(model, safe='')}/{name}"
        page = service.ask(path, {key: value for key, value in body.items() if value is not None or key == "level"})
        end = time.monotonic() + service.wait_s
        while model is not None and _under_way(page, model) and time.monotonic() < end:
            time.sleep(_LOOK_S)
            page = service.ask("/v1/status")
        return page

    _run(context, give, model)


def _under_way(page: _Page, model: str) -> bool:
    return any(each["state"] != "refused" for each in _unmet(page, model))


def _unmet(page: _Page, model: str) -> list[_Page]:
    return [unmet for each in page["models"] if each["name"] == model for unmet in each["unmet"]]


def _run(context: typer.Context, work: Callable[[_Service], _Page], model: str | None = None) -> None:
    """Works with the service, tells the status, or what went wrong in one line, and exits."""
    try:
        service = context.obj()
        page = work(service)
    except CtlError as problem:
        sys.stderr.write(f"rowcast-serve ctl: {problem}\n")
        raise typer.Exit(problem.exit_code) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    sys.stdout.write(orjson.dumps(page, option=orjson.OPT_INDENT_2).decode() + "\n" if service.as_json else _told(page))
    unmet = _unmet(page, model) if model is not None else []
    for each in unmet:
        problem_ = f": {each['problem']}" if each["problem"] else ""
        sys.stderr.write(
            f"rowcast-serve ctl: version {each['version']} is to be {each['wanted']}, it is {each['state']}{problem_}\n"
        )
    raise typer.Exit(EXIT_NOT_YET if unmet else EXIT_DONE)


def _service(
    admin: str,
    ports_file: Path | None,
    token_file: Path | None,
    tls: tuple[Path | None, Path | None],
    wait_s: float,
    as_json: bool,
) -> _Service:
    """Reads where and as whom to ask.

    Args:
      tls: the files of authorities, and of a certificate to show.
    Raises:
      CtlError: a file cannot be read, or the URL is none.
    """
    import ssl

    ca, cert = tls
    token = os.environ.get("ROWCAST_CTL_TOKEN", "")
    if ports_file is not None:
        with _used(ports_file):
            admin = f"{'http' if ca is None else 'https'}://127.0.0.1:{orjson.loads(ports_file.read_bytes())['admin']}"
    if token_file is not None:
        with _used(token_file):
            token = token_file.read_text().strip()
    with _used(ca):
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    if cert is not None:
        with _used(cert):
            context.load_cert_chain(cert)
    if urlsplit(admin).scheme not in {"http", "https"}:
        raise CtlError(f"--admin is {admin!r}; http://HOST:PORT was expected", EXIT_USAGE)
    return _Service(admin.rstrip("/"), token, context, wait_s, as_json)


@contextmanager
def _used(file: Path | None) -> Iterator[None]:
    """Tells which file it is that does not hold what it should."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as problem:
        lacks = f"it lacks {problem}" if isinstance(problem, KeyError) else None
        told = lacks or getattr(problem, "reason", None) or getattr(problem, "strerror", None) or problem
        raise CtlError(f"{file} cannot be used: {told}", EXIT_USAGE) from None


def _told(page: _Page) -> str:
    """The status as text."""
    free, resident = (page["memory"][name] >> 20 for name in ("free_bytes", "resident_bytes"))
    lines = [f"{page['root']}: revision {page['revision']}, {resident:,} MiB resident, {free:,} MiB free"]
    if page["draining"]:
        lines.append("drained: calls are refused")
    if page["state_problem"]:
        lines.append(f"problem: {page['state_problem']}")
    for model in page["models"]:
        wanted = ", ".join(f"{name} {orjson.dumps(value).decode()}" for name, value in model["wanted"].items())
        lines.append(f"{model['name']}: {wanted or 'newest version'}")
        for version in model["versions"]:
            labels = f" [{', '.join(version['labels'])}]" if version["labels"] else ""
            mib = -(-version["memory_bytes"] >> 20)
            memory = f", up to {mib:,} MiB beside its tables" if mib else ""
            current = ", current" if version["current"] else ""
            problem = f": {version['problem']}" if version["problem"] else ""
            lines.append(f"  {version['version']}{labels} {version['state']}{current}{memory}{problem}")
    return "\n".join(lines) + "\n"
