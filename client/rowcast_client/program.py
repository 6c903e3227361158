"""How every program of rowcast parses its arguments, and reports what is wrong with them.

`scripts/generate_stubs` copies this module to the client, which is a distribution of its own.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperGroup, TyperOption
from typer.exceptions import TyperException

INVALID_ARGUMENT = "INVALID_ARGUMENT"
"""The code of errors of the command line itself, as of the service's."""
OUTPUT_EXIT = 6
"""The exit code of a command whose output cannot be written, to stdout or to a file."""
OUTPUT_CODE = "DESTINATION"
"""The code of this error."""
SENTENCE_CHARS_MAX = 8000
"""The largest length of an error: a library's message may hold a whole graph."""
CONTROL = "\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
"""Characters that a terminal obeys instead of showing them: control characters, writing directions;
and halves of characters.
"""
_CONTROL_CHARACTER = re.compile(f"[{CONTROL}]")


class CommandError(TyperException):
    """An error that ends a command.

    Attributes:
      exit_code: The exit code of the program.
      code: The code of the error, for programs.
      details: What else is known of the error, as values of JSON.
      command: The command that failed, which precedes the message; "": the program.
    """

    def __init__(
        self,
        message: str,
        exit_code: int,
        code: str = INVALID_ARGUMENT,
        details: Mapping[str, Any] | None = None,
        command: str = "",
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.code = code
        self.details = details or {}
        self.command = command


class _StreamFile(io.FileIO):
    """Standard output or error. Drops what cannot be written, so that a command completes its work
    whoever reads what it prints.
    """

    def __init__(self, descriptor: int, problems: list[OSError]) -> None:
        """Writes to a descriptor, and appends errors to `problems`."""
        super().__init__(descriptor, "wb", closefd=False)
        self._problems = problems

    def write(self, content: Any) -> int:
        """Writes bytes; returns how many of them were written or dropped."""
        try:
            return super().write(content)
        except OSError as problem:
            self._problems.append(problem)
            return len(content)


def dropping_stream(stream: Any, problems: list[OSError]) -> Any:
    """Returns a stream to where a text stream leads, which drops what cannot be written.

    Args:
      stream: The stream, which stays open; None: it is closed.
      problems: Errors are appended here.
    """
    if stream is None:
        return open(os.devnull, "w")
    try:
        file = _StreamFile(stream.fileno(), problems)
    except io.UnsupportedOperation:  # a stream in memory
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


@contextmanager
def standard_streams(program: str) -> Iterator[None]:
    """Runs a program, which raises SystemExit. Its standard streams may be closed, full or without
    a reader: a reader that has left, such as `head`, has all that it wants, and other output that
    cannot be written is an error once the command has completed its work.

    Args:
      program: The name of the program.

    Raises:
      SystemExit: With the exit code of the program, or OUTPUT_EXIT if it succeeded but its output
        cannot be written.
    """
    # Otherwise the next file would get the number of a closed stream, and what native libraries
    # print.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 - until the process ends
    problems: list[OSError] = []
    code: Any = 0
    with (
        redirect_stdout(dropping_stream(sys.stdout, problems)),
        redirect_stderr(dropping_stream(sys.stderr, [])),
    ):
        try:
            yield
        except SystemExit as exit_:
            code = exit_.code
        sys.stdout.flush()
        if problems and not isinstance(problems[0], BrokenPipeError):
            message = f"standard output cannot be written: {problems[0].strerror}"
            if not code:
                message = f"the command has succeeded, but {message}"
                code = OUTPUT_EXIT
            report_error(CommandError(message, code, OUTPUT_CODE), program, sys.argv[1:])
        sys.stderr.flush()
    sys.exit(code)


class Program(TyperGroup):
    """A program, or a group of its commands: reports errors as one line or, with --json, as JSON.
    Without arguments, it prints its help.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments."""
        if not args and self.no_args_is_help:
            args = ["--help"]
        return super().parse_args(ctx, args)

    def main(  # type: ignore[override]  # further options are passed on
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **options: Any
    ) -> Any:
        """Runs a command and exits with its code.

        Args:
          args: The arguments of the program; None: those of the process.
          prog_name: The name of the program.
          options: Options of typer.
        """
        arguments = list(args or ())
        if args is None:
            arguments = sys.argv[1:]
        # typer would first check the options of the groups, whose types take pydantic.
        context = _context_of_help(self, arguments, prog_name or "")
        if context is not None:
            typer.echo(context.get_help())
            sys.exit(0)
        # In standalone mode, typer would print errors itself. Commands return None; after an
        # interruption, and with --version, typer returns an exit code.
        try:
            options["standalone_mode"] = False
            code = super().main(arguments, prog_name, **options) or 0
        except TyperException as problem:
            report_error(problem, prog_name or "", arguments)
            code = problem.exit_code
        sys.exit(code)


def _context_of_help(program: Any, arguments: Sequence[str], name: str) -> Any:
    """Returns the context of the command whose help is requested; None: no help is."""
    context = program.context_class(program, info_name=name)
    is_value = False
    for argument in _before_operands(arguments):
        if argument == "--help":
            return context
        if is_value or argument.startswith("-"):
            # A value may follow, which names no command.
            is_value = not is_value and argument in _options_of(context, with_value=True)
        elif isinstance(context.command, TyperGroup):
            command = context.command.get_command(context, argument)
            # The parser rejects a command that does not exist, and suggests another one.
            if command is None:
                return None
            context = command.context_class(command, info_name=argument, parent=context)
    return None


def _before_operands(arguments: Sequence[str]) -> Sequence[str]:
    """Returns the arguments before `--`, behind which they are no options."""
    if "--" in arguments:
        return arguments[: arguments.index("--")]
    return arguments


class OptionsAnywhere(Program):
    """A group whose options are accepted also after the name of a command: `status --json`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments, with the options of the group first."""
        takes_value: dict[str, bool] = {}
        for option in self.params:
            # An option that ends the program, such as --version, may be another one of a command.
            if isinstance(option, TyperOption) and option.expose_value and not option.is_eager:
                takes_value |= dict.fromkeys(option.opts, not option.is_flag)
        return super().parse_args(ctx, _options_first(args, takes_value))


def _options_first(arguments: Sequence[str], takes_value: Mapping[str, bool]) -> list[str]:
    """Moves options before all other arguments. Arguments behind `--` stay, because they can look
    like options.

    Args:
      arguments: The arguments of the command line.
      takes_value: Whether an argument follows, by option.
    """
    before = _before_operands(arguments)
    options: list[str] = []
    operands: list[str] = []
    remaining = iter(before)
    for argument in remaining:
        name, has_value, _ = argument.partition("=")
        if name not in takes_value:
            operands.append(argument)
            continue
        options.append(argument)
        if takes_value[name] and not has_value:
            options.extend(itertools.islice(remaining, 1))
    return [*options, *operands, *arguments[len(before) :]]


def check_variables(prefix: str, names: Sequence[str], exit_code: int) -> None:
    """Checks that the environment has no misspelt variable of a program, which would be ignored.

    Args:
      prefix: The beginning of the names of the program's variables.
      names: The names of the variables behind the prefix.
      exit_code: The exit code of wrong usage.

    Raises:
      CommandError: A variable is none of them, but similar to one.
    """
    for variable in os.environ:
        name = variable.removeprefix(prefix)
        if name == variable or name in names:
            continue
        similar = get_close_matches(name, names, n=1)
        if similar:
            raise CommandError(
                f"the environment sets {variable}, which is not read; did you mean "
                f"{prefix}{similar[0]}?",
                exit_code,
            )


def show_version(text: str) -> None:
    """Prints the version of a program, and ends it."""
    typer.echo(text)
    raise typer.Exit


def report_error(problem: TyperException, program: str, arguments: Sequence[str]) -> None:
    """Prints an error to stderr: as one line, or as JSON if the arguments have --json.

    Args:
      problem: The error.
      program: The name of the program.
      arguments: The arguments of the program.
    """
    code = INVALID_ARGUMENT
    details: Mapping[str, Any] = {}
    if isinstance(problem, CommandError):
        message = problem.message
        code = problem.code
        details = problem.details
        program = problem.command or program
    else:
        # An error in the arguments of a command knows the command.
        context = getattr(problem, "ctx", None)
        command = program
        if context is not None:
            command = context.command_path
        message = f"{_usage_message(problem, context)} (see `{command} --help`)"
    line = f"{program}: {sentence(message)}"
    if "--json" in _before_operands(arguments):
        text = message.removeprefix(f"{code}: ")
        error = {"code": code, "message": text, "exit_code": problem.exit_code, **details}
        line = json.dumps({"error": error})
    sys.stderr.write(f"{line}\n")


def _usage_message(problem: Any, context: Any) -> str:
    """Returns the message of an error in the arguments, with the remedy for an unknown option."""
    # For an unknown option, typer would look among the options of the command alone.
    if hasattr(problem, "possibilities"):
        # Without dashes, which all of them have in common.
        options = {option.lstrip("-"): option for option in _options_of(context)}
        similar = get_close_matches(problem.option_name.lstrip("-"), options, n=1)
        if similar:
            return f"{problem.message}. Did you mean '{options[similar[0]]}'?"
        if problem.option_name[1:2].isdigit():
            return f"{problem.message}; write -- before an argument that begins with -"
        problem.possibilities = None
    message: str = problem.format_message().rstrip(".")
    # pydantic says what it expects of "Input", without the value.
    causes = getattr(problem.__cause__, "errors", None)
    if causes is not None:
        reason = causes()[0]
        expected = reason["msg"].removeprefix("Value error, ")
        if expected.startswith("Input "):
            expected = expected.replace("Input", repr(reason["input"]), 1)
        message = message.replace(reason["msg"].rstrip("."), expected, 1)
    # The value of a flag, or of an option that was forgotten.
    works_alone = getattr(getattr(context, "command", None), "invoke_without_command", False)
    if works_alone and message.startswith("No such command") and "Did you mean" not in message:
        message += "; if it is the value of an option, write --OPTION=VALUE; flags have no values"
    return message


def _options_of(context: Any, *, with_value: bool = False) -> Iterator[str]:
    """Yields the options that are accepted after the name of a command, or those with a value."""
    is_accepted = True
    while context is not None:
        for parameter in context.command.params:
            is_option = isinstance(parameter, TyperOption)
            if is_accepted and is_option and not (with_value and parameter.is_flag):
                yield from (*parameter.opts, *parameter.secondary_opts)
        context = context.parent
        is_accepted = context is not None and isinstance(context.command, OptionsAnywhere)


def sentence(text: str) -> str:
    """Returns an error as one line: control characters are escaped, and the middle of a text that
    is too long is left out.
    """
    safe = _CONTROL_CHARACTER.sub(
        lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text
    )
    if len(safe) <= SENTENCE_CHARS_MAX:
        return safe
    half = SENTENCE_CHARS_MAX // 2
    return f"{safe[:half]} ... {safe[-half:]}"
