"""Extends what a part of a tower has computed of a context by further events of its history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.towers import BEGIN, TowerExtension

Array = NDArray[Any]


def extended_state(
    extension: TowerExtension,
    run: Callable[[dict[str, Array]], Mapping[str, Array]],
    inputs: Mapping[str, Array],
    state: Mapping[str, Array],
    first: int,
    end: int,
) -> dict[str, Array]:
    """Returns the outputs of the part of a context for its whole history.

    Args:
      extension: The entry in the manifest.
      run: Runs the part of the extension: inputs by name -> outputs by name.
      inputs: [1, ...] the inputs of the part of the context, by name, of the whole history.
      state: [1, ...] its outputs by name, of a history with the same events before `first`.
      first: The position of the first event that is not in the state.
      end: The position behind the last event. Nothing reads what is computed of positions from
        there on, which are padding.
    """
    outputs = {
        name: array.copy() if name in extension.windows else array for name, array in state.items()
    }
    # Also for a history that only lost events: what is computed of all of them changes.
    for begin in range(first, max(end, first + 1), extension.events):
        # The last window ends with the last position, and may compute events once more.
        begins_at = min(begin, extension.positions - extension.events)
        stored = {name: outputs[name] for name in extension.windows}
        results = run({**inputs, **stored, BEGIN: np.array([begins_at], np.int32)})
        for name, values in results.items():
            window = extension.windows.get(name)
            if window is None:
                outputs[name] = values
            else:
                start = begins_at + window.offset
                places = (slice(None),) * window.axis + (slice(start, start + extension.events),)
                outputs[name][places] = values
    return outputs
