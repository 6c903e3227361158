"""The command line `rowcast`: one command per call of a service.

Exit: 0 done, 1 the service failed, 2 usage, 3 the request was rejected, 4 try again later, 5 the service cannot be
reached, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import re
import sys
from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

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

REJECTED = (
    "INVALID_ARGUMENT",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "TOO_LARGE",
    "NOT_FOUND",
    "UNIMPLEMENTED",
)
LATER = ("OVERLOADED", "NOT_READY", "DEADLINE", "CANCELLED")
NOT_REACHED = ("UNREACHABLE", "TLS_FAILED", "BAD_ANSWER")
EXITS = dict.fromkeys(REJECTED, 3) | dict.fromkeys(LATER, 4) | dict.fromkeys(NOT_REACHED, 5)
"""Exit status of an error's code; 1: any other."""

INTEGER = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)

Sent = tuple[Call[Any], Callable[[Any], Iterable[Table | str]]]
"""What a command sends, and how it shows the answer."""


def models(**options: Any) -> Sent:
    """Lists the models of the service, their versions and states."""
    return calls.models(**options), models_table


def model(**options: Any) -> Sent:
    """Describes a model: calls, features, tables, indexes, attributes."""
    return calls.model(**options), details_tables


def retrieve(**options: Any) -> Sent:
    """Finds the candidates nearest to a query."""
    return calls.retrieve(**options), neighbors_table


def rank(**options: Any) -> Sent:
    """Scores candidates for one context."""
    return calls.rank(options.pop("features", None), **options), ranked_table


def recommend(**options: Any) -> Sent:
    """Retrieves candidates and ranks them."""
    return calls.recommend(**options), neighbors_table


def embed(**options: Any) -> Sent:
    """Computes a tower's vector for features."""
    return calls.embed(options.pop("features", {}), **options), vectors_table


def lookup(ids: Sequence[str], **options: Any) -> Sent:
    """Reads the table rows that ids stand for."""
    return calls.lookup(ids=_scalars(ids), **options), partial(rows_table, ids)


def main() -> None:
    """Runs the command line."""
    os.environ.setdefault(
        "GRPC_VERBOSITY", "NONE"
    )  # else gRPC's own lines stand beside the one sentence
    given = vars(_parser().parse_args())
    command, url, as_json = (given.pop(name) for name in ("command", "url", "as_json"))
    identity = {name: given.pop(name) for name in ("ca_file", "cert_file", "key_file")}
    token = given.pop("token_file") or _environment("TOKEN")
    try:
        call, show = command(**given)
        with Client(url, token=token, **identity) as client:
            answer = client.send(call)
    except RowcastError as error:
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(
            f"{error.code}: {error}"
        )
        sys.exit(EXITS.get(error.code, 1))
    except KeyboardInterrupt:
        sys.exit(130)
    if as_json:
        sys.stdout.write(json.dumps(plain(answer), indent=2, ensure_ascii=False) + "\n")
    else:
        console = Console(highlight=False, markup=False)
        for table in show(answer):
            console.print(table)


def _parser() -> ArgumentParser:
    """What the command line takes. Options are named after the arguments of the calls."""
    parser = ArgumentParser(
        "rowcast",
        description="Calls a rowcast service. Options before the command are for services with TLS or tokens; each is "
        "also read from the environment, such as ROWCAST_CLIENT_CA_FILE.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--ca-file", default=_environment("CA_FILE"), help="trusted certificate authorities, PEM"
    )
    parser.add_argument(
        "--cert-file",
        default=_environment("CERT_FILE"),
        help="client certificate, PEM; with --key-file",
    )
    parser.add_argument(
        "--key-file", default=_environment("KEY_FILE"), help="private key of the certificate, PEM"
    )
    parser.add_argument(
        "--token-file",
        type=_read_token,
        help="file that holds only the token; or set ROWCAST_CLIENT_TOKEN",
    )
    url = _environment("URL") or "http://127.0.0.1:8080"
    connection = [
        _option(
            "--url",
            default=url,
            help="http://, https://, grpc:// or grpcs://; or set ROWCAST_CLIENT_URL",
        ),
        _option(
            "--timeout",
            dest="timeout_s",
            type=float,
            default=TIMEOUT_S,
            help="seconds for all attempts together",
        ),
        _option("--json", dest="as_json", action="store_true", default=False, help="print JSON"),
    ]
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command, options in _options().items():
        name, text = command.__name__, command.__doc__
        added = commands.add_parser(
            name, help=text, description=text, parents=[*options, *connection], allow_abbrev=False
        )
        added.set_defaults(command=command)
    return parser


def _options() -> dict[Callable[..., Sent], list[ArgumentParser]]:
    """The options of each command."""
    version = [
        _option("--version", type=int, help="version; default: the current one"),
        _option("--label", help="label of a version, instead of its number"),
    ]
    shared = [_option("-m", "--model", help="model; default: the only one"), *version]
    feature = "a value, several as 1,2,3, or NAME:=JSON; repeatable"
    features = _option(
        "-f", "--feature", dest="features", action=_Features, metavar="NAME=VALUE", help=feature
    )
    k = _option("-k", type=int, help="how many to return; default: the service's")
    context_id = _option(
        "--context-id", dest="context_ids", type=_id, help="context whose stored features to use"
    )
    tower = _option("--tower", help="tower; default: the only one")
    formula = _option("--formula", help="score, as a formula of outputs: click^0.7 * like^0.3")
    selection = [
        k,
        context_id,
        formula,
        _option(
            "--candidates",
            type=int,
            help="how many to find before they are reordered; default: max(100, 10 k)",
        ),
        _option(
            "-a",
            "--attribute",
            dest="attributes",
            action="append",
            help="attribute to return; repeatable",
        ),
        _option(
            "--filter",
            type=_json,
            metavar="JSON",
            help='conditions: {"genres": {"allow": ["Drama"]}}',
        ),
        _option("--exclude", type=_ids, help="candidate ids to leave out, separated by commas"),
        _option(
            "--crowding", type=_pair, metavar="ATTRIBUTE:N", help="at most N neighbors of one value"
        ),
        _option("--diversity", type=float, help="0: by score alone; up to 1: less and less alike"),
        _option("--min-score", type=float, help="leave out neighbors with lower scores"),
        _option(
            "--recall", type=float, help="at least this recall of the index; default: as exported"
        ),
        _option("--explain", action="store_true", help="show how the neighbors were found"),
    ]
    one_id = _option(
        "--id", dest="ids", type=_ids, help="candidate whose neighbors to find, instead of features"
    )
    exact = _option("--exact", action="store_true", help="search exactly, whatever the index")
    candidates = _option(
        "-c", "--candidates", type=_ids, required=True, help="candidate ids, separated by commas"
    )
    heads = _option(
        "--head", dest="heads", action="append", help="output to return with the score; repeatable"
    )
    return {
        models: [],
        model: [_option("name", nargs="?", help="model; default: the only one"), *version],
        retrieve: [features, one_id, exact, *selection, *shared],
        rank: [candidates, features, k, heads, formula, context_id, tower, *shared],
        recommend: [features, *selection, tower, *shared],
        embed: [features, tower, *shared],
        lookup: [
            _option(
                "-f", "--feature", required=True, help="feature whose table and id rule to use"
            ),
            _option("ids", nargs="+", help="ids to look up"),
            *shared,
        ],
    }


def _option(*flags: str, **settings: Any) -> ArgumentParser:
    """One option, as a parent of the parsers of several commands. If it is not given, the call's own default holds."""
    parser = ArgumentParser(add_help=False, argument_default=SUPPRESS)
    parser.add_argument(*flags, **settings)
    return parser


def _environment(name: str) -> str | None:
    return os.environ.get(f"ROWCAST_CLIENT_{name}") or None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ArgumentTypeError(f"{text!r} is no JSON: {error}") from error


def _pair(text: str) -> tuple[str, int]:
    attribute, _, most = text.rpartition(":")
    if not attribute or not INTEGER.fullmatch(most):
        raise ArgumentTypeError(f"{text!r}: expected an attribute and a number, seller:3")
    return attribute, int(most)


def _read_token(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentTypeError(
            f"{file!r} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error


class _Features(Action):
    """Gathers features by name."""

    def __call__(
        self, _: ArgumentParser, given: Namespace, text: Any, __: str | None = None
    ) -> None:
        try:
            name, value = parse_feature(text)
        except ValueError as error:
            raise ArgumentError(self, str(error)) from error
        features = getattr(given, self.dest, {})
        if name in features:
            raise ArgumentError(self, f"{name!r} is given twice")
        setattr(given, self.dest, features | {name: value})


def parse_feature(text: str) -> tuple[str, Any]:
    """Reads `name=value`, `name=1,2,3` or `name:=JSON`.

    Raises:
      ValueError: it is none of them.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.rstrip(":"):
        raise ValueError(f"{text!r}: expected name=value, name=1,2,3 or name:=JSON")
    if name.endswith(":"):
        try:
            return name[:-1], json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"{text!r}: what follows := is no JSON: {error}") from error
    return name, _ids(value) if "," in value else _id(value)


def _id(text: str) -> Any:
    return _scalars([text])[0]


def _ids(text: str) -> list[Any]:
    return _scalars([part for part in text.split(",") if part])


def _scalars(texts: Sequence[str]) -> list[Any]:
    """Integers if all are written as such, else numbers if all are, else strings; `007` is no integer's spelling."""
    if all(INTEGER.fullmatch(text) for text in texts):
        return [int(text) for text in texts]
    if all(NUMBER.fullmatch(text) for text in texts):
        return [float(text) for text in texts]
    return list(texts)
