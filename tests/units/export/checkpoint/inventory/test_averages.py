"""Moving averages that the object graph ties to their variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory.averages import find_averages
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.units.export.checkpoint.tensor_bundles import (
    GRAPH,
    SUFFIX,
    node,
    object_graph,
    write_bundle,
)

TABLE = np.zeros((8, 3), np.float32)


def averages(
    directory: Path, slots: list[tuple[str, str, str]], variables: dict[str, Any]
) -> dict[str, str]:
    """Returns the averages of a checkpoint whose optimizer has slot variables (of, name, key)."""
    names = [*variables, "gone"]
    positions = {name: number for number, name in enumerate(names, 2)}
    graph = object_graph(
        node({"optimizer": 1, **positions}),
        node(slots=[(positions[owner], slot, positions[key]) for owner, slot, key in slots]),
        *(node(key=name + SUFFIX) for name in names),
    )
    contents = {name + SUFFIX: values for name, values in variables.items()}
    write_bundle(directory / "c", contents | {GRAPH: graph})
    actual = find_averages(open_checkpoint(directory))
    return {owner.removesuffix(SUFFIX): key.removesuffix(SUFFIX) for owner, key in actual.items()}


def test_averages_are_found_by_their_variables(tmp_path: Path) -> None:
    slots = [("a", "average", "x"), ("b", "average", "y"), ("a", "m", "z"), ("a", "average", "x")]
    variables = {"a": TABLE, "b": TABLE[0], "x": TABLE, "y": TABLE[0], "z": TABLE}
    assert averages(tmp_path, slots, variables) == {"a": "x", "b": "y"}


def test_checkpoint_of_names_alone_has_no_averages(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"a": TABLE, "a/ExponentialMovingAverage": TABLE})
    assert find_averages(open_checkpoint(tmp_path)) == {}


@pytest.mark.parametrize("owner", [None, TABLE[:4], TABLE.astype(np.float64), TABLE[0]])
def test_average_of_no_variable_of_its_shape_and_dtype_is_an_error(
    tmp_path: Path, owner: Any
) -> None:
    variables = {"x": TABLE} if owner is None else {"a": owner, "x": TABLE}
    with pytest.raises(CheckpointError) as error:
        averages(tmp_path, [("gone" if owner is None else "a", "average", "x")], variables)
    assert str(error.value) == (
        f"checkpoint c: the moving average 'x{SUFFIX}' is not tied to one variable of its shape "
        "and dtype; give every layer its own name, or call the optimizer's "
        "finalize_variable_values(model.trainable_variables) before the model is saved, and leave "
        "checkpoint.averages out"
    )


def test_variable_with_two_averages_is_an_error(tmp_path: Path) -> None:
    slots = [("a", "average", "x"), ("a", "average", "y")]
    with pytest.raises(CheckpointError) as error:
        averages(tmp_path, slots, {"a": TABLE, "x": TABLE, "y": TABLE})
    assert str(error.value) == (
        f"checkpoint c: 'a{SUFFIX}' has two moving averages, 'x{SUFFIX}' and 'y{SUFFIX}'; save the "
        "model with one optimizer"
    )
