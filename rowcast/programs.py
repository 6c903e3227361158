"""The entry points of `rowcast-serve` and `rowcast-export`."""

from __future__ import annotations

from command_line.interruptions import end_when_interrupted


def serve() -> None:
    """Runs `rowcast-serve` and exits the process."""
    end_when_interrupted()
    from service.cli.main import main

    main()


def export() -> None:
    """Runs `rowcast-export` and exits the process."""
    end_when_interrupted()
    from export.cli.main import main

    main()
