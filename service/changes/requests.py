"""What a client requests to change: decoded, and not yet checked against a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.records import Action, Kind
from bundle.features.columns import Column

Ids = NDArray[Any]
"""[m] int64, or [m] object holding str."""


@dataclass(frozen=True)
class ChangeRequest:
    """A request to change rows of a table, candidates of a corpus, or contexts of a store.

    Attributes:
      kind: What is changed.
      action: What is done to it.
      target: The name of the table, the corpus or the store; "": the only one.
      ids: Of the m rows, candidates or contexts.
      feature: Of rows: the feature by whose rule ids become rows; "": the ids are rows.
      features: Of upserts: a column of m examples by input.
      attributes: [m] values by attribute, None where there is none.
      vectors: [m, dim] float32 by index; of rows by "".
      sequences: What the sender numbers the ids' states, [m]; None: it does not.
      expires_s: When candidates expire, [m] Unix seconds, NaN: never; None: none of them expires.
      stream: Where the change was read from; "": not from a stream.
      offset: The position in the stream behind the change.
      from_offset: The position in the stream before the change; None: the sender does not say.
    """

    kind: Kind
    action: Action
    ids: Ids
    target: str = ""
    feature: str = ""
    features: Mapping[str, Column] = field(default_factory=dict)
    attributes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    vectors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    sequences: NDArray[np.int64] | None = None
    expires_s: NDArray[np.float64] | None = None
    stream: str = ""
    offset: int = 0
    from_offset: int | None = None


@dataclass(frozen=True)
class ChangeResult:
    """What became of a request. It is on the disk, and the process that responds serves it.

    Attributes:
      model: The name of the model.
      version: The version that the change was checked against.
      sequence: Of the change in the log of the model; 0: nothing was changed.
      changed: How many ids were changed.
      outdated: Ids that were left alone: a state of theirs with this sequence or a later one was
        applied before. The first of them, if they are many.
      unknown: Ids to delete, or to give attributes to, that are not there; likewise.
      outdated_count: How many ids are outdated.
      unknown_count: How many ids are unknown.
      is_repeated: Whether the stream was applied up to the request's offset, or beyond its
        `from_offset`, before, so that all of the request was left alone.
      stream_offset: Up to which the stream of the request is applied; 0: the request is of none.
    """

    model: str
    version: int
    sequence: int
    changed: int
    outdated: tuple[int | str, ...] = ()
    unknown: tuple[int | str, ...] = ()
    outdated_count: int = 0
    unknown_count: int = 0
    is_repeated: bool = False
    stream_offset: int = 0


@dataclass(frozen=True)
class AppliedChanges:
    """What was changed of a model so far.

    Attributes:
      model: The name of the model.
      sequence: Of the last change in its log; 0: there is none.
      streams: By name of a stream, the offset behind what was applied of it.
    """

    model: str
    sequence: int
    streams: Mapping[str, int]
