"""Activations -> outputs: the parts of a tower that the outputs need, each run on as few examples as it may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features import Place
from service.engine.steps import Steps
from service.generations.layouts import Filled, Layout
from service.generations.loaded_towers import LoadedPart, LoadedTower, Work

_BLOCK_BYTES = 1 << 20
"""About as much of its inputs as a tower is run on at once: what it makes of more leaves the core's own cache."""
_ROWS_MIN, _ROWS_MAX = 100, 8192
"""Examples at once: with fewer, weights are read too often; after more, the deadline is looked at too late."""

_NO_COUNTS = np.empty(0, np.int64)
_NO_ROOM = np.empty((0, 0), np.float32)

Array = NDArray[Any]


class Values:
    """What the parts of a tower take in one call: those of n contexts once, those of m candidates each.

    Attributes:
      contexts, candidates: how many.
      once, each: where the features of contexts, and of candidates, are to be looked up into before anything runs.
    """

    def __init__(self, work: Work, counts: NDArray[np.int64], m: int) -> None:
        """Makes room for m candidates, counts[i] of them of the i-th context."""
        self._begin(work, work.layout, counts, len(counts), m)

    @classmethod
    def alone(cls, work: Work, n: int) -> Values:
        """Makes room for n examples that are context and candidate at once; all of their features are in `each`."""
        found = cls.__new__(cls)
        found._begin(work, work.layout_alone, _NO_COUNTS, n, n)
        return found

    def _begin(self, work: Work, layout: Layout, counts: NDArray[np.int64], n: int, m: int) -> None:
        self.contexts, self.candidates = n, m
        self._layout, self._counts = layout, counts
        self._frames = [np.empty((n, frame.ends[-1]), frame.dtype) for frame in layout.frames]
        self.once = tuple(
            Place(array, frame.names, frame.ends) for array, frame in zip(self._frames, layout.frames, strict=True)
        )
        self._made_once: dict[str, Array] = {}
        self._made: dict[str, Array] = {}
        self._rooms = [
            {} if once else _rooms(part, filled, m, self.block(number))
            for number, (part, filled, once) in enumerate(zip(work.parts, layout.parts, layout.once, strict=True))
        ]
        self._flat = [
            [rooms[one.name].reshape(m, one.width) if one.width and rooms else _NO_ROOM for one in filled]
            for rooms, filled in zip(self._rooms, layout.parts, strict=True)
        ]
        self.each = tuple(
            Place(flat[:, span.start : span.stop], span.names, span.ends)
            for part, filled in zip(self._flat, layout.parts, strict=True)
            for flat, one in zip(part, filled, strict=True)
            for span in one.written
        )

    def fill(self) -> None:
        """Copies what was looked up to wherever else candidates take it: what is of a context, to all of its own."""
        for part, filled in zip(self._flat, self._layout.parts, strict=True):
            for flat, one in zip(part, filled, strict=True):
                for copy in one.repeated if flat is not _NO_ROOM else ():
                    width = copy.stop - copy.start
                    frame = self._frames[copy.source[0]][:, copy.first : copy.first + width]
                    self._repeat(frame, flat[:, copy.start : copy.stop])
                for copy in one.shared:
                    source = self._flat[copy.source[0]][copy.source[1]]
                    flat[:, copy.start : copy.stop] = source[:, copy.first : copy.first + copy.stop - copy.start]

    def _repeat(self, contexts: Array, out: Array) -> None:
        # One context is written to all rows by numpy itself; copies of many are made first.
        out[...] = contexts if len(contexts) == 1 else contexts.repeat(self._counts, axis=0)

    def inputs(self, number: int) -> dict[str, Array]:
        """Returns the inputs of a part by name, for every example that it is run on."""
        filled = self._layout.parts[number]
        if self._layout.once[number]:
            return {one.name: self._of_contexts(one) for one in filled}
        inputs = self._rooms[number]
        for one in filled:
            if one.made:
                inputs[one.name] = self._of_candidates(one, inputs.get(one.name))
        return inputs

    def _of_contexts(self, one: Filled) -> Array:
        if one.made:
            return np.ascontiguousarray(self._made_once[one.made].reshape(self.contexts, *one.shape), one.dtype)
        columns = [
            self._frames[copy.source[0]][:, copy.first : copy.first + copy.stop - copy.start] for copy in one.repeated
        ]
        joined = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
        return np.ascontiguousarray(joined, one.dtype).reshape(self.contexts, *one.shape)

    def _of_candidates(self, one: Filled, room: Array | None) -> Array:
        """Returns what an earlier part made, for each candidate; a context's is repeated into `room`, if there is."""
        found = self._made.get(one.made)
        if found is None:
            once = self._made_once[one.made].reshape(self.contexts, *one.shape)
            if room is not None:
                self._repeat(once, room)
                return room
            found = once.repeat(self._counts, axis=0)
        return np.ascontiguousarray(found.reshape(self.candidates, *one.shape), one.dtype)

    def add(self, number: int, outputs: Mapping[str, Array]) -> None:
        """Takes what a part returned, for those after it."""
        (self._made_once if self._layout.once[number] else self._made).update(outputs)

    def examples(self, number: int) -> int:
        """Returns how many examples a part is run on."""
        return self.contexts if self._layout.once[number] else self.candidates

    def block(self, number: int) -> int:
        """Returns how many examples a part is run on at once."""
        return min(max(_ROWS_MIN, _BLOCK_BYTES // (self._layout.row_bytes[number] or 1)), _ROWS_MAX)

    def output(self, name: str) -> Array:
        """Returns what a part returned, for each candidate."""
        found = self._made.get(name)
        return self._made_once[name].repeat(self._counts, axis=0) if found is None else found


def _rooms(part: LoadedPart, filled: tuple[Filled, ...], m: int, block: int) -> dict[str, Array]:
    """Returns the arrays that a part's features are laid out in: the network's own, if it takes all at once."""
    rooms = dict(part.network.buffers(m)) if m <= block else {}
    for one in filled:
        if one.name not in rooms and not one.made:
            rooms[one.name] = np.empty((m, *one.shape), one.dtype)
    return rooms


def run(tower: LoadedTower, work: Work, values: Values, model: str, steps: Steps) -> dict[str, NDArray[np.float32]]:
    """Runs what some outputs of a tower need; returns these by name, [m, ...] float32, one for each candidate.

    Args:
      values: with all features looked up.
    Raises:
      ArithmeticError: an output holds NaN or an infinity.
    """
    with steps.phase("compute"):
        values.fill()
        for number, part in enumerate(work.parts):
            values.add(
                number, _outputs(part, values.inputs(number), values.examples(number), values.block(number), steps)
            )
            steps.ran(model, tower.name, part.page.name, values.examples(number))
    outputs = {name: values.output(name) for name in work.outputs}
    for name, array in outputs.items():
        finite = np.isfinite(array)
        if np.count_nonzero(finite) < finite.size:  # counting is much cheaper than all()
            raise ArithmeticError(f"output {name!r} of a tower holds NaN or an infinity")
    return outputs


def _outputs(part: LoadedPart, inputs: dict[str, Array], n: int, block: int, steps: Steps) -> dict[str, Array]:
    """Runs a part on n examples, `block` of them at a time."""
    steps.check()
    if n <= block:
        return part.network.run(inputs)
    made = []
    block = -(-n // -(-n // block))  # of one size each: another size costs LiteRT a new plan of its memory
    for first in range(0, n, block):
        steps.check()
        made.append(part.network.run({name: array[first : first + block] for name, array in inputs.items()}))
    return {name: np.concatenate([each[name] for each in made]) for name in made[0]}
