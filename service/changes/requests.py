"""What a client requests to change: decoded, and not yet checked against a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.records import STREAM_CHARACTERS_MAX, Action, Kind
from bundle.features.columns import Column
from service.errors import InvalidArgument

Ids = NDArray[Any]
"""[m] int64, or [m] object holding str."""


@dataclass(frozen=True)
class ChangeRequest:
    """A request to change rows of a table, candidates of a corpus, or contexts of a store.

    Attributes:
      kind: What is changed.
      action: What is done to it.
      target: The name of the table, the corpus or the store; "": the only one.
      ids: The ids of the m rows, candidates or contexts.
      feature: The feature by whose rule ids become rows, in a change of rows; "": the ids are rows.
      features: A column of m examples by input, in an upsert.
      attributes: [m] values by attribute, None where there is none.
      vectors: [m, dim] float32 by index; the vectors of rows by "".
      sequences: The sender's numbers of the ids' states, [m]; None: it has none.
      expires_s: The times when candidates expire, [m] Unix seconds, NaN: never; None: none of them
        expires.
      stream: The stream that the change was read from; "": it is from none.
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

    def __post_init__(self) -> None:
        """Checks the name of the stream, which the log keeps for ever.

        Raises:
          InvalidArgument: It is too long.
        """
        if len(self.stream) > STREAM_CHARACTERS_MAX:
            size = f"{len(self.stream)} characters"
            expected = f"a name of at most {STREAM_CHARACTERS_MAX} characters"
            raise InvalidArgument.of_field("stream", size, expected, "has")


@dataclass(frozen=True)
class ChangeResult:
    """The result of a request. The change is on the disk, and the process that responds serves it.

    Attributes:
      model: The name of the model.
      version: The version that the change was checked against.
      sequence: The sequence of the change in the log of the model; 0: nothing was changed.
      changed: The number of ids that were changed.
      outdated: The ids that were left alone, because their state of this sequence or a later one
        was applied before. Only the first ones, if they are many.
      unknown: The ids to delete, or to give attributes to, that do not exist. Only the first
        ones, if they are many.
      outdated_count: The number of outdated ids.
      unknown_count: The number of unknown ids.
      is_repeated: Whether the stream was applied up to the request's offset, or beyond its
        `from_offset`, before, so that all of the request was left alone.
      stream_offset: The offset up to which the stream of the request is applied; 0: the request is
        of none.
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
    """The changes of a model so far.

    Attributes:
      model: The name of the model.
      sequence: The sequence of the last change in its log; 0: there is none.
      streams: The offset behind the last change of each stream that was applied.
    """

    model: str
    sequence: int
    streams: Mapping[str, int]
