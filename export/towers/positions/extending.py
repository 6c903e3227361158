"""Extends what a part has computed of a history by the events behind it, at their cost alone.

Masks let no event see a later one in a causal model. So the keys and values of the first events of
a history stay as they are when others follow, and a service may store them between requests. Which
outputs hold a value for each event is found by changing the last ones; whether the others stay is
tried on histories of several lengths, and verified with the trained weights in every form
(export/verify/extensions.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format import manifest
from bundle.format.towers import BEGIN, TowerExtension, Window
from export.bounds import ABSOLUTE, RELATIVE
from export.graphs.functions import fill, narrowed, type_of
from export.graphs.internals import run_flat
from export.graphs.loading import tf
from export.raised_errors import failure
from export.towers.data_flow import CANDIDATE, CONTEXT, DataFlow, graph_cost, random_values
from export.towers.parts import TracedPart
from export.towers.positions.probing import probe
from export.towers.positions.windows import Stored, Windows
from export.towers.rewriting import GraphRewriter
from runtime.extended_states import extended_state

_EVENTS = 8
"""The number of events that are computed at once."""
_POSITIONS_MIN = 4 * _EVENTS
"""The number of events of a history from which on it is worth to store what it computes."""
_COST_MAX = 0.5
"""The largest ratio of the multiply-adds of the extension to those of the part."""


@dataclass(frozen=True)
class TracedExtension:
    """How a part is extended.

    Attributes:
      of: The name of the part that is extended.
      part: What computes further events.
      sequences: The names of the inputs of the part that are sequences.
      positions: The number of their positions.
      windows: Where the values of events lie in the outputs of the part that hold such.
      events: The number of events that are computed at once.
    """

    of: str
    part: TracedPart
    sequences: tuple[str, ...]
    positions: int
    windows: Mapping[str, Window]
    events: int = _EVENTS

    def entry(self, part: manifest.TowerPart) -> TowerExtension:
        """Returns the entry in the manifest; `part`: that of the part, with its forms."""
        return TowerExtension(
            of=self.of,
            part=part,
            events=self.events,
            sequences=self.sequences,
            positions=self.positions,
            windows=dict(self.windows),
        )


def extension_of(
    part: TracedPart, features: Mapping[str, manifest.Feature]
) -> tuple[TracedExtension | None, str]:
    """Returns how a part of contexts is extended by further events.

    Args:
      part: The part.
      features: The features of the manifest.

    Returns:
      The extension, or None, and then why there is none, a clause; "": the part reads no history
      that is padded at its end.
    """
    lengths = {}
    for spec in part.spec.inputs:
        feature = features.get(spec.feature)
        length = feature and feature.input_length
        is_history = length and length.pad is not None and length.pad_side == "end"
        if length and is_history and spec.shape[1:2] == (length.values,):
            lengths[spec.name] = length.values
    positions = max(lengths.values(), default=0)
    if positions < _POSITIONS_MIN:
        return None, ""
    sequences = tuple([name for name, length in lengths.items() if length == positions])
    fill(part.variables)
    try:
        return _extension(part, sequences, positions)
    except Exception as problem:  # noqa: BLE001 - operations raise many types of errors
        return None, failure(problem, "it could not run on synthetic examples")


def _extension(
    part: TracedPart, sequences: tuple[str, ...], positions: int
) -> tuple[TracedExtension | None, str]:
    found = _windows_of(part, sequences, positions)
    windows = {name: window for name, window in found.items() if window is not None}
    if not windows:
        return None, "nothing that it computes has a value for each event that later ones leave"
    extended = _extended(part, sequences, positions, windows, [*found])
    if extended.cost > _COST_MAX * part.cost:
        return None, (
            f"{_EVENTS} further events would cost {extended.cost} multiply-adds, and the whole "
            f"history costs {part.cost}"
        )
    extension = TracedExtension(part.spec.name, extended, sequences, positions, windows)
    problem = _difference(part, extension)
    if problem:
        return None, problem
    return extension, ""


def _extended(
    part: TracedPart,
    sequences: Sequence[str],
    positions: int,
    windows: Mapping[str, Window],
    wanted: Sequence[str],
) -> TracedPart:
    """Returns the part that computes further events.

    Args:
      part: The part that is extended.
      sequences: The names of its inputs that are sequences.
      positions: The number of their positions.
      windows: Where outputs have the values of events.
      wanted: The names of the outputs that depend on events.
    """
    rewriting = GraphRewriter(part)
    found = probe(DataFlow(rewriting.tower, {spec.name: CONTEXT for spec in part.spec.inputs}))
    with rewriting.graph.as_default():
        inputs = {}
        for spec, tensor in zip(part.spec.inputs, rewriting.inputs, strict=True):
            inputs[spec.name] = _row_like(tensor)
            rewriting.put(tensor, inputs[spec.name])
        begin = tf.compat.v1.placeholder(tf.int32, [1])
        stored = {name: _row_like(rewriting.outputs[name]) for name in windows}
        computed = Windows(
            found,
            begin,
            positions,
            _EVENTS,
            [inputs[name] for name in sequences],
            {
                rewriting.outputs[name].name: Stored(stored[name], window.axis, window.offset)
                for name, window in windows.items()
            },
        )
        results = {}
        for name in wanted:
            tensor = rewriting.outputs[name]
            if name in windows:
                results[name] = computed.of(tensor, windows[name].axis, windows[name].offset)
            else:
                results[name] = computed.whole(tensor)
    feeds = [*inputs.values(), *stored.values(), begin]
    function, variables = narrowed(part.spec.name, rewriting.tower.function, feeds, results)
    specs = [spec.model_copy(update={"shape": (1, *spec.shape[1:])}) for spec in part.spec.inputs]
    specs += [
        manifest.TowerInput(name=name, tensor=name, **type_of(tensor))
        for name, tensor in {**stored, BEGIN: begin}.items()
    ]
    outputs = tuple(
        manifest.TowerOutput(name=name, **type_of(tensor)) for name, tensor in results.items()
    )
    entry = manifest.TowerPart(
        name=f"{part.spec.name}-events",
        per="events",
        inputs=tuple(specs),
        outputs=outputs,
        forms=(),
    )
    return TracedPart(entry, function, variables, graph_cost(function.graph).products)


def _row_like(tensor: Any) -> Any:
    """Returns a placeholder of the same type and shape for one example."""
    return tf.compat.v1.placeholder(tensor.dtype, [1, *tensor.shape[1:]])


def _windows_of(
    part: TracedPart, sequences: Sequence[str], positions: int
) -> dict[str, Window | None]:
    """Returns where the outputs that depend on sequences have the values of events; None: such an
    output depends on all of them.
    """
    feeds = part.function.graph.inputs[: len(part.spec.inputs)]
    values = [
        _values(spec.name in sequences, tensor, seed)
        for seed, (spec, tensor) in enumerate(zip(part.spec.inputs, feeds, strict=False))
    ]
    before = _run(part.function, values)
    # Numbers that say which positions are padding depend on sequences, and stay when other events
    # take the place of some.
    per = {spec.name: CANDIDATE if spec.name in sequences else CONTEXT for spec in part.spec.inputs}
    flow = DataFlow(part, per)
    found: dict[str, list[Window | None]] = {
        name: [] for name, tensor in flow.outputs.items() if flow.per(tensor) & CANDIDATE
    }
    for first in (positions // 3, positions // 2):
        changed = [
            _changed(array, first, seed) if spec.name in sequences else array
            for seed, (spec, array) in enumerate(zip(part.spec.inputs, values, strict=True))
        ]
        for name, array in _run(part.function, changed).items():
            is_changed = ~np.isclose(
                array, before[name], rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True
            )
            if name in found and is_changed.any():
                found[name].append(_window(is_changed, first, positions))
    return {
        name: windows[0] if windows and windows.count(windows[0]) == len(windows) else None
        for name, windows in found.items()
    }


def _values(is_sequence: bool, tensor: Any, seed: int) -> NDArray[Any]:
    """Returns values of one example for an input; a sequence has events at all positions."""
    values = random_values(tensor, seed, 1)
    if is_sequence and values.dtype.kind != "f":
        # 0 is mostly padding. A position that sees nothing but padding sees all of it.
        values[...] = "1" if values.dtype.kind == "O" else 1
    return values


def _window(is_changed: NDArray[np.bool_], first: int, positions: int) -> Window | None:
    """Returns where an output has the values of events, of which all from `first` on have changed;
    None: no axis shows it.
    """
    for axis in range(1, is_changed.ndim):
        others = tuple(other for other in range(is_changed.ndim) if other != axis)
        offset = int(is_changed.any(axis=others).argmax()) - first
        if 0 <= offset <= is_changed.shape[axis] - positions:
            return Window(axis=axis, offset=offset)
    return None


def _changed(values: NDArray[Any], first: int, seed: int) -> NDArray[Any]:
    """Returns a sequence with other events from a position on."""
    changed = values.copy()
    tail = changed[:, first:]
    if values.dtype.kind == "f":
        tail += np.random.default_rng(seed).standard_normal(tail.shape).astype(values.dtype)
    elif values.dtype.kind == "O":
        tail[...] = np.where(tail == "0", "1", "0")
    else:
        tail[...] = 1 - tail
    return changed


def _difference(part: TracedPart, extension: TracedExtension) -> str:
    """Returns how extended states differ from those that are computed anew, a clause; "": they do
    not.
    """
    entry = extension.entry(extension.part.spec)
    names = [spec.name for spec in extension.part.spec.inputs]
    feeds = part.function.graph.inputs[: len(part.spec.inputs)]
    positions = extension.positions

    def run(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return _run(extension.part.function, [arrays[name] for name in names])

    def history(events: int) -> dict[str, NDArray[Any]]:
        values = {}
        for seed, (spec, tensor) in enumerate(zip(part.spec.inputs, feeds, strict=False)):
            array = _values(spec.name in extension.sequences, tensor, seed)
            if spec.name in extension.sequences:
                array[:, events:] = "" if array.dtype.kind == "O" else 0
            values[spec.name] = array
        return values

    for first, end in (
        (1, 3),
        (positions // 2, positions // 2 + _EVENTS + 1),
        (positions - 2, positions),
    ):
        inputs = history(end)
        state = _run(part.function, [*history(first).values()])
        results = extended_state(entry, run, inputs, state, first, end)
        for name, expected in _run(part.function, [*inputs.values()]).items():
            seen: tuple[slice, ...] = ()
            window = extension.windows.get(name)
            if window is not None:
                seen = (slice(None),) * window.axis + (slice(0, window.offset + end),)
            limit = ABSOLUTE + RELATIVE * np.abs(np.nan_to_num(expected)).max(initial=0.0)
            if not np.allclose(
                results[name][seen], expected[seen], rtol=0, atol=limit, equal_nan=True
            ):
                return "earlier events see later ones"
    return ""


def _run(function: Any, arrays: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    results = run_flat(function, [tf.constant(array) for array in arrays])
    return {name: tensor.numpy() for name, tensor in results.items()}
