"""`rowcast-serve`: serve, `ctl` and `pull`."""

from __future__ import annotations

import os
import sys

from service.resources import limit_blas


def main() -> None:
    """Runs the command line and exits the process."""
    limit_blas()  # before numpy is imported
    from service.cli.serve import command

    try:
        command()(prog_name="rowcast-serve")
    except SystemExit as exit_:
        sys.stdout.flush()
        sys.stderr.flush()
        # Threads of libraries that still run may crash an interpreter that is finalized.
        os._exit(exit_.code if isinstance(exit_.code, int) else 1)
