"""Where features lie in what the parts of a tower take: found out once for each set of outputs that is asked for.

The features of a context lie side by side in a frame, in the order in which candidates' parts take them, so that a few
copies of columns repeat them for every candidate. Those of a candidate are looked up straight into the input of the
first part that takes them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np

from bundle.fields import array_dtype
from bundle.manifest import DenseFeature, Manifest
from bundle.tower_pages import Per


@dataclass(frozen=True)
class Taken:
    """One input of a part: of which features, side by side, or (`made`) of which earlier part's output it is made."""

    name: str
    sources: tuple[str, ...]
    made: bool
    shape: tuple[int, ...]
    """Of one example; -1: any size."""
    dtype: np.dtype[Any]


class Example(NamedTuple):
    """A feature's activation of one example."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """How many values it has."""
        return math.prod(self.shape)


class Part(Protocol):
    """What is known of a part here."""

    @property
    def per(self) -> Per:
        """Whether it runs once for each context or for each candidate."""

    @property
    def inputs(self) -> tuple[Taken, ...]:
        """What it takes."""


@dataclass(frozen=True)
class Frame:
    """Features of contexts side by side, one array of each dtype."""

    dtype: np.dtype[Any]
    names: tuple[str, ...]
    ends: tuple[int, ...]
    """Column after each."""


@dataclass(frozen=True)
class Written:
    """Columns of an input into which features of candidates are looked up."""

    start: int
    stop: int
    names: tuple[str, ...]
    ends: tuple[int, ...]
    """Column after each, counted from `start`."""


@dataclass(frozen=True)
class Copied:
    """Columns of an input that are copied, from column `first` of `source`."""

    start: int
    stop: int
    source: tuple[int, ...]
    """(frame), or (part, input) of candidates."""
    first: int


@dataclass(frozen=True)
class Filled:
    """One input of a part, and what its columns are filled with."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Of one example."""
    width: int
    made: str
    """Instead of columns: the earlier part's output that it is."""
    written: tuple[Written, ...] = ()
    repeated: tuple[Copied, ...] = ()
    """From frames."""
    shared: tuple[Copied, ...] = ()
    """From inputs of candidates."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Where everything lies.

    Attributes:
      once: by part, whether it runs once for each context.
      row_bytes: by part, of what is laid out for one example.
      kept: what each thread made of it for its last call.
    """

    frames: tuple[Frame, ...]
    parts: tuple[tuple[Filled, ...], ...]
    once: tuple[bool, ...]
    row_bytes: tuple[int, ...]
    kept: threading.local = field(default_factory=threading.local, init=False, repr=False)


def example_of(manifest: Manifest, name: str) -> Example:
    """Returns what one example has of a feature."""
    feature = manifest.features[name]
    if isinstance(feature, DenseFeature):
        return Example(array_dtype(feature.dtype), feature.shape)
    dim = manifest.dim_of(feature)
    return Example(np.dtype(np.float32), (dim,) if feature.length is None else (feature.length, dim))


def lay_out(examples: Mapping[str, Example], parts: Sequence[Part], context: Collection[str]) -> Layout:
    """Finds out where features lie.

    Args:
      examples: by feature that the parts take.
      parts: in the order in which they run.
      context: features that are looked up once for each context; if there are none, every part runs for candidates.
    """
    once = tuple(bool(context) and part.per == "context" for part in parts)
    candidates_first = sorted(zip(parts, once, strict=True), key=lambda pair: pair[1])
    frames = _frames(examples, [part for part, _ in candidates_first], context)
    places: dict[str, tuple[tuple[int, ...], int]] = {}
    for number, frame in enumerate(frames):
        starts = (0, *frame.ends[:-1])
        places.update({name: ((number,), start) for name, start in zip(frame.names, starts, strict=True)})
    filled = tuple(
        tuple(
            _filled(examples, taken, places, context, (part_number, number)) for number, taken in enumerate(part.inputs)
        )
        for part_number, part in enumerate(parts)
    )
    row_bytes = tuple(sum(one.width * one.dtype.itemsize for one in inputs) for inputs in filled)
    return Layout(frames, filled, once, row_bytes)


def _frames(examples: Mapping[str, Example], parts: Sequence[Part], context: Collection[str]) -> tuple[Frame, ...]:
    taken = [source for part in parts for each in part.inputs if not each.made for source in each.sources]
    by_dtype: dict[np.dtype[Any], list[str]] = {}
    for name in dict.fromkeys(taken):
        if name in context:
            by_dtype.setdefault(examples[name].dtype, []).append(name)
    return tuple(
        Frame(dtype, tuple(names), tuple(accumulate(examples[name].width for name in names)))
        for dtype, names in by_dtype.items()
    )


def _filled(
    examples: Mapping[str, Example],
    taken: Taken,
    places: dict[str, tuple[tuple[int, ...], int]],
    context: Collection[str],
    here: tuple[int, int],
) -> Filled:
    """Lays one input out; adds to `places` where the features lie that are looked up into it."""
    if taken.made:
        return Filled(taken.name, taken.dtype, taken.shape, 0, taken.sources[0])
    written: list[Written] = []
    repeated: list[Copied] = []
    shared: list[Copied] = []
    at = 0
    for name in taken.sources:
        start, at = at, at + examples[name].width
        if name in places:
            source, first = places[name]
            _append(repeated if name in context else shared, Copied(start, at, source, first))
            continue
        places[name] = here, start
        last = written[-1] if written and written[-1].stop == start else None
        if last is None:
            written.append(Written(start, at, (name,), (at - start,)))
        else:
            written[-1] = Written(last.start, at, (*last.names, name), (*last.ends, at - last.start))
    shape = taken.shape
    if -1 in shape:
        shape = examples[taken.sources[0]].shape if len(taken.sources) == 1 else (at,)
    return Filled(taken.name, taken.dtype, shape, at, "", tuple(written), tuple(repeated), tuple(shared))


def _append(copies: list[Copied], one: Copied) -> None:
    """Adds a copy, joined with the last one where it goes on."""
    last = copies[-1] if copies else None
    if last is not None:
        goes_on = last.first + last.stop - last.start == one.first
        if goes_on and (last.stop, last.source) == (one.start, one.source):
            one = Copied(last.start, one.stop, last.source, last.first)
            copies.pop()
    copies.append(one)
