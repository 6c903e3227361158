"""States of histories that are extended by further events: whoever ranks with them gets the scores
of the whole history.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.input_lengths import InputLength
from bundle.format.manifest import DenseFeature
from export.graphs.internals import run_flat
from export.graphs.loading import load_tensorflow, tf
from export.towers.division import split_tower
from export.towers.positions.extending import TracedExtension, extension_of
from runtime.extended_states import extended_state
from tests.units.export.partition.graph.traced_calls import numbers, tower_of, trace
from tests.units.export.ranking_parts import run, run_parts
from tests.units.export.towers.sequence_rankers import MASKS, WIDTH, Style, ranker

load_tensorflow()
EVENTS = 48
ROLES: dict[str, Any] = {"history": "context", "user": "context", "item": "candidate"}


def feature(length: InputLength | None) -> DenseFeature:
    return DenseFeature(kind="dense", role="context", shape=(EVENTS, WIDTH), input_length=length)


PADDED_AT_END = feature(InputLength(values=EVENTS, pad=0))


def parts_of(style: Style) -> tuple[Any, Any, Any]:
    """Returns a ranker, the part of its context, and the parts of its candidates."""
    shapes = {"history": (EVENTS, WIDTH), "user": (WIDTH,), "item": (WIDTH,)}
    if style.order != "user":
        del shapes["user"]
    tower = tower_of(
        trace(ranker(style), **{name: numbers(*shape) for name, shape in shapes.items()})
    )
    context, *others = split_tower(tower, ROLES).parts
    return tower, context, others


def run_extension(
    extension: TracedExtension,
    inputs: dict[str, NDArray[Any]],
    state: dict[str, NDArray[Any]],
    first: int,
    end: int,
) -> dict[str, NDArray[Any]]:
    names = [entry.name for entry in extension.part.spec.inputs]

    def run_once(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        results = run_flat(extension.part.function, [tf.constant(arrays[name]) for name in names])
        return {name: tensor.numpy() for name, tensor in results.items()}

    entry = extension.entry(extension.part.spec)
    return extended_state(entry, run_once, inputs, state, first, end)


@pytest.mark.parametrize("order", ["history", "user"])
@pytest.mark.parametrize("mask", MASKS)
def test_scores_behind_extended_histories_are_those_of_whole_ones(mask: str, order: str) -> None:
    style = Style(mask, order, events=EVENTS, is_rotated=mask == "chosen")
    tower, context, others = parts_of(style)
    extension, problem = extension_of(context, {"history": PADDED_AT_END})
    assert extension is not None, problem
    assert extension.part.cost < 0.3 * context.cost
    random = np.random.default_rng(8)
    events = random.standard_normal((1, EVENTS, WIDTH)).astype(np.float32)
    user = random.standard_normal((1, WIDTH)).astype(np.float32)
    item = random.standard_normal((1, WIDTH)).astype(np.float32)

    def history(count: int) -> dict[str, NDArray[Any]]:
        shown = events.copy()
        # Only padding that the model itself does not see may be anything.
        shown[:, count:] = 0
        values = {"history": shown, "user": user}
        return {spec.name: values[spec.feature] for spec in context.spec.inputs}

    def state_of(count: int) -> dict[str, NDArray[Any]]:
        return dict(run_parts([context], history(count), 1))

    count = 5
    state = {output.name: state_of(count)[output.name] for output in context.spec.outputs}
    # One event, none, several windows, to the last position; then some are lost, and others come.
    for first, end in ((5, 6), (6, 6), (6, 30), (30, EVENTS), (20, 20), (20, 23)):
        inputs = history(end)
        state = run_extension(extension, inputs, state, first, end)
        if mask != "padded" and end < EVENTS:
            continue  # its candidates see padding as events
        values = {"history": inputs["history"], "user": user, "item": item}
        expected = run(tower, values, 1)["score"]
        actual = run_parts(others, {**values, **state}, 1)["score"]
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "style",
    [
        Style("none", events=EVENTS),
        Style(order="candidate", events=EVENTS),
        Style(result="mean", events=EVENTS),
    ],
    ids=str,
)
def test_history_of_which_most_is_computed_anew_is_not_extended(style: Style) -> None:
    _, context, _ = parts_of(style)
    extension, problem = extension_of(context, {"history": PADDED_AT_END})
    assert extension is None
    assert "8 further events would cost" in problem


@pytest.mark.parametrize(
    "length",
    [
        None,
        InputLength(values=EVENTS),
        InputLength(values=EVENTS, pad=0, pad_side="start"),
    ],
    ids=["unknown", "fixed", "padded at the start"],
)
def test_history_without_padding_at_its_end_is_not_extended(length: InputLength | None) -> None:
    _, context, _ = parts_of(Style(events=EVENTS))
    assert extension_of(context, {"history": feature(length)}) == (None, "")
