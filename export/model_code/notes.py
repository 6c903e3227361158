"""What the exporter tells of model code in the plan, by the module that it was found in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_NOTES: dict[str, dict[str, None]] = {}
"""By the name of a module: a file that was loaded once keeps its notes."""
_RUNNING: list[str] = []


@contextmanager
def notes_of(module: str) -> Iterator[None]:
    """Collects the notes of a module inside the `with` block, where its code runs."""
    _RUNNING.append(module)
    try:
        yield
    finally:
        _RUNNING.pop()


def add_note(note: str) -> None:
    """Adds a note to the module whose code runs; an empty one is none."""
    if note and _RUNNING:
        _NOTES.setdefault(_RUNNING[-1], {})[note] = None


def notes(module: str) -> tuple[str, ...]:
    """Returns the notes of a module."""
    return tuple(_NOTES.get(module, ()))
