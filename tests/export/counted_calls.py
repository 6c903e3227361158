"""Counts the function calls that the exporter makes, which no load of the machine changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import export

EXPORTER = str(Path(export.__file__).parent)
LINEAR = 2.3
"""Calls for a graph of twice the size, by those for the graph; a few do not depend on its size."""


def is_own(frame: FrameType | None) -> bool:
    """Returns whether a frame runs code of the exporter."""
    return frame is not None and frame.f_code.co_filename.startswith(EXPORTER)


def calls_of(walk: Callable[[], object], at_most: float = 5_000_000) -> int:
    """Returns how often functions are called by the exporter's, or are its own.

    Args:
      walk: Calls functions of the exporter.
      at_most: Number of calls after which the walk is ended.

    Raises:
      pytest.fail.Exception: It takes more calls.
    """
    count = 0

    def note(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        if event == "call" and (is_own(frame) or is_own(frame.f_back)):
            count += 1
            if count > at_most:
                pytest.fail(f"more than {at_most:,.0f} calls")  # no handler of errors catches it

    sys.setprofile(note)
    try:
        walk()
    finally:
        sys.setprofile(None)
    return count
