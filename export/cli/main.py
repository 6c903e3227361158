"""`rowcast-export`: runs a command, and turns an error into one line on stderr and an exit code."""

from __future__ import annotations

import sys

from command_line.interruptions import raise_when_interrupted
from command_line.program import CommandError, report_error, standard_streams
from export.cli.commands import app
from export.errors import ExportError, UsageError

PROGRAM = "rowcast-export"
INTERRUPTED = 130
"""The code with which a program exits after an interruption."""


def main() -> None:
    """Runs the command line and exits the process: with a code of `export.errors`, 130 when
    interrupted.
    """
    raise_when_interrupted()
    with standard_streams(PROGRAM):
        try:
            app(prog_name=PROGRAM)
        except ExportError as problem:
            _fail(CommandError(str(problem), problem.exit_code, problem.code))
        except ModuleNotFoundError as missing:
            # The libraries of the exporter are optional dependencies of rowcast.
            package = str(missing.name).partition(".")[0]
            _fail(
                CommandError(
                    f"{package} is not installed; run `pip install 'rowcast[export]'`",
                    UsageError.exit_code,
                )
            )
        except SystemExit as exit_:
            if exit_.code == INTERRUPTED:
                _fail(
                    CommandError(
                        "interrupted; run the same command again to resume",
                        INTERRUPTED,
                        "CANCELLED",
                    )
                )
            raise


def _fail(problem: CommandError) -> None:
    report_error(problem, PROGRAM, sys.argv[1:])
    sys.exit(problem.exit_code)


if __name__ == "__main__":
    main()
