"""Which states of a change count, by the numbers of its sender, and by which number each of them
counts from now on.

Numbered changes may come in any order: what they leave is what they would leave in the order of
their numbers. Each value counts by its own number: an upsert or a deletion states all of a
candidate, a change of attributes those that it names. A change without a number counts as the
latest one: it takes the largest number so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
    states: list[State] = []
    is_outdated = np.zeros(change.ids.size, bool)
    for row, sent in enumerate(_sent_states(change, time_s)):
        there = before.get(sent[0].id, {})
        counting = [state for state in sent if not _is_outdated(state, there)]
        states += [_numbered(state, there) for state in counting]
        is_outdated[row] = not counting
    return states, is_outdated


def _sent_states(change: CheckedChange, time_s: float) -> Iterator[list[State]]:
    """Yields the states of each candidate or context of a change: one as a whole, or one of each
    attribute.
    """
    request = change.request
    for row, key in enumerate(change.ids.tolist()):
        number = None
        if request.sequences is not None:
            number = int(request.sequences[row])
        expires_s = None
        if request.expires_s is not None and not np.isnan(request.expires_s[row]):
            expires_s = float(request.expires_s[row])
        state = State(
            sequence=0,  # the file gives another one
            kind=request.kind,
            store=change.store,
            id=key,
            attribute=WHOLE,
            number=number,
            version=change.version,
            is_sent=change.is_sent,
            expires_s=expires_s,
            time_s=time_s,
            content=None,
        )
        if request.action == "attributes":
            yield [
                state._replace(attribute=name, content=contents[row])
                for name, contents in change.attributes.items()
            ]
        elif request.action == "upsert":
            yield [state._replace(content=change.contents[row])]
        else:
            yield [state]


def _is_outdated(state: State, there: Mapping[str, State]) -> bool:
    """Returns whether the same state was there before, or a later one."""
    if state.number is None:
        return False
    if state.attribute != WHOLE:
        last = _largest_number(state, there)
        return last is not None and last >= state.number
    whole = there.get(WHOLE)
    if whole is None or whole.number is None:
        return False
    # The same state with the vectors of a later training is another one.
    is_newly_trained = 0 < whole.training < state.training
    return whole.number > state.number or (whole.number == state.number and not is_newly_trained)


def _numbered(state: State, there: Mapping[str, State]) -> State:
    """Returns a state with the number by which it counts."""
    if state.number is not None:
        return state
    return state._replace(number=_largest_number(state, there))


def _largest_number(state: State, there: Mapping[str, State]) -> int | None:
    """Returns the largest number of what a state replaces, or is a part of; None: none was sent."""
    compared = [*there.values()]
    if state.attribute != WHOLE:
        compared = [there[name] for name in (WHOLE, state.attribute) if name in there]
    return max((other.number for other in compared if other.number is not None), default=None)
