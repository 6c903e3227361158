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

Positions = dict[str, tuple[tuple[int, ...], int]]
"""Where each feature is looked up: the array, as in Span.source, and the first column in it."""


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
      dtype: The dtype of all its columns.
      names: The features, in the order of their columns.
      ends: The column after each feature.
    """

    dtype: np.dtype[Any]
    names: tuple[str, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True)
class Span:
    """Columns `start` to `stop` of an input, which features are looked up into, or copied to.

    Attributes:
      start: The first column.
      stop: The column after the last one.
      names: The features, in the order of their columns.
      ends: The column after each feature, counted from `start`.
      source: The array that they are copied from: (number of a frame,), or (part, input) of
        candidates.
      first: The column of `source` that they begin with.
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
      name: The name of the input in the part's network.
      dtype: The dtype of the array.
      shape: The shape of one example.
      width: The number of columns.
      made: The output of an earlier part that the input is; then it has no columns.
      written: The columns that features are looked up into.
      repeated: The columns that are copied from frames.
      shared: The columns that are copied from other inputs of candidates.
      is_of_context: Whether it is one row for all candidates of a context.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    width: int = 0
    made: str = ""
    written: tuple[Span, ...] = ()
    repeated: tuple[Span, ...] = ()
    shared: tuple[Span, ...] = ()
    is_of_context: bool = False


@dataclass(frozen=True, eq=False)
class Layout:
    """Where all features of a plan lie.

    Attributes:
      frames: The frames of the features of contexts.
      parts: The inputs of each part.
      once: Whether each part runs once per context.
      row_bytes: The size of the inputs of each part for one example.
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
    shape: tuple[int, ...] = (manifest.dim_of(feature),)
    if feature.length is not None:
        shape = (feature.length, *shape)
    return Example(np.dtype(np.float32), shape)


def lay_out(
    examples: Mapping[str, Example], parts: Sequence[TowerPart], context: Collection[str]
) -> Layout:
    """Lays out the inputs of a tower's parts.

    Args:
      examples: The activation of one example, by feature that the parts take.
      parts: The parts of the tower, in the order in which they run.
      context: The features that are looked up once per context; if there are none, every part runs
        for candidates.
    """
    runs_per_context = tuple(bool(context) and part.per == "context" for part in parts)

    # The frames have the order of the parts of candidates, which repeat their columns: what lies
    # side by side in both is one copy.
    candidates_first = sorted(zip(runs_per_context, parts, strict=True), key=lambda pair: pair[0])
    frames = _frames(examples, [part for _, part in candidates_first], context)
    positions: Positions = {}
    for frame_number, frame in enumerate(frames):
        for name, start in zip(frame.names, (0, *frame.ends), strict=False):
            positions[name] = (frame_number,), start

    inputs_by_part: list[tuple[Input, ...]] = []
    row_bytes: list[int] = []
    for part_number, part in enumerate(parts):
        inputs = tuple(
            _input(examples, entry, positions, (part_number, input_number))
            for input_number, entry in enumerate(part.inputs)
        )
        inputs_by_part.append(inputs)
        row_bytes.append(
            sum(
                one_input.width * one_input.dtype.itemsize
                for one_input in inputs
                if not one_input.is_of_context
            )
        )
    return Layout(frames, tuple(inputs_by_part), runs_per_context, tuple(row_bytes))


def _frames(
    examples: Mapping[str, Example], parts: Sequence[TowerPart], context: Collection[str]
) -> tuple[Frame, ...]:
    by_dtype: dict[np.dtype[Any], list[str]] = {}
    sources: dict[str, None] = {}
    for part in parts:
        for entry in part.inputs:
            sources |= dict.fromkeys(entry.sources)
    for name in sources:
        if name in context:
            by_dtype.setdefault(examples[name].dtype, []).append(name)
    return tuple(
        Frame(dtype, tuple(names), tuple(accumulate(examples[name].width for name in names)))
        for dtype, names in by_dtype.items()
    )


def _follows(span: Span, source: tuple[int, ...], first: int) -> bool:
    """Returns whether a column of a source is the next one behind those of a span."""
    return source == span.source and first == span.first + span.ends[-1]


def _input(
    examples: Mapping[str, Example],
    entry: TowerInput,
    positions: Positions,
    here: tuple[int, int],
) -> Input:
    """Lays one input out.

    Args:
      examples: The activation of one example, by feature.
      entry: The manifest entry of the input.
      positions: Where features are looked up so far; gets those that are looked up into this input.
      here: The number of the part, and of the input among those of the part.
    """
    dtype = array_dtype(entry.dtype)
    shape = tuple(-1 if size is None else size for size in entry.shape[1:])
    if entry.tensor:
        return Input(entry.name, dtype, shape, made=entry.tensor, is_of_context=entry.is_of_context)
    spans = list[Span]()
    stop = 0
    for name in entry.sources:
        start = stop
        stop = stop + examples[name].width
        source, first = positions.setdefault(name, (here, start))
        span = Span(start, stop, (name,), (stop - start,), source, first)

        # Neighbors here that are neighbors in their source too are one copy.
        if spans and _follows(spans[-1], source, first):
            before = spans.pop()
            names = (*before.names, name)
            ends = (*before.ends, stop - before.start)
            span = Span(before.start, stop, names, ends, source, before.first)
        spans.append(span)

    # A shape that the manifest leaves open is that of the only feature, or of all side by side.
    if -1 in shape:
        shape = (stop,)
        if len(entry.sources) == 1:
            shape = examples[entry.sources[0]].shape

    written = tuple(span for span in spans if (span.source, span.first) == (here, span.start))
    # The source of a frame has one number.
    repeated = tuple(span for span in spans if len(span.source) == 1)
    shared = tuple(span for span in spans if span not in written + repeated)
    return Input(entry.name, dtype, shape, stop, "", written, repeated, shared, entry.is_of_context)
