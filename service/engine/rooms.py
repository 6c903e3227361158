"""Arrays that the features of a call are looked up into, and which of them are copied where: made once for calls alike.

A thread keeps those of its last call of a layout: the next one of as many contexts and candidates finds all views made.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features import Place
from service.generations.layouts import Filled, Layout
from service.generations.loaded_towers import Work

_BLOCK_BYTES = 1 << 20
"""About as much of its inputs as a tower is run on at once: what it makes of more leaves the core's own cache."""
_ROWS_MIN, _ROWS_MAX = 100, 8192
"""Examples at once: with fewer, weights are read too often; after more, the deadline is looked at too late."""

_ANEW_S = 50e-6
"""About what it takes to make room for another number of examples, LiteRT's plan of its memory included."""
_KEPT_BYTES_MAX = 1 << 16
"""Of contexts' features, by thread and layout."""

_NO_ROOM = np.empty((0, 0), np.float32)

Array = NDArray[Any]


class Rooms:
    """What is laid out for n contexts and m candidates; what lies in it is the last call's.

    Attributes:
      candidates: how many.
      blocks: by part, how many examples it is run on at once.
      once, each: where the features of contexts, and of candidates, are looked up into.
      repeated: pairs of contexts' features, and where those of each context's candidates go.
      shared: pairs of equal shapes, from and to.
      inputs: by part, arrays by name that it takes as they are, and those that its `made` may be copied into.
      made: by part, the inputs that are made of more than one array, or of an earlier part's output.
      row_s: how long the parts took for one candidate, seconds.
      lasting: whether the next call of as many can use it: it takes no memory but the networks' own and little more.
    """

    def __init__(self, work: Work, layout: Layout, n: int, m: int) -> None:
        """Makes room."""
        self._n, self.candidates = n, m
        self.row_s, self._in_vain_s = math.inf, 0.0  # it is not known yet
        self._first: dict[int, tuple[Place, ...]] = {}
        self.blocks = [min(max(_ROWS_MIN, _BLOCK_BYTES // (each or 1)), _ROWS_MAX) for each in layout.row_bytes]
        self._frames = [np.empty((n, frame.ends[-1]), frame.dtype) for frame in layout.frames]
        self.once = tuple(
            Place(array, frame.names, frame.ends) for array, frame in zip(self._frames, layout.frames, strict=True)
        )
        parts = list(zip(work.parts, layout.parts, layout.once, self.blocks, strict=True))
        # The arrays of networks that take all candidates at once: a network that gives others has let go of these.
        self._owners = [(part, part.network.buffers(m)) for part, _, once, block in parts if not once and m <= block]
        few = sum(frame.nbytes for frame in self._frames) <= _KEPT_BYTES_MAX
        self.lasting = few and len(self._owners) == layout.once.count(False) and all(own for _, own in self._owners)
        owned = {id(part): own for part, own in self._owners}
        self.inputs = [
            self._of_contexts(filled) if once else _laid_out(filled, m, dict(owned.get(id(part), {})))
            for part, filled, once, _ in parts
        ]
        self.made = [
            tuple(one for one in filled if one.made or one.name not in inputs)
            for filled, inputs in zip(layout.parts, self.inputs, strict=True)
        ]
        self._views(layout, m)

    def _views(self, layout: Layout, m: int) -> None:
        flat = [
            [inputs[one.name].reshape(m, one.width) if one.width and not once else _NO_ROOM for one in filled]
            for inputs, filled, once in zip(self.inputs, layout.parts, layout.once, strict=True)
        ]
        laid = [
            (array, one)
            for arrays, filled in zip(flat, layout.parts, strict=True)
            for array, one in zip(arrays, filled, strict=True)
            if array is not _NO_ROOM
        ]
        self.each = tuple(
            Place(array[:, span.start : span.stop], span.names, span.ends)
            for array, one in laid
            for span in one.written
        )
        self.repeated = [
            (frame, array[:, copy.start : copy.stop])
            for array, one in laid
            for copy, frame in zip(one.repeated, self.of_frames(one), strict=True)
        ]
        self.shared = [
            (
                flat[copy.source[0]][copy.source[1]][:, copy.first : copy.first + copy.stop - copy.start],
                array[:, copy.start : copy.stop],
            )
            for array, one in laid
            for copy in one.shared
        ]

    def fit(self, n: int, m: int) -> bool:
        """Tells whether the calling thread can use it for a call of n contexts and m candidates."""
        if n != self._n or m != self.candidates:
            return False
        return all(part.network.buffers(m) is own for part, own in self._owners)

    def spares(self, m: int) -> bool:
        """Tells whether a call of m candidates had better be run with all of these than have room made anew.

        Once calls in a row ran for nothing for as long as that takes, it is made for as many as there are.
        """
        if m == self.candidates:
            self._in_vain_s = 0.0
        elif m < self.candidates:
            self._in_vain_s += (self.candidates - m) * self.row_s
        return m <= self.candidates and self._in_vain_s <= _ANEW_S

    def first(self, m: int) -> tuple[Place, ...]:
        """Returns `each` of the first m candidates."""
        found = self._first.get(m)
        if found is None:
            found = self._first[m] = tuple(Place(place.array[:m], place.names, place.ends) for place in self.each)
        return found

    def of_frames(self, one: Filled) -> list[Array]:
        """Returns the features of contexts that an input is filled with, an array for each run of columns."""
        return [
            self._frames[copy.source[0]][:, copy.first : copy.first + copy.stop - copy.start] for copy in one.repeated
        ]

    def _of_contexts(self, filled: tuple[Filled, ...]) -> dict[str, Array]:
        """Returns the inputs that are columns of a frame, in one piece as they lie there."""
        found = {}
        for one in filled:
            columns = self.of_frames(one)
            if len(columns) == 1 and columns[0].flags.c_contiguous and columns[0].dtype == one.dtype:
                found[one.name] = columns[0].reshape(self._n, *one.shape)
        return found


def _laid_out(filled: tuple[Filled, ...], m: int, inputs: dict[str, Array]) -> dict[str, Array]:
    """Returns the arrays that features of candidates are laid out in: the network's own, or new ones."""
    for one in filled:
        if one.name not in inputs and not one.made:
            inputs[one.name] = np.empty((m, *one.shape), one.dtype)
    return inputs
