"""Contexts and candidates -> scores: a context's features are looked up once and broadcast over its candidates.

Candidates that take long are computed in pieces (`dividing`), by all threads that are idle.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bundle.columns import Column, repeated
from service.engine import dividing, lookup, towers
from service.engine.dividing import Columns
from service.engine.requests import Offsets
from service.engine.steps import Steps
from service.generations.generation import Generation, LoadedCorpus
from service.generations.loaded_towers import LoadedTower, Work

Scores = NDArray[np.float32]


@dataclass(frozen=True)
class Candidates:
    """m candidates; context i owns offsets[i]:offsets[i + 1]. Features as sent, the rest from the store by position."""

    offsets: Offsets
    sent: Columns
    corpus: LoadedCorpus | None = None
    positions: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class _Call:
    """What is to be scored, or a piece of it."""

    generation: Generation
    tower: LoadedTower
    work: Work
    context: Columns
    candidates: Candidates

    @property
    def n(self) -> int:
        return int(self.candidates.offsets.size) - 1

    @property
    def m(self) -> int:
        return int(self.candidates.offsets[-1])

    @property
    def counts(self) -> NDArray[np.int64]:
        return self.candidates.offsets[1:] - self.candidates.offsets[:-1]

    @property
    def crossed(self) -> dict[str, Column]:
        """What was sent of contexts that features of candidates read too."""
        return {name: self.context[name] for name in self.work.crossed if name in self.context}


def score(
    generation: Generation, tower: LoadedTower, work: Work, context: Columns, candidates: Candidates, steps: Steps
) -> dict[str, Scores]:
    """Runs what some outputs of a ranking tower need over contexts and candidates; by name, [m] float32 each.

    Raises:
      FeatureError: a column does not fit its feature.
      NotFinite: an output holds NaN or an infinity.
    """
    call = _Call(generation, tower, work, context, candidates)
    m = call.m
    size = dividing.piece_of(work, m, steps)
    if size and dividing.cuttable(candidates.sent, m) and dividing.cuttable(call.crossed, call.n):
        with contextlib.suppress(dividing.Failed):
            return _in_pieces(call, size, steps)
    values = towers.Values(work, call.counts, m)
    lookup.write(generation, values.once, context, call.n, steps)
    if m == 0:
        return {name: np.empty(0, np.float32) for name in work.outputs}
    began = time.thread_time()
    found = _scored(call, values, steps)
    dividing.took(work, m, time.thread_time() - began)
    return found


def _scored(call: _Call, values: towers.Values, steps: Steps) -> dict[str, Scores]:
    """Looks the candidates' features up and runs the parts; the features of contexts are in `values`."""
    generation, work, candidates, m = call.generation, call.work, call.candidates, call.m
    columns = candidates.sent
    if candidates.corpus is not None and candidates.positions is not None:
        stored = set(candidates.corpus.page.features)
        wanted_names = [name for name in work.inputs["candidate"] if name in stored and name not in columns]
        with steps.phase("lookup"):
            columns = {**columns, **candidates.corpus.store.features(candidates.positions, wanted_names)}
    if work.crossed:
        columns = {**columns, **{name: repeated(name, each, call.counts) for name, each in call.crossed.items()}}
    lookup.write(generation, values.each, columns, m, steps)
    outputs = towers.run(call.tower, work, values, generation.model, steps)
    return {name: array.reshape(m) for name, array in outputs.items()}


def _in_pieces(call: _Call, size: int, steps: Steps) -> dict[str, Scores]:
    """Scores so many candidates in a piece; what is of contexts is looked up and run here, once.

    Raises:
      Failed: something is wrong with the call.
    """
    m, work, offsets = call.m, call.work, call.candidates.offsets
    values = towers.Values.of_contexts(work, call.n)
    lookup.write(call.generation, values.once, call.context, call.n, steps)
    towers.run_contexts(call.tower, work, values, call.generation.model, steps)
    scores = {name: np.empty(m, np.float32) for name in work.outputs}

    def compute(start: int, stop: int, own: Steps) -> None:
        first, last = int(offsets.searchsorted(start, "right")) - 1, int(offsets.searchsorted(stop, "left"))
        piece = _cut(call, start, stop, first, last)
        found = _scored(piece, towers.Values.piece(work, piece.counts, stop - start, values, first), own)
        for name, each in found.items():
            scores[name][start:stop] = each

    dividing.in_pieces(work, m, size, compute, steps)
    return scores


def _cut(call: _Call, start: int, stop: int, first: int, last: int) -> _Call:
    """Returns the candidates from `start` to `stop`, which are of the contexts from `first` to `last`."""
    candidates = call.candidates
    offsets = np.minimum(np.maximum(candidates.offsets[first : last + 1], start), stop) - start
    positions = None if candidates.positions is None else candidates.positions[start:stop]
    sent = dividing.cut(candidates.sent, call.m, start, stop)
    crossed = dividing.cut(call.crossed, call.n, first, last)
    of_piece = Candidates(offsets, sent, candidates.corpus, positions)
    return _Call(call.generation, call.tower, call.work, crossed, of_piece)
