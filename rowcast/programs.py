"""The entry points of `rowcast-serve` and `rowcast-export`, and of a process between the two."""

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


def try_loading() -> None:
    """Loads a bundle as a service does, for an export: see `service/cli/load_trial.py`."""
    from service.cli.load_trial import main

    main()
