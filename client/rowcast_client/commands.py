"""The command line `rowcast`: one command per call of a service.

Exit: 0 done, 1 the service failed, 2 usage, 3 the request was rejected, 4 try again later, 5 the service cannot be
reached, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from rowcast_client import calls
from rowcast_client.calls import Call
from rowcast_client.client import TIMEOUT_S, Client
from rowcast_client.errors import RowcastError
from rowcast_client.printing import (
    details_tables,
    models_table,
    neighbors_table,
    plain,
    ranked_table,
    rows_table,
    vectors_table,
)

EXITS = {
    "INVALID_ARGUMENT": 3,
    "UNAUTHENTICATED": 3,
    "PERMISSION_DENIED": 3,
    "TOO_LARGE": 3,
    "NOT_FOUND": 3,
    "UNIMPLEMENTED": 3,
    "OVERLOADED": 4,
    "NOT_READY": 4,
    "DEADLINE": 4,
    "CANCELLED": 4,
    "UNREACHABLE": 5,
    "TLS_FAILED": 5,
    "BAD_ANSWER": 5,
}
"""Exit status of an error's code; 1: any other."""
application = typer.Typer(
    help="Calls a rowcast service.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
Url = Annotated[str, typer.Option("--url", envvar="ROWCAST_CLIENT_URL", help="http://, https://, grpc:// or grpcs://")]
Model = Annotated[str, typer.Option("--model", "-m", help="Model; left out: the only one.")]
Version = Annotated[int, typer.Option("--version", help="Version; 0: the current one.")]
Label = Annotated[str, typer.Option("--label", help="Label of a version, instead of its number.")]
Given = Annotated[
    list[str] | None,
    typer.Option("--feature", "-f", help="name=value, name=1,2,3 or name:=JSON; may be given several times."),
]
Count = Annotated[int, typer.Option("-k", help="How many; 0: the service's default.")]
Attribute = Annotated[list[str] | None, typer.Option("--attribute", "-a", help="Returned with each neighbor.")]
Excluded = Annotated[str, typer.Option("--exclude", help="Candidate ids never returned, with commas between.")]
TowerName = Annotated[str, typer.Option("--tower", help="Tower; left out: the only one.")]
Formula = Annotated[str, typer.Option("--formula", help="Over outputs, gives the score: click^0.7 * like^0.3.")]
ContextId = Annotated[str, typer.Option("--context-id", help="Whose stored features are taken where none are given.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds for the call, all its attempts together.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

INTEGER = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_IDENTITY: ContextVar[dict[str, Any]] = ContextVar("identity")
"""What stands before the command, as `Client` takes it."""
DEFAULT_URL = "http://127.0.0.1:8080"


@application.callback()
def identity(
    ca_file: Annotated[
        str | None, typer.Option(envvar="ROWCAST_CLIENT_CA_FILE", help="Authorities trusted over TLS, PEM.")
    ] = None,
    cert_file: Annotated[
        str | None, typer.Option(envvar="ROWCAST_CLIENT_CERT_FILE", help="Own certificate, PEM; with --key-file.")
    ] = None,
    key_file: Annotated[
        str | None, typer.Option(envvar="ROWCAST_CLIENT_KEY_FILE", help="Private key of the certificate, PEM.")
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(help="File that holds the token alone; or the token itself in ROWCAST_CLIENT_TOKEN."),
    ] = None,
) -> None:
    """Calls a rowcast service. Options before the command are for services with TLS or tokens."""
    token = os.environ.get("ROWCAST_CLIENT_TOKEN") or None
    if token_file is not None:
        try:
            token = Path(token_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise typer.BadParameter(f"{token_file!r} cannot be read: {reason}", param_hint="--token-file") from error
    _IDENTITY.set({"ca_file": ca_file, "cert_file": cert_file, "key_file": key_file, "token": token})


@application.command()
def models(url: Url = DEFAULT_URL, timeout: Timeout = TIMEOUT_S, as_json: AsJson = False) -> None:
    """Lists the models of the service, their versions and states."""
    _ask(url, calls.models(timeout_s=timeout), models_table, as_json)


@application.command()
def model(
    name: Annotated[str, typer.Argument(help="Model; left out: the only one.")] = "",
    version: Version = 0,
    label: Label = "",
    url: Url = DEFAULT_URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Describes a model: calls, features, tables, indexes, attributes."""
    _ask(url, calls.model(name, version=version, label=label, timeout_s=timeout), details_tables, as_json)


@application.command()
def retrieve(
    *,
    feature: Given = None,
    k: Count = 0,
    attribute: Attribute = None,
    exclude: Excluded = "",
    id_: Annotated[str, typer.Option("--id", help="Candidate whose neighbors are wanted, in place of features.")] = "",
    context_id: ContextId = "",
    exact: Annotated[bool, typer.Option("--exact", help="Search exactly, whatever the index.")] = False,
    model: Model = "",
    version: Version = 0,
    label: Label = "",
    url: Url = DEFAULT_URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Finds the candidates nearest to a query."""
    call = calls.retrieve(
        _features(feature) if feature or not (id_ or context_id) else None,
        k=k,
        ids=_ids(id_) if id_ else None,
        context_ids=_context_id(context_id),
        exclude=_ids(exclude) or None,
        attributes=attribute or (),
        exact=exact,
        model=model,
        version=version,
        label=label,
        timeout_s=timeout,
    )
    _ask(url, call, neighbors_table, as_json)


@application.command()
def rank(
    *,
    candidates: Annotated[str, typer.Option("--candidates", "-c", help="Candidate ids, with commas between.")],
    feature: Given = None,
    k: Count = 0,
    head: Annotated[list[str] | None, typer.Option("--head", help="Output returned beside the score.")] = None,
    formula: Formula = "",
    context_id: ContextId = "",
    tower: TowerName = "",
    model: Model = "",
    version: Version = 0,
    label: Label = "",
    url: Url = DEFAULT_URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Scores candidates for one context."""
    call = calls.rank(
        _features(feature),
        _ids(candidates),
        k=k,
        heads=head or (),
        formula=formula,
        context_ids=_context_id(context_id),
        tower=tower,
        model=model,
        version=version,
        label=label,
        timeout_s=timeout,
    )
    _ask(url, call, ranked_table, as_json)


@application.command()
def recommend(
    *,
    feature: Given = None,
    k: Count = 0,
    retrieved: Annotated[int, typer.Option("--candidates", help="How many are retrieved and ranked; 0: enough.")] = 0,
    attribute: Attribute = None,
    exclude: Excluded = "",
    formula: Formula = "",
    context_id: ContextId = "",
    tower: TowerName = "",
    model: Model = "",
    version: Version = 0,
    label: Label = "",
    url: Url = DEFAULT_URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Retrieves candidates and ranks them."""
    call = calls.recommend(
        _features(feature),
        k=k,
        candidates=retrieved,
        exclude=_ids(exclude) or None,
        attributes=attribute or (),
        formula=formula,
        context_ids=_context_id(context_id),
        tower=tower,
        model=model,
        version=version,
        label=label,
        timeout_s=timeout,
    )
    _ask(url, call, neighbors_table, as_json)


@application.command()
def embed(
    *,
    feature: Given = None,
    tower: TowerName = "",
    model: Model = "",
    version: Version = 0,
    label: Label = "",
    url: Url = DEFAULT_URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Computes a tower's vector for features."""
    call = calls.embed(_features(feature), tower=tower, model=model, version=version, label=label, timeout_s=timeout)
    _ask(url, call, vectors_table, as_json)


@application.command()
def lookup(
    *,
    feature: Annotated[str, typer.Option("--feature", "-f", help="Whose table and id rule are used.")],
    ids: Annotated[list[str], typer.Argument(help="Ids whose rows are wanted.")],
    model: Model = "",
    version: Version = 0,
    label: Label = "",
    url: Url = DEFAULT_URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Reads the table rows that ids stand for."""
    values = _scalars(ids)
    call = calls.lookup(feature, values, model=model, version=version, label=label, timeout_s=timeout)
    _ask(url, call, lambda answer: rows_table(ids, answer), as_json)


def main() -> None:
    """Runs the command line."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else gRPC's own lines stand beside the one sentence
    try:
        application()
    except RowcastError as error:
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(f"{error.code}: {error}")
        sys.exit(EXITS.get(error.code, 1))
    except KeyboardInterrupt:
        sys.exit(130)


def parse_feature(text: str) -> tuple[str, Any]:
    """Reads `name=value`, `name=1,2,3` or `name:=JSON`.

    Raises:
      typer.BadParameter: it is none of them.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.rstrip(":"):
        raise typer.BadParameter(f"{text!r}: expected name=value, name=1,2,3 or name:=JSON", param_hint="--feature")
    if name.endswith(":"):
        try:
            return name[:-1], json.loads(value)
        except json.JSONDecodeError as error:
            raise typer.BadParameter(
                f"{text!r}: what follows := is no JSON: {error}", param_hint="--feature"
            ) from error
    parts = value.split(",")
    if len(parts) == 1:
        return name, _scalars(parts)[0]
    return name, _scalars([part for part in parts if part])


def _features(given: Iterable[str] | None) -> dict[str, Any]:
    features: dict[str, Any] = {}
    for name, value in map(parse_feature, given or ()):
        if name in features:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint="--feature")
        features[name] = value
    return features


def _context_id(text: str) -> Any:
    return _scalars([text])[0] if text else None


def _ids(text: str) -> list[Any]:
    return _scalars([part for part in text.split(",") if part])


def _scalars(texts: Sequence[str]) -> list[Any]:
    """Integers if all are written as such, else numbers if all are, else strings; `007` is no integer's spelling."""
    if all(INTEGER.fullmatch(text) for text in texts):
        return [int(text) for text in texts]
    if all(NUMBER.fullmatch(text) for text in texts):
        return [float(text) for text in texts]
    return list(texts)


def _ask(url: str, call: Call[Any], show: Callable[[Any], Any], as_json: bool) -> None:
    with Client(url, **_IDENTITY.get()) as client:
        answer = client.send(call)
    if as_json:
        json.dump(plain(answer), sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
        return
    console = Console(highlight=False, markup=False)
    for table in show(answer):
        console.print(table)
