"""The command line `rowcast`: one command per call of a service, and `ready`.

Exit codes: 0 success, 1 the service failed, 2 invalid usage, 3 the service rejected the request, 4
try again later, 5 the service cannot be reached, 130 interrupted.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from rich.console import Console
from rich.table import Table

from rowcast_client import calls
from rowcast_client.client import Client
from rowcast_client.errors import RowcastError
from rowcast_client.fields import words_of
from rowcast_client.printing import (
    details_tables,
    models_table,
    neighbors_table,
    plain,
    ranked_table,
    rows_table,
    vectors_table,
)
from rowcast_client.retries import Retries
from rowcast_client.service_connection import TIMEOUT_S
from rowcast_client.stubs import embedding_service_pb2 as pb

# The groups of error codes that share an exit code.
REJECTED = (
    "INVALID_ARGUMENT",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "TOO_LARGE",
    "NOT_FOUND",
    "UNIMPLEMENTED",
)
LATER = ("OVERLOADED", "NOT_READY", "DEADLINE", "CANCELLED")
NOT_REACHED = ("UNREACHABLE", "TLS_FAILED", "INVALID_RESPONSE")
EXITS = dict.fromkeys(REJECTED, 3) | dict.fromkeys(LATER, 4) | dict.fromkeys(NOT_REACHED, 5)
"""Exit code of each error code; all others exit with 1."""
NOT_READY_EXIT = 4
"""Exit code of `ready` if the service is not."""

RETRIES = Retries(attempts_max=4)
"""Retries of the command line: a person who mistyped the address learns it within a second."""

# Numbers as JSON writes them: `007` and `1.` are texts, which ids may be.
INTEGER = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)


class Connection(NamedTuple):
    """An option of the connection to the service.

    Attributes:
      flag: The name of the option.
      settings: The arguments of `add_argument`, without the default.
      variable: The environment variable that sets the default, without its prefix, or "".
      fallback: The default without that variable.
    """

    flag: str
    settings: Mapping[str, Any]
    variable: str = ""
    fallback: Any = None

    def default(self) -> Any:
        """Returns the default."""
        value = None
        if self.variable:
            value = _environment(self.variable)
        return value or self.fallback


CommandResult = tuple[Any, Callable[[Any], Iterable[Table | str]]]
"""The response to a command, and a function that shows it."""


def models(client: Client, **options: Any) -> CommandResult:
    """List the models of the service, with their versions and states."""
    return client.models(**options), models_table


def model(client: Client, **options: Any) -> CommandResult:
    """Describe a model: its calls, features, tables, indexes and attributes."""
    return client.model(**options), details_tables


def retrieve(client: Client, **options: Any) -> CommandResult:
    """Find the candidates nearest to a query."""
    return client.retrieve(**options), neighbors_table


def rank(client: Client, **options: Any) -> CommandResult:
    """Score candidates for one context."""
    return client.rank(**options), ranked_table


def recommend(client: Client, **options: Any) -> CommandResult:
    """Retrieve candidates and rank them."""
    return client.recommend(**options), neighbors_table


def embed(client: Client, **options: Any) -> CommandResult:
    """Compute the vector of a tower for features."""
    return client.embed(options.pop("context", {}), **options), vectors_table


def lookup(client: Client, ids: Sequence[str], **options: Any) -> CommandResult:
    """Read the table rows of ids."""
    return client.lookup(ids=_scalars(ids), **options), partial(rows_table, ids)


def bench(connection: Mapping[str, Any], **options: Any) -> CommandResult:
    """Send load to a model, and measure latencies, errors and requests per second."""
    # Other commands need none of it.
    from rowcast_client.bench import bench as measure

    def note(line: str) -> None:
        sys.stderr.write(line + "\n")

    return measure(connection, note=note, **options)


def ready(client: Client, **options: Any) -> CommandResult:
    """Check whether the service is ready. Exit codes: 0 it is, 4 it is not, or cannot be reached.

    Of several addresses, one that is ready is enough.
    """
    is_ready = client.ready(**options)
    line = "ready" if is_ready else "not ready"
    return {"ready": is_ready}, lambda _: [line]


def main() -> None:
    """Runs the command line."""
    # gRPC would otherwise print lines of its own in addition to the error.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    arguments = vars(_parser().parse_args())

    # What is left after the options of the connection are the arguments of the call.
    command, url, as_json = (arguments.pop(name) for name in ("command", "url", "as_json"))
    files = {name: arguments.pop(name) for name in ("ca_file", "cert_file", "key_file")}
    token = arguments.pop("token_file") or _environment("TOKEN")
    try:
        connection = {"url": url, "token": token, **files}
        if command is bench:
            # It opens clients of its own, of which one does not try again.
            response, show = bench(connection, **arguments)
        else:
            with Client(**connection, retries=RETRIES) as client:
                response, show = command(client, **arguments)
    except RowcastError as error:
        # Messages may hold brackets, which rich would take for markup.
        console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
        console.print(f"{error.code}: {error}")
        sys.exit(EXITS.get(error.code, 1))
    except KeyboardInterrupt:
        sys.exit(130)
    if as_json:
        sys.stdout.write(json.dumps(plain(response), indent=2, ensure_ascii=False) + "\n")
    else:
        console = Console(highlight=False, markup=False)
        for table in show(response):
            console.print(table)
    if response == {"ready": False}:
        sys.exit(NOT_READY_EXIT)
    if command is bench and response["interrupted"]:
        sys.exit(130)
    if command is bench and not response["succeeded"]:
        sys.exit(1)


def _parser() -> ArgumentParser:
    """Returns the parser of the command line. Options are named as the arguments of the calls."""
    parser = ArgumentParser(
        "rowcast",
        description="Call a rowcast service. Write the options of the connection before or after "
        "the command.",
        epilog="Exit codes: 0 success, 1 the service failed, 2 invalid usage, 3 the service "
        "rejected the request, 4 try again later, 5 the service cannot be reached, 130 "
        "interrupted.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"rowcast {version('rowcast-client')}",
        help="Print the version and exit.",
    )
    for connection in CONNECTION:
        parser.add_argument(connection.flag, default=connection.default(), **connection.settings)
    # After a command they have no defaults, which would override a value before it.
    connection_options = [
        _option(connection.flag, **connection.settings) for connection in CONNECTION
    ]

    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command, options in _options().items():
        text = command.__doc__
        command_parser = commands.add_parser(
            command.__name__,
            help=text,
            description=text,
            parents=[*options, *connection_options],
            allow_abbrev=False,
        )
        command_parser.set_defaults(command=command)
    return parser


def _options() -> dict[Callable[..., CommandResult], list[ArgumentParser]]:
    """Returns the options of each command."""
    # Options of several commands.
    model_version = [
        _option("--version", type=int, help="Version of the model. Default: the current one."),
        _option("--label", help="Label of a version, instead of its number."),
    ]
    model_help = "Name of the model. Default: the only one."
    shared = [_option("-m", "--model", help=model_help), *model_version]
    features = _option(
        "-f",
        "--feature",
        dest="context",
        action=_Features,
        metavar="NAME=VALUE",
        help="Value of a feature; a list as NAME=1,2,3, other values as NAME:=JSON. Repeatable.",
    )
    context_id = _option(
        "--context-id",
        dest="context_ids",
        type=_id,
        metavar="ID",
        help="Context whose stored features to use.",
    )
    # Options of retrieve and recommend.
    selection = [
        context_id,
        _option(
            "--filter",
            type=_json,
            metavar="JSON",
            help='Conditions that candidates must meet: {"genres": {"allow": ["Drama"]}}.',
        ),
        _option(
            "--exclude-ids",
            type=_ids,
            metavar="ID,...",
            help="Ids of candidates to exclude, separated by commas.",
        ),
        _option(
            "--negative-ids",
            type=_ids,
            metavar="ID,...",
            help="Ids of candidates that the neighbors must not be like, separated by commas.",
        ),
        _option(
            "--crowding",
            type=_crowding,
            metavar="ATTRIBUTE:N,...",
            help="Return at most N neighbors with the same value of the attribute.",
        ),
    ]

    # Options of one or two commands.
    sources = _option(
        "--sources",
        type=_json,
        metavar="JSON",
        help='Where candidates come from: [{"index": "movies"}, {"ids": [1, 260]}].',
    )
    ids = _option(
        "--ids",
        type=_ids,
        metavar="ID,...",
        help="Find the neighbors of these candidates, instead of using features.",
    )
    candidates = _option(
        "-c",
        "--candidate-ids",
        type=_ids,
        required=True,
        metavar="ID,...",
        help="Ids of the candidates, separated by commas.",
    )
    return {
        models: [],
        model: [_option("name", nargs="?", help=model_help), *model_version],
        retrieve: [features, ids, *selection, *_options_of("retrieve"), *shared],
        rank: [candidates, features, context_id, *_options_of("rank"), *shared],
        recommend: [features, sources, *selection, *_options_of("recommend"), *shared],
        embed: [features, *_options_of("embed"), *shared],
        lookup: [
            _option("ids", nargs="+", metavar="ID", help="Ids to look up."),
            *_options_of("lookup"),
            *shared,
        ],
        bench: [
            _option("model", nargs="?", help=model_help),
            _load_options(),
            features,
            *model_version,
        ],
        ready: [],
    }


def _load_options() -> ArgumentParser:
    """Returns the options of `bench`."""
    options = ArgumentParser(add_help=False, argument_default=SUPPRESS)
    loops = options.add_mutually_exclusive_group()
    loops.add_argument(
        "--rate",
        type=_positive,
        metavar="N",
        help="Requests per second, at random times and whether or not earlier ones have a "
        "response; latencies count from the time at which a request was due.",
    )
    loops.add_argument(
        "--concurrency",
        type=_count,
        metavar="N",
        help="Number of callers that each wait for their response before the next request. "
        "Default: 8.",
    )
    options.add_argument(
        "--seconds",
        type=_positive,
        metavar="SECONDS",
        help="Time in which requests are sent, in seconds. Default: 10.",
    )
    options.add_argument(
        "--call",
        choices=("retrieve", "rank", "recommend", "embed", "lookup"),
        help="Call to send. Default: all recorded ones; of examples, the first of recommend, "
        "retrieve, rank and embed that the model serves.",
    )
    options.add_argument(
        "--requests",
        type=Path,
        metavar="PATH",
        help="Directory of the requests that the service recorded (--record-rate), or a file of "
        "one JSON object with call and body per line. Default: examples with random features.",
    )
    options.add_argument(
        "--compare",
        dest="compare_file",
        type=Path,
        metavar="FILE",
        help="Report to compare with. Default: the last one of the same load.",
    )
    options.add_argument(
        "--save",
        dest="save_file",
        type=Path,
        metavar="FILE",
        help="File to save the report to, as --json prints it.",
    )
    return options


def _options_of(call: str) -> list[ArgumentParser]:
    """Returns the options of a call that are texts, numbers, switches, words and lists of names.
    Their help is the documentation of the arguments.
    """
    texts: dict[str, str] = {}
    for documented in (calls.SelectOptions, getattr(calls, call)):
        sections = inspect.getdoc(documented) or ""
        texts |= dict(re.findall(r"^  (\w+): (.*(?:\n    .*)*)", sections, re.MULTILINE))
    options = []
    for field in getattr(pb, f"{call.title()}Request").DESCRIPTOR.fields:
        settings = SETTINGS.get(field.type)
        if settings is None:
            continue
        flags, own_settings = OWN.get(field.name, ([f"--{field.name.replace('_', '-')}"], {}))
        settings = {"dest": field.name, **settings, **own_settings}
        text = " ".join(texts[field.name].split())
        if field.name == "k":
            # `_count` refuses it.
            text = text.replace(" or 0", "")
        if field.is_repeated:
            settings["action"] = "append"
            text += " Repeatable."
        if field.enum_type is not None:
            settings["choices"] = words_of(field.enum_type)
        options.append(_option(*flags, help=text.replace("%", "%%"), **settings))
    return options


def _count(text: str) -> int:
    """Returns a number of results, at least 1. To the calls, 0 means the default, which nobody
    means who writes 0 on a command line.
    """
    count = int(text)
    if count < 1:
        raise ArgumentTypeError(f"{count}: at least 1 was expected")
    return count


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ArgumentTypeError(f"{text}: a positive number was expected")
    return number


SETTINGS: Mapping[int, Mapping[str, Any]] = {
    FieldDescriptor.TYPE_BOOL: {"action": "store_true"},
    FieldDescriptor.TYPE_DOUBLE: {"type": float, "metavar": "NUMBER"},
    FieldDescriptor.TYPE_ENUM: {"metavar": "RULE"},
    FieldDescriptor.TYPE_INT32: {"type": int, "metavar": "N"},
    FieldDescriptor.TYPE_STRING: {"metavar": "NAME"},
}
"""The arguments of `add_argument`, by the type of a field in the contract."""
OWN: Mapping[str, tuple[Sequence[str], Mapping[str, Any]]] = {
    "attributes": (["-a", "--attribute"], {}),
    "feature": (["-f", "--feature"], {"required": True}),
    "formula": (["--formula"], {"metavar": "FORMULA"}),
    "heads": (["--head"], {}),
    "k": (["-k"], {"type": _count}),
}
"""The flags of an option whose name is another, and its own arguments."""


def _option(*flags: str, **settings: Any) -> ArgumentParser:
    """Returns a parser with one option, as a parent of the parsers of several commands. An option
    that is not given is absent from the result, so that the default of the call applies.
    """
    parser = ArgumentParser(add_help=False, argument_default=SUPPRESS)
    parser.add_argument(*flags, **settings)
    return parser


def _environment(name: str) -> str | None:
    return os.environ.get(f"ROWCAST_CLIENT_{name}") or None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ArgumentTypeError(f"{text!r} is not valid JSON: {error}") from error


def _crowding(text: str) -> dict[str, int]:
    crowding = {}
    for limit in text.split(","):
        attribute, _, maximum = limit.rpartition(":")
        if not attribute or not INTEGER.fullmatch(maximum):
            raise ArgumentTypeError(
                f"{limit!r}: expected an attribute and a number, such as seller:3"
            )
        crowding[attribute] = int(maximum)
    return crowding


def _read_token(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentTypeError(
            f"{file!r} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error


CONNECTION = (
    Connection(
        "--url",
        {
            "help": "Address of the service: http://, https://, grpc:// or grpcs://; or several, "
            "separated by commas. Environment: ROWCAST_CLIENT_URL."
        },
        "URL",
        "http://127.0.0.1:8080",
    ),
    Connection(
        "--timeout",
        {
            "dest": "timeout_s",
            "type": float,
            "metavar": "SECONDS",
            "help": "Maximum time for all attempts of the call, in seconds.",
        },
        fallback=TIMEOUT_S,
    ),
    Connection(
        "--json",
        {"dest": "as_json", "action": "store_true", "help": "Print the response as JSON."},
        fallback=False,
    ),
    Connection(
        "--ca-file",
        {
            "metavar": "FILE",
            "help": "File of trusted certificate authorities, PEM. Environment: "
            "ROWCAST_CLIENT_CA_FILE.",
        },
        "CA_FILE",
    ),
    Connection(
        "--cert-file",
        {
            "metavar": "FILE",
            "help": "File of the client certificate, PEM; requires --key-file. Environment: "
            "ROWCAST_CLIENT_CERT_FILE.",
        },
        "CERT_FILE",
    ),
    Connection(
        "--key-file",
        {
            "metavar": "FILE",
            "help": "File of the private key of the certificate, PEM. Environment: "
            "ROWCAST_CLIENT_KEY_FILE.",
        },
        "KEY_FILE",
    ),
    Connection(
        "--token-file",
        {
            "type": _read_token,
            "metavar": "FILE",
            "help": "File that contains only the token. The environment variable "
            "ROWCAST_CLIENT_TOKEN sets the token itself.",
        },
    ),
)
"""The options that `rowcast` accepts before and after a command."""


class _Features(Action):
    """Collects features by name."""

    def __call__(
        self, _: ArgumentParser, arguments: Namespace, text: Any, __: str | None = None
    ) -> None:
        try:
            name, value = parse_feature(text)
        except ValueError as error:
            raise ArgumentError(self, str(error)) from error
        features = getattr(arguments, self.dest, {})
        if name in features:
            raise ArgumentError(self, f"{name!r} was given twice")
        setattr(arguments, self.dest, features | {name: value})


def parse_feature(text: str) -> tuple[str, Any]:
    """Reads `name=value`, `name=1,2,3` or `name:=JSON`.

    Raises:
      ValueError: It has none of these forms.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.rstrip(":"):
        raise ValueError(f"{text!r}: expected name=value, name=1,2,3 or name:=JSON")
    if name.endswith(":"):
        try:
            return name[:-1], json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"{text!r}: the value after := is not valid JSON: {error}") from error
    if "," in value:
        return name, _ids(value)
    return name, _id(value)


def _id(text: str) -> Any:
    return _scalars([text])[0]


def _ids(text: str) -> list[Any]:
    # Empty parts are left out, so that `5,` is a list of one.
    return _scalars([part for part in text.split(",") if part])


def _scalars(texts: Sequence[str]) -> list[Any]:
    """Returns integers if all texts are integers, else numbers if all are numbers, else strings.
    `007` is a string.
    """
    if all(INTEGER.fullmatch(text) for text in texts):
        return [int(text) for text in texts]
    if all(NUMBER.fullmatch(text) for text in texts):
        return [float(text) for text in texts]
    return list(texts)
