"""The states of contexts: what the part of a tower that runs once for each context has computed of
a history, and how it is used for a history that begins with the same events.

A state holds the inputs that it was computed of. It is used if those of a request are the same,
value for value, up to the first event that differs, and extended from there on. Its key only finds
it: whoever has another history under the same key computes it anew.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.format.fields import array_dtype
from bundle.format.towers import (
    TowerExtension,
    TowerInput,
    TowerOutput,
    TowerPart,
    state_bytes,
)
from runtime.extended_states import extended_state
from runtime.tower import Tower
from service.context_states.store import ByteStore

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Outcome = Literal["found", "extended", "computed"]

_KEY_EVENTS = 8
"""The number of events by which a history is found."""
_EXTENDED_SHARE_MAX = 0.25
"""The largest share of the positions that are computed by an extension: all of them together cost
less than many of them a few at a time.
"""


class _State(NamedTuple):
    """A context, [1, ...] each.

    Attributes:
      inputs: The inputs of the part.
      outputs: What it has computed of them.
    """

    inputs: Arrays
    outputs: Arrays


@dataclass(frozen=True, eq=False)
class ContextStates:
    """The states of the contexts of one tower of one version.

    Attributes:
      stamp: What tells the tower and its version from all others.
      part: The entry of the part that runs once for each context.
      extension: The entry of what extends its states.
      network: What runs the extension.
      store: Where the states are.
    """

    stamp: bytes
    part: TowerPart
    extension: TowerExtension
    network: Tower
    store: ByteStore

    @cached_property
    def state_bytes(self) -> int:
        """The size of a state; 0: it is not fixed."""
        return state_bytes(self.part) or 0

    @property
    def is_usable(self) -> bool:
        """Whether states have a fixed size for which the store has room."""
        return self.state_bytes > 0 and self.store.holds(self.state_bytes)

    def outputs(
        self, inputs: Arrays, counts: NDArray[np.int64], compute: Callable[[Arrays, int], Arrays]
    ) -> tuple[dict[str, Array], Counter[Outcome]]:
        """Returns [n, ...] the outputs of the part for n contexts, and how many were found,
        extended and computed.

        Args:
          inputs: [n, ...] the inputs of the part.
          counts: [n] the numbers of events of their histories.
          compute: Runs the part: inputs of m contexts, m -> their outputs.
        """
        outcomes: Counter[Outcome] = Counter()
        states: dict[int, Arrays] = {}
        keys = []
        to_keep = []
        for row, count in enumerate(counts.tolist()):
            one = {name: array[row : row + 1] for name, array in inputs.items()}
            keys.append(self._key(one))
            outcome, state = self._known(keys[row], one, count)
            outcomes[outcome] += 1
            if outcome != "found":
                to_keep.append(row)
            if outcome != "computed":
                states[row] = state
        missing = [row for row in range(counts.size) if row not in states]
        if missing:
            computed = compute(
                {name: array[missing] for name, array in inputs.items()}, len(missing)
            )
            for position, row in enumerate(missing):
                one_row = slice(position, position + 1)
                states[row] = {name: array[one_row] for name, array in computed.items()}
        for row in to_keep:
            arrays = [array[row : row + 1] for array in inputs.values()]
            arrays += [states[row][output.name] for output in self.part.outputs]
            self.store.keep(keys[row], [np.ascontiguousarray(array).tobytes() for array in arrays])
        joined = {
            output.name: np.concatenate([states[row][output.name] for row in range(counts.size)])
            for output in self.part.outputs
        }
        return joined, outcomes

    def _known(self, key: str, inputs: Arrays, count: int) -> tuple[Outcome, Arrays]:
        """Returns how the state of a context is found, and its outputs, which are to be computed
        where it is not.
        """
        state = self._find(key)
        if state is None:
            return "computed", {}
        first = self._first_new(state.inputs, inputs, count)
        if first is None:
            return "computed", {}
        if first == self.extension.positions:
            return "found", state.outputs
        run = self.network.run
        return "extended", extended_state(self.extension, run, inputs, state.outputs, first, count)

    def _key(self, inputs: Arrays) -> str:
        digest = hashlib.blake2b(self.stamp, digest_size=16)
        for name, array in inputs.items():
            read = array
            if name in self.extension.sequences:
                read = array[:, :_KEY_EVENTS]
            digest.update(np.ascontiguousarray(read).tobytes())
        return digest.hexdigest()

    def _find(self, key: str) -> _State | None:
        content = self.store.find(key, self.state_bytes)
        if content is None:
            return None
        names = []
        arrays = []
        begin = 0
        entries: tuple[TowerInput | TowerOutput, ...] = (*self.part.inputs, *self.part.outputs)
        for entry in entries:
            sizes = [size or 0 for size in entry.shape[1:]]
            values = np.frombuffer(content, array_dtype(entry.dtype), math.prod(sizes), begin)
            names.append(entry.name)
            arrays.append(values.reshape(1, *sizes))
            begin += values.nbytes
        # An input and an output may have a name in common.
        count = len(self.part.inputs)
        return _State(
            dict(zip(names[:count], arrays[:count], strict=True)),
            dict(zip(names[count:], arrays[count:], strict=True)),
        )

    def _first_new(self, known: Arrays, inputs: Arrays, count: int) -> int | None:
        """Returns the first position at which a history differs from a known one, the number of
        positions if none does; None: what is known is of no use for it.

        Args:
          known: The inputs of the known history.
          inputs: Those of the history.
          count: The number of its events.
        """
        positions = self.extension.positions
        first = positions
        for name, array in inputs.items():
            # Bits are compared: -0.0 is not 0.0 for a tower, and NaN is what it was.
            differs = known[name].view(np.uint8) != array.view(np.uint8)
            if name not in self.extension.sequences:
                if differs.any():
                    return None
                continue
            (places,) = differs.reshape(positions, -1).any(axis=1).nonzero()
            if places.size:
                first = min(first, int(places[0]))
        if first == positions:
            return first
        is_worth_it = count - first <= _EXTENDED_SHARE_MAX * positions
        return first if first > 0 and is_worth_it else None
