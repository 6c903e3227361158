"""The command line `rowcast`: one command per call of a service, and `ready`.

Exit codes: 0 success, 1 the service failed, 2 invalid usage, 3 the service rejected the request, 4
try again later, 5 the service cannot be reached, 6 the output cannot be written, 130 interrupted.

A command imports the client when it runs: `--help` does without NumPy and protobuf.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from rowcast_client.interruptions import raise_when_interrupted
from rowcast_client.output_file import OutputFile, OutputRejected, OutputStream, output_named
from rowcast_client.program import (
    OUTPUT_CODE,
    OUTPUT_EXIT,
    CommandError,
    OptionsAnywhere,
    check_variables,
    show_version,
    standard_streams,
)

if TYPE_CHECKING:
    from rich.table import Table

    from rowcast_client.client import Client
    from rowcast_client.errors import RowcastError

PROGRAM = "rowcast"

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
USAGE_EXIT = 2
"""Exit code of a wrong environment, as of a wrong command line."""
DEFAULT_URL = "http://127.0.0.1:8080"
"""The address of a service on this machine with the default settings."""
VARIABLES = ("CA_FILE", "CERT_FILE", "KEY_FILE", "TIMEOUT", "TOKEN", "URL")
"""The variables of the environment that the program reads, behind ROWCAST_CLIENT_."""
NOT_READY_EXIT = 4
"""Exit code of `ready` if the service is not."""

FILTER = '{"genres": {"allow": ["Drama"]}}'
SOURCES = '[{"index": "movies"}, {"ids": [1, 260]}]'
"""Examples of options that are JSON."""

# Numbers as JSON writes them: `007` and `1.` are texts, which ids may be.
INTEGER = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)


CommandResult = tuple[Any, Callable[[Any], "Iterable[Table | str]"]]
"""The response to a command, and a function that shows it."""


def models(client: Client, **options: Any) -> CommandResult:
    """List the models of the service, with their versions and states."""
    from rowcast_client.printing import models_table

    return client.models(**options), models_table


def model(client: Client, **options: Any) -> CommandResult:
    """Describe a model: its calls, features, tables, indexes and attributes."""
    from rowcast_client.printing import details_tables

    return client.model(**options), details_tables


def retrieve(client: Client, **options: Any) -> CommandResult:
    """Find the candidates nearest to a query."""
    from rowcast_client.printing import neighbors_table

    return client.retrieve(**options), neighbors_table


def rank(client: Client, **options: Any) -> CommandResult:
    """Score candidates for one context."""
    from rowcast_client.printing import ranked_table

    return client.rank(**options), ranked_table


def recommend(client: Client, **options: Any) -> CommandResult:
    """Retrieve candidates and rank them."""
    from rowcast_client.printing import neighbors_table

    return client.recommend(**options), neighbors_table


def embed(client: Client, **options: Any) -> CommandResult:
    """Compute the vector of a tower for features."""
    from rowcast_client.printing import vectors_table

    return client.embed(options.pop("context", {}), **options), vectors_table


def lookup(client: Client, texts: Sequence[str], **options: Any) -> CommandResult:
    """Read the table rows of ids."""
    from rowcast_client.printing import rows_table

    return client.lookup(ids=_scalars(texts), **options), partial(rows_table, texts)


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
    program = app()
    raise_when_interrupted()
    with standard_streams(PROGRAM):
        program(prog_name=PROGRAM)


def app() -> typer.Typer:
    """Returns the command line. Options are named as the arguments of the calls."""
    # rich would take longer than all else that `--help` needs.
    program = typer.Typer(
        cls=OptionsAnywhere,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    program.callback(epilog="Example: rowcast recommend movielens -f user_id=5 -k 10")(_connect)
    for call, parameters in _parameters().items():
        program.command(call.__name__, epilog=f"Example: rowcast {EXAMPLES[call]}")(
            _command(call, parameters)
        )
    program.command(epilog="Example: rowcast bench movielens --rate 200 --seconds 30")(bench)
    return program


def _show_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        show_version(f"{PROGRAM} {version('rowcast-client')}")


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise typer.BadParameter(f"{text}: a positive number was expected")
    return number


def _connect(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="ROWCAST_CLIENT_URL",
            help="Address of the service: http://, https://, grpc:// or grpcs://; or several, "
            f"separated by commas. Default: {DEFAULT_URL}.",
        ),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            parser=_positive,
            metavar="SECONDS",
            envvar="ROWCAST_CLIENT_TIMEOUT",
            help="Maximum time for all attempts of the call, in seconds.",
        ),
    ] = 10.0,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the response, or the error, as JSON."),
    ] = False,
    ca_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="ROWCAST_CLIENT_CA_FILE",
            help="File of trusted certificate authorities, PEM.",
        ),
    ] = None,
    cert_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="ROWCAST_CLIENT_CERT_FILE",
            help="File of the client certificate, PEM; requires --key-file.",
        ),
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="ROWCAST_CLIENT_KEY_FILE",
            help="File of the private key of the certificate, PEM.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File that contains only the token. The environment variable "
            "ROWCAST_CLIENT_TOKEN sets the token itself.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Call a rowcast service. Write the options of the connection before or after the command.

    Exit codes: 0 success, 1 the service failed, 2 invalid usage, 3 the service rejected the
    request, 4 try again later, 5 the service cannot be reached, 6 the output cannot be written, 130
    interrupted.
    """
    del version
    check_variables("ROWCAST_CLIENT_", VARIABLES, USAGE_EXIT)
    if url is None:
        # The default would be another service than the one that is meant.
        if "ROWCAST_URL" in os.environ:
            raise CommandError(
                "the environment sets ROWCAST_URL, which is not read; did you mean "
                "ROWCAST_CLIENT_URL?",
                USAGE_EXIT,
            )
        url = DEFAULT_URL
    token = os.environ.get("ROWCAST_CLIENT_TOKEN") or None
    if token_file is not None:
        token = _read_token(token_file)
    context.obj = {
        "as_json": as_json,
        "client": {
            "url": url,
            "timeout_s": timeout_s,
            "ca_file": ca_file,
            "cert_file": cert_file,
            "key_file": key_file,
            "token": token,
        },
    }


def _read_token(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(
            f"--token-file {str(file)!r} cannot be read: {_reason(error)}"
        ) from error


def _command(
    call: Callable[..., CommandResult], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Returns the command that sends a call."""

    def command(invocation: typer.Context, **values: Any) -> None:
        # An option that is not given is left out, so that the default of the call applies.
        options = {}
        for parameter in invocation.command.params:
            value = values.get(parameter.name)
            if value is None or value is False:
                continue
            try:
                options[parameter.name] = READERS.get(parameter.name, _as_it_is)(value)
            except ValueError as error:
                raise typer.BadParameter(
                    str(error), invocation, param_hint=parameter.opts
                ) from error
        _run(call, invocation.obj, options)

    command.__doc__ = call.__doc__
    # typer reads the options of a command from the signature of its function.
    invocation = _parameter("invocation", typer.Context, inspect.Parameter.empty)
    signature = [invocation, *parameters]
    command.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in signature}
    return command


def _run(
    call: Callable[..., CommandResult], connection: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Sends a call and prints the response."""
    from rowcast_client.client import Client
    from rowcast_client.errors import RowcastError
    from rowcast_client.retries import Retries

    # A person who mistyped the address learns it within a second.
    retries = Retries(attempts_max=4)
    try:
        with Client(**connection["client"], retries=retries) as client:
            response, show = call(client, **options)
    except RowcastError as error:
        raise _command_error(error) from error
    _print(response, show, connection["as_json"])
    if response == {"ready": False}:
        raise typer.Exit(NOT_READY_EXIT)


def _print(response: Any, show: Callable[[Any], Iterable[Table | str]], as_json: bool) -> None:
    from rowcast_client.printing import plain

    if as_json:
        sys.stdout.write(json.dumps(plain(response), indent=2, ensure_ascii=False) + "\n")
        return
    from rich.console import Console

    # Responses may hold brackets, which rich would take for markup.
    console = Console(highlight=False, markup=False)
    for table in show(response):
        console.print(table)


def bench(
    invocation: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Name of the model. Default: the only one.")
    ] = "",
    rate: Annotated[
        float | None,
        typer.Option(
            parser=_positive,
            metavar="N",
            help="Requests per second, at random times and whether or not earlier ones have a "
            "response; latencies count from the time at which a request was due.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of callers that each wait for their response before the next request. "
            "Default: 8.",
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            parser=_positive,
            metavar="SECONDS",
            help="Time in which requests are sent, in seconds.",
        ),
    ] = 10.0,
    call: Annotated[
        Literal["retrieve", "rank", "recommend", "embed", "lookup"] | None,
        typer.Option(
            help="Call to send. Default: all recorded ones; of examples, the first of recommend, "
            "retrieve, rank and embed that the model serves.",
        ),
    ] = None,
    requests: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Directory of the requests that the service recorded (--record-rate), or a file "
            "of one JSON object with call and body per line. Default: examples with random "
            "features.",
        ),
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option(
            "-f",
            "--feature",
            metavar="NAME=VALUE",
            help="Value of a feature of all examples, as in other commands. Repeatable.",
        ),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(metavar="N", help="Version of the model. Default: the current."),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(metavar="LABEL", help="Label of a version, instead of its number."),
    ] = None,
    compare_file: Annotated[
        Path | None,
        typer.Option(
            "--compare",
            metavar="FILE",
            help="Report to compare with. Default: the last one of the same load.",
        ),
    ] = None,
    save_file: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="File to save the report to, as --json prints it; -: stdout.",
        ),
    ] = None,
) -> None:
    """Send load to a model, and measure latencies, errors and requests per second.

    A run in which no request succeeded ends with 1.
    """
    from rowcast_client.bench import bench as measure
    from rowcast_client.errors import RowcastError

    if rate is not None and concurrency is not None:
        raise typer.BadParameter("leave one of --rate and --concurrency out")
    try:
        features = _features(context or ())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=["-f", "--feature"]) from error
    selected: dict[str, Any] = {}
    if version is not None:
        selected["version"] = version
    if label is not None:
        selected["label"] = label
    output = _output(save_file)
    connection = dict(invocation.obj["client"])
    timeout_s = connection.pop("timeout_s")
    try:
        report, show = measure(
            connection,
            model,
            rate=rate or 0,
            concurrency=concurrency or 0,
            seconds=seconds,
            timeout_s=timeout_s,
            call=call or "",
            requests=requests,
            context=features,
            compare_file=compare_file,
            note=lambda line: sys.stderr.write(f"{line}\n"),
            **selected,
        )
    except RowcastError as error:
        raise _command_error(error) from error
    # Tables are not to be mixed with a report that goes to standard output.
    if not (isinstance(output, OutputStream) and output.is_standard_output):
        _print(report, show, invocation.obj["as_json"])
    # Once it was printed: the figures are worth more than the file.
    _save(report, output)
    if report["interrupted"]:
        raise typer.Exit(130)
    if not report["succeeded"]:
        raise typer.Exit(1)


def _output(file: Path | None) -> OutputFile | OutputStream | None:
    """Returns the file or stream to save a report to."""
    if file is None:
        return None
    try:
        output = output_named(file)
    except OutputRejected as error:
        raise typer.BadParameter(f"--save: {error}") from error
    except OSError as error:
        raise typer.BadParameter(
            f"--save {str(file)!r} cannot be written: {_reason(error)}"
        ) from error
    if isinstance(output, OutputFile) and not output.path.parent.is_dir():
        raise typer.BadParameter(
            f"--save {str(file)!r} cannot be written: {output.path.parent} is no directory"
        )
    return output


def _save(report: Mapping[str, Any], output: OutputFile | OutputStream | None) -> None:
    """Saves a report, if that was asked for."""
    from rowcast_client.load_report import save_report

    if output is None:
        return
    try:
        save_report(dict(report), output)
    except (OutputRejected, OSError) as error:
        message = f"--save {str(output.path)!r} cannot be written: {_reason(error)}"
        raise CommandError(message, OUTPUT_EXIT, OUTPUT_CODE) from error


def _reason(error: Exception) -> Any:
    """Returns why a file cannot be read or written."""
    return getattr(error, "strerror", None) or error


def _command_error(error: RowcastError) -> CommandError:
    """Returns an error of a call as the program reports it."""
    details: dict[str, Any] = {}
    for name in ("request_id", "address", "retry_after_s"):
        value = getattr(error, name)
        if value:
            details[name] = value
    if error.violations:
        details["violations"] = [vars(violation) for violation in error.violations]
    exit_code = EXITS.get(error.code, 1)
    return CommandError(f"{error.code}: {error}", exit_code, error.code, details)


def _parameters() -> dict[Callable[..., CommandResult], list[inspect.Parameter]]:
    """Returns the arguments and options of each command."""
    declared = _declared_arguments()
    select_options = declared["SelectOptions"]
    # Options of several commands.
    model_help = "Name of the model. Default: the only one."
    shared = [
        _argument("model", "MODEL", model_help),
        _option("version", "--version", int, "N", "Version of the model. Default: the current."),
        _option("label", "--label", str, "LABEL", "Label of a version, instead of its number."),
    ]
    features = _option(
        "context",
        "--feature",
        list[str],
        "NAME=VALUE",
        "Value of a feature; a list as NAME=1,2,3, other values as NAME:=JSON. Repeatable.",
        short="-f",
    )
    context_id = _option(
        "context_ids",
        "--context-id",
        str,
        "ID",
        "Context whose stored features to use.",
    )
    # Options of retrieve and recommend.
    selection = [
        context_id,
        _option(
            "filter",
            "--filter",
            str,
            "JSON",
            f"Conditions that candidates must meet: {FILTER}.",
        ),
        _option(
            "exclude_ids",
            "--exclude-ids",
            str,
            "ID,...",
            "Ids of candidates to exclude, separated by commas.",
        ),
        _option(
            "negative_ids",
            "--negative-ids",
            str,
            "ID,...",
            "Ids of candidates that the neighbors must not be like, separated by commas.",
        ),
        _option(
            "crowding",
            "--crowding",
            str,
            "ATTRIBUTE:N,...",
            "Return at most N neighbors with the same value of the attribute.",
        ),
    ]

    # Options of one or two commands.
    sources = _option(
        "sources",
        "--sources",
        str,
        "JSON",
        f"Where candidates come from: {SOURCES}.",
    )
    ids = _option(
        "ids",
        "--ids",
        str,
        "ID,...",
        "Find the neighbors of these candidates, instead of using features.",
    )
    candidates = _option(
        "candidate_ids",
        "--candidate-ids",
        str,
        "ID,...",
        "Ids of the candidates, separated by commas.",
        short="-c",
        required=True,
    )
    looked_up = typer.Argument(metavar="ID...", help="Ids to look up.")
    return {
        models: [],
        model: [_argument("name", "MODEL", model_help), *shared[1:]],
        retrieve: [
            *shared,
            features,
            ids,
            *selection,
            *_options_of(select_options | declared["retrieve"]),
        ],
        rank: [*shared, candidates, features, context_id, *_options_of(declared["rank"])],
        recommend: [
            *shared,
            features,
            sources,
            *selection,
            *_options_of(select_options | declared["recommend"]),
        ],
        embed: [*shared, features, *_options_of(declared["embed"])],
        lookup: [
            _argument("model", "MODEL", "Name of the model.", required=True),
            _parameter("texts", Annotated[list[str], looked_up], inspect.Parameter.empty),
            *shared[1:],
            *_options_of(declared["lookup"]),
        ],
        ready: [],
    }


TYPES: Mapping[str, tuple[Any, str | None]] = {
    "bool": (bool, None),
    "float": (float, "NUMBER"),
    "int": (int, "N"),
    "str": (str, "NAME"),
    "Sequence[str]": (list[str], "NAME"),
}
"""The type of an option and the placeholder for its value, by the type of an argument."""


class _Argument(NamedTuple):
    """An argument of a call that is an option of its command.

    Attributes:
      kind: The type of the option.
      metavar: The placeholder for its value; None: there is none.
      text: The documentation.
    """

    kind: Any
    metavar: str | None
    text: str


def _declared_arguments() -> dict[str, dict[str, _Argument]]:
    """Returns the arguments that are texts, numbers, switches, words and lists of names, by
    function or class of `calls`. They are read from the source, whose import takes NumPy and
    protobuf.
    """
    tree = ast.parse(Path(__file__).with_name("calls.py").read_text("utf-8"))
    types = dict(TYPES)
    declared: dict[str, dict[str, _Argument]] = {}
    for node in tree.body:
        annotations: dict[str, Any] = {}
        match node:
            case ast.Assign([ast.Name(name)], ast.Subscript(ast.Name("Literal"), words)):
                types[name] = Literal[ast.literal_eval(words)], None
                continue
            case ast.ClassDef():
                fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
                annotations = {ast.unparse(field.target): field.annotation for field in fields}
            case ast.FunctionDef():
                arguments = [*node.args.args, *node.args.kwonlyargs]
                annotations = {argument.arg: argument.annotation for argument in arguments}
            case _:
                continue
        sections = ast.get_docstring(node) or ""
        texts = dict(re.findall(r"^  (\w+): (.*(?:\n    .*)*)", sections, re.MULTILINE))
        declared[node.name] = {}
        for name, annotation in annotations.items():
            kind = ast.unparse(annotation).removesuffix(" | None")
            if name in texts and kind in types:
                text = " ".join(texts[name].split())
                declared[node.name][name] = _Argument(*types[kind], text)
    return declared


def _options_of(arguments: Mapping[str, _Argument]) -> Iterable[inspect.Parameter]:
    """Yields the options of a call. Their help is the documentation of the arguments."""
    for name, argument in arguments.items():
        flag, short = FLAGS.get(name, (f"--{name.replace('_', '-')}", None))
        text = argument.text
        if argument.kind == list[str]:
            text += " Repeatable."
        minimum = None
        if name == "k":
            # To the calls, 0 means the default, which nobody means who writes 0 here.
            minimum = 1
            text = text.replace(" or 0", "")
        yield _option(
            name,
            flag,
            argument.kind,
            METAVARS.get(name, argument.metavar),
            text,
            short=short,
            required=name == "feature",
            minimum=minimum,
        )


METAVARS = {"formula": "FORMULA"}
"""The placeholder of an option whose value is of another kind."""
FLAGS: Mapping[str, tuple[str, str | None]] = {
    "attributes": ("--attribute", "-a"),
    "feature": ("--feature", "-f"),
    "heads": ("--head", None),
    "k": ("-k", None),
}
"""The flags of an option whose name is another, or which has a short one."""
EXAMPLES: Mapping[Callable[..., CommandResult], str] = {
    models: "models",
    model: "model movielens",
    retrieve: "retrieve movielens -f user_id=5 -k 10 --attribute title",
    rank: "rank movielens -f user_id=5 --candidate-ids 47,50,110",
    recommend: "recommend movielens -f user_id=5 -k 10 --attribute title",
    embed: "embed movielens --tower query -f user_id=5",
    lookup: "lookup movielens 5 6 --feature user_id",
    ready: "ready --url grpc://127.0.0.1:9090 --timeout 1",
}
"""The arguments of an example of each command."""


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _argument(name: str, metavar: str, text: str, *, required: bool = False) -> inspect.Parameter:
    """Returns a positional argument."""
    argument = typer.Argument(metavar=metavar, help=text)
    if required:
        return _parameter(name, Annotated[str, argument], inspect.Parameter.empty)
    return _parameter(name, Annotated[str | None, argument], None)


def _option(
    name: str,
    flag: str,
    kind: Any,
    metavar: str | None,
    text: str,
    *,
    short: str | None = None,
    required: bool = False,
    minimum: int | None = None,
) -> inspect.Parameter:
    """Returns an option.

    Args:
      name: The argument of the call.
      flag: The flag.
      kind: The type of the value; a list: the option is repeatable.
      metavar: The placeholder for the value.
      text: The help.
      short: A shorter flag.
      required: Whether the option must be given.
      minimum: The smallest number.
    """
    flags = [flag]
    if short is not None:
        flags = [short, flag]
    option = typer.Option(*flags, metavar=metavar, help=text, min=minimum)
    if required:
        return _parameter(name, Annotated[kind, option], inspect.Parameter.empty)
    if kind is bool:
        return _parameter(name, Annotated[kind, option], False)
    return _parameter(name, Annotated[kind | None, option], None)


def _json(text: str, example: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{text!r} is not valid JSON ({error}): expected a text such as '{example}'"
        ) from error


def _crowding(text: str) -> dict[str, int]:
    crowding = {}
    for limit in text.split(","):
        attribute, _, maximum = limit.rpartition(":")
        if not attribute or not INTEGER.fullmatch(maximum):
            raise ValueError(f"{limit!r}: expected an attribute and a number, such as seller:3")
        crowding[attribute] = int(maximum)
    return crowding


def _features(texts: Sequence[str]) -> dict[str, Any]:
    """Returns features by name."""
    features: dict[str, Any] = {}
    for text in texts:
        name, value = parse_feature(text)
        if name in features:
            raise ValueError(f"{name!r} was given twice")
        features[name] = value
    return features


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


def _as_it_is(value: Any) -> Any:
    return value


READERS: Mapping[str, Callable[[Any], Any]] = {
    "candidate_ids": _ids,
    "context": _features,
    "context_ids": _id,
    "crowding": _crowding,
    "exclude_ids": _ids,
    "filter": partial(_json, example=FILTER),
    "ids": _ids,
    "negative_ids": _ids,
    "sources": partial(_json, example=SOURCES),
}
"""Functions that return the argument of a call, of what the command line has, or raise ValueError;
all others are sent as they are.
"""


if __name__ == "__main__":
    main()
