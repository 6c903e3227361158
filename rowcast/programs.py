"""The entry points of `rowcast-serve` and `rowcast-export`."""

from __future__ import annotations


def serve() -> None:
    """Runs `rowcast-serve` and exits the process."""
    from service.cli.main import main

    main()


def export() -> None:
    """Runs `rowcast-export` and exits the process."""
    from export.cli.main import main

    main()
