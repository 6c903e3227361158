"""The steps in which a thread decodes a body: it ends between two of them if its request has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TypeVar

_STEP = 1_024
"""Number of elements of a list that are decoded in one step: they take about a millisecond."""

Element = TypeVar("Element")
DECODING: ContextVar[Callable[[], object] | None] = ContextVar("decoding", default=None)
"""Raises ServiceError if the request whose body a thread decodes has ended."""


def check_decoding() -> None:
    """Ends the decoding of a large body between two of its steps.

    Raises:
      DeadlineExceeded: The deadline of its request has passed.
      Cancelled: Nobody waits for the response any more.
    """
    check = DECODING.get()
    if check is not None:
        check()


def in_steps(elements: Iterable[Element]) -> Iterator[tuple[int, Element]]:
    """Yields the elements of a body with their numbers, as `enumerate` does; for errors, see
    `check_decoding`.
    """
    for number, element in enumerate(elements):
        if not number % _STEP:
            check_decoding()
        yield number, element
