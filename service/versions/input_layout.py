"""Where features lie in the input arrays of a tower's parts. Pure: manifest entries in, columns
out.

The features of contexts lie side by side in a frame, in the order in which parts of candidates take
them, so that a few copies of columns repeat them for every candidate. Those of candidates are
looked up straight into the input of the first part that takes them, and copied from there to
others.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from bundle.format.fields import array_dtype
from bundle.format.manifest import DenseFeature, Manifest, TowerInput, TowerPart


class Example(NamedTuple):
    """A feature's activation of one example."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """Its number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Frame:
    """Features of contexts side by side; there is one frame for each dtype.

    Attributes:
      ends: the column after each feature.
    """

    dtype: np.dtype[Any]
    names: tuple[str, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True)
class Span:
    """Columns `start` to `stop` of an input, which features are looked up into, or copied to.

    Attributes:
      ends: the column after each feature, counted from `start`.
      source: where they are copied from: (number of a frame,), or (part, input) of candidates.
      first: the column of `source` that they begin with.
    """

    start: int
    stop: int
    names: tuple[str, ...]
    ends: tuple[int, ...]
    source: tuple[int, ...]
    first: int


@dataclass(frozen=True)
class Input:
    """One input of a part.

    Attributes:
      shape: of one example.
      width: its columns.
      made: the earlier part's output that it is; then it has no columns.
      written: columns that features are looked up into.
      repeated: columns copied from frames.
      shared: columns copied from other inputs of candidates.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    width: int = 0
    made: str = ""
    written: tuple[Span, ...] = ()
    repeated: tuple[Span, ...] = ()
    shared: tuple[Span, ...] = ()


@dataclass(frozen=True, eq=False)
class Layout:
    """Where all features of a plan lie.

    Attributes:
      parts: the inputs of each part.
      once: by part, whether it runs once for each context.
      row_bytes: by part, the bytes of its inputs for one example.
    """

    frames: tuple[Frame, ...]
    parts: tuple[tuple[Input, ...], ...]
    once: tuple[bool, ...]
    row_bytes: tuple[int, ...]


def example_of(manifest: Manifest, name: str) -> Example:
    """Returns dtype and shape of a feature's activation of one example."""
    feature = manifest.features[name]
    if isinstance(feature, DenseFeature):
        return Example(array_dtype(feature.dtype), feature.shape)
    dim = manifest.dim_of(feature)
    return Example(
        np.dtype(np.float32), (dim,) if feature.length is None else (feature.length, dim)
    )


def lay_out(
    examples: Mapping[str, Example], parts: Sequence[TowerPart], context: Collection[str]
) -> Layout:
    """Lays out the inputs of a tower's parts.

    Args:
      examples: by feature that the parts take.
      parts: in the order in which they run.
      context: features that are looked up once for each context; if there are none, every part runs
        for candidates.
    """
    once = tuple(bool(context) and part.per == "context" for part in parts)
    candidates_first = sorted(zip(once, parts, strict=True), key=lambda pair: pair[0])
    frames = _frames(examples, [part for _, part in candidates_first], context)
    places: dict[str, tuple[tuple[int, ...], int]] = {}
    for number, frame in enumerate(frames):
        for name, start in zip(frame.names, (0, *frame.ends), strict=False):
            places[name] = (number,), start
    inputs = tuple(
        tuple(
            _input(examples, one, places, (number, which)) for which, one in enumerate(part.inputs)
        )
        for number, part in enumerate(parts)
    )
    row_bytes = tuple(sum(one.width * one.dtype.itemsize for one in each) for each in inputs)
    return Layout(frames, inputs, once, row_bytes)


def _frames(
    examples: Mapping[str, Example], parts: Sequence[TowerPart], context: Collection[str]
) -> tuple[Frame, ...]:
    by_dtype: dict[np.dtype[Any], list[str]] = {}
    for name in dict.fromkeys(
        source for part in parts for each in part.inputs for source in each.sources
    ):
        if name in context:
            by_dtype.setdefault(examples[name].dtype, []).append(name)
    return tuple(
        Frame(dtype, tuple(names), tuple(accumulate(examples[name].width for name in names)))
        for dtype, names in by_dtype.items()
    )


def _input(
    examples: Mapping[str, Example],
    entry: TowerInput,
    places: dict[str, tuple[tuple[int, ...], int]],
    here: tuple[int, int],
) -> Input:
    """Lays one input out; adds the features that are looked up into it to `places`."""
    dtype = array_dtype(entry.dtype)
    shape = tuple(-1 if size is None else size for size in entry.shape[1:])
    if entry.tensor:
        return Input(entry.name, dtype, shape, made=entry.tensor)
    spans = list[Span]()
    stop = 0
    for name in entry.sources:
        start = stop
        stop = stop + examples[name].width
        source, first = places.setdefault(name, (here, start))
        last = spans[-1] if spans else None
        if last is not None and (source, first) == (last.source, last.first + last.ends[-1]):
            names = (*last.names, name)
            ends = (*last.ends, stop - last.start)
            spans[-1] = Span(last.start, stop, names, ends, source, last.first)
        else:
            spans.append(Span(start, stop, (name,), (stop - start,), source, first))
    if -1 in shape:
        shape = examples[entry.sources[0]].shape if len(entry.sources) == 1 else (stop,)
    written = tuple(each for each in spans if (each.source, each.first) == (here, each.start))
    repeated = tuple(each for each in spans if len(each.source) == 1)
    shared = tuple(each for each in spans if each not in written + repeated)
    return Input(entry.name, dtype, shape, stop, "", written, repeated, shared)
