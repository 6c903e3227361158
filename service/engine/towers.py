"""Activations -> outputs: the parts of a tower that the outputs need, each run on as few examples as it may be."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engine.finite import check_finite
from service.engine.rooms import Rooms
from service.engine.steps import Steps
from service.generations.layouts import Filled, Layout
from service.generations.loaded_towers import LoadedPart, LoadedTower, Work

_NO_COUNTS = np.empty(0, np.int64)

Array = NDArray[Any]


class Values:
    """What the parts of a tower take in one call: those of n contexts once, those of m candidates each.

    Belongs to the calling thread until its next call of the same work and kind: rooms are used again.

    Attributes:
      contexts, candidates: how many there is room for.
      once, each: where the features of contexts, and of candidates, are to be looked up into before anything runs.
    """

    def __init__(self, work: Work, counts: NDArray[np.int64], m: int) -> None:
        """Makes room for m candidates, counts[i] of them of the i-th context."""
        self._begin(work, work.layout, counts, len(counts), m, self._kept(work.layout))

    @classmethod
    def alone(cls, work: Work, n: int) -> Values:
        """Makes room for n examples that are context and candidate at once; all of their features are in `each`.

        Where the last call had more, theirs is used as it is, if to run the rest for nothing takes less time than to
        make room anew: of calls that come at the same time, sometimes more are computed as one, and sometimes fewer.
        """
        found, kept = cls.__new__(cls), cls._kept(work.layout_alone)
        m = n if kept is None or not kept.spares(n) else kept.candidates
        found._begin(work, work.layout_alone, _NO_COUNTS, m, m, kept)
        if n < m:
            found._asked, found.each = n, found._rooms.first(n)
        return found

    @classmethod
    def of_contexts(cls, work: Work, n: int) -> Values:
        """Makes room for n contexts whose candidates are run elsewhere, in pieces."""
        found = cls.__new__(cls)
        found._hold(work.layout, _NO_COUNTS, n, 0, Rooms(work, work.layout, n, 0))
        return found

    @classmethod
    def piece(cls, work: Work, counts: NDArray[np.int64], m: int, of: Values, first: int) -> Values:
        """Makes room for m candidates, counts[i] of them of the context `first + i` of others, which were run.

        Where the last piece had more, theirs is used, as `alone` tells: the last piece of a call has fewer.
        """
        found, kept, n = cls.__new__(cls), cls._kept(work.layout), len(counts)
        room = m
        if n == 1 and kept is not None and kept.spares(m) and m < kept.candidates and kept.fit(1, kept.candidates):
            room = kept.candidates
        found._begin(work, work.layout, counts, n, room, kept)
        if m < room:
            found._asked, found.each = m, found._rooms.first(m)
        for own, place in zip(found.once, of.once, strict=True):
            own.array[...] = place.array[first : first + n]
        found._made_once = {name: array[first : first + n] for name, array in of._made_once.items()}
        found._contexts_ran = True
        return found

    @staticmethod
    def _kept(layout: Layout) -> Rooms | None:
        found: Rooms | None = getattr(layout.kept, "rooms", None)
        return found

    def _begin(self, work: Work, layout: Layout, counts: NDArray[np.int64], n: int, m: int, kept: Rooms | None) -> None:
        if kept is None or not kept.fit(n, m):
            kept = Rooms(work, layout, n, m)
            layout.kept.rooms = kept if kept.lasting else None
        self._hold(layout, counts, n, m, kept)

    def _hold(self, layout: Layout, counts: NDArray[np.int64], n: int, m: int, kept: Rooms) -> None:
        self.contexts, self.candidates, self._asked = n, m, m
        self._layout, self._counts, self._rooms = layout, counts, kept
        self._contexts_ran = False
        self.once, self.each = kept.once, kept.each
        self._made_once: dict[str, Array] = {}
        self._made: dict[str, Array] = {}

    def fill(self) -> None:
        """Copies what was looked up to wherever else candidates take it: what is of a context, to all of its own."""
        for contexts, out in self._rooms.repeated:
            self._repeat(contexts, out)
        for source, out in self._rooms.shared:
            out[...] = source

    def _repeat(self, contexts: Array, out: Array) -> None:
        # One context is written to all rows by numpy itself; copies of many are made first.
        out[...] = contexts if len(contexts) == 1 else contexts.repeat(self._counts, axis=0)

    def inputs(self, number: int) -> dict[str, Array]:
        """Returns the inputs of a part by name, for every example that it is run on."""
        inputs, made = self._rooms.inputs[number], self._rooms.made[number]
        if made:
            inputs = inputs.copy()
            for one in made:
                if self._layout.once[number]:
                    inputs[one.name] = self._of_contexts(one)
                else:
                    inputs[one.name] = self._of_candidates(one, inputs.get(one.name))
        return inputs

    def _of_contexts(self, one: Filled) -> Array:
        if one.made:
            return np.ascontiguousarray(self._made_once[one.made].reshape(self.contexts, *one.shape), one.dtype)
        columns = self._rooms.of_frames(one)
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

    def due(self, number: int) -> bool:
        """Tells whether a part is to be run here: of pieces of a call, those of contexts were run before."""
        return not (self._contexts_ran and self._layout.once[number])

    def asked(self, number: int) -> int:
        """Returns for how many of these examples what a part returns is asked."""
        return self.contexts if self._layout.once[number] else self._asked

    def ran(self, seconds: float) -> None:
        """Tells how long all parts took."""
        self._rooms.row_s = seconds / (self.candidates or 1)

    def block(self, number: int) -> int:
        """Returns how many examples a part is run on at once."""
        return self._rooms.blocks[number]

    def output(self, name: str) -> Array:
        """Returns what a part returned, for each candidate that is asked for."""
        found = self._made.get(name)
        return self._made_once[name].repeat(self._counts, axis=0) if found is None else found[: self._asked]


def run(tower: LoadedTower, work: Work, values: Values, model: str, steps: Steps) -> dict[str, NDArray[np.float32]]:
    """Runs what some outputs of a tower need; returns these by name, [m, ...] float32, one for each candidate.

    Args:
      values: with all features looked up.
    Raises:
      NotFinite: an output holds NaN or an infinity.
    """
    with steps.phase("compute"):
        began = time.perf_counter()
        values.fill()
        for number in range(len(work.parts)):
            if values.due(number):
                _run_part(tower, work, number, values, model, steps)
        values.ran(time.perf_counter() - began)
    outputs = {name: values.output(name) for name in work.outputs}
    for name, array in outputs.items():
        check_finite(array, f"output {name!r} of tower {tower.name!r}")
    return outputs


def run_contexts(tower: LoadedTower, work: Work, values: Values, model: str, steps: Steps) -> None:
    """Runs only the parts that run once for each context."""
    with steps.phase("compute"):
        for number, once in enumerate(work.layout.once):
            if once:
                _run_part(tower, work, number, values, model, steps)


def _run_part(tower: LoadedTower, work: Work, number: int, values: Values, model: str, steps: Steps) -> None:
    part = work.parts[number]
    outputs = _outputs(part, values.inputs(number), values.examples(number), values.block(number), steps)
    values.add(number, outputs)
    steps.ran(model, tower.name, part.page.name, values.asked(number))


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
