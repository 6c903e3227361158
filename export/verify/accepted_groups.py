"""Computes examples of which some are rejected: one of these fails the whole call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeVar

Result = TypeVar("Result")


def accepted_groups(
    n: int,
    compute: Callable[[slice], Result | None],
    size: int | None = None,
    calls_max: float = math.inf,
) -> Iterator[tuple[slice, Result]]:
    """Yields groups of n examples that are accepted, ascending, with their results. One that is
    not is halved until the rejected example is alone.

    Args:
      n: The number of examples.
      compute: Computes a group of examples; None: one of them is rejected.
      size: The largest size of a group; None: any.
      calls_max: The largest number of calls of `compute`; what is left then is not tried.
    """
    step = size or max(1, n)
    # The first group is computed first.
    pending = [slice(start, min(n, start + step)) for start in range(0, n, step)][::-1]
    calls = 0
    while pending and calls < calls_max:
        group = pending.pop()
        calls += 1
        result = compute(group)
        if result is not None:
            yield group, result
        elif group.stop - group.start > 1:
            middle = (group.start + group.stop) // 2
            pending += [slice(middle, group.stop), slice(group.start, middle)]
