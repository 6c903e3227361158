"""When a call of a tower is divided by its examples, into pieces of what size, and how its columns are cut.

Rows of tables and of compiled towers do not depend on what is computed beside them, so that answers have the bits that
they have in one piece. What TensorFlow computes may, and is not divided.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary

from bundle.columns import Column, checked_offsets
from bundle.errors import FeatureError
from service.engine.steps import Steps
from service.errors import ServiceError
from service.generations.loaded_towers import Work

Columns = Mapping[str, Column]

_TOLD_MIN = 64
"""Examples of a call, computed as one, that tells how long each takes: of fewer, what is beside them is most."""
_CREEP = 1.03
"""As in `pace`: the least that was seen, forgotten by 3 % each time."""
_PIECES_MIN = 5
"""Of a call in two, handing over takes what the second thread brings (docs/adr/0028); of a few, much of it."""
_ROWS_MIN = 100
"""Examples of a piece, unless these take twice as long as a piece is to: with fewer, weights are read too often."""
_ALIKE = 1.5
"""Pieces stay of the size that they have until another would be so many times as good: LiteRT plans its memory anew for
each size."""


class Failed(Exception):
    """A piece failed. Computed as one, the call fails too, and what is told then speaks of all of its examples."""


class _Pace:
    """How long an example takes a thread, seconds of its own CPU, and how many are in a piece.

    Beside others a call waits for cores and for the interpreter's lock, and would seem to be worth dividing.
    """

    __slots__ = ("least_s", "rows")

    def __init__(self) -> None:
        self.least_s, self.rows = math.inf, 0.0

    def took(self, seconds: float, m: int) -> None:
        """Tells how long so many examples took."""
        self.least_s = min(seconds / m, self.least_s * _CREEP)

    def piece(self, piece_s: float) -> float:
        """Returns how many examples make a piece of such a time."""
        fitting = piece_s / self.least_s
        wanted = max(1.0, fitting, min(_ROWS_MIN, 2 * fitting))
        if not self.rows / _ALIKE < wanted < self.rows * _ALIKE:
            self.rows = wanted
        return self.rows


_PACES: WeakKeyDictionary[Work, _Pace] = WeakKeyDictionary()


def pace_of(work: Work) -> _Pace:
    """Returns what is known of the time that the examples of a work take."""
    found = _PACES.get(work)
    return _PACES.setdefault(work, _Pace()) if found is None else found


def took(work: Work, m: int, seconds: float) -> None:
    """Tells how long m examples took in one piece, seconds of the thread's CPU."""
    if m >= _TOLD_MIN:
        pace_of(work).took(seconds, m)


def piece_of(work: Work, m: int, steps: Steps) -> int:
    """Returns how many of m examples make a piece; 0: the call had better be computed as one."""
    helpers = steps.helpers
    if m < 2 or helpers is None or not helpers.piece_s:
        return 0
    pace = pace_of(work)
    if not _PIECES_MIN * helpers.piece_s <= m * pace.least_s < math.inf or not helpers.idle():
        return 0
    if any(part.form.kind != "litert" for part in work.parts):
        return 0
    count = math.ceil(m / pace.piece(helpers.piece_s))
    return math.ceil(m / count) if count > 1 else 0


def in_pieces(work: Work, m: int, size: int, compute: Callable[[int, int, Steps], None], steps: Steps) -> None:
    """Has m examples computed in pieces of `size`, but for the last, by whoever may help.

    Args:
      compute: given the first example, that after the last, and the steps of a piece; called in any thread.
    Raises:
      DeadlineExceeded, Cancelled: as `Steps.check`.
      Failed: something is wrong with the call.
    """
    pace, beside = pace_of(work), []

    def piece(at: int) -> None:
        own = steps.beside()
        beside.append(own)
        start, stop = at * size, min((at + 1) * size, m)
        began = time.thread_time()
        compute(start, stop, own)
        pace.took(time.thread_time() - began, stop - start)

    began = time.monotonic()
    try:
        steps.each(math.ceil(m / size), piece)
    except ServiceError:
        raise
    except Exception as problem:
        raise Failed from problem
    finally:
        steps.divided(time.monotonic() - began, beside)


def cuttable(columns: Columns, n: int) -> bool:
    """Tells whether columns can be cut into their n examples; such that cannot are refused as a whole."""
    for name, column in columns.items():
        if column.weights is not None and column.weights.shape != column.values.shape:
            return False
        try:
            checked_offsets(name, column, n)
        except FeatureError:
            return False
    return True


def cut(columns: Columns, n: int, start: int, stop: int) -> dict[str, Column]:
    """Returns the examples from `start` to `stop` of columns of n that are `cuttable`."""
    return {name: _cut(column, n, start, stop) for name, column in columns.items()}


def _cut(column: Column, n: int, start: int, stop: int) -> Column:
    values, offsets, weights = column
    if offsets is None:
        each = values.size // n
        first, last = start * each, stop * each
    else:
        first, last = int(offsets[start]), int(offsets[stop])
        offsets = offsets[start : stop + 1] - first
    return Column(values[first:last], offsets, None if weights is None else weights[first:last])
