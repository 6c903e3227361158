"""`rowcast-export`: imports the commands as fast as can be, then runs the one that is asked for."""

from __future__ import annotations

import gc


def main() -> None:
    """Runs the command line and exits the process."""
    gc.disable()  # of hundreds of modules nothing is garbage: a sixth of the time of a short command
    try:
        from export.cli.commands import run_commands

        run_commands()
    finally:
        gc.freeze()  # nor will anything be that is left: Python would look through all of it before it ends


if __name__ == "__main__":
    main()
