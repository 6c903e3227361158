"""`rowcast-serve`: what is to be settled before anything else is imported, then the command line."""

from __future__ import annotations

import gc

from runtime.native_output import open_standard_streams
from service.threads import limit_blas


def main() -> None:
    """Runs the command line and exits the process."""
    open_standard_streams()
    limit_blas()
    gc.disable()  # of hundreds of modules nothing is garbage: a tenth of the time to import them
    from service.command_line import command
    from service.start import run

    gc.enable()
    command(run)()
