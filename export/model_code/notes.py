"""Notes on model code in the plan, by the module whose code they are about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_NOTES: dict[str, dict[str, None]] = {}
"""Notes by the name of a module. They are kept: a file that is loaded already does not run again.
"""
_RUNNING: list[str] = []
"""Modules whose code runs, the innermost last."""


@contextmanager
def notes_of(module: str) -> Iterator[None]:
    """Collects the notes of a module inside the `with` block, where its code runs."""
    _RUNNING.append(module)
    try:
        yield
    finally:
        _RUNNING.pop()


def add_note(note: str) -> None:
    """Adds a note to the module whose code runs; an empty note is left out."""
    if note and _RUNNING:
        _NOTES.setdefault(_RUNNING[-1], {})[note] = None


def notes(module: str) -> tuple[str, ...]:
    """Returns the notes of a module."""
    return tuple(_NOTES.get(module, ()))
