"""`rowcast-export`: runs a command, and turns an error into one line on stderr and an exit code."""

from __future__ import annotations

import sys

from typer.exceptions import TyperException

from export.cli.commands import app, errors
from export.cli.terminal import sentence
from export.errors import ExportError, UsageError

INTERRUPTED = 130
"""The code that typer returns after an interruption."""


def main() -> None:
    """Runs the command line and exits the process: with a code of `export.errors`, 130 when
    interrupted.
    """
    # In standalone mode, typer would print errors itself and exit.
    arguments = sys.argv[1:] or ["--help"]
    try:
        # Commands return None. After --version or an interruption, typer returns an exit code.
        code = app(arguments, prog_name="rowcast-export", standalone_mode=False) or 0
    except ExportError as problem:
        _print_error(str(problem))
        code = problem.exit_code
    except ModuleNotFoundError as missing:
        # The libraries of the exporter are optional dependencies of rowcast.
        package = str(missing.name).partition(".")[0]
        _print_error(f"{package} is not installed; run `pip install 'rowcast[export]'`")
        code = UsageError.exit_code
    except TyperException as problem:
        # An error in the options of a command knows the command.
        command = "rowcast-export"
        context = getattr(problem, "ctx", None)
        if context:
            command = context.command_path
        _print_error(f"{problem.format_message().rstrip('.')} (see `{command} --help`)")
        code = UsageError.exit_code
    if code == INTERRUPTED:
        _print_error("interrupted; run the same command again to resume")
    sys.exit(code)


def _print_error(text: str) -> None:
    errors.print(f"rowcast-export: {sentence(text)}", markup=False)


if __name__ == "__main__":
    main()
