"""`python -m benchmarks.soak.changes [COUNT]`: random histories of changes of a store, after each
of which it is compared with one that is written anew.

Prints a history that differs, reduced to the changes that matter.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from rich.console import Console

COUNT = 10_000
SHOW = Console(highlight=False, soft_wrap=True, markup=False)


def run(count: int) -> int:
    """Compares histories of stores with integers and with strings as ids; returns the exit code."""
    from tests.laws.test_stores import IDS

    for kind in IDS:
        try:
            compare(kind, count // len(IDS))
        except AssertionError as problem:
            SHOW.print(f"a store with ids of {kind} differs from one written anew: {problem}")
            return 1
        SHOW.print(f"{count // len(IDS)} histories of a store with ids of {kind}: all equal")
    return 0


def compare(kind: str, count: int) -> None:
    """Compares histories of a store with ids of one kind.

    Raises:
      AssertionError: One differs; Hypothesis has printed its changes.
    """
    from tests.laws.test_stores import EARLIER, HISTORIES, check_history

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(HISTORIES, EARLIER)
    def check(applied: Any, earlier: int) -> None:
        with tempfile.TemporaryDirectory() as directory:
            check_history(Path(directory), kind, applied, earlier)

    check()


def main() -> int:
    """Reads the arguments and runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=COUNT, help="of histories")
    return run(parser.parse_args().count)


if __name__ == "__main__":
    sys.exit(main())
