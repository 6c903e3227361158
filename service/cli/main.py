"""`rowcast-serve`: serve, `ctl` and `pull`."""

from __future__ import annotations

import os
import sys

from service.exit_codes import EXIT_USAGE
from service.resources import limit_blas

PROGRAM = "rowcast-serve"


def main() -> None:
    """Runs the command line and exits the process."""
    # Before numpy is imported: BLAS reads its number of threads when it is loaded.
    limit_blas()
    try:
        # typer, too, may be missing.
        from command_line.program import standard_streams

        with standard_streams(PROGRAM):
            from service.cli.serve import command

            command()(prog_name=PROGRAM)
    except ModuleNotFoundError as missing:
        # Whichever of its modules was imported first.
        package = str(missing.name).partition(".")[0]
        sys.stderr.write(
            f"{PROGRAM}: {package} is not installed; run `pip install 'rowcast[serve]'`\n"
        )
        code = EXIT_USAGE
    except SystemExit as exit_:
        code = 1
        if isinstance(exit_.code, int):
            code = exit_.code
    # Threads of libraries that still run may crash an interpreter that is finalized.
    os._exit(code)


if __name__ == "__main__":
    main()
