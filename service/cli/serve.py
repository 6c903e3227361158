"""The options of `rowcast-serve`, made from the settings: each is documented once, at its field."""

from __future__ import annotations

import contextlib
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_line.interruptions import raise_when_interrupted
from command_line.program import CommandError, Program, show_version
from service.cli.command_options import SETTINGS, SettingOption
from service.exit_codes import EXIT_OK, EXIT_USAGE

if TYPE_CHECKING:
    from service.config import ServiceSettings

PRINT_SETTINGS = "print_settings"
DEMO = "demo"


def command() -> typer.Typer:
    """Returns the command line of the program."""
    from service.cli.ctl import CTL
    from service.cli.pull import pull_command
    from service.cli.recommend import recommend_command

    # rich would take longer than all else that `--help` needs.
    app = typer.Typer(cls=Program, pretty_exceptions_enable=False, rich_markup_mode=None)

    def serve(context: typer.Context, **options: Any) -> None:
        if context.invoked_subcommand is not None:
            raise_when_interrupted()
        else:
            only_print = options.pop(PRINT_SETTINGS)
            is_demo = options.pop(DEMO)
            del options["version"]
            if is_demo:
                raise_when_interrupted()
                arguments = [text for text in sys.argv[1:] if text != "--demo"]
                raise typer.Exit(demo(options, arguments))
            # Settings take tuples; an empty one says that the option is not set.
            for name, value in options.items():
                if isinstance(value, list):
                    options[name] = tuple(value)
            raise typer.Exit(run(options, only_print=only_print))

    serve.__doc__ = (
        "Serve the newest version of each model under --root, over HTTP and gRPC.\n\n"
        "Exit codes: 0 drained, 1 a bug, 2 invalid usage or settings, 7 a required model could not "
        "be loaded at start, 130 interrupted twice."
    )
    # typer reads the options of a command from the signature of its function.
    parameters = [_parameter("context", typer.Context, inspect.Parameter.empty)]
    parameters += map(_option, SETTINGS)
    print_settings = typer.Option(
        "--print-settings", help="Print the effective settings as JSON and exit."
    )
    parameters.append(_parameter(PRINT_SETTINGS, Annotated[bool, print_settings], False))
    demo_option = typer.Option(
        "--demo", help="Serve a small model that is part of rowcast, and print a request to it."
    )
    parameters.append(_parameter(DEMO, Annotated[bool, demo_option], False))
    print_version = typer.Option(
        "--version", help="Print the version and exit.", callback=_show_version, is_eager=True
    )
    parameters.append(_parameter("version", Annotated[bool, print_version], False))
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.callback(
        invoke_without_command=True, epilog="Example: rowcast-serve --root bundles --http-port 8080"
    )(serve)
    app.command(
        "pull", epilog="Example: rowcast-serve pull s3://bucket/bundles bundles --model movielens"
    )(pull_command)
    app.command(
        "recommend",
        epilog="Example: rowcast-serve recommend movielens users.csv out.parquet --id user_id "
        "--root bundles",
    )(recommend_command)
    app.add_typer(CTL, name="ctl")
    return app


def _show_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        show_version(f"rowcast-serve {version('rowcast')}")


def demo(options: dict[str, Any], arguments: list[str]) -> int:
    """Runs the demo; returns the exit code. See `run_demo`.

    Raises:
      CommandError: A setting is wrong.
    """
    from service.cli.demo import run_demo
    from service.config import SettingsError

    try:
        return run_demo(options, arguments)
    except SettingsError as problem:
        raise CommandError(str(problem), EXIT_USAGE) from None


def run(options: dict[str, Any], *, only_print: bool) -> int:
    """Prints the settings, or replaces this process by the service; returns the exit code if it
    cannot.

    Args:
      options: The options by the name of their setting; None: the option is not set.
      only_print: Whether the settings are printed instead.

    Raises:
      CommandError: A setting is wrong.
    """
    from service.config import SettingsError, read_environment, read_settings
    from service.resources import compute_threads, memory_bytes, open_files_max, usable_cores
    from service.workers.start import fitted, start

    try:
        settings = fitted(read_settings(options), open_files_max(), memory_bytes())
        if only_print:
            import orjson

            document = settings.model_dump(mode="json")
            text = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
            sys.stdout.write(f"{text}\n")
            return EXIT_OK
        _check(settings)
    except SettingsError as problem:
        raise CommandError(str(problem), EXIT_USAGE) from None
    # This program can say what to install, the supervisor cannot.
    import uvicorn  # noqa: F401

    from service import program
    from service.observability import logging

    logging.configure(settings.log_level)
    threads = compute_threads(settings.workers, settings.threads)
    extra = logging.fields(cores=usable_cores(), workers=settings.workers, threads=threads)
    logging.logger(__name__).info("starting", extra=extra)
    environment = read_environment()
    if environment.service_links:
        logging.logger(__name__).warning(
            "service_links_ignored", extra=logging.fields(variables=environment.service_links)
        )
    if environment.of_other_programs:
        logging.logger(__name__).warning(
            "variables_of_other_programs_ignored",
            extra=logging.fields(variables=environment.of_other_programs),
        )
    # Returns only if the service cannot be started: it replaces this process.
    try:
        start(settings, program.__name__)
    except OSError as problem:
        logging.logger(__name__).error("cannot_start", extra=logging.fields(problem=str(problem)))
    logging.finish()
    return EXIT_USAGE


def _check(settings: ServiceSettings) -> None:
    """Checks, before anything starts, the files and libraries that the settings need.

    Raises:
      SettingsError: One of them cannot be used; the message names the setting.
    """
    from bundle.storage.signatures import KeyRejected, check_keys
    from service.config import SettingsError
    from service.loopback import on_loopback
    from service.observability.tracing import TracingUnavailable, require_packages
    from service.request_log.record import check_writable
    from service.security.tls import Certificates
    from service.security.tokens import TokenStore

    TokenStore.of(settings.tokens)
    TokenStore.of(settings.admin_tokens, "admin_tokens")
    if settings.verify_signatures:
        try:
            check_keys(settings.verify_signatures)
        except KeyRejected as problem:
            raise SettingsError(f"--verify-signatures: {problem}") from problem
    Certificates.of(settings)
    check_writable(settings)
    _check_hosts(settings)
    _check_output_file("ports_file", settings.ports_file)
    _check_output_file("state_file", settings.state_file)
    if settings.admin and settings.admin_tokens is None and not on_loopback(settings.admin_host):
        raise SettingsError(
            f"--admin-host (or ROWCAST_ADMIN_HOST) is {settings.admin_host!r}, which other "
            "machines can reach; set --admin-tokens, too"
        )
    if settings.tracing:
        try:
            require_packages()
        except TracingUnavailable as problem:
            raise SettingsError(
                f"--tracing needs packages that are missing; {problem}"
            ) from problem

    # Only SavedModels need TensorFlow: those of the GPU, and towers in bf16.
    if settings.device == "cpu" and settings.precision != "bf16":
        return
    from runtime.errors import DeviceMissing, LibraryMissing
    from runtime.savedmodel import require_gpu, require_library

    try:
        if settings.device == "gpu":
            require_gpu()
        else:
            require_library("--precision bf16")
    except (LibraryMissing, DeviceMissing) as problem:
        raise SettingsError(str(problem)) from problem


def _check_hosts(settings: ServiceSettings) -> None:
    """Checks the hosts that the service calls.

    Raises:
      SettingsError: One of them cannot be used; the message names the setting.
    """
    from service.changes.copying import Leader
    from service.shards import addresses

    if settings.follow_changes:
        Leader(settings)
    if settings.shard_addresses:
        from service.shards.credentials import ShardCredentials  # loads grpc

        for source in settings.shard_addresses:
            addresses.check(source)
        ShardCredentials(settings)


def _check_output_file(name: str, path: Path | None) -> None:
    """Checks that a setting names a file that can be replaced.

    Raises:
      SettingsError: The setting names something else.
    """
    from bundle.storage.output_file import OutputFile, OutputRejected
    from service.config import PREFIX, SettingsError

    if path is None:
        return
    try:
        # A file that cannot be read now is reported when it is needed: it may be readable by then.
        with contextlib.suppress(OSError):
            OutputFile(path)
    except OutputRejected as problem:
        option = f"--{name.replace('_', '-')} (or {PREFIX}{name.upper()})"
        raise SettingsError(f"{option}: {problem}") from problem


def _option(setting: SettingOption) -> inspect.Parameter:
    """Returns the option of a setting."""
    flag = f"--{setting.name.replace('_', '-')}"
    if not setting.metavar:
        switch = typer.Option(f"{flag}/--no-{flag[2:]}", help=setting.text, show_default=False)
        return _parameter(setting.name, Annotated[bool | None, switch], None)
    # As text: the settings parse it, so that an option is rejected in the same words as its
    # variable.
    option = typer.Option(flag, help=setting.text, show_default=False, metavar=setting.metavar)
    accepted: Any = str | None
    if setting.is_repeatable:
        accepted = list[str] | None
    return _parameter(setting.name, Annotated[accepted, option], None)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
