"""`rowcast-serve`: serve, `ctl` and `pull`."""

from __future__ import annotations

import sys

from service.resources import limit_blas


def main() -> None:
    """Runs the command line and exits the process."""
    limit_blas()  # before numpy is imported
    from service.cli.serve import command

    command()(prog_name="rowcast-serve")
    sys.exit(0)
