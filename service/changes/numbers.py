"""Which states of a change count, by the numbers of its sender, and by which number each of them
counts from now on.

Numbered changes may come in any order: what they leave is what they would leave in the order of
their numbers. Each value counts by its own number: an upsert or a deletion states all of a
candidate, a change of attributes those that it names. A change without a number counts as the
latest one: it takes the largest number so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from bundle.changes.states import WHOLE, Key, State
from service.changes.checks import CheckedChange

Before = Mapping[Key, Mapping[str, State]]
"""The states of candidates or contexts before a change, by id and attribute."""


def counting_states(
    change: CheckedChange, before: Before, time_s: float
) -> tuple[list[State], NDArray[np.bool_]]:
    """Returns the states of a change that count, without sequences; and of which of its ids the
    same states, or later ones, were there before, [m].

    Args:
      change: The change of m candidates or contexts.
      before: What was there before.
      time_s: When the change was accepted, in Unix seconds.
    """
    request = change.request
    numbers: list[int | None] = [None] * change.ids.size
    if request.sequences is not None:
        numbers = request.sequences.tolist()
    expires_s: list[float | None] = [None] * change.ids.size
    if request.expires_s is not None:
        expires_s = [None if np.isnan(time) else time for time in request.expires_s.tolist()]
    states: list[State] = []
    is_outdated = np.zeros(change.ids.size, bool)
    for row, (key, number) in enumerate(zip(change.ids.tolist(), numbers, strict=True)):
        # No state has the sequence 0, which the file replaces.
        state = State(
            sequence=0,
            kind=request.kind,
            store=change.store,
            id=key,
            attribute=WHOLE,
            number=number,
            version=change.version,
            is_sent=change.is_sent,
            expires_s=expires_s[row],
            time_s=time_s,
            content=change.contents[row] if change.contents else None,
        )
        there = before.get(key, {})
        if request.action == "attributes":
            parts = [
                state._replace(attribute=name, content=contents[row])
                for name, contents in change.attributes.items()
            ]
            counting = [
                part
                for part in parts
                if number is None or not _reaches(_last(there, part.attribute), number)
            ]
            states += [_numbered(part, _last(there, part.attribute)) for part in counting]
            is_outdated[row] = not counting
        elif number is not None and _is_outdated(state, there.get(WHOLE)):
            is_outdated[row] = True
        else:
            states.append(_numbered(state, _largest(there.values())))
    return states, is_outdated


def _is_outdated(state: State, whole: State | None) -> bool:
    """Returns whether the same state of a candidate or context was there before, or a later one."""
    if whole is None or whole.number is None or state.number is None:
        return False
    # The same state with the vectors of a later training is another one.
    is_newly_trained = 0 < whole.training < state.training
    return whole.number > state.number or (whole.number == state.number and not is_newly_trained)


def _last(there: Mapping[str, State], attribute: str) -> int | None:
    """Returns the number by which the value of an attribute counts; None: none was sent."""
    return _largest(there[name] for name in (WHOLE, attribute) if name in there)


def _largest(states: Iterable[State]) -> int | None:
    return max((state.number for state in states if state.number is not None), default=None)


def _reaches(last: int | None, number: int) -> bool:
    return last is not None and last >= number


def _numbered(state: State, largest: int | None) -> State:
    return state if state.number is not None else state._replace(number=largest)
