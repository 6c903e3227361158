"""The entry point of `rowcast`."""

from __future__ import annotations

from rowcast_client.interruptions import end_when_interrupted


def main() -> None:
    """Runs the command line and exits the process."""
    end_when_interrupted()
    from rowcast_client import commands

    commands.main()
