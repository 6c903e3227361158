"""`rowcast-serve`: what is to be settled before anything else is imported, then the command line."""

from __future__ import annotations

import gc
import sys

from service.threads import limit_blas


def main() -> None:
    """Runs the command line and exits the process."""
    limit_blas()
    gc.disable()  # of hundreds of modules nothing is garbage: a tenth of the time to import them
    from service.plain_options import plain_options
    from service.start import run

    options = plain_options(sys.argv[1:])
    if options is None:
        from service.command_line import command
    gc.freeze()  # or the first collection would look through it all
    gc.enable()
    if options is None:
        command(run)()
    else:
        sys.exit(run(options, only_print=False))
